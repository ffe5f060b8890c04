"""What the host of a training step takes: dispatches, copies of activations, and an update on its cores."""

from __future__ import annotations

import numpy as np

from neusight.distributed.chunks import Chunks
from neusight.distributed.passes import RankPasses
from neusight.distributed.training_run import TrainingRun
from neusight.kernels.precision import stored_bytes
from neusight.laws.routes import host_link
from neusight.workloads.program import PHASES, Part, Phase

HOST_UPDATE_S = 0.25e-9
"""Of a parameter by Adam on all cores of a node [s]: 0.22 s of a billion, 2.57 s of ten (Ren et al. 2021, ZeRO-Offload,
table 4, on two Xeon 8168)."""
FOLLOWING: tuple[tuple[Phase, ...], ...] = (("forward",), ("backward", "weights"))
"""Phases that follow each other on a chunk."""


def host_shares(
    run: TrainingRun, chunks: Chunks, passes: RankPasses, seconds: dict[Phase, np.ndarray]
) -> dict[Phase, np.ndarray]:
    """Time of the host, or of copies, over that of kernels, of each chunk in phases that follow each other.

    Args:
        run: the question.
        chunks: of its pipeline.
        passes: of its segments.
        seconds: of each pass of each segment [s].
    """
    dispatch_s = {phase: run.engine.dispatch_s(1.0) * passes.dispatched(phase) for phase in PHASES}
    copied_s = _copied_s(run, chunks, passes)
    shares: dict[Phase, np.ndarray] = {}
    for phases in FOLLOWING:
        kernels_s, host_s = (
            chunks.sums(np.asarray(sum(of[phase] for phase in phases))) for of in (seconds, dispatch_s)
        )
        host_s = np.maximum(host_s, copied_s)
        share = np.divide(host_s, kernels_s, out=np.ones_like(kernels_s), where=kernels_s > 0.0)
        shares |= dict.fromkeys(phases, share)
    return shares


def _copied_s(run: TrainingRun, chunks: Chunks, passes: RankPasses) -> np.ndarray | float:
    """Seconds in which what layers of each chunk keep travels to the host, or back, where it is kept there."""
    if not run.engine.offloads_activations:
        return 0.0
    kept = [s.kept_bytes(run.plan.recompute) if s.layer >= 0 else 0.0 for s in passes.segments]
    return np.asarray(chunks.sums(np.array(kept)) / host_link(run.cluster.device).bandwidth_bytes_per_s)


def host_update(run: TrainingRun, chunks: Chunks, updates: list[list[Part]]) -> dict[str, np.ndarray]:
    """Seconds of an update on the cores of a node, which its ranks share, with gradients and weights on their ways over
    the link, by names of ``StepTimes``.

    Args:
        run: the question.
        chunks: of its pipeline.
        updates: kernels that would run on each stage.
    """
    plan, cluster = run.plan, run.cluster
    held = [max(map(_parameters, parts), default=0.0) / (plan.vp * plan.directions) for parts in updates]
    stepped = np.array(held)[chunks.stage]
    copy_s = stepped * stored_bytes(run.dtype) / host_link(cluster.device).bandwidth_bytes_per_s
    ranks = min(cluster.per_node, cluster.devices)
    by_piece = np.repeat(copy_s[:, None] / chunks.pieces, chunks.pieces, axis=1)
    return {"optimizer": stepped * ranks * HOST_UPDATE_S, "to_host": by_piece, "to_device": copy_s}


def _parameters(part: Part) -> float:
    """Number of parameters that a kernel of an optimizer updates, 0 for others."""
    batch = part.batch
    return float(batch["elements"].max()) if batch.family in ("optimizer", "elementwise") else 0.0
