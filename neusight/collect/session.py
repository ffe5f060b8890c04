"""One collection from beginning to end: hand tasks to workers, keep what comes back, leave a data set behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from time import monotonic
from typing import Any

import neusight
from neusight.collect.store import FAMILIES, Store, place_of, read_rows
from neusight.collect.tasks import Outcome, Task
from neusight.collect.workers import CollectionRequest, introduction, perform
from neusight.errors import DataError, DeviceError
from neusight.workers import ATTEMPTS, Worker, WorkerLost

RESTARTS = 20
"""A worker that was lost so often stays lost."""
TASK_LIMIT_S = 300.0
"""A kernel that takes longer hangs; a model may say that it needs longer."""

Progress = Callable[[int, int | None, float], None]
"""Called with (rows in the set, rows wanted or None, seconds left)."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a collection: ``rows`` in the folder, ``suspect`` ones among them and samples ``skipped``, ``new`` ones
    of both in this session; ``lost_workers`` counts processes that had to be replaced.
    """

    folder: Path
    rows: int
    suspect: int
    skipped: int
    new: int
    seconds: float
    lost_workers: int
    gpus: tuple[str, ...]


@dataclass
class Collection:
    """An open folder, what is measured into it, and how far it has come; one thread a worker shares it."""

    request: CollectionRequest
    store: Store
    tasks: Iterator[Task] = field(default_factory=lambda: iter(()))
    progress: Progress | None = None
    gpus: set[str] = field(default_factory=set)
    over: bool = False
    in_work: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.before = self.store.rows
        self.begin(())

    def begin(self, tasks: Iterable[Task]) -> None:
        """Start the clock, after the first task has been planned, which takes a while on a busy machine."""
        remaining = iter(tasks)
        self.tasks = chain(list(islice(remaining, 1)), remaining)
        self.began = monotonic()
        self.deadline = self.began + 60.0 * self.request.minutes

    def next_task(self) -> Task | None:
        """One that is neither done nor in work; None when time or tasks are at an end."""
        with self.lock:
            limit, task = self.request.limit, None
            if self.over or monotonic() >= self.deadline:
                return None
            if limit is None or self.store.rows + self.in_work < limit:
                task = next((t for t in self.tasks if t.sample not in self.store.done), None)
            self.in_work += task is not None
            return task

    def keep(self, outcome: Outcome) -> None:
        """One more row, or one more sample that has none."""
        with self.lock:
            self.in_work -= 1
            self.store.add(outcome)
            if self.progress:
                self.progress(self.store.rows, self.request.limit, max(0.0, self.deadline - monotonic()))

    def measure(self, worker: Worker, gpu: str) -> bool:
        """Task after task with one worker, until nothing is left; False when the worker is lost for good."""
        lost = 0
        while lost <= RESTARTS and (task := self.next_task()) is not None:
            try:
                self.keep(worker.run(getattr(task, "limit_s", TASK_LIMIT_S), perform, task))
            except WorkerLost as error:
                if self.over:
                    return True
                lost += 1
                self.lose(task, gpu, error)
                worker.restart()
        return lost <= RESTARTS

    def lose(self, task: Task, gpu: str, error: WorkerLost) -> None:
        """Count a lost worker; its task is the next once more, or is given up."""
        reason = f"{ATTEMPTS} workers were lost with it: {error}"
        with self.lock:
            self.losses[task.sample] += 1
            if self.losses[task.sample] < ATTEMPTS:
                self.in_work -= 1
                self.tasks = chain((task,), self.tasks)
                return
        self.keep(Outcome(sample=task.sample, table=task.table, row={**task.describe(), "gpu": gpu}, reason=reason))

    def report(self) -> Report:
        """Report of the folder's contents.

        Raises:
            DataError: there is no row.
        """
        folder = self.request.out
        rows = [row for table in self.store.tables() for row in read_rows(folder, table)]
        if not rows:
            reasons = [row["reason"] for row in read_rows(folder, "skipped")]
            why = f": {len(reasons)} samples were skipped, the first for {reasons[0]}" if reasons else ""
            raise DataError(f"nothing was measured{why}: give more --minutes, other --families or --dtypes")
        return Report(
            folder=folder,
            rows=len(rows),
            suspect=sum(bool(row.get("suspect")) for row in rows),
            skipped=list(self.store.done.values()).count("skipped"),
            new=self.store.rows - self.before,
            seconds=monotonic() - self.began,
            lost_workers=self.losses.total(),
            gpus=tuple(sorted(self.gpus)),
        )


@contextmanager
def opened(request: CollectionRequest, options: Mapping[str, Mapping[str, Any]]) -> Iterator[Collection]:
    """The request's folder, which has whole files, a manifest and a card in the end, also when it is interrupted.

    Raises:
        DataError: the folder is not to be used.
    """
    store = Store(request.out, options)
    try:
        yield Collection(request, store)
    finally:
        store.finish()
        store.close()
        if (request.out / "devices").is_dir():
            write_card(request.out, request.target)


def run(
    request: CollectionRequest,
    options: Mapping[str, Mapping[str, Any]],
    tasks: Callable[[str], Iterable[Task]],
    progress: Progress | None = None,
    workers: Sequence[Worker] | None = None,
) -> Report:
    """Measure until the time is over or nothing is left; what is there already stays.

    Args:
        request: where, how long, into which folder.
        options: by kind of measurement the options that decide the plan, for ``collection.json``.
        tasks: from the device file of the first worker (TOML) to what is to be measured, in order.
        progress: called after every task.
        workers: those of the request unless given; they are stopped at the end.

    Raises:
        DataError: the folder is not to be used. DeviceError: no worker could begin, or all were lost.
        KeyboardInterrupt: after what has been measured is in its files.
    """
    hired = workers or request.hired()
    with opened(request, options) as collection, ThreadPoolExecutor(len(hired)) as threads:
        try:
            devices = write_devices(request.out, answers := list(threads.map(introduced, hired)))
            gpus = [answer["gpu"] for answer in answers]
            collection.gpus |= devices.keys()
            collection.progress = progress
            collection.begin(tasks(devices[gpus[0]]))
            left = list(threads.map(collection.measure, hired, gpus))
        finally:
            collection.over = True
            for worker in hired:
                worker.stop()
        if not any(left):
            raise DeviceError("every worker was lost: what was measured is kept; run the same command again")
    return collection.report()


def introduced(worker: Worker) -> dict[str, Any]:
    """Introduction of a worker.

    Raises:
        DeviceError: it cannot begin.
    """
    try:
        answer: dict[str, Any] = worker.run(TASK_LIMIT_S, introduction)
    except WorkerLost as error:
        raise DeviceError(f"{worker.name} cannot begin ({error}): see whether PyTorch runs there") from error
    return answer


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


def write_card(folder: Path, target: str) -> None:
    """Manifest and card of what is in the folder; the card says what is missing."""
    from neusight.measured.manifest import UNLICENSED, DataDescription, DataFile, describe

    files = sorted(path for path in folder.glob("*/*") if path.suffix in (".parquet", ".toml", ".json"))
    kind = "a core of a CPU, which stands in for a GPU" if target == "cpu" else "GPUs"
    if any(path.suffix == ".parquet" for path in files):
        description = DataDescription(
            name=folder.resolve().name,
            title=f"Measured by neusight on {kind}",
            origin=f"neusight {neusight.__version__} collect, on the machines that the rows name",
            files=tuple(DataFile(path=path.relative_to(folder).as_posix(), licence=UNLICENSED) for path in files),
            known_faults=tuple(_missing(folder, target)),
        )
        describe(description, into=folder, data=folder)


def _missing(folder: Path, target: str) -> Iterator[str]:
    """Yield parts that a reader might expect in the folder and that are missing."""
    kernels = {family: read_rows(folder, family) for family in FAMILIES}
    rows = [row for rows_of in kernels.values() for row in rows_of]
    if target == "cpu":
        yield "A CPU is no GPU: no graph replays, no clocks or power, no kernel names; latencies are those of calls."
    if absent := [family for family, rows_of in kernels.items() if not rows_of]:
        yield f"No rows of {', '.join(absent)}."
    if target != "cpu" and rows and not any(row.get("clock_mhz") for row in rows):
        yield "No clocks, power or temperature: the package nvidia-ml-py was missing, or not allowed to read."
    if target != "cpu" and (unnamed_rows := sum(not row.get("kernel_name") for row in rows)):
        yield f"{unnamed_rows:,} of {len(rows):,} rows have no kernel name: the profiler had no time, or no right."
    if not (folder / place_of("steps")).is_file():
        yield "No whole models: `neusight collect models` adds them."
