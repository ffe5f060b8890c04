"""A training step as it runs: when it ends, what each rank waits for, and what the end depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.errors import ModelError
from neusight.schedule.graph import Graph
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.tasks import KINDS, STREAMS, graph_of
from neusight.schedule.times import StepTimes


@dataclass(frozen=True, kw_only=True)
class Run:
    """One step of one rank of each stage.

    Attributes:
        pipeline: the order.
        step_s: from the first pass to the end of the last update.
        busy_s: of each rank's kernels, shape (pp,).
        exposed_s: in which each rank's kernels wait for collectives, sends or copies, or are slowed by them.
        bubble_s: in which each rank waits for another one's kernels. Busy, exposed and bubble are the step.
        slopes: derivatives of ``step_s`` with each time; times and slopes multiply to ``step_s``.
        path_s: seconds of each part on the critical path, which are the step.
        graph: tasks.
        starts_s: of tasks.
        ends_s: of tasks.
        critical: of each task, how much later the step ends for a second that the task takes longer.
    """

    pipeline: Pipeline
    step_s: float
    busy_s: np.ndarray
    exposed_s: np.ndarray
    bubble_s: np.ndarray
    slopes: StepTimes
    path_s: dict[str, float]
    graph: Graph
    starts_s: np.ndarray
    ends_s: np.ndarray
    critical: np.ndarray

    @property
    def bubble(self) -> float:
        """Share of all ranks' time in which they wait for each other."""
        return float(self.bubble_s.mean() / self.step_s) if self.step_s else 0.0


def step_s(pipeline: Pipeline, times: StepTimes, contention: float = 0.0) -> float:
    """Duration of a step [s]; arguments and errors as for ``simulate``."""
    _check(contention)
    graph = graph_of(pipeline)
    return float(graph.ends_s(_seconds(graph, pipeline, times), contention).max())


def simulate(pipeline: Pipeline, times: StepTimes, contention: float = 0.0) -> Run:
    """A step, simulated.

    Sends do not wait for their receivers; a rank's collectives among replicas follow each other in one stream, and all
    replicas come to them at once.

    Args:
        pipeline: the order.
        times: of its parts.
        contention: share of a device's computing that collectives among replicas take while they run: the thread blocks
            of their kernels by the device's multiprocessors.

    Raises:
        ModelError: times of other shapes, a contention outside of [0, 1), or no such order.
    """
    _check(contention)
    graph = graph_of(pipeline)
    seconds = _seconds(graph, pipeline, times)
    ends = graph.ends_s(seconds, contention)
    critical = graph.slopes(seconds, ends, contention)
    slopes = _by_part(graph, pipeline, critical)
    return Run(
        pipeline=pipeline,
        step_s=float(ends.max()),
        **_shares_s(graph, pipeline.pp, seconds, ends),
        slopes=slopes,
        path_s=times.seconds_along(slopes),
        graph=graph,
        starts_s=ends[graph.after].max(axis=0),
        ends_s=ends[:-1],
        critical=critical,
    )


def _check(contention: float) -> None:
    if not 0.0 <= contention < 1.0:
        raise ModelError(
            f"contention {contention}: give the share of computing that collectives take, from 0 to below 1"
        )


def _places(graph: Graph) -> tuple[np.ndarray, ...]:
    """Indices of each task's time in ``StepTimes.by_task``: kind, stage, piece."""
    return tuple(graph.labels[name] for name in ("kind", "stage", "piece"))


def _seconds(graph: Graph, pipeline: Pipeline, times: StepTimes) -> np.ndarray:
    """Seconds of each task, shape (tasks,)."""
    return times.by_task(pipeline)[_places(graph)]


def _by_part(graph: Graph, pipeline: Pipeline, slopes: np.ndarray) -> StepTimes:
    table = np.zeros((len(KINDS), pipeline.stages, pipeline.pieces + 1))
    np.add.at(table, _places(graph), slopes)
    return StepTimes.slopes(table, pipeline)


def _shares_s(graph: Graph, pp: int, seconds: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """Seconds of a step that each rank's stream of kernels is busy, waits for communication, or is idle; each shape
    (pp,).
    """
    kernels = np.flatnonzero(graph.labels["stream"] == STREAMS.index("compute"))
    rank = graph.labels["rank"]
    is_send = np.char.startswith(np.array(KINDS), "send")[graph.labels["kind"]]
    busy = np.bincount(rank[kernels], np.where(is_send, 0.0, seconds)[kernels], pp)
    waits = np.bincount(rank[kernels], _waits_s(graph, kernels, is_send, seconds, ends), pp)
    idle = np.bincount(rank[kernels], _gaps_s(graph, kernels, ends), pp)
    longer = np.bincount(rank[kernels], ends[kernels] - ends[graph.after[:, kernels]].max(axis=0), pp) - busy
    end, last = _last_s(graph, pp, ends, kernels), _last_s(graph, pp, ends, np.flatnonzero(graph.labels["stream"] >= 0))
    exposed = longer + waits + (last - end)
    return {"busy_s": busy, "exposed_s": exposed, "bubble_s": idle - waits + ends.max() - last}


def _last_s(graph: Graph, pp: int, ends: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """When the last of some tasks ends on each rank."""
    last = np.zeros(pp)
    np.maximum.at(last, graph.labels["rank"][tasks], ends[tasks])
    return last


def _gaps_s(graph: Graph, kernels: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Before each of the tasks that follow each other in the ranks' first streams."""
    before = graph.after[:, kernels]
    return ends[before].max(axis=0) - ends[before[0]]


def _waits_s(
    graph: Graph, kernels: np.ndarray, is_send: np.ndarray, seconds: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Part of each gap before a kernel that collectives and copies of the rank, or a send on its way, account for
    [s].
    """
    before, other, local = graph.after[:, kernels]
    gaps = _gaps_s(graph, kernels, ends)
    local_s = np.clip(ends[local] - ends[before], 0.0, gaps)
    on_its_way = np.append(np.where(is_send, seconds, 0.0), 0.0)[other]
    return local_s + np.minimum(gaps - local_s, on_its_way)
