"""Fit the tile choice on observed tiles: maximum likelihood with a small ridge penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError
from neusight.kernels import KernelBatch
from neusight.tiling.library import FEATURES, TILES, TileChoice, choice_features, library_of

PENALTY = 1e-3
LIBRARY_PENALTY = 3e-2
"""A library's own preferences must be worth it: what all libraries share is free, what one adds is not."""
SIZE_EXPONENT = 0.25
"""Rows are sampled by FLOPs to this power: large products carry the time of models, random small ones the rows."""
STEPS = 80


@dataclass(frozen=True)
class ObservedTiles:
    """GEMMs of one device with the index in ``TILES`` of the tile that ran, -1 where it is none of them."""

    device: DeviceSpec
    batch: KernelBatch
    tile: np.ndarray


def tile_index(tile_m: np.ndarray, tile_n: np.ndarray) -> np.ndarray:
    """Position in ``TILES``, -1 for other tiles and for NaN."""
    index = np.full(len(tile_m), -1)
    for position, (m, n) in enumerate(TILES):
        index[(tile_m == m) & (tile_n == n)] = position
    return index


def fit_choice(observed: Sequence[ObservedTiles], rows_per_device: int = 4000, seed: int = 0) -> TileChoice:
    """Fit intercepts and weights; deterministic for a seed.

    Args:
        observed: one entry a device.
        rows_per_device: random rows taken of each device and op.
        seed: of that sample.

    Raises:
        DataError: no row has a known tile.
    """
    rng = np.random.default_rng(seed)
    intercepts: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    accuracy: dict[str, float] = {}
    for op in ("linear", "bmm"):
        groups = {d.device.id: g for d in observed if (g := _sample(d, op, rows_per_device, rng))}
        if not groups:
            raise DataError(f"no {op} row has a tile in its kernel name: cannot learn the library's choice")
        weights[op], by_library = _maximise(list(groups.values()))
        intercepts |= {f"{library}/{op}": values for library, values in by_library.items()}
    seen = sorted({d.device.compute_capability or "" for d in observed if (d.tile >= 0).any()})
    choice = TileChoice(_with_newest(intercepts), weights, accuracy, tuple(seen))
    for d in observed:
        accuracy |= {f"{d.device.id}/{op}": value for op, value in hit_rates(choice, d).items()}
    return choice


def hit_rates(choice: TileChoice, observed: ObservedTiles) -> dict[str, float]:
    """Share of rows, by op, whose likeliest tile is the one that ran."""
    rates = {}
    for op in ("linear", "bmm"):
        rows = np.flatnonzero((observed.batch["op"] == op) & (observed.tile >= 0))
        if len(rows):
            b, m, n, k = (observed.batch[c][rows].astype(float) for c in ("batch", "m", "n", "k"))
            tile_m, tile_n = choice.pick(op, m, n, k, b, observed.device)
            rates[op] = round(float((tile_index(tile_m, tile_n) == observed.tile[rows]).mean()), 4)
    return rates


def _sample(
    observed: ObservedTiles, op: str, limit: int, rng: np.random.Generator
) -> tuple[str, np.ndarray, np.ndarray] | None:
    rows = np.flatnonzero((observed.batch["op"] == op) & (observed.tile >= 0))
    if not len(rows):
        return None
    size = np.prod([observed.batch[c][rows].astype(float) for c in ("batch", "m", "n", "k")], axis=0) ** SIZE_EXPONENT
    rows = rng.choice(rows, size=min(limit, len(rows)), replace=True, p=size / size.sum())
    b, m, n, k = (observed.batch[c][rows].astype(float) for c in ("batch", "m", "n", "k"))
    features = np.stack(choice_features(m, n, k, b, observed.device), axis=-1)
    return library_of(observed.device), features.transpose(1, 0, 2), observed.tile[rows]


def _maximise(groups: list[tuple[str, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    """Weights shared by all devices of an op and intercepts by library that maximise the penalised likelihood."""
    import torch

    libraries = sorted({library for library, _, _ in groups})
    features = torch.tensor(np.concatenate([f for _, f, _ in groups]), dtype=torch.float32)
    tiles = torch.tensor(np.concatenate([t for _, _, t in groups]))
    library = torch.tensor(np.concatenate([np.full(len(t), libraries.index(name)) for name, _, t in groups]))
    weights = torch.zeros(len(FEATURES), requires_grad=True)
    shared = torch.zeros(len(TILES), requires_grad=True)
    own = torch.zeros(len(libraries), len(TILES), requires_grad=True)
    # The likelihood is concave, so that a quasi-Newton method needs few steps and no schedule.
    optimizer = torch.optim.LBFGS([weights, shared, own], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = (shared + own)[library] + features @ weights
        penalty = PENALTY * ((weights**2).sum() + (shared**2).sum()) + LIBRARY_PENALTY * (own**2).sum()
        total = torch.nn.functional.cross_entropy(scores, tiles) + penalty
        total.backward()
        return total

    # One thread: the order of sums, and so the result, is the same on every machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        optimizer.step(loss)
    finally:
        torch.set_num_threads(threads)
    values = (shared + own).detach().numpy().astype(float)
    return weights.detach().numpy().astype(float), {name: values[i] for i, name in enumerate(libraries)}


def _with_newest(intercepts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Libraries never seen take the preferences of the newest generation seen, which then stands in for ampere."""
    for op in ("linear", "bmm"):
        seen = [name for name in ("ampere", "volta", "maxwell", "tensile", "other") if f"{name}/{op}" in intercepts]
        intercepts.setdefault(f"ampere/{op}", intercepts[f"{seen[0]}/{op}"])
    return intercepts
