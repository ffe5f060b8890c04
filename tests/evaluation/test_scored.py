"""``Scored``: figures against their formulas, whatever the keys."""

import numpy as np
import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.measured.score import Scored, Selection, answered, compared, joined

RATIOS = np.array([0.5, 1.0, 1.25, 2.0])
GPUS = ["l4", "l4", "t4", "t4"]


def scored(ratios: np.ndarray = RATIOS) -> Scored:
    """Measured 1 to 4 ms, with intervals of a tenth below and a half above the prediction."""
    measured = np.arange(1.0, len(ratios) + 1)
    keys = pd.DataFrame({"gpu": GPUS, "mode": "inference"})
    return Scored(keys, ratios * measured, 0.9 * ratios * measured, 1.5 * ratios * measured, measured)


def test_figures_by_formula() -> None:
    found = scored().figures()
    assert found == pytest.approx(
        {"count": 4, "mean": (50 + 0 + 25 + 100) / 4, "median": 37.5, "worst": 100, "bias": (-50 + 25 + 100) / 4,
         "inside": 25, "width": 60}
    )  # fmt: skip


def test_groups_are_told_by_any_keys_in_their_order() -> None:
    rows = scored()
    l4, t4 = rows.summary("gpu")
    assert (l4["gpu"], l4["count"], l4["mean"], t4["bias"]) == ("l4", 2, pytest.approx(25), pytest.approx(62.5))
    assert rows.summary("mode", "gpu") == [{"mode": "inference"} | row for row in (l4, t4)]
    assert rows.summary() == [rows.figures()]
    assert rows.where(gpu=["t4"]).figures() == rows.take(np.array([2, 3])).figures()


def test_no_interval_is_no_share_inside_of_it() -> None:
    rows = scored()
    silent = Scored(rows.keys, rows.predicted, rows.low * np.nan, rows.high, rows.measured)
    assert not {"inside", "width"} & silent.figures().keys()
    assert np.isnan(silent.inside).all()
    assert not {"inside", "width"} & joined([rows, silent]).figures().keys()


def test_nothing_has_no_errors() -> None:
    assert scored().where(gpu="p4").figures() == {"count": 0}


def test_rows_make_columns_and_what_was_not_measured_is_left_out() -> None:
    rows = [{"gpu": "l4", "seq_len": None} | compared(3.0, (2.0, 5.0), measured, "_ms") for measured in (2.0, None)]
    assert (rows[0]["bias"], rows[0]["inside"], rows[1]["ape"], rows[1]["inside"]) == (
        pytest.approx(50),
        True,
        None,
        None,
    )
    found = Scored.of(rows, "_ms")
    assert len(found) == 1
    assert found.keys["seq_len"].tolist() == [None]
    assert found.figures()["mean"] == pytest.approx(50)
    assert len(Scored.of([])) == 0


def test_a_selection_draws_the_same_rows_again_in_their_order() -> None:
    rows = [{"gpu": gpu, "n": n} for n, gpu in enumerate(GPUS * 5)]
    first, again, other = (Selection(gpus=("l4",), limit=4, seed=seed).of(rows) for seed in (1, 1, 2))
    assert first == again != other
    assert [row["n"] for row in first] == sorted(row["n"] for row in first)
    assert {row["gpu"] for row in first} == {"l4"}
    assert Selection(limit=99).of(rows) == rows


def test_rows_without_an_answer_are_named_with_the_reason() -> None:
    def ask(row: dict[str, int]) -> int:
        if row["n"] % 2:
            raise DataError("odd")
        return row["n"]

    seen: list[tuple[int, int]] = []
    rows = [{"n": n} for n in range(4)]
    answers, skipped = answered(rows, ask, lambda row, number: {"row": number}, lambda *at: seen.append(at))  # type: ignore[arg-type]
    assert (answers, skipped) == ([0, 2], [{"row": 2, "reason": "odd"}, {"row": 4, "reason": "odd"}])
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
