"""Constants: each with a prior that says where it comes from, found and changed by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.laws.constants import (
    Prior,
    cited,
    constant,
    declarations,
    decode,
    encode,
    group,
    priors,
    unit_of,
    values,
    with_values,
)
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import PRIOR


@dataclass(frozen=True)
class Group:
    rate: float = constant(2.0, 0.5, "a datasheet")
    shift: float = constant(-1.0, 0.2, "guess", scale="linear")


@dataclass(frozen=True)
class Constants:
    one: Group = field(default_factory=Group)
    other: Group = field(default_factory=Group)


def test_names_values_and_priors_go_together() -> None:
    assert values(Constants()) == {"one.rate": 2.0, "one.shift": -1.0, "other.rate": 2.0, "other.shift": -1.0}
    assert priors(Constants())["other.shift"] == Prior(-1.0, 0.2, "guess", "linear")
    changed = with_values(Constants(), {"one.rate": 3.0})
    assert values(changed) == values(Constants()) | {"one.rate": 3.0}
    # A prior is what was known before, whatever the value became.
    assert priors(changed) == priors(Constants())


@dataclass(frozen=True)
class Stated:
    wait_s: float = cited(1e-6, "a manual")
    rate: float = constant(2.0, 0.5, "guess", moved_by="rows of rates")
    shift: float = constant(-1.0, 0.2, "guess", scale="linear")


@dataclass
class Law:
    stated: Stated = group(Stated, "rows of shifts")  # noqa: RUF009


def test_declarations_know_a_source_or_the_rows_that_would_move_a_prior() -> None:
    known = {name: metadata for name, metadata, _ in declarations(Law())}
    assert known["stated.wait_s"]["source"] == "a manual"
    assert priors(Law()).keys() == {"stated.rate", "stated.shift"}
    assert [known[f"stated.{name}"]["moved_by"] for name in ("rate", "shift")] == ["rows of rates", "rows of shifts"]


@pytest.mark.parametrize(
    ("name", "unit"),
    [("start.fill_s", "s"), ("own.peer_bytes_per_s", "B/s"), ("start.cycles", "cycles"), ("power.static_w", "W"),
     ("power.core_pj_per_byte", "pJ/B"), ("moe.passes", ""), ("matrix.share", "")],
)  # fmt: skip
def test_unit_of_is_read_from_the_end_of_a_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_a_share_is_estimated_where_it_never_reaches_one() -> None:
    prior = Prior(0.9, 1.0, "a datasheet", "share")
    assert decode(prior, encode(prior, 0.9)) == pytest.approx(0.9)
    assert 0.0 < decode(prior, -20.0) < decode(prior, 20.0) < 1.0


@pytest.mark.parametrize("name", ["one.speed", "third.rate", "one", "rate", ""])
def test_a_name_that_no_constant_has_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=name or "''"):
        with_values(Constants(), {name: 1.0})


@given(value=st.floats(1e-12, 1e12))
def test_encoding_is_undone_on_either_scale(value: float) -> None:
    log, linear = (Prior(1.0, 1.0, "", scale) for scale in ("log", "linear"))
    assert decode(log, encode(log, value)) == pytest.approx(value)
    assert decode(linear, encode(linear, -value)) == -value
    assert encode(log, value) == pytest.approx(math.log(value))


def test_every_constant_of_physics_says_where_it_comes_from(subtests: pytest.Subtests) -> None:
    for name, prior in priors(PRIOR).items():
        with subtests.test(name=name):
            assert values(PRIOR)[name] == prior.value
            assert prior.why
            assert prior.spread > 0
            assert prior.scale == "linear" or prior.value > 0
            # What is no more than a guess is none of a few percent.
            assert not prior.why.startswith("guess") or prior.spread >= 0.1


def test_counts_are_whole_wherever_a_fit_looks() -> None:
    count = Prior(2.0, 0.6, "", "count")
    assert [decode(count, place) for place in (-3.0, 1.4, 1.9992, 2.6)] == [1.0, 1.0, 2.0, 3.0]
    shipped, known = values(shipped_physics().physics), priors(PRIOR)
    counts = {name: shipped[name] for name, prior in known.items() if prior.scale == "count"}
    assert counts and all(value == round(value) for value in counts.values())
