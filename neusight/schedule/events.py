"""``Events``: what each stream of each rank does in a simulated step, bubbles among it, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.schedule.graph import NOTHING
from neusight.schedule.run import Run
from neusight.schedule.tasks import KINDS, STREAMS

BUBBLE = "bubble"
_SHORTEST_S = 1e-9
"""Gaps that are shorter come from rounding."""
_COMPUTE = STREAMS.index("compute")


@dataclass(frozen=True, kw_only=True)
class Events:
    """Columns, sorted by rank, stream and start.

    Attributes:
        rank: of the pipeline.
        stream: place in ``STREAMS``.
        start_s: from the beginning of the step.
        end_s: as ``start_s``.
        what: one of ``KINDS``, or ``BUBBLE`` where a stream of kernels waits.
        stage: of the model, -1 of bubbles.
        piece: of the stage, -1 where it is all of them.
        micro_batch: -1 of what happens once in a step.
        chunk: of the rank, -1 of bubbles.
        phase: ``warm-up`` before a rank's first backward pass, ``steady``, ``cool-down`` after its last forward pass,
            and ``update`` from its optimizer on.
        critical: whether the step would be shorter were the event.
    """

    rank: np.ndarray
    stream: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    what: np.ndarray
    stage: np.ndarray
    piece: np.ndarray
    micro_batch: np.ndarray
    chunk: np.ndarray
    phase: np.ndarray
    critical: np.ndarray

    def __len__(self) -> int:
        return len(self.rank)


def events_of(run: Run) -> Events:
    """Tasks that take time, and the bubbles between them."""
    tasks, bubbles = _tasks(run), _bubbles(run)
    columns = {name: np.concatenate([tasks[name], bubbles[name]]) for name in tasks}
    order = np.lexsort((columns["start_s"], columns["stream"], columns["rank"]))
    columns = {name: column[order] for name, column in columns.items()}
    return Events(**columns, phase=_phases(run, columns))


def _tasks(run: Run) -> dict[str, np.ndarray]:
    labels = run.graph.labels
    shown = np.flatnonzero((labels["stream"] != NOTHING) & (run.ends_s > run.starts_s))
    of = {name: column[shown] for name, column in labels.items()}
    return {
        "rank": of["rank"],
        "stream": of["stream"],
        "start_s": run.starts_s[shown],
        "end_s": run.ends_s[shown],
        "what": np.array(KINDS)[of["kind"]],
        "stage": of["stage"],
        "piece": np.where(of["piece"] == run.pipeline.pieces, NOTHING, of["piece"]),
        "micro_batch": of["micro_batch"],
        "chunk": of["stage"] // run.pipeline.pp,
        "critical": run.critical[shown] > 0.0,
    }


def _bubbles(run: Run) -> dict[str, np.ndarray]:
    """Time between the tasks of streams of kernels, and after the last of them."""
    gaps = [_gaps(run, rank) for rank in range(run.pipeline.pp)]
    starts, ends = (np.concatenate(column) for column in zip(*gaps, strict=True))
    n = len(starts)
    nothing = np.full(n, NOTHING)
    return {
        "rank": np.repeat(np.arange(run.pipeline.pp), [len(starts) for starts, _ in gaps]),
        "stream": np.full(n, _COMPUTE),
        "start_s": starts,
        "end_s": ends,
        "what": np.full(n, BUBBLE),
        "stage": nothing,
        "piece": nothing,
        "micro_batch": nothing,
        "chunk": nothing,
        "critical": np.zeros(n, bool),
    }


def _gaps(run: Run, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the gaps in a rank's stream of kernels."""
    labels = run.graph.labels
    kernels = np.flatnonzero((labels["stream"] == _COMPUTE) & (labels["rank"] == rank))
    starts = np.append(0.0, run.ends_s[kernels])
    ends = np.append(run.starts_s[kernels], run.step_s)
    is_gap = ends - starts > _SHORTEST_S
    return starts[is_gap], ends[is_gap]


def _phases(run: Run, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Each rank's own."""
    is_of = {kind: columns["what"] == kind for kind in ("forward", "backward", "optimizer")}
    first, last, update = np.full((3, run.pipeline.pp), run.step_s)
    last[:] = 0.0
    rank, start_s = columns["rank"], columns["start_s"]
    np.minimum.at(first, rank[is_of["backward"]], start_s[is_of["backward"]])
    np.maximum.at(last, rank[is_of["forward"]], columns["end_s"][is_of["forward"]])
    np.minimum.at(update, rank[is_of["optimizer"]], start_s[is_of["optimizer"]])
    reached = [start_s >= update[rank], start_s < first[rank], start_s >= last[rank]]
    return np.select(reached, ["update", "warm-up", "cool-down"], "steady")
