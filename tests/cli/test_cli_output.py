"""The sink: what goes where, and what a table looks like."""

import io
import json

import numpy as np
import pytest

from neusight.cli.output import Output, bar, figures, table


def test_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = {0: "", 1: "████", 0.5: "██", 0.53: "██▏", 2: "████", -1: ""}
    assert {share: bar(share, 4) for share in bars} == bars
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert bar(0.53, 4) == "##"


def test_json_has_null_for_what_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    Output("json").data({"a": [float("nan"), 1.5], "b": {"c": float("inf")}}, [], lambda: None)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}}
    Output("json").data({"a": np.bool_(True), "b": np.array([3.0, np.nan])}, [], lambda: None)
    assert json.loads(capsys.readouterr().out) == {"a": True, "b": [3, None]}


def test_csv_is_one_line_a_row_and_nothing_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Output("csv").data(None, [{"a": 1, "b": None}, {"a": "x,y", "b": ["l4", "t4"]}], lambda: None)
    Output("csv").data(None, [], lambda: None)
    assert capsys.readouterr().out == 'a,b\n1,\n"x,y",l4 t4\n'


def test_table_fits_80_columns_and_keeps_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table(("~what", ">n"), [("[red]" + "word " * 40, "1"), ("b", "10")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "[red]word" in lines[2]
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1].endswith("10")


@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("titles", [("id", ">n", "kind"), ("id", ">n", "~kind"), ("an id", "about\nit", "~x")])
def test_table_cuts_no_id(
    columns: int, titles: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ids = ("organisation/Model-17B-Instruct-with-a-long-name-in-eight-bits", "short", "o/another-" + "long" * 30)
    table(titles, [(each, "123456789", "words of a kind " * 3) for each in ids])
    shown = capsys.readouterr().out
    assert all(each in shown.replace("\n", " ").split() for each in ids)
    assert shown.count("123456789") == 3
    assert "…" not in shown


def test_table_of_no_rows_is_its_titles(capsys: pytest.CaptureFixture[str]) -> None:
    table(("a long title", ">b"), [])
    assert capsys.readouterr().out.splitlines()[0] == "a long title  b"


def test_figures_writes_units_formats_and_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"gpu": "l4", "time_ms": 1500.0, "bias": 1.25}, {"gpu": "t4", "time_ms": 2.5, "bias": None}]
    figures("gpu | >time = time_ms | >error = {bias:+.1f} %", rows, "errors")
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "errors"
    assert [line.split() for line in lines] == [["l4", "1.50", "s", "+1.2", "%"], ["t4", "2.5", "ms", "-"]]
