"""Numbers in code: each says below it where it comes from, so that none is typed in."""

from __future__ import annotations

import ast

import pytest

from neusight.laws.origins import _is_numeric, _origin, numbers_in_code


def test_numbers_in_code_have_an_origin_and_assumptions_the_rows_that_would_tell() -> None:
    rows = list(numbers_in_code())
    assert len(rows) > 100
    assert [(row["file"], row["name"]) for row in rows if not row["origin"]] == []
    assert [(row["file"], row["name"]) for row in rows if row["origin"] == "assumption" and not row["moved_by"]] == []
    # The others say which document, figure or fit.
    sourced = [row for row in rows if row["origin"] in ("cited", "datasheet", "fitted")]
    assert [(row["file"], row["name"]) for row in sourced if not row["why"]] == []


@pytest.mark.parametrize(
    ("text", "origin", "why", "moved_by"),
    [
        ("Columns of a warp (cited: PyTorch, ``Reduce.cuh``).", "cited", "PyTorch, ``Reduce.cuh``", ""),
        ("Bytes (definition), all of them (cited: a page).", "definition", "", ""),
        ("A share (fitted: rows of A (and B), once).", "fitted", "rows of A (and B), once", ""),
        ("A wait (assumption: two trips; three fit; timed trips would tell).", "assumption", "two trips; three fit",
         "timed trips"),
        ("A wait (assumption: two trips).", "assumption", "two trips", ""),
        ("A wait (assumption).", "assumption", "", ""),
        ("As cited: nowhere (PyTorch).", "", "", ""),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_origin_is_read_from_the_first_brackets_that_state_one(text: str, origin: str, why: str, moved_by: str) -> None:
    assert _origin(text) == {"origin": origin, "why": why, "moved_by": moved_by}


@pytest.mark.parametrize(
    ("expression", "numeric"),
    [("2.0", True), ("-1", True), ("{'a': (1, 2)}", True), ("Engine(bytes=2)", True), ("A / 3", True), ("A", False),
     ("'1'", False), ("True", False), ("lambda x: x[1] + 2", False), ("A[0]", False), ("{'a': A}", False)],
)  # fmt: skip
def test_is_numeric_ignores_places_in_sequences_and_functions(expression: str, numeric: bool) -> None:
    assert _is_numeric(ast.parse(expression, mode="eval").body) == numeric
