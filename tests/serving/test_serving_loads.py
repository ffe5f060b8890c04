"""Loads: lengths and arrivals have the moments that were asked for, repeat by seed, and files are read or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.errors import DataError, LoadError
from neusight.serving import Closed, Lengths, Offline, Open, Static, Trace, read_trace

N = 40_000


@pytest.mark.parametrize(
    ("lengths", "cv"),
    [
        (Lengths(mean=800), 0.0),
        (Lengths(mean=800, shape="lognormal", cv=0.7), 0.7),
        (Lengths(mean=800, shape="uniform", cv=0.3), 0.3),
        (Lengths(mean=800, shape="exponential"), 1.0),
    ],
)
def test_lengths_have_the_mean_and_the_variation_that_were_asked_for(lengths: Lengths, cv: float) -> None:
    tokens = lengths.draw(N, np.random.default_rng(1))
    # Five standard errors of a mean; those of a variation are larger where tails are long.
    assert tokens.mean() == pytest.approx(800, abs=5 * cv * 800 / N**0.5 + 1e-9)
    assert tokens.std() / tokens.mean() == pytest.approx(cv, rel=0.05)
    assert tokens.min() >= 1


def test_lengths_are_cut_and_lists_are_taken_in_turns() -> None:
    drawn = Lengths(mean=100, shape="exponential", longest=150).draw(N, np.random.default_rng(0))
    assert drawn.max() == 150
    requests = Offline(num_prompts=5, isl=[7, 9], osl=3).requests()
    assert requests.prompt_tokens.tolist() == [7, 9, 7, 9, 7]
    assert requests.output_tokens.tolist() == [3] * 5


@pytest.mark.parametrize(
    ("arrivals", "cv", "expected"), [("poisson", 1.0, 1.0), ("uniform", 1.0, 0.0), ("gamma", 2.0, 2.0)]
)
def test_intervals_have_the_rate_and_the_variation(arrivals: str, cv: float, expected: float) -> None:
    load = Open(request_rate=20, num_prompts=N, isl=1, osl=1, arrivals=arrivals, cv=cv)
    intervals_s = np.diff(load.requests().arrival_s, prepend=0)
    assert intervals_s.mean() == pytest.approx(0.05, rel=1e-9)
    assert intervals_s.std() / intervals_s.mean() == pytest.approx(expected, rel=0.1, abs=1e-6)


def test_a_seed_repeats_and_another_does_not() -> None:
    def drawn(seed: int, **change: Any) -> np.ndarray:
        shape = Lengths(mean=500, shape="lognormal", cv=1)
        fields = {"request_rate": 10, "num_prompts": 100, "isl": shape, "osl": shape, "seed": seed, **change}
        r = Open(**fields).requests()
        return np.stack([r.arrival_s, r.prompt_tokens, r.output_tokens])

    assert np.array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).mean() > 0.9
    # Other arrivals leave the lengths as they were, and prompts do not go with answers.
    assert np.array_equal(drawn(3)[1:], drawn(3, arrivals="uniform")[1:])
    assert abs(np.corrcoef(drawn(3)[1], drawn(3)[2])[0, 1]) < 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Open(request_rate=1, num_prompts=0, isl=1, osl=1).requests(), "num_prompts = 0: give a whole"),
        (lambda: Open(request_rate=0, num_prompts=3, isl=1, osl=1).requests(), "request_rate = 0"),
        (lambda: Open(request_rate=1, num_prompts=3, isl=1, osl=1, arrivals="posson").requests(), "mean poisson"),
        (lambda: Closed(concurrency=0, num_prompts=3, isl=1, osl=1).requests(), "concurrency = 0"),
        (
            lambda: Static(batch=1, isl=0, osl=1).requests(),
            "tokens: every prompt and every answer has a whole number of at least 1",
        ),
        (
            lambda: Offline(num_prompts=2, isl=[], osl=1).requests(),
            "tokens: every prompt and every answer has a whole number of at least 1",
        ),
        (lambda: Lengths(mean=0.5), "at least 1"),
        (lambda: Lengths(mean=9, shape="lognorm"), "did you mean lognormal"),
        (lambda: Lengths(mean=9, shape="uniform", cv=0.7), "from 0 to 0.577"),
    ],
)
def test_loads_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        make()


ROWS = pd.DataFrame({"arrival_s": [0.0, 0.5, 2.0], "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]})


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_traces_are_the_same_from_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    if suffix == ".csv":
        ROWS.to_csv(path, index=False)
    elif suffix == ".jsonl":
        ROWS.to_json(path, orient="records", lines=True)
    else:
        ROWS.to_parquet(path)
    requests = read_trace(path).requests()
    assert requests.arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert requests.prompt_tokens.tolist() == [10, 20, 30]
    assert requests.output_tokens.tolist() == [1, 2, 3]


def test_other_names_and_dates_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.680,374,44\n2023-11-16 18:15:50.930,396,109\n"
    )
    requests = read_trace(path).requests()
    assert requests.arrival_s == pytest.approx([0.0, 4.25])
    assert requests.output_tokens.tolist() == [44, 109]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("arrival_s", [0.0, 2.0, 1.0], "row 3 of the trace arrives at 1.0 s, before the row above it: sort"),
        ("arrival_s", [-1.0, 2.0, 3.0], "row 1 of the trace arrives at -1.0 s: give seconds"),
        ("prompt_tokens", [5, 0, 3], "row 2 of the trace has prompt tokens of 0.0: give a whole number from 1"),
        ("output_tokens", [5, 1, -3], "row 3 of the trace has output tokens of -3.0: give a whole number from 1"),
        ("prompt_tokens", [5.5, 1, 3], "row 1 of the trace has prompt tokens of 5.5: give a whole number from 1"),
        ("prompt_tokens", [5, 1e30, 3], r"row 2 of the trace has prompt tokens of 1e\+30: give a whole number from 1"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, column: str, values: list[float], message: str) -> None:
    ROWS.assign(**{column: values}).to_csv(tmp_path / "trace.csv", index=False)
    with pytest.raises(LoadError, match=message):
        read_trace(tmp_path / "trace.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "arrival_s,isl\n0,1\n", "no column output_tokens: name it so, or one of osl"),
        ("a.csv", "arrival_s,isl,osl\n0,1,2\n1,many,2\n", "row 2: isl 'many' is no number"),
        ("a.csv", "arrival_s,isl,osl\n0,1,2\n1,,2\n", "row 2: isl 'nan' is no number"),
        ("a.jsonl", "{oops", "cannot read "),
        ("a.txt", "", "give a .csv, .jsonl or .parquet file"),
        # Mooncake's times are milliseconds: not to be taken for seconds.
        ("a.jsonl", '{"timestamp": 3000, "input_length": 4, "output_length": 5}', "no column prompt_tokens"),
    ],
)
def test_files_that_hold_no_trace_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_trace(tmp_path / name)
    with pytest.raises(DataError, match="cannot read the trace"):
        read_trace(tmp_path / "missing.csv")


def test_a_trace_of_no_or_of_unequal_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("arrival_s,isl,osl\n")
    with pytest.raises(LoadError, match="holds no requests"):
        read_trace(tmp_path / "empty.csv")
    with pytest.raises(LoadError, match="columns of"):
        Trace(arrival_s=np.zeros(2), prompt_tokens=np.ones(3), output_tokens=np.ones(2))


@pytest.mark.parametrize("arrivals", ["poisson", "uniform", "gamma"])
def test_stages_bring_their_rates_one_after_the_other(arrivals: str) -> None:
    stages = ((40.0, 100.0), (10.0, 100.0), (80.0, 100.0))
    load = Open(request_rate=130 / 3, num_prompts=13_000, isl=1, osl=1, arrivals=arrivals, cv=1.5, stages=stages)
    arrived = np.histogram(load.requests().arrival_s, [0, 100, 200, 300])[0]
    assert arrived == pytest.approx([4000, 1000, 8000], abs=5 * 1.5 * 8000**0.5)


def test_one_stage_is_a_rate_and_a_share_of_stages_keeps_their_times() -> None:
    same = {"num_prompts": 50, "isl": 1, "osl": 1}
    at_rate, staged = Open(request_rate=8, **same), Open(request_rate=8, stages=((3.0, 10.0),), **same)
    assert staged.requests().arrival_s == pytest.approx(at_rate.requests().arrival_s)
    halves = Open(request_rate=4, arrivals="uniform", stages=((4.0, 10.0), (12.0, 10.0)), **same).requests()
    assert np.sum(halves.arrival_s <= 10 + 1e-9) == 20


@pytest.mark.parametrize("stages", [((0.0, 5.0),), ((3.0, -1.0),), ((3.0, 5.0), (float("inf"), 1.0))])
def test_stages_without_a_rate_or_a_time_are_refused(stages: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(LoadError, match="give more than 0"):
        Open(request_rate=1, num_prompts=9, isl=1, osl=1, stages=stages).requests()


def test_lengths_between_two_are_drawn_evenly_from_both_on() -> None:
    tokens = Lengths.between(819, 1024).draw(N, np.random.default_rng(0))
    assert (tokens.min(), tokens.max()) == (819, 1024)
    assert np.histogram(tokens, 5)[0] == pytest.approx(N / 5, rel=0.05)
