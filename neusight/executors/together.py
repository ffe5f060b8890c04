"""Kernels of many steps priced at once: a call has a price of its own, whatever it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from neusight.errors import NeusightError
from neusight.executors.costs import Costs
from neusight.kernels import KernelBatch
from neusight.kernels.sparsity import has_zeros


class BatchedPricer:
    """Costs of batches that are known before they are asked for, on one device.

    Args:
        batches: of any families; each is known again by its identity, so that they are kept.
        price: what prices a batch, and any that was not among these. What it refuses of all together, it is asked for
            again batch by batch.
    """

    def __init__(self, batches: Iterable[KernelBatch], price: Callable[[KernelBatch], Costs]) -> None:
        self._price = price
        # Known zeros are drawn from a generator, whose state is a batch's own.
        self._batches = {id(batch): batch for batch in batches if not has_zeros(batch)}
        self._costs: dict[int, Costs] = {}
        families: dict[str, list[KernelBatch]] = {}
        for batch in self._batches.values():
            families.setdefault(batch.family, []).append(batch)
        for group in families.values():
            self._price_all(group)

    def __call__(self, batch: KernelBatch) -> Costs:
        """Costs of a batch."""
        costs = self._costs.get(id(batch))
        return self._price(batch) if costs is None else costs

    def _price_all(self, group: list[KernelBatch]) -> None:
        try:
            costs = self._price(KernelBatch.joined(group))
        except NeusightError:
            return
        ends = np.cumsum([len(batch) for batch in group])
        for batch, end in zip(group, ends.tolist(), strict=True):
            self._costs[id(batch)] = costs.take(np.arange(end - len(batch), end))
