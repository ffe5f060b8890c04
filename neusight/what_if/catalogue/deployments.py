"""Deployments: what a serving engine is started with."""

from __future__ import annotations

from neusight.what_if.questions import DeploymentQuestion
from neusight.what_if.transforms import transform


@transform("fp8-weights", group="quantisation", source="vLLM, FP8 W8A8", accuracy="about 1 % of a benchmark's score")
def fp8_weights(served: DeploymentQuestion) -> DeploymentQuestion:
    """Weights and activations of large products in float8."""
    return served.deployed(dtype="fp8")


@transform(
    "fp8-cache", group="quantisation", source="vLLM, kv_cache_dtype=fp8", accuracy="small with calibrated scales"
)
def fp8_cache(served: DeploymentQuestion) -> DeploymentQuestion:
    """Keys and values are kept in float8."""
    return served.deployed(kv_dtype="fp8")
