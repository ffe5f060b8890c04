"""What the host of a training step takes: dispatches, copies of activations, and an update on its cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neusight.distributed.chunks import Chunks
from neusight.distributed.passes import RankPasses
from neusight.distributed.training_run import TrainingRun
from neusight.executors.costs import binding_share
from neusight.kernels.precision import stored_bytes
from neusight.laws.routes import host_link
from neusight.workloads.program import Part

HOST_UPDATE_S = 0.25e-9
"""Of a parameter by Adam on all cores of a node [s]: 0.22 s of a billion, 2.57 s of ten (Ren et al. 2021, ZeRO-Offload,
table 4, on two Xeon 8168)."""
FOLLOWING = (("forward",), ("recompute", "backward", "weights"))
"""Passes that follow each other on a chunk."""


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Time of the host, or of copies, and of kernels in passes of each chunk [s], by name of the pass, shape (chunks,):
    that of all passes that follow each other. ``spread`` is the standard deviation of the logarithm of the host's.
    """

    host_s: Mapping[str, np.ndarray]
    kernels_s: Mapping[str, np.ndarray]
    spread: float

    def slowdown(self, name: str) -> np.ndarray:
        """What a pass of each chunk takes over the time of its kernels, at least 1."""
        host_s, kernels_s = self.host_s[name], self.kernels_s[name]
        share = np.divide(host_s, kernels_s, out=np.ones_like(kernels_s), where=kernels_s > 0.0)
        return np.maximum(1.0, share)

    def binds(self, name: str) -> np.ndarray:
        """Probability that the host decides how long a pass of each chunk takes."""
        return binding_share(self.host_s[name], self.kernels_s[name], np.asarray(self.spread))


def host_times(run: TrainingRun, chunks: Chunks, passes: RankPasses, seconds: Mapping[str, np.ndarray]) -> HostTimes:
    """Times of the host and of kernels of each chunk.

    Args:
        run: the question.
        chunks: of its pipeline.
        passes: of its segments.
        seconds: of each pass of each segment, and of what it computes again [s].
    """
    copied_s = _copied_s(run, chunks, passes)
    chosen = {"recompute": chunks.again}
    host, kernels = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for names in FOLLOWING:
        dispatches = [chunks.sums(passes.dispatched(name, run.engine), chosen.get(name)) for name in names]
        times_s = [chunks.sums(seconds[name], chosen.get(name)) for name in names]
        kernels |= dict.fromkeys(names, np.sum(times_s, axis=0))
        host |= dict.fromkeys(names, np.maximum(run.engine.dispatch_s(1.0) * np.sum(dispatches, axis=0), copied_s))
    return HostTimes(host_s=host, kernels_s=kernels, spread=run.engine.host_spread)


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
    held = np.array([max(map(_parameters, parts), default=0.0) for parts in updates])
    stepped = held[chunks.stage] / (plan.vp * plan.directions)
    copy_s = stepped * stored_bytes(run.dtype) / host_link(cluster.device).bandwidth_bytes_per_s
    ranks = min(cluster.per_node, cluster.devices)
    by_piece = np.repeat(copy_s[:, None] / chunks.pieces, chunks.pieces, axis=1)
    return {"optimizer": stepped * ranks * HOST_UPDATE_S, "to_host": by_piece, "to_device": copy_s}


def _parameters(part: Part) -> float:
    """Number of parameters that a kernel of an optimizer updates, 0 for others."""
    batch = part.batch
    return float(batch["elements"].max()) if batch.family in ("optimizer", "elementwise") else 0.0
