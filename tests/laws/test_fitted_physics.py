"""The fitted constants on disk: what is read is what was written, and what does not fit is refused in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neusight.errors import ArtifactError
from neusight.laws.constants import priors, values
from neusight.laws.fitted import FILE, FittedPhysics, shipped_physics
from neusight.laws.physics import PRIOR

FITTED = FittedPhysics(
    values={"memory.hbm_share": 0.875, "cache.row_miss_centre": -0.5},
    deviations={"memory.hbm_share": 0.01, "cache.row_miss_centre": 0.2},
    covariance=[[1e-4, 0.0], [0.0, 0.04]],
    spread={"matrix/float16": 0.07},
    effects={"matrix/float16": {"l4": -0.02}},
    gpus=["l4"],
    data={"some/kernels/gemm.parquet": "ab" * 32},
    rows=7,
    error=0.09,
)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    FITTED.save(tmp_path / "deep" / FILE)
    assert FittedPhysics.load(tmp_path / "deep" / FILE) == FITTED
    assert shipped_physics(tmp_path / "deep") == FITTED


def test_a_constant_keeps_as_much_of_its_prior_as_the_fit_left_of_its_width() -> None:
    known, rows = priors(PRIOR), {row["name"]: row for row in FITTED.constants()}
    assert rows.keys() == FITTED.values.keys()
    assert rows["memory.hbm_share"]["kept"] == 0.01 / known["memory.hbm_share"].spread
    assert rows["cache.row_miss_centre"]["prior"] == known["cache.row_miss_centre"].value
    assert max(row["kept"] for row in shipped_physics().constants()) < 1.02, "data never widen a prior"


def test_constants_that_were_not_fitted_keep_their_priors() -> None:
    assert values(FITTED.physics) == values(PRIOR) | FITTED.values


@pytest.mark.parametrize("name", ["matrix.colour", "cache.miss_slope"])
def test_a_constant_that_no_law_has_or_that_is_assumed_is_named(name: str) -> None:
    with pytest.raises(ArtifactError, match=rf"constant '{name}'.*neusight fit"):
        _ = replace(FITTED, values={name: 1.0}).physics


@pytest.mark.parametrize(
    ("change", "said"),
    [({"protocol": 99}, "another protocol"), ({"mood": 1}, "not as expected"), (None, "cannot read"), ([], "protocol")],
)
def test_a_file_that_does_not_fit_is_refused_in_a_line(tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / FILE
    FITTED.save(path)
    content = {**json.loads(path.read_text()), **change} if isinstance(change, dict) else change
    path.write_text("{" if content is None else json.dumps(content))
    with pytest.raises(ArtifactError, match=said) as caught:
        FittedPhysics.load(path)
    assert "\n" not in str(caught.value)


def test_what_ships_has_every_constant() -> None:
    shipped = shipped_physics()
    assert shipped.values.keys() == shipped.deviations.keys() == priors(PRIOR).keys()
    assert len(shipped.covariance) == len(shipped.values)
    assert all(len(row) == len(shipped.values) for row in shipped.covariance)
    assert values(shipped.physics) == values(PRIOR) | shipped.values
