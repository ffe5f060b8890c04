"""Engines under load: which requests come, what a scheduler runs together, and what each request gets of it.

Loads
    ``Static``, ``Closed``, ``Open``, ``Offline``, ``Trace``; ``Lengths`` draws tokens, ``read_trace(path) -> Trace``.
Answers
    ``Predictor.serving``, or ``serve(deployment, load) -> ServingEstimate``; ``frontier(deployment, isl, osl)``: with
    more and more clients; ``Demand(slo=Slo.named("ttft=1s"), ...)`` is what ``Predictor.cheapest`` takes. An answer's
    ``launch`` starts the engine with all limits that it assumed. ``figures`` draws frontiers and deployments.
Simulation
    ``simulate(load, limits, times) -> ServingRun``: with times of passes by anyone; ``StepTimePredictor``: those of
    this project, for other simulators.
"""

from neusight.engines.server import SCHEDULERS, SGLANG, TRTLLM, TRTLLM_MAX_UTILIZATION, VLLM, Scheduler
from neusight.serving.batching import PassTimes
from neusight.serving.deployment import Deployment
from neusight.serving.estimate import Limiter, Metric, ServingEstimate
from neusight.serving.limits import EngineLimits
from neusight.serving.load import Closed, Lengths, Load, Offline, Open, Requests, Static, Trace, read_trace
from neusight.serving.lookup import PassSizes, TabulatedPasses
from neusight.serving.planning import Choice, Demand, cheapest, closed, frontier, pareto_front
from neusight.serving.run import EnginePasses, ServingRun, Spread
from neusight.serving.serve import serve
from neusight.serving.setup import Setup
from neusight.serving.simulate import ROUTERS, Routing, simulate
from neusight.serving.slo import Slo
from neusight.serving.speculation import Speculation
from neusight.serving.step_time import StepTimePredictor

__all__ = [
    "ROUTERS", "SCHEDULERS", "SGLANG", "TRTLLM", "TRTLLM_MAX_UTILIZATION", "VLLM", "Choice", "Closed",
    "Demand", "Deployment", "EngineLimits", "EnginePasses", "Lengths", "Limiter", "Load", "Metric",
    "Offline", "Open", "PassSizes", "PassTimes", "Requests", "Routing", "Scheduler", "ServingEstimate", "ServingRun",
    "Setup", "Slo", "Speculation", "Spread", "Static", "StepTimePredictor", "TabulatedPasses", "Trace", "cheapest",
    "closed", "frontier", "pareto_front", "read_trace", "serve", "simulate",
]  # fmt: skip
