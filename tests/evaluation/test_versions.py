"""What versions of libraries cost, told by boards that took a known time."""

from math import exp, log

import pytest

from neusight.evaluation.versions import VersionFit

OLD, OLDER = ("torch 1.9", "float16"), ("torch 1.4", "float16")


def test_a_version_is_told_by_other_boards_and_the_closer_the_more_there_are():
    errors = {(OLD, f"board {number}"): [log(1.2)] * 3 for number in range(8)} | {(OLD, "own"): [log(9.0)]}
    few = VersionFit(errors={key: errors[key] for key in [(OLD, "board 0"), (OLD, "own")]}).libraries(OLD, "own")
    many = VersionFit(errors=errors).libraries(OLD, "own")
    assert 1.0 < few.factor < many.factor == pytest.approx(1.2, rel=0.01)
    assert few.spread > many.spread > 0.1
    assert VersionFit(errors=errors).libraries(OLD, "board 0").factor > many.factor


def test_versions_that_nobody_else_ran_change_nothing():
    fit = VersionFit(errors={(OLD, "own"): [1.0], (OLDER, "other"): [1.0]})
    assert fit.libraries(OLD, "own").factor == 1.0


def test_a_dtype_without_steps_has_what_its_version_has():
    boards = {(OLD, f"board {number}"): [log(1.3)] for number in range(20)}
    fit = VersionFit(errors=boards | {(("torch 1.9", "tf32"), f"board {number}"): [log(1.1)] for number in range(20)})
    assert fit.libraries(OLD, "own").factor == pytest.approx(1.3, rel=0.01)
    assert fit.libraries(("torch 1.9", "float32"), "own").factor == pytest.approx(exp(log(1.3 * 1.1) / 2), rel=0.01)


def test_boards_count_alike_however_many_steps_they_ran():
    errors = {(OLD, "a"): [log(1.4)] * 100, (OLD, "b"): [log(1.0)]}
    assert VersionFit(errors=errors).libraries(OLD, "own").factor < 1.2
