"""Tokens on experts: against counting them one by one, and against drawing them as the benchmarks do."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.errors import CoverageError
from neusight.kernels import KernelBatch
from neusight.kernels.moe import products_of, routings
from neusight.kernels.named import kernel_named
from neusight.kernels.work import filled_groups


def layer(tokens: int, top_k: int, everyone: int, devices: int = 1, distribution: str = "balanced") -> KernelBatch:
    return KernelBatch.from_columns(
        "moe", tokens=tokens, hidden=64, ffn=32, experts=everyone // devices, all_experts=everyone, top_k=top_k,
        distribution=distribution,
    )  # fmt: skip


def routing(batch: KernelBatch) -> list[float]:
    return [float(each) for each in routings(batch)[0]]


def test_balanced_pairs_are_dealt_out_one_by_one(subtests: pytest.Subtests) -> None:
    for tokens, top_k, everyone, devices in [(1, 8, 128, 1), (1, 8, 128, 4), (64, 8, 128, 2), (100, 2, 8, 1)]:
        with subtests.test(tokens=tokens, top_k=top_k, everyone=everyone, devices=devices):
            rows = np.zeros(everyone, int)
            for pair in range(tokens * top_k):
                # Devices in turn, and on each its experts in turn.
                device, place = pair % devices, pair // devices
                rows[device * (everyone // devices) + place % (everyone // devices)] += 1
            own = rows[: everyone // devices]
            assert routing(layer(tokens, top_k, everyone, devices)) == [own.sum(), (own > 0).sum(), own.max()]


def test_a_device_has_at_least_one_pair() -> None:
    for distribution in ("balanced", "uniform", "power_law_1.2"):
        assert routing(layer(1, 1, 64, 64, distribution)) == [1.0, 1.0, 1.0]


def test_uniform_experts_are_those_of_random_choices(subtests: pytest.Subtests) -> None:
    rng = np.random.default_rng(0)
    for tokens, top_k, everyone in [(8, 2, 16), (64, 8, 128), (512, 8, 128)]:
        with subtests.test(tokens=tokens, top_k=top_k, everyone=everyone):
            drawn = []
            for _ in range(400):
                chosen = rng.random((tokens, everyone)).argsort(axis=1)[:, :top_k]
                rows = np.bincount(chosen.ravel(), minlength=everyone)
                drawn.append((rows.sum(), (rows > 0).sum(), rows.max()))
            found = routing(layer(tokens, top_k, everyone, distribution="uniform"))
            pairs, active, fullest = np.mean(drawn, axis=0)
            assert found[0] == pairs
            assert found[1] == pytest.approx(active, rel=0.02)
            assert found[2] == pytest.approx(fullest, rel=0.15)


def drawn_by_power_law(
    rng: np.random.Generator, tokens: int, top_k: int, everyone: int, devices: int, *, exponent: float
) -> tuple[int, int, int]:
    """One device's pairs, experts and fullest, drawn as aiconfigurator does, a pair at a time."""
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > everyone else (0.01, 2.0)
    a = 1.0 - exponent
    shares = ((high**a - low**a) * rng.random(everyone) + low**a) ** (1 / a)
    rows = np.rint(shares / shares.sum() * tokens * top_k).astype(int)
    rows = np.minimum(rows, tokens).reshape(devices, -1)
    while (left := tokens * top_k - rows.sum()) != 0:
        for own in rows[: abs(left)] if abs(left) < devices else rows:
            able = np.flatnonzero(own < tokens) if left > 0 else np.flatnonzero(own > 0)
            if len(able):
                own[able[own[able].argmin() if left > 0 else own[able].argmax()]] += np.sign(left)
    heaviest = rows[rows.sum(axis=1).argmax()]
    return heaviest.sum(), (heaviest > 0).sum(), heaviest.max()


def test_power_laws_are_those_of_the_benchmark(subtests: pytest.Subtests) -> None:
    rng = np.random.default_rng(1)
    for tokens, top_k, everyone, devices, exponent in [
        *((1, 8, 128, 4, 1.01), (64, 8, 128, 8, 1.2), (2048, 8, 128, 8, 1.2), (2048, 8, 128, 64, 1.01)),
        *((512, 22, 512, 4, 1.01), (16, 2, 8, 1, 1.2), (8192, 1, 16, 4, 1.2)),
    ]:
        with subtests.test(tokens=tokens, top_k=top_k, everyone=everyone, devices=devices, exponent=exponent):
            draws = [drawn_by_power_law(rng, tokens, top_k, everyone, devices, exponent=exponent) for _ in range(64)]
            found = routing(layer(tokens, top_k, everyone, devices, f"power_law_{exponent}"))
            spread = 4.0 * np.std(draws, axis=0) * np.sqrt(1 / 32 + 1 / 64)
            assert (np.abs(np.mean(draws, axis=0) - found) <= np.maximum(spread, 0.5)).all(), np.mean(draws, axis=0)


def test_a_power_law_neither_makes_nor_loses_pairs() -> None:
    for tokens in (1, 7, 256, 8192):
        pairs, active, fullest = routing(layer(tokens, 8, 128, 1, "power_law_1.01"))
        assert pairs == 8 * tokens
        assert active <= 128
        assert pairs / active <= fullest <= tokens


def test_products_are_those_of_the_experts_with_tokens() -> None:
    batch = KernelBatch.from_columns(
        "moe", tokens=[1, 64], hidden=256, ffn=128, experts=8, all_experts=16, top_k=4, gated=[True, False],
        dtype="float8", scaling="block",
    )  # fmt: skip
    up, down = products_of(batch)
    assert (up["n"].tolist(), up["k"].tolist()) == ([256, 128], [256, 256])
    assert (down["n"].tolist(), down["k"].tolist()) == ([256, 256], [128, 128])
    for product in (up, down):
        assert product["tokens"].tolist() == [2, 128]
        assert product["groups"].tolist() == [2, 8]
        assert [column.tolist() for column in filled_groups(product)] == [[2, 8], [1, 16]]
        assert (product["dtype"] == "float8").all()
        assert (product["scaling"] == "block").all()


def test_one_device_has_all_experts_unless_said() -> None:
    shape = {"tokens": 64, "hidden": 256, "ffn": 128, "experts": 8, "top_k": 2}
    assert kernel_named("moe", shape).kernel(0).all_experts == 8
    assert kernel_named("moe", {**shape, "all_experts": 64}).kernel(0).all_experts == 64


def test_what_is_wrong_is_said(subtests: pytest.Subtests) -> None:
    shape = {"tokens": 64, "hidden": 256, "ffn": 128, "experts": 8, "top_k": 2}
    for wrong, message in [
        ({"distribution": "even"}, "unknown distribution of tokens 'even': one of balanced, uniform"),
        ({"distribution": "power_law_x"}, "unknown distribution of tokens 'power_law_x'"),
        ({"all_experts": 20}, "experts=8 does not divide all_experts=20"),
        ({"top_k": 9}, "all_experts=8: must be at least top_k=9"),
        ({"experts": 2**20}, "at most 65536"),
        ({"scaling": "some"}, "scaling=some: must be one of"),
    ]:
        with subtests.test(wrong=wrong), pytest.raises(CoverageError) as caught:
            kernel_named("moe", {**shape, **wrong})
        assert message in str(caught.value)
