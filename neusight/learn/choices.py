"""The tile choice of a training run: learned from kernel names, or the one that ships where they tell too little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neusight.executors.gpu.tiling import TileChoice
from neusight.executors.gpu.tiling.decompose import LEARNED_DTYPES
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.learn.tile_choice import ObservedTiles, fit_choice, tile_index
from neusight.learn.training_data import DeviceRows

LEARNABLE_ROWS = 50
"""Products of each op whose tile must be known before they say more than the choice that ships (assumption)."""


class Choices:
    """Tile choices learned without one GPU, each fitted once.

    Args:
        rows: products, one entry a GPU; may be empty.
        seed: of the samples that are fitted.
    """

    def __init__(self, rows: Sequence[DeviceRows], seed: int) -> None:
        self.rows = [r.take(np.isin(r.batch["dtype"], LEARNED_DTYPES)) for r in rows]
        self.seed = seed
        self.fitted: dict[str, TileChoice] = {}

    def without(self, gpu: str) -> TileChoice:
        """The choice learned from every other GPU; "" leaves none out."""
        if gpu not in self.fitted:
            others = [r for r in self.rows if r.device.id != gpu]
            self.fitted[gpu] = _learned(others or self.rows, self.seed)
        return self.fitted[gpu]


def _learned(rows: Sequence[DeviceRows], seed: int) -> TileChoice:
    observed = [ObservedTiles(r.device, r.batch, tile_index(r.observed_m, r.observed_n)) for r in rows]
    known = [sum(int(((o.batch["op"] == op) & (o.tile >= 0)).sum()) for o in observed) for op in ("linear", "bmm")]
    return fit_choice(observed, seed=seed) if min(known) >= LEARNABLE_ROWS else shipped_choice()
