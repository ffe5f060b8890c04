"""From collectives to latencies: the law of links, what measured devices have of their own, and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.errors import CoverageError
from neusight.executors.base import FittedExecutor, Options
from neusight.executors.costs import Costs, cause_of
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import by_distinct, work_of
from neusight.laws.fitted import FittedLinks, shipped_links
from neusight.laws.link_kinds import FABRIC, NETWORK, SHORT, kinds_by_size, kinds_of, long_share, paths_of
from neusight.laws.links import blocks_of, collective_s, least_s
from neusight.laws.routes import Place, device_of, fastest, network_of, route

MEASURED_LINKS = ("nvlink", "pcie")
"""Kinds of links between devices of which collectives were measured."""
UNKNOWN_SPREAD = 0.3
"""Of kinds of collectives that nobody measured (assumption: as kinds differ that were measured; each kind on two
devices would tell)."""
TOLD_SPREAD = 0.2
"""Standard deviation of the log error of collectives over a network that is given (assumption: as ``TOLD_FACTORS``;
nccl-tests on more clusters would tell)."""
TOLD_FACTORS = (0.8, 1.6)
"""Of collectives over a network that is told, and measured over predicted times of them (assumption: from what vendors
publish of theirs to three quarters of it, as users report of clouds and of hundreds of nodes; nccl-tests on more
clusters would tell)."""
UNKNOWN_NETWORK_SPREAD = 0.4
"""The same where no network is given (assumption: as ``UNKNOWN_NETWORK_FACTORS``; which networks users have would
tell)."""
UNKNOWN_NETWORK_FACTORS = (0.5, 8.0)
"""The same where no network is given (assumption: from two adapters a device to 50 Gb/s a device of 400; which networks
users have would tell)."""


@dataclass(frozen=True)
class LinkPredictor(FittedExecutor):
    """Fitted constants of links."""

    source: ClassVar[str] = "links"
    fitted: FittedLinks

    def cost(self, batch: KernelBatch, device: Place, options: Options, conditions: Conditions | None = None) -> Costs:
        """Costs of every collective of a batch on nodes of a device, by default each launched alone by PyTorch.

        Args:
            batch: collectives.
            device: a device, whose network nobody tells, or a cluster.
            options: mean nothing here.
            conditions: how each runs.

        Raises:
            CoverageError: kernels that are no collectives. DeviceError: the device states no links, or the cluster has
                fewer devices.
        """
        if batch.family != "collective":
            raise CoverageError(f"links answer collectives, not kernels of '{batch.family}': ask the device's executor")
        place, device = device, device_of(device)
        known = Conditions.of(len(batch)) if conditions is None else conditions
        bound_s, (alone_s, whole_s) = least_s(batch, place), collective_s(batch, place, known, self.fitted.physics)
        kinds = kinds_by_size(batch, place, known)
        own = np.exp(self._effects(batch, place, known))
        passing = batch["ranks"] > 1
        execution_s = np.maximum(np.where(passing, alone_s * own, 0.0), bound_s)
        overhead_s = np.where(passing, (whole_s - alone_s) * own, 0.0)
        nccl = passing & np.char.startswith(kinds.astype(str), "nccl") & (device.kind == "gpu")
        blocks = blocks_of(batch, device)
        longest = np.where(overhead_s > execution_s, "launch", "latency")
        return Costs.of(
            *(bound_s, execution_s, overhead_s, self._factors(batch, place, known)),
            limiter=np.where(2.0 * self._transfer_s(batch, place) > execution_s + overhead_s, "link", longest),
            tile=np.where(nccl, np.char.add(blocks.astype(str), " SMs"), ""),
            tile_count=np.where(nccl, blocks, 1.0),
            waves=np.ones(len(batch)),
            outside=np.full(len(batch), _outside(device)),
            source=np.full(len(batch), self.source),
            spread=by_distinct(kinds, lambda kind: self._spread(device, kind)),
            cause=np.char.add(cause_of(device, "", "links"), kinds),
        )

    def _transfer_s(self, batch: KernelBatch, place: Place) -> np.ndarray:
        return np.asarray(work_of(batch).read_bytes / route(batch, place, self.fitted.physics).bytes_per_s)

    def _effects(self, batch: KernelBatch, place: Place, conditions: Conditions) -> np.ndarray:
        """Logarithms of what a measured device has of its own, of long and short messages by ``long_share``."""
        kinds, share = kinds_of(batch, conditions, network_of(place) is not None), long_share(batch, place)
        device = device_of(place)
        long = by_distinct(kinds, lambda kind: self.fitted.devices.of(kind, device).mean)
        short = by_distinct(kinds, lambda kind: self.fitted.devices.of(kind + SHORT, device).mean)
        known = by_distinct(kinds, lambda kind: float(kind + SHORT in self.fitted.effects))
        return share * long + (1.0 - share) * np.where(known > 0.0, short, long)

    def _learned_id(self, device: DeviceSpec) -> str:
        """Of the device itself where it was learned from, else of the one that it is priced like or a variant of."""
        return device.id if device.measured_id in self.fitted.gpus else (device.original or device).measured_id

    def _spread(self, device: DeviceSpec, kind: str) -> float:
        """Of the error that collectives of a kind share."""
        base = kind.removesuffix(SHORT)
        if base.endswith((FABRIC, NETWORK)):
            return TOLD_SPREAD if base.endswith(FABRIC) else UNKNOWN_NETWORK_SPREAD
        return self.fitted.devices.of(kind, device, otherwise=self.fitted.spread.get(base, UNKNOWN_SPREAD)).spread

    def _factors(self, batch: KernelBatch, place: Place, known: Conditions) -> tuple[np.ndarray, np.ndarray]:
        """Of the 90 % interval, by path: a measured device's own, that of others the further a variant lies from it."""
        device = device_of(place)
        far = min(device.distance, 1.0) if self._learned_id(device) in self.fitted.gpus else 1.0
        paths = paths_of(batch, place, known, self.fitted.physics)
        others, own = (_enclosing(table, paths) for table in (self.fitted.intervals, self.fitted.intervals_seen))
        low, high = others**far * own ** (1.0 - far)
        return np.minimum(low, 1.0), np.maximum(high, 1.0)


def _enclosing(table: Mapping[str, list[float]], paths: np.ndarray) -> np.ndarray:
    """Factors (low, high) of an interval, shape (2, n)."""
    low = by_distinct(paths, lambda path: _bounds(table, path)[0])
    return np.stack([low, by_distinct(paths, lambda path: _bounds(table, path)[1])])


def _bounds(table: Mapping[str, list[float]], path: str) -> tuple[float, float]:
    if path.endswith((FABRIC, NETWORK)):
        return TOLD_FACTORS if path.endswith(FABRIC) else UNKNOWN_NETWORK_FACTORS
    if path in table:
        return table[path][0], table[path][1]
    return min(low for low, _ in table.values()), max(high for _, high in table.values())


def _outside(device: DeviceSpec) -> str:
    kind = fastest(device).kind
    return "" if kind in MEASURED_LINKS else f"links of kind {kind}"


def load(tile_models: Path | None = None, calibrations: Path | None = None) -> LinkPredictor:
    """The executor of collectives, with the constants beside the tile models; calibrations know none."""
    return LinkPredictor(shipped_links(tile_models))
