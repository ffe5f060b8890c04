"""Answers come in the order of the tasks, however many workers there are and whichever of them are lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from neusight.errors import DataError
from neusight.workers import ATTEMPTS, WorkerLost, hired, shared

_OFFSET = [0]


def offset_by(number: int) -> None:
    _OFFSET[0] = number


def squared(number: int) -> int:
    return number * number + _OFFSET[0]


def killed_once(task: tuple[int, str]) -> int:
    """The first that gets here takes its process down."""
    number, mark = task
    if number == 3 and not Path(mark).exists():
        Path(mark).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def always_killed(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refused(number: int) -> int:
    if number % 2:
        raise DataError(f"{number} is odd")
    return number


@pytest.mark.parametrize("jobs", [1, 2])
def test_many_workers_answer_as_one(jobs: int) -> None:
    done: list[tuple[int, int]] = []
    with hired(jobs, "", offset_by, 7) as workers:
        answers = shared(workers, squared, range(9), lambda *each: done.append(each))
    assert answers == [number * number + 7 for number in range(9)]
    assert sorted(done) == [(number + 1, 9) for number in range(9)]


def test_what_a_lost_worker_left_is_done_again(tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path / "mark")) for number in range(8)]
    with hired(2) as workers:
        assert shared(workers, killed_once, tasks) == [number * number for number in range(8)]
    assert (tmp_path / "mark").exists()


def test_a_task_that_ends_every_worker_is_given_up() -> None:
    with hired(2) as workers, pytest.raises(WorkerLost, match=f"{ATTEMPTS} workers were lost with one task"):
        shared(workers, always_killed, range(4))


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_reason_is_raised(jobs: int) -> None:
    with hired(jobs) as workers, pytest.raises(DataError, match="1 is odd"):
        shared(workers, refused, range(4))
