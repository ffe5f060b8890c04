"""``Effects``: what devices add to what a law expects, by kind of kernel: the one store of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from math import sqrt
from typing import NamedTuple

from neusight.devices.spec import DeviceSpec
from neusight.quick_dataclasses import dataclass

SEEN_SHARE = 0.5
"""Of the spread between devices, what a device keeps that was measured: the same board is met in other states
(assumption: half; two boards of one kind in two data centres would tell)."""


class Normal(NamedTuple):
    """A normal distribution."""

    mean: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What devices have of their own, in log time or in logits of the utilisation.

    Attributes:
        level: mean by kind and measured device.
        between: standard deviation between unseen devices by kind.
        same_die: correlation of boards of one die.
    """

    level: Mapping[str, Mapping[str, float]]
    between: Mapping[str, float] = field(default_factory=dict)
    same_die: float = 0.0

    def of(self, kind: str, device: DeviceSpec, same_die: Iterable[str] = (), otherwise: float = 0.0) -> Normal:
        """The effect of a device.

        Args:
            kind: of kernels.
            device: measured, or a variant of one that is, which is as unknown as an unseen one a factor of e away.
            same_die: measured boards of its die.
            otherwise: spread of kinds that no device was measured in.
        """
        level, between = self.level.get(kind, {}), self.between.get(kind, otherwise)
        for board in (device.measured_id, (device.original or device).measured_id):
            if board in level:
                far = min(device.distance, 1.0)
                return Normal(level[board], between * (SEEN_SHARE * (1.0 - far) + far))
        known = [level[board] for board in same_die if board in level]
        share = self.same_die if known else 0.0
        return Normal(share * sum(known) / max(len(known), 1), between * sqrt(1.0 - share**2))
