"""Tables against the prices they were made of, on passes that no table has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from neusight.api import Predictor
from neusight.errors import LoadError
from neusight.serving import EngineLimits, Offline, PassSizes, TabulatedPasses, simulate
from neusight.serving.lookup import PricedPasses
from neusight.workloads.decoders.shares import Steps

Part = Callable[[Steps], np.ndarray]
FLOOR_S = 3e-4
"""Of the attention of all prompts of a pass together."""


def smooth_tokens(steps: Steps) -> np.ndarray:
    """Weights to read, then arithmetic, with a bend between; and a head."""
    return 1e-3 + np.hypot(8e-3, 3e-5 * steps.tokens) + 1e-6 * steps.sequences


def smooth_decodes(steps: Steps) -> np.ndarray:
    """Few sequences leave much of the bandwidth idle."""
    reached = 1 - np.exp(-np.maximum(steps.decodes, 1) / 20)
    return 3e-4 + 3e-8 * steps.decodes * (steps.decode_cached + 1) / reached


def smooth_chunks(steps: Steps) -> np.ndarray:
    new, behind = steps.prompts * steps.prompt_tokens, steps.prompt_cached
    return FLOOR_S + 4e-9 * new * (behind + steps.prompt_tokens / 2) + 1e-8 * steps.prompts * behind


def stepped_tokens(steps: Steps) -> np.ndarray:
    """Tiles of 128 tokens, and of 64 sequences in the head."""
    tiles, heads = np.ceil(steps.tokens / 128), np.ceil(steps.sequences / 64)
    return 1e-3 + np.maximum(8e-3, 3e-5 * 128 * tiles) + 6.4e-5 * heads


def stepped_decodes(steps: Steps) -> np.ndarray:
    """Waves of blocks, eight a sequence, on 132 multiprocessors."""
    return 3e-4 + 5e-7 * np.ceil(steps.decodes * 8 / 132) * (steps.decode_cached + 1)


def stepped_chunks(steps: Steps) -> np.ndarray:
    rows = 128 * np.ceil(steps.prompt_tokens / 128)
    return FLOOR_S + 4e-9 * steps.prompts * rows * (steps.prompt_cached + steps.prompt_tokens / 2)


LAWS: dict[str, tuple[Part, Part, Part]] = {
    "smooth": (smooth_tokens, smooth_decodes, smooth_chunks),
    "stepped": (stepped_tokens, stepped_decodes, stepped_chunks),
}


def tables(law: tuple[Part, Part, Part]) -> TabulatedPasses:
    tokens, decodes, chunks = law
    return TabulatedPasses(PassSizes(8192, 256, 40_000), tokens=tokens, decodes=decodes, chunks=chunks)


def passes(number: int) -> Iterator[tuple[list[tuple[int, int]], int, float]]:
    """Chunks, decodes and their context, all at random within what the tables are for."""
    random = np.random.default_rng(0)
    for _ in range(number):
        decodes, left = int(random.integers(0, 250)), 8192 - 250
        chunks = []
        for _ in range(random.integers(0 if decodes else 1, 6)):
            new = int(np.clip(random.lognormal(6, 1.5), 1, left))
            chunks.append((new, int(random.choice([0, random.integers(0, 30_000)]))))
            left = max(1, left - new)
        yield chunks, decodes, float(decodes * random.uniform(1, 39_000))


def priced(law: tuple[Part, Part, Part], chunks: list[tuple[int, int]], decodes: int, context: float) -> float:
    """The same pass from the laws themselves, chunk by chunk above one floor."""
    tokens, attention, prompts = law
    new = sum(n for n, _ in chunks) + decodes
    # All tokens as one prompt, and what heads beyond the first add.
    sequences = len(chunks) + decodes
    head = tokens(Steps.of(decodes=sequences)) - tokens(Steps.of(prompts=1, prompt_tokens=sequences))
    total = tokens(Steps.of(prompts=1, prompt_tokens=new)) + head
    if decodes:
        total = total + attention(Steps.of(decodes=decodes, decode_cached=context / decodes))
    each = [prompts(Steps.of(prompts=1, prompt_tokens=n, prompt_cached=c)) - FLOOR_S for n, c in chunks]
    return float((total + (FLOOR_S if chunks else 0) + sum(each))[0])


@pytest.mark.parametrize(("law", "limit"), [("smooth", 0.01), ("stepped", 0.03)])
def test_tables_are_near_the_prices_they_were_made_of(law: str, limit: float) -> None:
    made = tables(LAWS[law])
    errors = []
    for chunks, decodes, context in passes(600):
        looked_up = made.pass_s(sum(n for n, _ in chunks) + decodes, chunks, decodes, context)
        errors.append(abs(looked_up / priced(LAWS[law], chunks, decodes, context) - 1))
    assert max(errors) < limit


def test_steps_of_tiles_are_met_where_they_are() -> None:
    made = tables(LAWS["stepped"])
    for tokens in (128, 129, 1024, 1025, 7680, 7681):
        assert made.pass_s(tokens, [(tokens, 0)], 0, 0) == pytest.approx(priced(LAWS["stepped"], [(tokens, 0)], 0, 0))
    for decodes in range(1, 256, 5):
        assert made.pass_s(decodes, (), decodes, decodes * 777.0) == pytest.approx(
            priced(LAWS["stepped"], [], decodes, decodes * 777.0)
        )


def test_each_price_is_asked_once_for_a_few_thousand_passes() -> None:
    asked: list[int] = []

    def counted(law: Part) -> Part:
        def price(steps: Steps) -> np.ndarray:
            asked.append(len(steps))
            return law(steps)

        return price

    tokens, decodes, chunks = (counted(law) for law in LAWS["smooth"])
    tables((tokens, decodes, chunks))
    assert len(asked) == 3
    assert max(asked) < 5000


@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 4, 100), (8192, 1, 300), (64, 256, 17), (100_000, 1000, 131_072)])
def test_tables_of_any_size_answer_up_to_their_ends(sizes: tuple[int, int, int]) -> None:
    max_tokens, seqs, length = sizes
    tokens, decodes, chunks = LAWS["smooth"]
    made = TabulatedPasses(PassSizes(*sizes), tokens=tokens, decodes=decodes, chunks=chunks)
    for n in {1, max(1, seqs // 2), seqs}:
        exact = priced(LAWS["smooth"], [], n, n * length)
        assert made.pass_s(n, (), n, n * length) == pytest.approx(exact, rel=0.01)
    exact = priced(LAWS["smooth"], [(max_tokens, length)], 0, 0)
    assert made.pass_s(max_tokens, [(max_tokens, length)], 0, 0) == pytest.approx(exact, rel=0.01)


def test_what_lies_beyond_is_refused() -> None:
    made = tables(LAWS["smooth"])
    with pytest.raises(
        LoadError, match="a pass of 9000 tokens and 1 sequences is beyond the tables, which end at 8192"
    ):
        made.pass_s(9000, [(9000, 0)], 0, 0)
    with pytest.raises(LoadError, match="300 sequences is beyond the tables"):
        made.pass_s(300, (), 300, 300.0)
    for call in ((1, (), 1, 50_000.0), (10, [(10, 50_000)], 0, 0.0)):
        with pytest.raises(LoadError, match="50000 tokens of a sequence are beyond the tables, which end at 40000"):
            made.pass_s(*call)


def test_an_engine_runs_on_tables() -> None:
    run = simulate(Offline(num_prompts=40, isl=[100, 3000], osl=30), EngineLimits(), tables(LAWS["smooth"]))
    assert run.passes.lasts_s[0] == pytest.approx(
        priced(LAWS["smooth"], [(100, 0), (3000, 0)] * 2 + [(100, 0), (1892, 0)], 0, 0), rel=0.01
    )


def test_priced_passes_ask_for_new_ones_alone() -> None:
    asked: list[list[int]] = []

    def price(steps: Steps) -> dict[str, np.ndarray]:
        asked.append(steps.tokens.tolist())
        return {"s": smooth_tokens(steps), "limiter": np.where(steps.tokens > 60, "compute", "dram")}

    passes = PricedPasses()
    for tokens in ([16, 64], [64, 8, 16, 128], [8, 64]):
        steps = Steps.of(prompts=1, prompt_tokens=np.array(tokens))
        columns = passes.columns(steps, price)
        assert columns["s"].tolist() == smooth_tokens(steps).tolist()
        assert columns["limiter"].tolist() == ["compute" if n > 60 else "dram" for n in tokens]
    # As many tokens of sequences that generate are other passes.
    passes.columns(Steps.of(decodes=np.array([16])), price)
    assert asked == [[16, 64], [8, 128], [16]]


def test_tables_are_the_same_after_those_of_other_sizes(predictor: Predictor) -> None:
    sizes = PassSizes(tokens=700, sequences=20, length=4096)
    replica = predictor.deployment("meta-llama/Llama-3.1-8B", "l40s", 512).replica
    replica.tables(PassSizes(tokens=512, sequences=33, length=8192))
    after, fresh = (each.tables(sizes) for each in (replica, replace(replica)))
    for made in (after, fresh):
        assert made.pass_s(600, [(590, 0)], 10, 1000.0) > 0.0
    assert after.tables.tokens_s == fresh.tables.tokens_s and after.tables.sequences_s == fresh.tables.sequences_s
    np.testing.assert_array_equal(after.tables.chunks.times_s, fresh.tables.chunks.times_s)
    np.testing.assert_array_equal(after.tables.decodes.times_s, fresh.tables.decodes.times_s)
