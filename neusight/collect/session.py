"""One collection from beginning to end: hand tasks to workers, keep what comes back, leave a data set behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from neusight.collect.store import Store
from neusight.collect.tasks import Outcome, Task
from neusight.collect.workers import Worker, WorkerLost
from neusight.errors import DeviceError, NeusightError

ATTEMPTS = 2
"""A task that has taken so many workers down with it is given up."""
RESTARTS = 20
"""A worker that was lost so often stays lost."""
TASK_LIMIT_S = 300.0
"""A kernel that takes longer hangs; a model may say that it needs longer."""
POLL_S = 5.0
"""How often hanging tasks are looked for."""

Progress = Callable[[int, int | None, float], None]
"""Called with (rows in the set, rows wanted or None, seconds left)."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a collection came to; ``lost_workers`` counts processes that had to be replaced."""

    folder: Path
    rows: int
    skipped: int
    new: int
    seconds: float
    lost_workers: int
    gpus: tuple[str, ...]


@dataclass
class _Desk:
    """A worker with what it is doing."""

    worker: Worker
    gpu: str = ""
    task: Task | None = None
    since: float = 0.0
    lost: int = 0


@dataclass
class _Round:
    """The state of one collection."""

    store: Store
    tasks: Iterator[Task]
    deadline: float
    wanted: int | None
    progress: Progress | None
    busy: dict[Future[Outcome], _Desk] = field(default_factory=dict)
    again: list[Task] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    new: int = 0
    lost: int = 0

    def next_task(self) -> Task | None:
        """One that is neither done nor in work; None when time or tasks are at an end."""
        if monotonic() >= self.deadline:
            return None
        if self.again:
            return self.again.pop()
        if self.wanted is not None and self.store.rows + len(self.busy) >= self.wanted:
            return None
        return next((t for t in self.tasks if t.sample not in self.store.done), None)

    def keep(self, outcome: Outcome) -> None:
        """One more row, or one more sample that has none."""
        self.store.add(outcome)
        self.new += 1
        if self.progress:
            self.progress(self.store.rows, self.wanted, max(0.0, self.deadline - monotonic()))


def collect(
    tasks: Callable[[str], Iterable[Task]],
    workers: Sequence[Worker],
    folder: Path,
    *,
    options: Mapping[str, Mapping[str, Any]],
    minutes: float,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure until the time is over or nothing is left, then write whole files; what is there already stays.

    Args:
        tasks: from the device file of the first worker (TOML) to what is to be measured, in order.
        workers: at least one; they are stopped at the end.
        folder: of the data set; an earlier collection with the same ``options`` is gone on with.
        options: by kind of measurement the options that decide the plan, for ``collection.json``.
        minutes: when to hand out no more.
        limit: rows and skipped samples in the set at which to stop.
        progress: called after every task.

    Raises:
        DataError: the folder is not to be used. DeviceError: no worker could begin, or all were lost.
        KeyboardInterrupt: after what has been measured is in its files.
    """
    began = monotonic()
    store = Store(folder, options)
    desks = [_Desk(worker) for worker in workers]
    try:
        answers = introduced(workers)
        for desk in desks:
            desk.gpu = answers[desk.worker]["gpu"]
        devices = write_devices(folder, answers.values())
        state = _Round(store, iter(tasks(devices[desks[0].gpu])), began + 60.0 * minutes, limit, progress)
        _measure(state, desks)
    finally:
        for desk in desks:
            desk.worker.stop()
        store.finish()
        store.close()
    skipped = store.counts.get("skipped", 0)
    return Report(
        folder=folder,
        rows=store.rows - skipped,
        skipped=skipped,
        new=state.new,
        seconds=monotonic() - began,
        lost_workers=state.lost,
        gpus=tuple(sorted(devices)),
    )


def introduced(workers: Iterable[Worker]) -> dict[Worker, dict[str, Any]]:
    """What every worker says of itself; each must be able to begin.

    Raises:
        DeviceError: one cannot.
    """
    answers = {}
    for worker, pending in [(worker, worker.introduce()) for worker in workers]:
        try:
            answers[worker] = pending.result(timeout=TASK_LIMIT_S)
        except WorkerLost as error:
            raise DeviceError(f"{worker.name} cannot begin ({error}): see whether PyTorch runs there") from error
    return answers


def write_devices(folder: Path, answers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Write the device files; what an earlier session wrote stays, since a plan depends on it.

    A draft holds what a short probe measured, which differs from run to run.

    Returns:
        The files' texts by id.
    """
    texts = {}
    for answer in answers:
        path = folder / "devices" / f"{answer['gpu']}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            path.write_text(answer["device"], encoding="utf-8")
        texts[answer["gpu"]] = path.read_text(encoding="utf-8")
    return texts


def _measure(state: _Round, desks: list[_Desk]) -> None:
    free = list(desks)
    while True:
        _hand_out(state, free)
        if not free and not state.busy:
            raise DeviceError("every worker was lost: what was measured is kept; run the same command again")
        if not state.busy:
            return
        done, _ = wait(state.busy, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            desk = state.busy.pop(future)
            _settle(state, desk, future)
            if desk.lost <= RESTARTS:
                free.append(desk)
        for desk in _hanging(state):
            desk.worker.stop()  # Its future then reports a lost worker.


def _hand_out(state: _Round, free: list[_Desk]) -> None:
    while free and (task := state.next_task()) is not None:
        desk = free.pop()
        desk.task, desk.since = task, monotonic()
        state.busy[desk.worker.submit(task)] = desk


def _settle(state: _Round, desk: _Desk, future: Future[Outcome]) -> None:
    """Keep the outcome; the task of a lost worker goes to another, and the worker is replaced."""
    task = desk.task
    assert task is not None
    desk.task = None
    try:
        state.keep(future.result())
    except WorkerLost as error:
        state.lost += 1
        desk.lost += 1
        _retry(state, desk, task, error)
        desk.worker.restart()


def _retry(state: _Round, desk: _Desk, task: Task, error: NeusightError) -> None:
    state.failures[task.sample] = state.failures.get(task.sample, 0) + 1
    if state.failures[task.sample] < ATTEMPTS:
        state.again.append(task)
        return
    row = {**task.describe(), "gpu": desk.gpu}
    reason = f"{ATTEMPTS} workers were lost with it: {error}"
    state.keep(Outcome(sample=task.sample, table=task.table, row=row, reason=reason))


def _hanging(state: _Round) -> list[_Desk]:
    now = monotonic()
    return [desk for desk in state.busy.values() if desk.task and now - desk.since > _limit_s(desk.task)]


def _limit_s(task: Task) -> float:
    return float(getattr(task, "limit_s", TASK_LIMIT_S))
