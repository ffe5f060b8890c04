"""What a host takes for calls of programs, fitted to calls of other programs on it, or of programs on other hosts."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from neusight.engines import Host
from neusight.errors import DataError
from neusight.learn.hosts import TimedCall, fitted, fitted_dispatches, others

__all__ = ["HOSTS", "IDLE", "HostFit", "TimedCall", "fitted", "fitted_dispatches", "half_of"]
IDLE = Host(call_s=0.0, operator_s=0.0, spread=0.0)
"""A host that never makes a device wait."""
HOSTS = ("own", "others")
"""Whose calls a host is fitted to: half of its own for the other half, or those of all other hosts."""


def half_of(name: str) -> int:
    """The half to which the calls of a program or model belong."""
    return crc32(name.encode()) % 2


@dataclass(frozen=True, kw_only=True)
class HostFit:
    """Hosts of groups of calls, such as those of one day; ``calls`` by group and half, halves have no program in
    common.
    """

    calls: dict[tuple[tuple[str, ...], int], list[TimedCall]]

    def by_group(self) -> dict[tuple[str, ...], list[TimedCall]]:
        """Calls of both halves of each group."""
        groups: dict[tuple[str, ...], list[TimedCall]] = {}
        for (group, _), calls in self.calls.items():
            groups.setdefault(group, []).extend(calls)
        return groups

    def host(self, group: tuple[str, ...], half: int, hosts: str) -> Host:
        """The host of a half of a group by one of ``HOSTS``.

        Raises:
            DataError: none of them.
        """
        if hosts not in HOSTS:
            raise DataError(f"hosts '{hosts}': one of {', '.join(HOSTS)}")
        return self.own(group, half) if hosts == "own" else self.others(group)

    def own(self, group: tuple[str, ...], half: int) -> Host:
        """The host of a half of a group, from its other half; where that is small, from other hosts' groups."""
        return fitted(self.calls.get((group, 1 - half), ()), self.others(group))

    def others(self, group: tuple[str, ...]) -> Host:
        """The host of a group, from groups of other hosts that launch as it does: the first word of a group is the
        host, the last how it launches.
        """
        return others(self.by_group(), group)
