"""Engines under load: which requests come, what a scheduler runs together, and what each request gets of it.

Loads
    ``Static``, ``Closed``, ``Open``, ``Offline``, ``Trace``; ``Lengths`` draws tokens, ``read_trace(path) -> Trace``.
Answer
    ``Predictor.serving``, or ``answer(deployment, load) -> ServingEstimate``; ``frontier(deployment, isl, osl)``: with
    more and more clients; ``Demand(slo=Slo.named("ttft=1s"), ...)`` is what ``Predictor.cheapest`` is asked for.
Simulate
    ``simulate(load, limits, times) -> Run``: with times of passes by anyone; ``StepTimePredictor``: those of this
    project, for other simulators.
"""

from neusight.serving.answer import Figure, Limiter, ServingEstimate, answer
from neusight.serving.deployment import Deployment, EngineOptions, Setup
from neusight.serving.engines import ServingEngine, engine_named
from neusight.serving.frontier import best_trades, closed, frontier
from neusight.serving.limits import SCHEDULERS, SGLANG, TRTLLM, TRTLLM_MAX_UTILIZATION, VLLM, Limits, Scheduler
from neusight.serving.load import Closed, Lengths, Load, Offline, Open, Requests, Static, Trace
from neusight.serving.replicate import Replicas, replicate
from neusight.serving.run import Passes, Run, Spread
from neusight.serving.simulate import StepTimes, simulate
from neusight.serving.slo import Choice, Demand, Slo, cheapest
from neusight.serving.step_time import StepTimePredictor
from neusight.serving.tables import TabulatedSteps, tabulate
from neusight.serving.traces import read_trace

__all__ = [
    "SCHEDULERS",
    "SGLANG",
    "TRTLLM",
    "TRTLLM_MAX_UTILIZATION",
    "VLLM",
    "Choice",
    "Closed",
    "Demand",
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
    "Slo",
    "Spread",
    "Static",
    "StepTimePredictor",
    "StepTimes",
    "TabulatedSteps",
    "Trace",
    "answer",
    "best_trades",
    "cheapest",
    "closed",
    "engine_named",
    "frontier",
    "read_trace",
    "replicate",
    "simulate",
    "tabulate",
]
