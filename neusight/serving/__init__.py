"""Engines under load: which requests come, what a scheduler runs together, and what each request gets of it."""

from neusight.serving.answer import Figure, Limiter, ServingEstimate, answer
from neusight.serving.deployment import Deployment, EngineOptions, Setup
from neusight.serving.engines import ServingEngine, engine_named
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
    "Deployment",
    "EngineOptions",
    "Figure",
    "Lengths",
    "Limiter",
    "Limits",
    "Load",
    "Offline",
    "Open",
    "Passes",
    "Replicas",
    "Requests",
    "Run",
    "Scheduler",
    "ServingEngine",
    "ServingEstimate",
    "Setup",
    "Spread",
    "Static",
    "StepTimes",
    "TabulatedSteps",
    "Trace",
    "answer",
    "engine_named",
    "read_trace",
    "replicate",
    "simulate",
    "tabulate",
]
