"""How far memory may be from its prediction, and how likely a device has room."""

from __future__ import annotations

import os
from math import hypot
from pathlib import Path

import pytest

from neusight.engines import ENGINES, EXPERT_LOAD
from neusight.engines.engine import TRAINER_SPREAD
from neusight.laws.doubts import spread
from neusight.plans.allocator import ALLOCATOR_SHARE, CONTEXT_BYTES
from neusight.plans.margins import KEPT, LIBRARIES, SOURCES, TRAINER, MemoryFit, doubts_of, interval_bytes, reserved

GIB = 2.0**30
TERMS = {"weights": 10 * GIB, "optimizer": 30 * GIB, "activations": 20 * GIB, "loss": 5 * GIB, "workspaces": GIB}


def test_terms_of_one_source_err_together_and_sources_by_themselves() -> None:
    states = SOURCES["states"][0] * 40 * GIB
    deviation = 66 * GIB * spread(doubts_of(TERMS))
    assert deviation == pytest.approx(hypot(states, KEPT * 25 * GIB, LIBRARIES * GIB))
    low, high = interval_bytes(TERMS)
    assert (low + high) / 2 == pytest.approx(66 * GIB)
    assert high - low == pytest.approx(2 * 1.645 * deviation, rel=1e-3)
    assert interval_bytes({"fragments": GIB})[0] == 0.0


def test_shares_of_sources_may_be_others() -> None:
    assert doubts_of({"activations": GIB}, {"kept": 0.5}) == {"memory:kept": 0.5}
    usual, wide = (MemoryFit(terms=TERMS, usable_bytes=70 * GIB, shares=shares) for shares in ({}, {"kept": 0.5}))
    assert wide.interval[1] > usual.interval[1]
    assert 0.5 < wide.probability < usual.probability


def test_fits_with_is_the_probability_of_room() -> None:
    fit = MemoryFit(terms=TERMS, usable_bytes=67 * GIB)
    assert 0.5 < fit.probability < 1.0
    assert fit.bytes_with(0.5) == fit.needed_bytes
    assert fit.bytes_with(fit.probability) == pytest.approx(fit.usable_bytes)
    assert fit.fits_with(fit.probability - 0.01)
    assert not fit.fits_with(fit.probability + 0.01)


def test_a_process_takes_its_context_and_fragments_beside_its_tensors() -> None:
    total = sum(TERMS.values())
    beside = reserved(TERMS)
    assert (beside["context"], beside["fragments"]) == (CONTEXT_BYTES, pytest.approx(ALLOCATOR_SHARE * total))
    assert sum(reserved(TERMS, 3 * GIB).values()) == total + 3 * GIB


@pytest.mark.parametrize(
    ("spare", "words"),
    [(6.0, "fits"), (0.8, "probably fits ("), (-0.8, "probably does not fit ("), (-6.0, "does not fit")],
)
def test_room_is_told_by_its_probability(spare: float, words: str) -> None:
    needed = sum(reserved(TERMS).values())
    fit = MemoryFit(terms=reserved(TERMS), usable_bytes=needed + spare * GIB, rank="first")
    assert fit.words.startswith(words)
    assert fit.fits is (spare > 0)
    assert (fit.probability > 0.5) is fit.fits
    assert f"{abs(spare):.2f} GiB {'to spare' if fit.fits else 'too much'}" in str(fit)
    assert str(fit).startswith(f"{fit.words}: the first rank needs {needed / GIB:.2f} GiB (90 %: ")


def test_ends_are_plain_bytes_as_a_whole_and_by_term() -> None:
    data = MemoryFit(terms=TERMS, usable_bytes=80 * GIB).to_dict()
    assert data["needed_low_bytes"] < data["needed_bytes"] == 66 * GIB < data["needed_high_bytes"]
    assert list(data["memory_intervals"]) == list(TERMS)
    ends = data["memory_intervals"]["activations"]
    assert (ends["low_bytes"] + ends["high_bytes"]) / 2 == pytest.approx(20 * GIB)
    assert MemoryFit(terms={}, usable_bytes=0.0).probability == 1.0


@pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="needs the measured data")
def test_constants_of_memory_are_what_the_fit_says() -> None:
    from neusight.learn.evidence import FitOptions
    from neusight.learn.memory import MEMORY

    found = MEMORY.fitted(FitOptions(data=Path(os.environ["NEUSIGHT_DATA"]))).values
    assert (round(found["kept"], 3), round(found["libraries"], 2)) == (KEPT, LIBRARIES)
    assert round(found["expert_load"], 2) == EXPERT_LOAD
    assert round(found["memory_spread"], 3) == TRAINER_SPREAD == ENGINES["megatron-local"].memory_spread
    for trainer, name in (("megatron", "megatron-te"), ("torchtitan", "torchtitan-compiled")):
        assert round(found[f"memory_spread.{trainer}"], 3) == ENGINES[name].memory_spread


def test_memory_spreads_are_what_errors_exceed_spreads_by() -> None:
    """Of one trainer sqrt(0.05² - 0.03²); of one without rows by Student's t of one, 6.31 for 1.645."""
    from neusight.learn.memory import memory_spreads

    found = memory_spreads([("a", 0.05, 0.03), ("a-compiled", -0.05, 0.03)])
    assert found["memory_spread.a"] == pytest.approx(0.04)
    assert found["memory_spread"] == pytest.approx(0.04 * 6.3138 / 1.645, rel=1e-4)
    assert memory_spreads([("a", 0.01, 0.03), ("b", 0.02, 0.03)])["memory_spread"] == 0.0
    assert memory_spreads([]) == {}


def test_a_trainer_widens_the_interval_by_its_share_of_all_tensors() -> None:
    """Beside other sources as a square, and of tensors alone: contexts and fragments are not the trainer's."""
    terms = {"weights": 10 * GIB, "context": GIB}
    without, with_it = (spread(doubts_of(terms, shares)) for shares in ({}, {TRAINER: 0.05}))
    assert with_it**2 - without**2 == pytest.approx((0.05 * 10 / 11) ** 2)
