"""Workload and plan to programs: what each device runs. One device that runs everything is the special case."""

from neusight.plans.program import TracedStep, single

__all__ = ["TracedStep", "single"]
