"""What a host takes for calls of programs, fitted to calls of other programs on it, or of programs on other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from neusight.engines import Host
from neusight.errors import DataError
from neusight.workloads.dispatch import DISPATCHES, dispatches

_KERNELS = 0.4
"""Assumption: standard deviation of the log error of what the device's kernels take; only how much rows count that are
not the host's depends on it."""
_OWN = 0.1
"""The same of a call that the host decides alone."""
IDLE = Host(call_s=0.0, operator_s=0.0, spread=0.0)
"""A host that never makes a device wait."""
_UNSEEN = 0.25
"""The same of calls of other programs than a host was fitted to: their 90 % quantile over that of a normal error is
0.29 in eager mode and 0.21 compiled, on halves that no fit saw."""
_PRIOR = Host(call_s=4e-5, operator_s=1e-5, spread=0.7)
"""Before any call is seen; a factor of two either way."""
_UNIT = 1.0
"""Before any call is seen, an operator of any kind takes what a pointwise one does, a factor of e either way."""
_OTHERS = 0.5
"""Assumption: standard deviation of the logarithm of what hosts take, from one to another."""


HOSTS = ("own", "others")
"""Whose calls a host is fitted to: half of its own for the other half, or those of all other hosts."""


class TimedCall(NamedTuple):
    """A call as it was measured [s], what its kernels take one after another [s], and how many operators of which kind
    are dispatched in it (``workloads.dispatch``).
    """

    measured_s: float
    kernels_s: float
    kinds: Mapping[str, int]


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
        alike = [calls for (other, _), calls in self.calls.items() if other[0] != group[0] and other[-1] == group[-1]]
        return fitted([call for calls in alike for call in calls], _PRIOR, _OTHERS)


def fitted(calls: Sequence[TimedCall], prior: Host, least: float = 0.0) -> Host:
    r"""The host that explains calls best, robust to kernels that take something else than they should.

    .. math:: t = c + \max(n o, K)

    Args:
        calls: t, K and n, in units of a pointwise operator.
        prior: what is known of c, ``call_s``, and o, ``operator_s`` [s], within its ``spread``.
        least: of the spread that the answer has.

    Returns:
        c and o, with the spread of the calls that the host decides around them.
    """
    from scipy.optimize import least_squares

    if not calls:
        return prior
    measured_s, kernels_s = (np.array([call[at] for call in calls]) for at in (0, 1))
    operators = np.array([dispatches(call.kinds) for call in calls])
    centre = np.log([prior.call_s, prior.operator_s])

    def errors(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        call_s, operator_s = np.exp(at)
        expected_s = call_s + np.maximum(operators * operator_s, kernels_s)
        return np.log(expected_s / measured_s), kernels_s / expected_s

    def residuals(at: np.ndarray) -> np.ndarray:
        return np.concatenate([_robust(*errors(at)), (at - centre) / prior.spread])

    # The shortest call is hardly more than the host's.
    starts = centre, np.array([np.log(measured_s.min()), centre[1]])
    found = min((least_squares(residuals, start) for start in starts), key=lambda fit: fit.cost).x
    error, share = errors(found)
    decided = error[share < 0.5]
    spread = max(least, _UNSEEN, 1.4826 * float(np.median(np.abs(decided)))) if len(decided) else prior.spread
    call_s, operator_s = np.exp(found).tolist()
    return Host(call_s=call_s, operator_s=operator_s, spread=spread)


def _robust(error: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Logarithmic errors of calls, of which kernels take a share, in standard deviations: large ones count by their
    size, no more by its square (Charbonnier).
    """
    scaled = error / np.hypot(_OWN, _KERNELS * share)
    return np.asarray(np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0)))


def fitted_dispatches(groups: Sequence[Sequence[TimedCall]]) -> dict[str, float]:
    """What all hosts do for an operator of each kind, in units of a pointwise one, see ``workloads.dispatch``.

    Args:
        groups: calls, those of each host by themselves, which has times of its own for a call and an operator.
    """
    from scipy.optimize import least_squares

    calls = [call for group in groups for call in group]
    at = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    measured_s, kernels_s = (np.array([call[column] for call in calls]) for column in (0, 1))
    counts = np.array([[call.kinds.get(kind, 0) for kind in DISPATCHES] for call in calls], dtype=float)
    one = list(DISPATCHES).index("pointwise")
    hosts = np.repeat(np.log([[_PRIOR.call_s], [_PRIOR.operator_s]]), len(groups), axis=1)
    centre = np.concatenate([hosts.ravel(), np.zeros(len(DISPATCHES) - 1)])
    spread = np.repeat([_PRIOR.spread, _UNIT], [hosts.size, len(DISPATCHES) - 1])

    def residuals(found: np.ndarray) -> np.ndarray:
        call_s, operator_s = np.exp(found[: hosts.size]).reshape(hosts.shape)
        units = counts @ np.insert(np.exp(found[hosts.size :]), one, 1.0)
        expected_s = call_s[at] + np.maximum(units * operator_s[at], kernels_s)
        return np.concatenate(
            [_robust(np.log(expected_s / measured_s), kernels_s / expected_s), (found - centre) / spread]
        )

    found = np.exp(least_squares(residuals, centre).x[hosts.size :])
    return dict(zip(DISPATCHES, np.insert(found, one, 1.0).tolist(), strict=True))
