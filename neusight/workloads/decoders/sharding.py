"""``Sharding``: how the devices of one replica share a model that they serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Degrees of parallelism of one replica.

    ``tp`` devices share every layer, ``pp`` groups of those each hold a part of the layers. ``ep`` devices share out
    the experts whole (1: experts are sharded like other layers, over ``tp``). ``dp`` groups of ``tp`` devices hold
    attention each for their own sequences, and the experts together (attention data parallelism).
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.tp * self.pp * self.dp
