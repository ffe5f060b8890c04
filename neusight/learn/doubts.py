"""How wide intervals are: quantiles of what devices that were left out missed by, few devices shrunken to many.

Each device counts once in each kind of kernel, beside what the kind is one of (``levels``), as if that were ``ALIKE``
more devices; of strangers each die, whose boards are off together; and siblings, which few are measured of, beside
known devices and strangers, between which they lie. What is predicted is a device that none of them is, so that what
its kernels share is wider than what was seen, by where Student's t has 90 % (DeGroot and Schervish 2012, section 8.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.executors.gpu.tile_models.doubts import ANY, Doubt, Kinship, doubt_of, levels
from neusight.laws.doubts import NORMAL_90
from neusight.laws.effects import SEEN_SHARE
from neusight.learn.physics.solve import USUAL_COUNT as ALIKE
from neusight.learn.sums import students_widening, weighted_quantiles
from neusight.measured.errors import crps

COVERAGE = 0.90
TAILS = ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
LEAST_ROWS = 20
"""Rows of which a tail of 5 % is one: so many count half as much as very many."""
GROSS = np.log(4.0)
"""Kernels of a kind that a device's median misses by more than this are no measure of an interval, but faults of the
data or kernels of another sort (assumption)."""


UNKNOWN_FACTOR = 2.0
"""How far off, either way, a kernel may be of which nothing is known (assumption)."""
UNSEEN_POWER = 2.0
"""What one GPU's own rows miss by, to this power, is taken for what another one's would (assumption)."""


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """What a prediction missed by on one device, in kernels of one name of ``doubt_names``: quantiles of
    log(measured / predicted) at 0, 1, … 100 %, of so many rows. ``die`` is what devices are left out with.
    """

    gpu: str
    die: str
    family: str
    name: str
    rows: int
    quantiles: Sequence[float]

    @property
    def weight(self) -> float:
        """Of these rows, as a share of a device."""
        return self.rows / (self.rows + LEAST_ROWS)


@dataclass(frozen=True)
class _Pool:
    """Residuals with weights that add up to 1, the number of devices that they count as, and the mean square of what
    each of those shares.
    """

    values: np.ndarray
    weights: np.ndarray
    devices: float
    shared: float

    def doubt(self) -> Doubt:
        """Factors and spread for another device."""
        ends = weighted_quantiles(self.values, self.weights, TAILS)
        total = float(self.weights @ self.values**2)
        shared, n = min(self.shared, total), max(self.devices, 1.0)
        # Squares about none, which nothing estimates, have as many degrees of freedom as there are devices.
        widened = shared * students_widening(n) ** 2
        low, high = np.exp(ends * np.sqrt((total - shared + widened) / max(total, 1e-12)))
        return [round(min(float(low), 1.0), 4), round(max(float(high), 1.0), 4), round(float(np.sqrt(widened)), 4)]


def doubts_by_kinship(
    own: Sequence[Residuals], siblings: Sequence[Residuals], strangers: Sequence[Residuals]
) -> dict[Kinship, dict[str, Doubt]]:
    """Of devices that were learned from, of their siblings where there are any, and of strangers: where no other was
    seen, own rows widened, and no narrower than a factor of two either way, since nothing tells how GPUs differ.
    """
    seen, dies = doubts(own) or {ANY: [1.0, 1.0, 0.0]}, [replace(r, gpu=r.die) for r in strangers]
    unseen = doubts(dies) or {name: _unseen(doubt) for name, doubt in seen.items()}
    least = UNKNOWN_FACTOR if sum(r.rows for r in own) < LEAST_ROWS else 1.0
    known = {
        name: [min(low, 1 / least), max(high, least), round(SEEN_SHARE * doubt_of(unseen, name)[2], 4)]
        for name, (low, high, _) in seen.items()
    }
    beside: dict[Kinship, dict[str, Doubt]] = {"sibling": doubts(siblings, (own, dies))} if siblings else {}
    return {"own": known, **beside, "stranger": unseen}


def _unseen(doubt: Doubt) -> Doubt:
    """Of strangers, from what is known of one device."""
    low, high = min(doubt[0] ** UNSEEN_POWER, 1 / UNKNOWN_FACTOR), max(doubt[1] ** UNSEEN_POWER, UNKNOWN_FACTOR)
    return [round(low, 4), round(high, 4), round(float(np.log(high / low)) / (2 * NORMAL_90), 4)]


def doubts(residuals: Sequence[Residuals], beside: Sequence[Sequence[Residuals]] = ()) -> dict[str, Doubt]:
    """Of each name that occurs, and of its ``levels``; of none where nothing was left out. All kernels stand beside
    those of other kinships, each of which counts as much.
    """
    others = [_pools(each)[ANY] for each in beside if each]
    return {name: pool.doubt() for name, pool in sorted(_pools(residuals, _mixed(others)).items())}


def _pools(residuals: Sequence[Residuals], beside: _Pool | None = None) -> dict[str, _Pool]:
    usable = [r for r in residuals if abs(np.median(r.quantiles)) < GROSS] or list(residuals)
    pools: dict[str, _Pool] = {}
    for path in sorted({levels(r.name)[::-1] for r in usable}):
        for beyond, name in zip((None, *path), path, strict=False):
            if name not in pools:
                own = [r for r in usable if name in levels(r.name)]
                pools[name] = _pooled(own, pools[beyond] if beyond else beside)
    return pools


def _mixed(pools: Sequence[_Pool]) -> _Pool | None:
    """Of pools, each of which counts as much; none of none."""
    return _together(pools, [1.0] * len(pools), min(p.devices for p in pools)) if pools else None


def _together(pools: Sequence[_Pool], counts: Sequence[float], devices: float) -> _Pool:
    """Residuals of pools that count as much as ``counts`` say."""
    shares = np.array(counts) / sum(counts)
    weights = np.concatenate([share * p.weights for share, p in zip(shares, pools, strict=True)])
    return _Pool(np.concatenate([p.values for p in pools]), weights, devices, float(shares @ [p.shared for p in pools]))


def _pooled(residuals: Sequence[Residuals], beyond: _Pool | None) -> _Pool:
    """Residuals of a level, each device once, beside those of the level that it is a part of."""
    gpus, number = np.unique([r.gpu for r in residuals], return_inverse=True)
    weight = np.array([r.weight for r in residuals])
    whole = np.bincount(number, weight, len(gpus))
    means = np.bincount(number, weight * [np.mean(r.quantiles) for r in residuals], len(gpus)) / whole
    counted = np.minimum(whole, 1.0)
    values, weights = _spread_out(residuals, weight * (counted / whole)[number])
    devices, squares = float(counted.sum()), float(counted @ means**2)
    own = _Pool(values, weights / devices, devices, squares / devices)
    if beyond is None:
        return own
    return _together([own, beyond], [devices, ALIKE], max(devices, min(ALIKE, beyond.devices)))


def _spread_out(residuals: Sequence[Residuals], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All quantiles in a row, each with its share of the weight of its residuals."""
    counts = np.array([len(r.quantiles) for r in residuals])
    return np.concatenate([r.quantiles for r in residuals]), np.repeat(weights / counts, counts)


