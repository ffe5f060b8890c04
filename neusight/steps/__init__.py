"""A step of any model on one device, or on those of a node: what is asked of it, its program, its estimate."""

from neusight.steps.questions import Setting, StepQuestion

__all__ = ["Setting", "StepQuestion"]
