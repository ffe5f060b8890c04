"""Fit the tile choice on observed tiles: maximum likelihood with a small ridge penalty.

A training run learns its own from kernel names, or takes the one that ships where they tell too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Products of one device whose tile is known, with its index in ``TILES``."""

    device: GpuSpec
    products: Products
    tile: np.ndarray

    @classmethod
    def of(cls, rows: DeviceRows, op: str) -> ObservedTiles:
        """The products of an operator among rows of kernels."""
        tile = tile_index(rows.observed_m, rows.observed_n)
        known = np.flatnonzero((rows.batch["op"] == op) & (tile >= 0))
        extents = (rows.batch[name][known].astype(float) for name in ("m", "n", "k", "batch"))
        return cls(rows.device, Products(*extents), tile[known])

    def sample(self, count: int, rng: np.random.Generator) -> ObservedTiles:
        """At most ``count`` random products, large ones more often."""
        size = np.prod(self.products, axis=0) ** SIZE_EXPONENT
        rows = rng.choice(len(size), size=min(count, len(size)), replace=True, p=size / size.sum())
        return ObservedTiles(self.device, self.products.take(rows), self.tile[rows])

    @property
    def owners(self) -> tuple[str, ...]:
        """Names of those whose preferences add up: all libraries, that of the device, its table."""
        return ANY, self.device.facts.blas_generation, table_of(self.device)

    def hit_rate(self, choice: TileChoice, op: str) -> float:
        """Share of products whose likeliest tile is the one that ran."""
        likeliest = tile_index(*choice.pick(op, self.products, self.device, PRIOR))
        return round(float((likeliest == self.tile).mean()), 4)


def tile_index(tile_m: np.ndarray, tile_n: np.ndarray) -> np.ndarray:
    """Position in ``TILES``, -1 for other tiles and for NaN."""
    index = np.full(len(tile_m), -1)
    for position, (m, n) in enumerate(TILES):
        index[(tile_m == m) & (tile_n == n)] = position
    return index


def fit_choice(rows: Sequence[DeviceRows], rows_per_device: int = 4000, seed: int = 0) -> TileChoice:
    """Fit intercepts and weights; deterministic for a seed.

    Args:
        rows: products, one entry a device.
        rows_per_device: random rows taken of each device and op.
        seed: of that sample.

    Raises:
        DataError: no row has a known tile.
    """
    rng = np.random.default_rng(seed)
    intercepts: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    accuracy: dict[str, float] = {}
    choice = TileChoice(intercepts, weights, accuracy)
    for op in OPS:
        observed = [own for r in rows if len((own := ObservedTiles.of(r, op)).tile)]
        if not observed:
            raise DataError(f"no {op} row has a tile in its kernel name: cannot learn the library's choice")
        found = _maximise([own.sample(rows_per_device, rng) for own in observed])
        intercepts |= {f"{owner}/{op}": preferences[0] for owner, preferences in found.items()}
        weights |= {f"{own.owners[-1]}/{op}": found[own.owners[-1]][1] for own in observed} | {op: found[ANY][1]}
        accuracy |= {f"{own.device.id}/{op}": own.hit_rate(choice, op) for own in observed}
    return choice


def _maximise(samples: Sequence[ObservedTiles]) -> dict[str, tuple[np.ndarray, ...]]:
    """Intercepts and weights of each owner that maximise the penalised likelihood, what its elders add included."""
    import torch

    owners = list(dict.fromkeys(owner for own in samples for owner in enumerate(own.owners)))
    # A table that takes one tile for all products and one that minimises cost weigh cost differently; libraries do not.
    weighing = torch.tensor([float(depth != 1) for depth, _ in owners])[:, None]
    penalty = torch.tensor([OWN_PENALTY if depth else PENALTY for depth, _ in owners])[:, None]
    elders = [[float(own.owners[depth] == name) for depth, name in owners] for own in samples]
    member = torch.tensor(np.repeat(elders, [len(own.tile) for own in samples], axis=0), dtype=torch.float32)
    costs = [np.stack(choice_features(own.products, own.device), axis=-1) for own in samples]
    features = torch.tensor(np.concatenate(costs, axis=1), dtype=torch.float32)
    tiles = torch.tensor(np.concatenate([own.tile for own in samples]))
    added, weights = (torch.zeros(len(owners), size, requires_grad=True) for size in (len(TILES), len(FEATURES)))
    # The likelihood is concave, so that a quasi-Newton method needs few steps and no schedule.
    optimizer = torch.optim.LBFGS([added, weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = member @ added + torch.einsum("tnf,nf->nt", features, member @ (weighing * weights))
        total = torch.nn.functional.cross_entropy(scores, tiles)
        total += (penalty * added**2).sum() + (penalty * weights**2).sum()
        total.backward()
        return total

    with one_thread():
        optimizer.step(loss)
    found: dict[str, tuple[np.ndarray, ...]] = {}
    for own in samples:
        rows = [owners.index(owner) for owner in enumerate(own.owners)]
        sums = (values[rows].cumsum(dim=0).detach().numpy().astype(float) for values in (added, weights))
        found |= dict(zip(own.owners, zip(*sums, strict=True), strict=True))
    return found


def choices_without(rows: Sequence[DeviceRows], seed: int) -> Callable[[frozenset[str]], TileChoice]:
    """A function that gives the choice learned from all GPUs but some, each fitted once.

    Args:
        rows: products, one entry a GPU; may be empty.
        seed: of the samples that are fitted.
    """
    learnable = [r.take(np.isin(r.batch["dtype"], LEARNED_DTYPES)) for r in rows]

    @cache
    def without(gpus: frozenset[str]) -> TileChoice:
        others = [r for r in learnable if r.device.id not in gpus] or learnable
        known = [sum(len(ObservedTiles.of(r, op).tile) for r in others) for op in OPS]
        return fit_choice(others, seed=seed) if min(known) >= LEARNABLE_ROWS else shipped_choice()

    return without
