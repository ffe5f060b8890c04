"""A worker that is a process of this host, or this process itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from neusight.errors import NeusightError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


class WorkerLost(NeusightError):  # noqa: N818 - an event to act on
    """The worker is gone, and what it was doing with it."""


class Worker(Protocol):
    """A process that does what it is handed."""

    name: str

    def run(self, limit_s: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module returns in the process.

        Raises:
            WorkerLost: the process is gone, or has not answered within ``limit_s``.
        """

    def restart(self) -> None:
        """A new process in its place."""

    def stop(self) -> None:
        """End it, whatever it does."""


class SameProcess:
    """This process: what one worker does needs no second."""

    name = "this process"

    def run(self, limit_s: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function; nobody is there to end it after ``limit_s``."""
        return function(*arguments)

    def restart(self) -> None:
        """Nothing: it cannot be lost."""

    def stop(self) -> None:
        """Nothing: it goes on with something else."""


class LocalWorker:
    """A process of this host.

    Args:
        name: what it is called in messages.
        begin: what a new process calls before anything else.
        arguments: of ``begin``.
    """

    def __init__(self, name: str, begin: Callable[..., None] | None = None, *arguments: Any) -> None:
        self.name, self._begin = name, (begin, arguments)
        self._pool = self._started()

    def run(self, limit_s: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
        """In the process."""
        from concurrent.futures import BrokenExecutor, CancelledError

        try:
            answer = self._pool.submit(function, *arguments)
        except RuntimeError:
            raise WorkerLost("the process ended") from None
        try:
            return answer.result(limit_s)
        except TimeoutError:
            raise WorkerLost(f"no answer in {limit_s:g} s") from None
        except (BrokenExecutor, CancelledError):
            raise WorkerLost("the process ended") from None

    def restart(self) -> None:
        """Kill what is left, and begin a new process."""
        self.stop()
        self._pool = self._started()

    def stop(self) -> None:
        """Kill the process."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        """One fresh process, because CUDA does not survive a fork; it begins before anything is asked of it."""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        context = get_context("spawn")
        pool = ProcessPoolExecutor(
            1, mp_context=context, initializer=_become_worker, initargs=(os.getpid(), *self._begin)
        )
        pool.submit(os.getpid)
        return pool


def _become_worker(parent: int, begin: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """In the new process. Ctrl-C is the parent's to handle; a process without its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _end_with(parent: int) -> None:
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(1.0)
    os._exit(1)
