"""Distribution of tokens over the experts of one device, and the two grouped products that it gives.

``balanced`` deals token-expert pairs out evenly. ``uniform`` draws each token's experts at random. ``power_law_<a>`` is
the imbalance that aiconfigurator's benchmarks draw (``collector/helper.py``): the shares of experts are random numbers
of density x^-a between 1 and 0.8 · tokens, or between 0.01 and 2 where there are no more pairs than experts; scaled to
the number of pairs, rounded, at most one pair a token, the rest filled up from the emptiest; of several devices it is
the one with most pairs that counts. What follows from a draw is the mean of ``DRAWS`` of them, of a fixed seed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.families import KernelBatch

DRAWS = 32
"""Routings that a mean is taken of; that of the benchmarks is of five (numerics)."""
POWER_LAW = "power_law_"
DISTRIBUTIONS = ("balanced", "uniform", f"{POWER_LAW}1.01", f"{POWER_LAW}1.2")
"""Distributions that measurements use; power laws take any exponent above zero."""
MOST_EXPERTS = 1 << 16
"""Largest number of experts of a layer, so that draws of them stay small (numerics)."""
Routing = tuple[float, float, float]
"""Token-expert pairs on the device, its experts that have any, and the pairs of the fullest of them."""
_ROUTED = ("tokens", "top_k", "experts", "all_experts", "distribution")


def products_of(batch: KernelBatch) -> tuple[KernelBatch, KernelBatch]:
    """The grouped products of a layer of experts, up (with the gate) and down, over the experts that have tokens.

    Raises:
        CoverageError: an unknown distribution, or experts that devices cannot share evenly.
    """
    pairs, active, fullest = (np.rint(column).astype(np.int64) for column in routings(batch).T)
    gates = np.where(batch["gated"], 2, 1)
    same = {"groups": active, "tokens": pairs, "largest": fullest}
    same |= {name: batch[name] for name in ("dtype", "weight_dtype", "scaling")}
    up = KernelBatch.from_columns("grouped_gemm", n=gates * batch["ffn"], k=batch["hidden"], **same)
    down = KernelBatch.from_columns("grouped_gemm", n=batch["hidden"], k=batch["ffn"], **same)
    return up, down


def check_experts(experts: int, everyone: int, top_k: int) -> None:
    """Refuse experts that devices cannot share evenly, or that are fewer than a token takes, and tokens that take none.

    Raises:
        CoverageError: which they are.
    """
    if top_k < 1:
        raise CoverageError(f"top_k={top_k}: a token takes at least one expert")
    if everyone % experts:
        raise CoverageError(f"experts={experts} does not divide all_experts={everyone}: devices hold equal shares")
    if not top_k <= everyone <= MOST_EXPERTS:
        raise CoverageError(f"all_experts={everyone}: must be at least top_k={top_k} and at most {MOST_EXPERTS}")


def check_distribution(name: str) -> float | None:
    """The exponent of a power law, None for the other distributions.

    Raises:
        CoverageError: no such distribution.
    """
    if name in ("balanced", "uniform"):
        return None
    try:
        exponent = float(name.removeprefix(POWER_LAW)) if name.startswith(POWER_LAW) else 0.0
    except ValueError:
        exponent = 0.0
    if not 0.0 < exponent < 100.0:
        raise CoverageError(f"unknown distribution of tokens '{name[:40]}': one of {', '.join(DISTRIBUTIONS)}")
    return exponent


def routings(batch: KernelBatch) -> np.ndarray:
    r"""Expected token-expert pairs P on the device (rows of both products, at least one), its experts E_a that have
    tokens, so that their weights are read, and rows L of the fullest of them; a ``Routing`` a kernel, shape (n, 3).

    .. math:: E_a = \min(E, P) \text{ (balanced)},\quad E_a = E\,(1 - (1 - k / E_{all})^T) \text{ (uniform)}
    .. math:: L = P / E_a \text{ (balanced)},\quad L = \mu + \sqrt{2 \mu (1 - k / E_{all}) \ln E} \text{ (uniform)}

    Args:
        batch: T tokens, each on k of E_all experts, of which E are the device's, with mu = T k / E_all rows each; L is
            at most T.

    Source: counting; the expected maximum of normal variables (David and Nagaraja 2003, Order Statistics, section 4.2);
    power laws by draws, see above. Validity: tokens that choose independently of each other, and for L of uniform ones
    mu well above one.
    """
    code = np.zeros(len(batch), np.int64)
    for name in _ROUTED:
        values, codes = np.unique(batch[name], return_inverse=True)
        code = np.unique(code * len(values) + codes.reshape(-1), return_inverse=True)[1].reshape(-1)
    _, first, where = np.unique(code, return_index=True, return_inverse=True)
    routings = [_routing(*row) for row in zip(*(batch[name][first].tolist() for name in _ROUTED), strict=True)]
    return np.array(routings)[where.reshape(-1)]


@lru_cache(maxsize=1 << 16)
def _routing(*routed: int | str) -> Routing:
    """Routing of one layer, from the values of ``_ROUTED`` in their order."""
    tokens, top_k, experts, everyone = (int(value) for value in routed[:4])
    check_experts(experts, everyone, top_k)
    exponent = check_distribution(str(routed[4]))
    mean = tokens * top_k / everyone
    if exponent is not None:
        return _drawn(tokens, top_k, experts, everyone, exponent=exponent)
    if routed[4] == "balanced":
        pairs = np.ceil(mean * experts)
        active = min(experts, pairs)
        return float(pairs), float(active), float(np.ceil(pairs / active))
    active = experts * (1.0 - (1.0 - top_k / everyone) ** tokens)
    fullest = mean + np.sqrt(2.0 * mean * (1.0 - top_k / everyone) * np.log(experts))
    pairs = max(1.0, mean * experts)
    return pairs, max(1.0, active), float(np.clip(fullest, pairs / experts, min(tokens, pairs)))


def _drawn(tokens: int, top_k: int, experts: int, everyone: int, *, exponent: float) -> Routing:
    """Mean over ``DRAWS`` of the device with most pairs."""
    rows = _power_law_rows(tokens, top_k * tokens, experts, everyone, exponent=exponent)
    heaviest = rows.sum(axis=2).argmax(axis=1)
    of_heaviest = rows[np.arange(DRAWS), heaviest]
    statistics = of_heaviest.sum(axis=1), (of_heaviest > 0).sum(axis=1), of_heaviest.max(axis=1)
    pairs, active, fullest = (max(1.0, float(values.mean())) for values in statistics)
    return pairs, active, fullest


def _power_law_rows(tokens: int, pairs: int, experts: int, everyone: int, *, exponent: float) -> np.ndarray:
    """Pairs of each expert, shape (draws, devices, experts of one)."""
    low, high = (1.0, max(0.8 * tokens, 1.0)) if pairs > everyone else (0.01, 2.0)
    power = 1.0 - exponent if abs(exponent - 1.0) > 1e-6 else 1e-6
    u = np.random.default_rng(0).random((DRAWS, everyone))
    shares = ((high**power - low**power) * u + low**power) ** (1.0 / power)
    rows = np.minimum(np.rint(pairs * shares / shares.sum(axis=1, keepdims=True)), tokens)
    left = pairs - rows.sum(axis=1)
    devices = everyone // experts
    # Device after device gets one pair more, or loses one, so that the first may differ from the last by one.
    turn = np.arange(devices)
    corrections = np.sign(left)[:, None] * ((np.abs(left)[:, None] + devices - 1 - turn) // devices)
    return _level_rows(rows.reshape(DRAWS, devices, experts), corrections)


def _level_rows(rows: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Rows with ``more`` in all along the last axis, one at a time to the emptiest, or from the fullest where it is
    negative; sorted.
    """
    sign = np.where(more < 0, -1.0, 1.0)[..., None]
    ordered, more = np.sort(sign * rows, axis=-1), np.abs(more)[..., None]
    count = np.arange(1, rows.shape[-1] + 1)
    below = np.cumsum(ordered, axis=-1)
    # Pairs that raise the first j to the level of the j-th; the last affordable j share what there is.
    able = (count * ordered - below <= more).sum(axis=-1, keepdims=True)
    filled = np.take_along_axis(below, able - 1, axis=-1) + more
    level, extra = np.divmod(filled, able)
    raised = level + (count <= extra)
    return np.maximum(sign * np.where(count <= able, raised, ordered), 0.0)
