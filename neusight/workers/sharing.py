"""Many tasks and few workers: each has the next, what a lost one left is done again, answers come in order."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from neusight.errors import NeusightError
from neusight.workers.local import LocalWorker, SameProcess, Worker, WorkerLost

Task = TypeVar("Task")
Answer = TypeVar("Answer")
ATTEMPTS = 2
"""A task that has taken so many workers down with it is given up."""


@contextmanager
def hired(
    jobs: int = 1, ray: str = "", begin: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[list[Worker]]:
    """Workers for as long as they are needed.

    Args:
        jobs: how many: processes of this host, this process itself where it is one; on a cluster at most so many, 0
            for all of its cores.
        ray: address of a cluster, see ``ray_workers``; "" for this host.
        begin: what each calls before anything else, with ``arguments``.

    Raises:
        DeviceError: no such cluster.
    """
    workers: list[Worker]
    if ray:
        from neusight.workers.ray_cluster import ray_workers

        workers = ray_workers(ray, jobs, begin, *arguments)
    elif jobs > 1:
        workers = [LocalWorker(f"process {number}", begin, *arguments) for number in range(jobs)]
    else:
        if begin is not None:
            begin(*arguments)
        workers = [SameProcess()]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Shares:
    """Tasks that are still to be done, and what came of the others; one thread a worker shares it."""

    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    progress: Callable[[int, int], None] | None
    left: deque[int] = field(default_factory=deque)
    answers: dict[int, Any] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, worker: Worker) -> None:
        """Task after task with one worker, until none is left."""
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.popleft()
            try:
                answer = worker.run(None, _answer, self.function, self.tasks[number])
            except WorkerLost as error:
                self.losses[number] += 1
                if self.losses[number] < ATTEMPTS:
                    worker.restart()
                    with self.lock:
                        self.left.appendleft(number)
                    continue
                answer = WorkerLost(f"{ATTEMPTS} workers were lost with one task: {error}")
                worker.restart()
            self._keep(number, answer)

    def _keep(self, number: int, answer: Any) -> None:
        with self.lock:
            self.answers[number] = answer
            if isinstance(answer, NeusightError):
                self.left.clear()
            if self.progress:
                self.progress(len(self.answers), len(self.tasks))


def shared(
    workers: Sequence[Worker],
    function: Callable[[Task], Answer],
    tasks: Sequence[Task],
    progress: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """What a function of a module answers to each task, in their order.

    Args:
        workers: who do them.
        function: of one task; both travel to other processes, and so does the answer.
        tasks: in the order in which they are begun.
        progress: called with (done, of) after each.

    Raises:
        NeusightError: the first that a task raised. WorkerLost: a task that takes its workers down with it.
    """
    shares = _Shares(function, tasks, progress, deque(range(len(tasks))))
    if len(workers) == 1:
        shares.work(workers[0])
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(shares.work, workers))
    for number in sorted(shares.answers):
        if isinstance(shares.answers[number], NeusightError):
            raise shares.answers[number]
    return [shares.answers[number] for number in range(len(tasks))]


def _answer(function: Callable[[Task], Answer], task: Task) -> Answer | NeusightError:
    """A question that cannot be answered is no end of a process."""
    try:
        return function(task)
    except NeusightError as error:
        return error
