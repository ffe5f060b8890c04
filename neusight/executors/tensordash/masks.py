"""Random masks of effectual values: how many zeros, and how much they keep together.

Zeros follow a *beta-Bernoulli model* (the beta-binomial of Skellam 1948, drawn value by value). The values of a mask
fall into groups; group g has a zero fraction of its own, and its values are zero independently of each other:

    q_g ~ Beta(s (1 - c) / c, (1 - s) (1 - c) / c)        value of group g is zero with probability q_g

with sparsity s and clustering c. Then E[q_g] = s whatever c is, so that the expected share of zeros is exactly s, and
Var[q_g] = c s (1 - s), so that two values of a group have correlation c (the intra-class correlation). c = 0 is
independent zeros, q_g = s; c = 1 makes every group all zero (with probability s) or all effectual. What a group is
decides what clustering costs: uneven streams hold up the other PE rows, uneven steps and lanes starve a lane's moves,
and zeros that all streams share cost nothing on top.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neusight.errors import DataError, nearest
from neusight.executors.tensordash.schedule import LANES, check_mask

CLUSTERS: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "stream": lambda streams, steps, lanes: (streams, 1, 1),
    "step": lambda streams, steps, lanes: (streams, steps, 1),
    "lane": lambda streams, steps, lanes: (streams, 1, lanes),
    "slot": lambda streams, steps, lanes: (1, steps, lanes),
}
"""Groups that a mask of shape (streams, steps, lanes) falls into, as a shape to broadcast: each stream, each row of a
stream, each lane of a stream, or each place of the dense schedule through all streams (a dead channel)."""


def random_mask(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    sparsity: float,
    clustering: float = 0.0,
    cluster: str = "stream",
) -> np.ndarray:
    """A mask of ``shape`` (streams, steps, lanes), True where effectual, by the beta-Bernoulli model above.

    ``sparsity`` in [0, 1] is the expected share of zeros, ``clustering`` in [0, 1] the correlation within a group, a
    group being what ``CLUSTERS`` has under ``cluster``. Without clustering it is ``rng.random(shape) >= sparsity``.

    Raises:
        DataError: a share outside [0, 1], or an unknown kind of group.
    """
    for name, share in (("sparsity", sparsity), ("clustering", clustering)):
        if not 0 <= share <= 1:
            raise DataError(f"{name} lies between 0 and 1, not at {share}")
    zeros = _zero_fractions(rng, _groups(cluster, shape), sparsity, clustering)
    return rng.random(shape) >= zeros


def clustering_of(mask: np.ndarray, cluster: str = "stream") -> float:
    """Intra-class correlation of a mask's zeros, by moments: what ``random_mask`` takes as ``clustering``.

    With m values a group, zero fractions q_g of the groups and s of all, ``Var[q_g] = s (1 - s) (1 + (m - 1) c) / m``
    is solved for c; it scatters around the truth, and below 0 where zeros are spread more evenly than by chance. 0 for
    a mask that is all zero or all effectual, and where groups have a single value.

    Raises:
        DataError: a malformed mask, or an unknown kind of group.
    """
    check_mask(mask)
    groups = _groups(cluster, mask.shape)
    alike = tuple(axis for axis in range(3) if groups[axis] == 1)
    size = mask.size / np.prod(groups)
    effectual = mask.mean(axis=alike)
    spread = effectual.mean() * (1 - effectual.mean())
    if size == 1 or spread == 0:
        return 0.0
    return float((size * effectual.var() / spread - 1) / (size - 1))


def filled_slots(taps: int, channels: int, lanes: int = LANES) -> np.ndarray:
    """Slots of a stream that hold a value at all, shape (taps · ⌈channels / lanes⌉, lanes).

    Channels are innermost, and every kernel position begins a row: the lanes beyond the last channel stay empty.

    Raises:
        DataError: a count below 1.
    """
    if min(taps, channels, lanes) < 1:
        raise DataError(f"a stream has 1 or more taps, channels and lanes, not {taps}, {channels} and {lanes}")
    blocks = -(-channels // lanes)
    position = (np.arange(blocks * lanes) < channels).reshape(blocks, lanes)
    return np.tile(position, (taps, 1))


def _groups(cluster: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if cluster not in CLUSTERS:
        raise DataError(f"unknown cluster '{cluster}': one of {', '.join(CLUSTERS)}{nearest(cluster, CLUSTERS)}")
    streams, steps, lanes = shape
    return CLUSTERS[cluster](streams, steps, lanes)


def _zero_fractions(
    rng: np.random.Generator, groups: tuple[int, int, int], sparsity: float, clustering: float
) -> np.ndarray:
    """q_g of every group. The two ends of clustering are limits that a beta distribution doesn't have."""
    if clustering == 0 or sparsity in (0, 1):
        return np.full(groups, float(sparsity))
    if clustering == 1:
        return (rng.random(groups) < sparsity).astype(float)
    together = (1 - clustering) / clustering
    return rng.beta(sparsity * together, (1 - sparsity) * together, groups)
