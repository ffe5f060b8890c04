"""Spaces of designs: formulas, PHAZE's template to the design and the square millimetre, limits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from neusight.cli.app import app
from neusight.design.formulas import Formula
from neusight.design.space import list_spaces, load_space
from neusight.errors import DataError


def test_a_formula_is_arithmetic_over_columns() -> None:
    values = {"width": np.array([4.0, 64.0]), "kib": {1.0: 5.0, 64.0: 7.0}}
    assert Formula.of("max(1, width ** 2 / 64)").value(values).tolist() == [1.0, 64.0]
    assert Formula.of("kib[max(1, width ** 2 / 64)] if width > 1 else 0").value(values).tolist() == [5.0, 7.0]


@pytest.mark.parametrize("text", ["width +", "__import__('os')", "[1, 2]", "hight * 2", "kib[3]"])
def test_what_is_no_formula_says_so(text: str) -> None:
    with pytest.raises(DataError, match="formula"):
        Formula.of(text).value({"width": 2.0, "kib": {1.0: 5.0}})


@pytest.mark.parametrize("name", list_spaces())
def test_the_baseline_of_every_space_is_a_device(name: str) -> None:
    space = load_space(name)
    designs = space.admitted
    row = designs.row(**space.baseline)
    assert designs.described(row) == space.baseline
    assert designs.device(row).tdp_w == pytest.approx(designs.power_w[row])


def test_phaze_admits_its_designs_and_the_baseline_lies_on_the_limit() -> None:
    space = load_space("phaze")
    designs = space.admitted
    assert len(designs) == 29_360
    assert designs.area_mm2[designs.row(**space.baseline)] == designs.area_mm2.max()


def test_axes_are_narrowed_to_values_that_they_have() -> None:
    narrow = load_space("phaze").narrowed({"width": (64, 128), "depth": (128,)})
    designs = narrow.admitted
    assert set(designs.axes["width"]) == {64, 128} and set(designs.axes["depth"]) == {128}
    assert len(narrow.workloads) == len(load_space("phaze").workloads)
    with pytest.raises(DataError, match="axis width has no value 100: it has 2, 4"):
        load_space("phaze").narrowed({"width": (100,)})
    with pytest.raises(DataError, match="no axis 'widht'"):
        load_space("phaze").narrowed({"widht": (64,)})


def _design(space: str, values: dict[str, float]) -> dict[str, float]:
    """The best design of one workload, as the command answers with its defaults."""
    words = [word for name, value in values.items() for word in ("--axis", f"{name}={value:g}")]
    result = CliRunner().invoke(app, ["design", space, "--model", "gpt2", "-b", "16", *words, "--format", "json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    return row


@pytest.mark.parametrize("space", list_spaces())
def test_every_space_works_with_defaults(space: str) -> None:
    baseline = load_space(space).baseline
    row = _design(space, baseline)
    assert row["gain"] == pytest.approx(1.0)
    assert {name: row[name] for name in baseline} == baseline


@pytest.mark.parametrize("space", list_spaces())
def test_axes_may_leave_the_baseline_out(space: str) -> None:
    """The baseline is compared with all the same: a smaller design takes longer."""
    baseline = load_space(space).baseline
    axis, values = next(iter(load_space(space).axes.items()))
    other = max(value for value in values.column("") if value < baseline[axis])
    row = _design(space, baseline | {axis: other})
    assert row[axis] == other and row["designs"] == 1 and row["gain"] <= 1.0