def coverage(known: Mapping[Kinship, Sequence[Residuals]]) -> list[dict[str, Any]]:
    """How well intervals hold that were learned without the device that they are put to, of strangers without its die.

    Args:
        known: of all devices that were left out, by kinship in the order of ``doubts_by_kinship``.

    Returns:
        A row a kinship and family: ``kinship``, ``family``, ``gpus``, ``rows``, ``inside`` (percent of rows), ``width``
        (of the interval in log time, over what the middle 90 % of the family's errors span) and ``crps`` (continuous
        ranked probability score of log time, of a normal distribution with these ends: Gneiting and Raftery 2007,
        equation 5).
    """
    rows = []
    for kinship, residuals in known.items():
        unit = "die" if kinship == "stranger" else "gpu"
        pairs: dict[str, list[tuple[Residuals, Doubt]]] = {}
        for left_out in sorted({getattr(r, unit) for r in residuals}):
            rest = {k: [r for r in each if getattr(r, unit) != left_out] for k, each in known.items()}
            if rest[kinship]:
                found = doubts_by_kinship(*rest.values())[kinship]
                for r in (r for r in residuals if getattr(r, unit) == left_out):
                    pairs.setdefault(r.family, []).append((r, doubt_of(found, r.name)))
        rows += [{"kinship": kinship, "family": family, **_covered(own)} for family, own in sorted(pairs.items())]
    return rows


def _covered(pairs: Sequence[tuple[Residuals, Doubt]]) -> dict[str, Any]:
    residuals = [r for r, _ in pairs]
    rows = np.array([r.rows for r in residuals], dtype=float)
    values, shares = _spread_out(residuals, rows / rows.sum())
    counts = [len(r.quantiles) for r in residuals]
    low, high = (np.repeat([np.log(doubt[end]) for _, doubt in pairs], counts) for end in (0, 1))
    needed = float(np.diff(weighted_quantiles(values, shares, TAILS))[0])
    return {
        "gpus": len({r.gpu for r in residuals}),
        "rows": int(rows.sum()),
        "inside": round(100 * float(shares @ ((low <= values) & (values <= high))), 1),
        "width": round(float(shares @ (high - low)) / max(needed, 1e-9), 2),
        "crps": round(float(shares @ crps(*np.exp([low, high, values]))) / 100.0, 4),
    }
