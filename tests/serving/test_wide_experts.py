"""Experts of many ranks: the fullest rank sets the pace, and copies of its experts even that out."""

from __future__ import annotations

from typing import Any

import pytest

from neusight import Predictor
from neusight.errors import CoverageError, LoadError, ModelError
from neusight.serving import Deployment
from neusight.serving.launch import launch_command
from neusight.workloads.decoders.shares import Steps

WIDE: dict[str, Any] = {"dp": 16, "ep": 16, "per_node": 16}
PASS = Steps.of(decodes=64, decode_cached=1024)


def deployed(predictor: Predictor, **options: Any) -> Deployment:
    return predictor.deployment("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", 2048, **WIDE, **options)


def pass_s(predictor: Predictor, **options: Any) -> float:
    return float(deployed(predictor, **options).replica.predict(PASS).latency_s[0])


def test_the_more_uneven_tokens_fall_the_longer_a_pass_and_copies_help(predictor: Predictor) -> None:
    even, usual, skewed = (
        pass_s(predictor, moe_routing=word) for word in ("balanced", "power_law_1.01", "power_law_1.5")
    )
    assert even < usual < skewed
    assert pass_s(predictor) == usual
    assert even <= pass_s(predictor, redundant_experts=32, moe_routing="power_law_1.5") < skewed


def test_copies_take_their_memory_and_stand_in_the_command(predictor: Predictor) -> None:
    """By the formula: of 16 ranks each holds one of 16 copies a layer, 3 x 7168 x 2048 weights of a byte."""
    before, after = deployed(predictor), deployed(predictor, redundant_experts=16)
    more = after.memory.terms["weights"] - before.memory.terms["weights"]
    assert more == pytest.approx(58 * 3 * 7168 * 2048, rel=0.01)
    assert "--enable-eplb" in launch_command(after)
    assert "num_redundant_experts" in launch_command(after)


def test_what_cannot_be_routed_is_refused(predictor: Predictor) -> None:
    with pytest.raises(LoadError, match="set ep"):
        predictor.deployment("deepseek-ai/DeepSeek-V3", "h200-sxm-141gb", 2048, redundant_experts=8)
    with pytest.raises(CoverageError, match="unknown distribution"):
        deployed(predictor, moe_routing="odd")
    with pytest.raises(ModelError, match="has no experts"):
        predictor.deployment("llama-3.1-8b", "l40s", 2048, moe_routing="balanced")
