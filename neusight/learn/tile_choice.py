"""Fit the tile choice on observed tiles: maximum likelihood with a small ridge penalty.

A training run learns its own from kernel names, or takes the one that ships where they tell too little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.protocol import one_thread
from neusight.executors.gpu.tiling.decompose import LEARNED_DTYPES
from neusight.executors.gpu.tiling.library import (
    ANY,
    FEATURES,
    TILES,
    Products,
    TileChoice,
    choice_features,
    shipped_choice,
    table_of,
)
from neusight.kernels import KernelBatch
from neusight.laws.physics import PRIOR
from neusight.learn.training_data import DeviceRows

if TYPE_CHECKING:
    import torch

OPS = ("linear", "bmm")
PENALTY = 1e-3
OWN_PENALTY = 3e-3
"""What a library and each of its tables add to what all share must be worth it."""
SIZE_EXPONENT = 0.25
"""Rows are sampled by FLOPs to this power: large products carry the time of models, random small ones the rows."""
STEPS = 80
LEARNABLE_ROWS = 50
"""Products of each op whose tile must be known before they say more than the choice that ships (assumption)."""


@dataclass(frozen=True)
class ObservedTiles:
    """GEMMs of one device with the index in ``TILES`` of the tile that ran, -1 where it is none of them."""

    device: GpuSpec
    batch: KernelBatch
    tile: np.ndarray

    def known(self, op: str) -> np.ndarray:
        """Positions of an operator's products whose tile is known."""
        return np.flatnonzero((self.batch["op"] == op) & (self.tile >= 0))

    def products(self, rows: np.ndarray) -> Products:
        """Extents of some products."""
        return Products(*(self.batch[name][rows].astype(float) for name in ("m", "n", "k", "batch")))


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
    for op in OPS:
        groups = [group for d in observed if (group := _sample(d, op, rows_per_device, rng))]
        if not groups:
            raise DataError(f"no {op} row has a tile in its kernel name: cannot learn the library's choice")
        shared, by_table, by_owner = _maximise(groups)
        weights |= {op: shared} | {f"{table}/{op}": values for table, values in by_table.items()}
        intercepts |= {f"{owner}/{op}": values for owner, values in by_owner.items()}
    choice = TileChoice(intercepts, weights, accuracy)
    for d in observed:
        accuracy |= {f"{d.device.id}/{op}": value for op, value in hit_rates(choice, d).items()}
    return choice


def hit_rates(choice: TileChoice, observed: ObservedTiles) -> dict[str, float]:
    """Share of rows, by op, whose likeliest tile is the one that ran."""
    rates = {}
    for op in OPS:
        if len(rows := observed.known(op)):
            tile_m, tile_n = choice.pick(op, observed.products(rows), observed.device, PRIOR)
            rates[op] = round(float((tile_index(tile_m, tile_n) == observed.tile[rows]).mean()), 4)
    return rates


@dataclass(frozen=True)
class _Sample:
    """Products of one device: features of every tile, shape (n, tiles, features), and the tile that ran."""

    device: GpuSpec
    features: np.ndarray
    tile: np.ndarray


def _sample(observed: ObservedTiles, op: str, limit: int, rng: np.random.Generator) -> _Sample | None:
    rows = observed.known(op)
    if not len(rows):
        return None
    size = np.prod([observed.batch[c][rows].astype(float) for c in ("batch", "m", "n", "k")], axis=0) ** SIZE_EXPONENT
    rows = rng.choice(rows, size=min(limit, len(rows)), replace=True, p=size / size.sum())
    features = np.stack(choice_features(observed.products(rows), observed.device), axis=-1)
    return _Sample(observed.device, features.transpose(1, 0, 2), observed.tile[rows])


def _maximise(
    samples: Sequence[_Sample],
) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Weights that all devices of an op share, those of each table, and intercepts by library, by table and of ``ANY``,
    that maximise the penalised likelihood.
    """
    import torch

    features = torch.tensor(np.concatenate([s.features for s in samples]), dtype=torch.float32)
    tiles = torch.tensor(np.concatenate([s.tile for s in samples]))
    libraries, library = _numbered([s.device.facts.blas_generation for s in samples], samples)
    tables, table = _numbered([table_of(s.device) for s in samples], samples)
    weights, shared = (torch.zeros(size, requires_grad=True) for size in (len(FEATURES), len(TILES)))
    of_library, of_table = (torch.zeros(len(n), len(TILES), requires_grad=True) for n in (libraries, tables))
    # A library that takes one tile for all products and one that minimises cost weigh cost differently.
    own_weights = torch.zeros(len(tables), len(FEATURES), requires_grad=True)
    # The likelihood is concave, so that a quasi-Newton method needs few steps and no schedule.
    optimizer = torch.optim.LBFGS(
        [weights, shared, of_library, of_table, own_weights], max_iter=STEPS, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        weighted = torch.einsum("ntf,nf->nt", features, weights + own_weights[table])
        scores = shared + of_library[library] + of_table[table] + weighted
        free = (weights**2).sum() + (shared**2).sum()
        own = (of_library**2).sum() + (of_table**2).sum() + (own_weights**2).sum()
        total = torch.nn.functional.cross_entropy(scores, tiles) + PENALTY * free + OWN_PENALTY * own
        total.backward()
        return total

    with one_thread():
        optimizer.step(loss)
    values = {ANY: shared}
    values |= {name: shared + of_library[i] for i, name in enumerate(libraries)}
    for s in samples:
        i, j = libraries.index(s.device.facts.blas_generation), tables.index(table_of(s.device))
        values[table_of(s.device)] = shared + of_library[i] + of_table[j]
    by_table = {name: _array(weights + own_weights[j]) for j, name in enumerate(tables)}
    return _array(weights), by_table, {name: _array(value) for name, value in values.items()}


def _numbered(owners: Sequence[str], samples: Sequence[_Sample]) -> tuple[list[str], torch.Tensor]:
    """The distinct owners of samples, and the number of its owner for each row."""
    import torch

    names = sorted(set(owners))
    rows = [names.index(owner) for owner, s in zip(owners, samples, strict=True) for _ in s.tile]
    return names, torch.tensor(rows)


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().numpy().astype(float)


def choices_without(rows: Sequence[DeviceRows], seed: int) -> Callable[[frozenset[str]], TileChoice]:
    """A function that gives the choice learned from all GPUs but some, each fitted once.

    Args:
        rows: products, one entry a GPU; may be empty.
        seed: of the samples that are fitted.
    """
    learnable = [r.take(np.isin(r.batch["dtype"], LEARNED_DTYPES)) for r in rows]

    @cache
    def without(gpus: frozenset[str]) -> TileChoice:
        return _learned([r for r in learnable if r.device.id not in gpus] or learnable, seed)

    return without


def _learned(rows: Sequence[DeviceRows], seed: int) -> TileChoice:
    observed = [ObservedTiles(r.device, r.batch, tile_index(r.observed_m, r.observed_n)) for r in rows]
    known = [sum(len(o.known(op)) for o in observed) for op in OPS]
    return fit_choice(observed, seed=seed) if min(known) >= LEARNABLE_ROWS else shipped_choice()
