"""The estimate of a traced step that several devices share: the rows of the rank with most to do, and its waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from neusight.distributed.estimate import relative_doubts, step_energy
from neusight.distributed.sources import source_of
from neusight.distributed.step import EXCHANGE, SEND, TimedStep
from neusight.estimates.build import kernel_rows, step_estimate, wait_row, warnings_of
from neusight.estimates.estimate import Estimate
from neusight.estimates.records import HOST as LIMITER
from neusight.estimates.records import KernelEstimate, MemoryEstimate, Provenance
from neusight.executors.costs import cause_of
from neusight.kernels.describe import describe
from neusight.kernels.families import KernelBatch
from neusight.laws.doubts import OWN, Doubts, common, weighed
from neusight.plans.memory import fullest
from neusight.schedule.run import Run
from neusight.schedule.timeline import HOST, Wait, composition_key, launch_interval_s, stream_errors_s
from neusight.workloads.workload import MemoryProfile, Workload

PHASES = {"forward": "forward", "backward": "backward", "weights": "backward", "step": "optimizer"}
"""Phases of an estimate's rows by those of parts."""


def shared_estimate(
    timed: TimedStep, workload: Workload, samples: int, devices: int, provenance: Provenance
) -> Estimate:
    """The step of all ranks.

    Args:
        timed: the step with its times.
        workload: what one rank runs of it for a micro-batch: the question, its inputs and warnings.
        samples: of a step, on all devices.
        devices: that share it.
        provenance: where the costs come from.
    """
    run, device = timed.schedule, timed.run.cluster.device
    rank = int(run.busy_s.argmax())
    rows = tuple(_rows(timed, rank, workload))
    waits = tuple(wait_row(wait) for wait in _waits(timed, run, rank, rows) if wait.latency_s > 0.0)
    every = (*rows, *waits)
    estimate = step_estimate(workload, device, samples, rows=every, memory=_memory(timed), provenance=provenance)
    energy = step_energy(timed, estimate.high_s / estimate.latency_s)
    return warnings_of(replace(estimate, devices=devices, board_energy=energy), workload.warnings)


def _rows(timed: TimedStep, rank: int, workload: Workload) -> Iterator[KernelEstimate]:
    """What the rank's kernels take, and collectives in their way, family by family."""
    runs = timed.runs_on(rank)
    mine = np.flatnonzero(runs)
    parts, runs = timed.parts.take(mine), runs[mine]
    composition = composition_key(workload.request, timed.run.engine, timed.run.cluster.device)
    launch_s = launch_interval_s(timed.run.engine, timed.run.cluster.device)
    for _, places, costs in parts.by_family():
        batch = KernelBatch.joined([part.batch for part in parts.parts[places]])
        own = zip(parts.parts[places], runs[places].tolist(), strict=True)
        yield from kernel_rows(
            batch,
            costs,
            stream_errors_s(costs, launch_s, composition),
            kernels=[describe(batch.kernel(at)) for at in range(len(batch))],
            labels=[(p.name, PHASES[p.phase], p.runs if p.phase == "step" else count, ()) for p, count in own],
        )


def _waits(timed: TimedStep, run: Run, rank: int, rows: tuple[KernelEstimate, ...]) -> Iterator[Wait]:
    """In which none of the rank's kernels runs: with the rows they are the step."""
    engine = timed.run.engine
    host = common(cause_of(timed.run.cluster.device, engine.name, HOST), engine.host_spread)
    yield _wait("dispatch of operators", LIMITER, float(run.busy_s[rank]) - sum(row.total_s for row in rows), host)
    exchanges = (timed.role == EXCHANGE) | (timed.role == SEND)
    links = relative_doubts(timed.parts, timed.parts.total_s, exchanges)
    yield _wait("exchanges that nothing hides", "link", float(run.exposed_s[rank]), links)
    stages = f"pipeline of {timed.run.plan.pp} stages"
    yield _wait(stages, "pipeline", float(run.bubble_s[rank]), _relative(rows))


def _wait(what: str, limiter: str, latency_s: float, doubts: Doubts) -> Wait:
    seconds = max(0.0, latency_s)
    errors_s = weighed([(seconds, doubts)])
    return Wait(what=what, limiter=limiter, latency_s=seconds, low_s=seconds, high_s=seconds, errors_s=errors_s)


def _relative(rows: tuple[KernelEstimate, ...]) -> Doubts:
    """Doubts that a rank's kernels and its waits for others have in common, as shares of what the rows take."""
    total_s = sum(row.total_s for row in rows)
    doubts = weighed((row.count / total_s, dict(row.errors_s)) for row in rows)
    return {key: size for key, size in doubts.items() if not key.startswith(OWN)}


def _memory(timed: TimedStep) -> MemoryEstimate:
    """Of the fullest rank; buffers of libraries and of collectives are kept beside the tensors."""
    ranks = source_of(timed.run).memory(timed.run, timed.stages)
    rank = fullest(ranks)
    terms = {name: int(rank.parts[name]) for name in ("weights", "gradients", "optimizer", "activations", "temporary")}
    memory = MemoryEstimate.of(MemoryProfile(**terms), timed.run.cluster.device)
    return replace(memory, reserve=memory.reserve + int(rank.total) - memory.peak_bytes)
