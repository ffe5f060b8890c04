"""Engines under load: which requests come, what a scheduler runs together, and what each request gets of it."""

from neusight.serving.limits import SCHEDULERS, SGLANG, TRTLLM, TRTLLM_MAX_UTILIZATION, VLLM, Limits, Scheduler
from neusight.serving.load import Closed, Lengths, Load, Offline, Open, Requests, Static, Trace
from neusight.serving.replicate import Replicas, replicate
from neusight.serving.run import Passes, Run, Spread
from neusight.serving.simulate import StepTimes, simulate
from neusight.serving.tables import TabulatedSteps, tabulate
from neusight.serving.traces import read_trace

__all__ = [
    "SCHEDULERS",
    "SGLANG",
    "TRTLLM",
    "TRTLLM_MAX_UTILIZATION",
    "VLLM",
    "Closed",
    "Lengths",
    "Limits",
    "Load",
    "Offline",
    "Open",
    "Passes",
    "Replicas",
    "Requests",
    "Run",
    "Scheduler",
    "Spread",
    "Static",
    "StepTimes",
    "TabulatedSteps",
    "Trace",
    "read_trace",
    "replicate",
    "simulate",
    "tabulate",
]
