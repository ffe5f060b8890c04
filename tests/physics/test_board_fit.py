"""Constants of boards from powers whose parts are known."""

from pathlib import Path

import numpy as np
import pytest

from neusight.learn.boards import BOARDS, solve_boards
from neusight.learn.evidence import Evidence, FitOptions
from neusight.learn.sums import SumObservation


def test_solve_boards_finds_constants_of_invented_meters() -> None:
    constants, generator = np.array([0.2, 0.6, 1.1]), np.random.default_rng(0)
    terms = np.stack([np.full(60, 400.0), *generator.uniform(0, 150, (2, 60))], axis=1)
    powers = terms @ constants * np.exp(generator.normal(0, 0.01, 60))
    rows = [
        SumObservation(gpu="a100-sxm-80gb", alike=f"{at % 6}", measured=float(watts), terms=own)
        for at, (watts, own) in enumerate(zip(powers, terms, strict=True))
    ]
    evidence = Evidence(rows=rows, files=[], skipped={})
    fitted = solve_boards(evidence, FitOptions(data=Path()))
    assert [*fitted.values.values()] == pytest.approx(constants.tolist(), rel=0.1)
    assert BOARDS.errors is not None
    errors = np.array([off for _, off in BOARDS.errors(rows, fitted)])
    assert np.abs(errors).max() < 0.1
