"""LoRA adapters of a served model: what they weigh by PEFT's count, and what their products add to a pass."""

from itertools import pairwise

import numpy as np
import pytest

from neusight import Predictor
from neusight.errors import ModelError
from neusight.serving import Deployment
from neusight.workloads.decoders.shares import AdapterSlots, Steps

MODEL = "meta-llama/Llama-3.1-8B"
GPU = "h100-sxm-80gb"
HIDDEN, FFN, KV, LAYERS = 4096, 14336, 1024, 32
SIDES = [(HIDDEN, HIDDEN), (HIDDEN, KV), (HIDDEN, KV), (HIDDEN, HIDDEN), (HIDDEN, FFN), (HIDDEN, FFN), (FFN, HIDDEN)]
"""Inputs and outputs of q, k, v, o, gate, up and down."""


def deployed(predictor: Predictor, adapters: str = "", **setup: int) -> Deployment:
    return predictor.deployment(MODEL, GPU, 2048, lora_adapters=adapters, **setup)


def test_adapters_weigh_what_their_matrices_do(predictor: Predictor) -> None:
    """r (inputs + outputs) of each adapted matrix, in 16 bits."""
    held = deployed(predictor, "4,rank=32").memory.weights - deployed(predictor).memory.weights
    assert held == 4 * 2 * 32 * LAYERS * sum(k + n for k, n in SIDES)


def test_ranks_share_the_wide_side_alone(predictor: Predictor) -> None:
    """Of q, k, v, gate and up all ranks have the input's matrix, of o and down the output's."""
    held = deployed(predictor, "2,rank=8", tp=2).memory.weights - deployed(predictor, tp=2).memory.weights
    by_columns = [side for side in SIDES if side not in ((HIDDEN, HIDDEN), (FFN, HIDDEN))] + [(HIDDEN, HIDDEN)]
    by_rows = [(HIDDEN, HIDDEN), (FFN, HIDDEN)]
    each = sum(k + n / 2 for k, n in by_columns) + sum(k / 2 + n for k, n in by_rows)
    assert held == 2 * 2 * 8 * LAYERS * each


def test_more_and_wider_adapters_take_longer(predictor: Predictor) -> None:
    steps = Steps.of(decodes=[1, 8, 64], decode_cached=1000)
    times = [deployed(predictor, text).replica.predict(steps).latency_s for text in ("", "1", "8", "8,rank=128")]
    for less, more in pairwise(times):
        assert (less <= more).all()
    assert (times[1] > times[0]).all()
    # One sequence uses one adapter, however many are held.
    assert times[2][0] == times[1][0]
    # Two small kernels beside each of four products: less than the products themselves.
    assert (times[1] < 2 * times[0]).all()


def test_their_products_are_beside_each_projection(predictor: Predictor) -> None:
    costs = deployed(predictor, "4").replica.predict(Steps.of(decodes=16, decode_cached=500))
    assert {"adapter in", "adapter out"} < set(costs.parts_s)
    assert not np.any(
        [part.startswith("adapter") for part in deployed(predictor).replica.predict(Steps.of(decodes=1)).parts_s]
    )


def test_adapters_are_read_and_refused() -> None:
    assert AdapterSlots.parse("4") == AdapterSlots(number=4, rank=16)
    assert AdapterSlots.parse(" 4 , rank = 8 ") == AdapterSlots(number=4, rank=8)
    for wrong in ("", "x", "4,8", "4,rank=x", "0", "4,rank=0", "-1"):
        with pytest.raises(ModelError, match=r"like 4,rank=16|give 1 or more"):
            AdapterSlots.parse(wrong)
