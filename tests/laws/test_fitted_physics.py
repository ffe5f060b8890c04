"""The fitted constants on disk: what is read is what was written, and what does not fit is refused in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neusight.distributed.factors import shipped_factors
from neusight.errors import ArtifactError
from neusight.laws.constants import priors, values
from neusight.laws.fitted import STORES, FittedPhysics, shipped, shipped_boards, shipped_physics
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
    FITTED.save(tmp_path / "deep" / FittedPhysics.file)
    assert FittedPhysics.load(tmp_path / "deep" / FittedPhysics.file) == FITTED
    assert shipped_physics(tmp_path / "deep") == FITTED


def test_a_constant_keeps_as_much_of_its_prior_as_the_fit_left_of_its_width() -> None:
    known, rows = priors(PRIOR), {row["name"]: row for row in FITTED.constants()}
    assert rows.keys() == values(PRIOR).keys()
    assert rows["memory.hbm_share"]["kept"] == 0.01 / known["memory.hbm_share"].spread
    assert rows["cache.row_miss_centre"]["prior"] == known["cache.row_miss_centre"].value
    assert max(row["kept"] or 0.0 for row in shipped_physics().constants()) < 1.02, "data never widen a prior"


def test_a_constant_is_fitted_cited_or_at_its_prior() -> None:
    rows = {row["name"]: row for row in FITTED.constants()}
    assert rows["memory.hbm_share"]["origin"] == "fitted"
    # No fit has met it: it keeps all of its prior, and what would move it is said.
    unmet = rows["matrix.least_cut_extent"]
    assert (unmet["origin"], unmet["value"], unmet["kept"]) == ("prior", unmet["prior"], 1.0)
    assert unmet["moved_by"]
    assert (rows["stream.latency_s"]["origin"], rows["stream.latency_s"]["unit"]) == ("cited", "s")
    boards = {row["name"]: row["origin"] for row in shipped_boards().constants()}
    assert boards["systolic.idle_share"] == "datasheet"


def test_constants_that_were_not_fitted_keep_their_priors() -> None:
    assert values(FITTED.physics) == values(PRIOR) | FITTED.values


@pytest.mark.parametrize("name", ["matrix.colour", "stream.latency_s"])
def test_a_constant_that_no_law_has_or_that_is_cited_is_named(name: str) -> None:
    with pytest.raises(ArtifactError, match=rf"constant '{name}'.*neusight fit"):
        _ = replace(FITTED, values={name: 1.0}).physics


@pytest.mark.parametrize(
    ("change", "said"),
    [({"protocol": 99}, "another protocol"), ({"mood": 1}, "not as expected"), (None, "cannot read"), ([], "protocol")],
)
def test_a_file_that_does_not_fit_is_refused_in_a_line(tmp_path: Path, change: Any, said: str) -> None:
    path = tmp_path / FittedPhysics.file
    FITTED.save(path)
    content = {**json.loads(path.read_text()), **change} if isinstance(change, dict) else change
    path.write_text("{" if content is None else json.dumps(content))
    with pytest.raises(ArtifactError, match=said) as caught:
        FittedPhysics.load(path)
    assert "\n" not in str(caught.value)


def test_what_ships_has_constants_that_laws_declare() -> None:
    shipped_constants = shipped_physics()
    fitted = shipped_constants.values.keys()
    assert fitted == shipped_constants.deviations.keys() <= priors(PRIOR).keys()
    assert len(shipped_constants.covariance) == len(fitted)
    assert all(len(row) == len(fitted) for row in shipped_constants.covariance)
    assert values(shipped_constants.physics) == values(PRIOR) | shipped_constants.values


def test_every_constant_of_every_store_has_an_origin() -> None:
    for store in (*map(shipped, STORES), shipped_factors()):
        for row in store.constants():
            assert row["why"], row["name"]
            # The next fit may leave any of them where it is.
            assert row["origin"] in ("cited", "datasheet") or row["moved_by"], row["name"]
