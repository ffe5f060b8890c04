"""Bytes of what a rank runs once a step."""

from __future__ import annotations

import pytest

from neusight.errors import ModelError
from neusight.kernels.work import work_of
from neusight.workloads.decoders.optimizer import NEWTON_SCHULZ, Update, optimizer_parts, orthogonalise
from neusight.workloads.program import HeldWeights

HELD, SHARD = 1 << 20, 1 << 18


def moved(updated: int = SHARD, held: int = HELD, **how: object) -> dict[str, float]:
    parts = optimizer_parts(updated, held, Update(**how), tensors=8)  # type: ignore[arg-type]
    assert all(part.phase == "step" and not part.group for part in parts)
    return {part.name: float(work_of(part.batch).bytes[0]) for part in parts}


def test_mixed_precision_reads_sixteen_and_writes_twelve_bytes_a_parameter() -> None:
    """Float32 weights, gradients and two moments (Rajbhandari et al. 2020, section 3.1); then 16-bit weights."""
    assert moved(clips=False) == {
        "step": (16 + 12) * SHARD,
        "weights to products": (4 + 2) * SHARD,
        "zero gradients": 4 * HELD,
    }


def test_clipping_reads_gradients_twice_and_writes_them_once() -> None:
    parts = moved()
    assert parts["norm of gradients"] == 4 * SHARD + 4 * 8
    assert parts["clip gradients"] == 8 * SHARD


def test_loss_scaling_takes_one_more_pass() -> None:
    assert moved(scales_loss=True).items() - moved().items() == {("unscale gradients", 8.0 * SHARD)}


def test_narrow_gradients_states_and_weights_move_less() -> None:
    narrow = moved(gradient_dtype="bfloat16", state_dtype="bfloat16", master_dtype="bfloat16", clips=False)
    assert narrow == {"step": (4 * 2 + 3 * 2) * SHARD, "zero gradients": 2 * HELD}
    assert moved(algorithm="sgd", clips=False)["step"] == (3 * 4 + 2 * 4) * SHARD


def test_weights_in_eight_bits_are_kept_twice() -> None:
    assert moved(products="fp8")["weights in few bits"] == (2 + 1 + 1) * HELD


def test_an_unknown_algorithm_is_told() -> None:
    with pytest.raises(ModelError, match="unknown optimizer 'adamm'; did you mean"):
        moved(algorithm="adamm")


def test_muon_multiplies_matrices_of_layers_with_themselves() -> None:
    """2 (2 m² n + m³) FLOP an iteration of a matrix of m x n, m the shorter; neither embeddings nor heads."""
    held = [HeldWeights(3 * 64 * 256, "experts", routed=True, shape=(256, 64)), HeldWeights(1 << 20)]
    held += [HeldWeights(1 << 20, "head", shape=(1 << 10, 1 << 10))]
    parts = orthogonalise(held, 1.0, "bfloat16")
    assert {part.runs for part in parts} == {NEWTON_SCHULZ}
    assert sum(float(work_of(part.batch).flops[0]) for part in parts) == 3 * 2 * (2 * 64**2 * 256 + 64**3)
