r"""``neusight fit hosts``: what hosts take to call programs and to dispatch operators, from timings of programs.

.. math:: t = c + \max(n o, K)

A call takes ``c``, each of its ``n`` operators ``o`` unless its kernels take ``K``, which is more; operators count in
units of a pointwise one (``workloads.dispatch``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from neusight.api import Predictor
from neusight.engines import Host
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, FoundConstants, Report, grouped, significant
from neusight.learn.physics.solve import solve_alone
from neusight.measured import MeasuredTable, read_table
from neusight.measured.folder import program_files, sound
from neusight.measured.table import filled
from neusight.questions import Step
from neusight.workloads.dispatch import DISPATCHES, step_kinds

_KERNELS = 0.4
"""Assumption: standard deviation of the log error of what the device's kernels take; only how much rows count that are
not the host's depends on it."""
_OWN = 0.1
"""The same of a call that the host decides alone."""
_UNSEEN = 0.25
"""The same of calls of other programs than a host was fitted to: their 90 % quantile over that of a normal error is
0.29 in eager mode and 0.21 compiled, on halves that no fit saw."""
_PRIOR = Host(call_s=4e-5, operator_s=1e-5, spread=0.7)
"""Before any call is seen; a factor of two either way."""
_UNIT = 1.0
"""Before any call is seen, an operator of any kind takes what a pointwise one does, a factor of e either way."""
_OTHERS = 0.5
"""Assumption: standard deviation of the logarithm of what hosts take, from one to another."""
_IDLE = {"host_call_us": 0.0, "host_operator_us": 0.0, "host_spread": 0.0, "host_bytes": None}
"""Words of a host that never makes a device wait."""
_DISPATCHED = ("eager", "compiled")
"""Launches by which hosts dispatch operators one by one."""


class HostGroup(NamedTuple):
    """Columns of calls that one host takes alike."""

    host: str
    gpu: str
    measured_on: str
    launch: str


class TimedCall(NamedTuple):
    """A call as it was measured [s], what its kernels take one after another [s], how many operators of which kind are
    dispatched in it (``workloads.dispatch``), and the group that it is of.
    """

    measured_s: float
    kernels_s: float
    kinds: Mapping[str, int]
    group: HostGroup = HostGroup("", "", "", "eager")

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return self.group.gpu


def read_hosts(options: FitOptions, report: Report | None = None) -> Evidence[TimedCall]:
    """Timed calls of programs in a folder of measured rows."""
    return timed_calls(map(read_table, program_files(options.data)), Predictor.load(), report)


def solve_hosts(evidence: Evidence[TimedCall], options: FitOptions, report: Report | None = None) -> FoundConstants:
    """Units of operators by kind, by launch what the usual host takes for a call and an operator [s], and what each
    host takes by all of its calls [us], beside its mean error in percent.
    """
    groups = by_group(evidence.rows)
    hosts = {group: fitted(calls, others(groups, group)) for group, calls in sorted(groups.items())}
    errors = [_row(group, host, groups[group]) for group, host in hosts.items()]
    mean = sum(row["mean"] * row["rows"] for row in errors) / max(len(evidence.rows), 1)
    values = significant(_units(groups) | _usual(hosts))
    return FoundConstants(**evidence.about(), values=values, error=round(mean / 100.0, 4), errors=errors)


def by_group(calls: Iterable[TimedCall]) -> dict[HostGroup, list[TimedCall]]:
    """Calls that one host takes alike."""
    return grouped(calls, lambda call: call.group)


def group_of(row: Mapping[Any, Any]) -> HostGroup:
    """The group of a row's call."""
    words = {"launch": "eager"} | filled(row, HostGroup._fields)
    return HostGroup(*(str(words.get(word)) for word in HostGroup._fields))


def timed_calls(
    tables: Iterable[MeasuredTable], predictor: Predictor, report: Report | None = None
) -> Evidence[TimedCall]:
    """Sound rows of tables of programs whose host waits for each call, programs one after another."""
    waited = []
    for table in tables:
        rows = sound(table.frame) & table.frame["synchronized"].eq(True)
        waited.append(replace(table, frame=table.frame[rows].sort_values("model")))

    @cache
    def known(idle: Step) -> tuple[float, Counter[str]]:
        return predictor.ask(idle).latency_s, step_kinds(predictor.workload(idle.resolve()))

    def timed_call(row: Mapping[Any, Any], question: Any) -> TimedCall:
        return TimedCall(1e-3 * row["latency_ms"], *known(question.changed(**_IDLE)), group_of(row))

    return Evidence.of(waited, timed_call, report=report)


def others(groups: Mapping[HostGroup, Sequence[TimedCall]], group: HostGroup) -> Host:
    """The host of a group as other hosts that launch as it does tell it."""
    alike = [each for other, each in groups.items() if other.host != group.host and other.launch == group.launch]
    return fitted([call for calls in alike for call in calls], _PRIOR, _OTHERS)


class _Calls:
    """Calls of several hosts in columns; a host has times of its own for a call and an operator."""

    def __init__(self, groups: Sequence[Sequence[TimedCall]]) -> None:
        calls = [call for group in groups for call in group]
        self.host = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        self.measured_s, self.kernels_s = (np.array([call[column] for call in calls]) for column in (0, 1))
        self.counts = np.array([[call.kinds.get(kind, 0) for kind in DISPATCHES] for call in calls], dtype=float)

    def errors(self, times: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log errors by times of calls and operators, shape (2, hosts), and the share that kernels take."""
        call_s, operator_s = times[:, self.host]
        expected_s = call_s + np.maximum(self.counts @ units * operator_s, self.kernels_s)
        return np.log(expected_s / self.measured_s), self.kernels_s / expected_s

    def solved(self, prior: Host, start: np.ndarray, kinds: Sequence[str] = ()) -> tuple[np.ndarray, dict[str, float]]:
        """Times of calls and operators, sought from a start, shape (2, hosts), and units of operators: those of some
        ``kinds`` are sought, too.
        """
        spread = np.repeat([prior.spread, _UNIT], [start.size, len(kinds)])
        centre = np.log([prior.call_s, prior.operator_s]).repeat(start.shape[1])
        known = {"centre": np.append(centre, np.zeros(len(kinds))), "spread": spread}

        def at(place: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
            values = np.exp(place)
            units = dict(zip(kinds, values[start.size :].tolist(), strict=True))
            return values[: start.size].reshape(start.shape), {**DISPATCHES, **units}

        def scaled(place: np.ndarray) -> np.ndarray:
            times, units = at(place)
            error, share = self.errors(times, np.array([*units.values()]))
            return np.asarray(error / np.hypot(_OWN, _KERNELS * share))

        first = np.append(np.log(start), np.zeros(len(kinds)))
        return at(solve_alone(np.zeros(len(self.host)), scaled, known, noise=1.0, start=first).place)


def fitted(calls: Sequence[TimedCall], prior: Host, least: float = 0.0) -> Host:
    """The host that explains calls best, robust to kernels that take something else than they should.

    Args:
        calls: what was measured.
        prior: what is known of both times within its ``spread``.
        least: of the spread that the answer has.

    Returns:
        Both times, with the spread of the calls that the host decides around them.
    """
    if not calls:
        return prior
    one = _Calls([calls])
    # The shortest call is hardly more than the host's.
    times, units = one.solved(prior, np.array([[one.measured_s.min()], [prior.operator_s]]))
    error, share = one.errors(times, np.array([*units.values()]))
    decided = error[share < 0.5]
    spread = max(least, _UNSEEN, 1.4826 * float(np.median(np.abs(decided)))) if len(decided) else prior.spread
    return Host(call_s=float(times[0, 0]), operator_s=float(times[1, 0]), spread=spread)


def fitted_dispatches(groups: Sequence[Sequence[TimedCall]]) -> dict[str, float]:
    """What all hosts do for an operator of each kind, in units of a pointwise one, see ``workloads.dispatch``.

    Args:
        groups: calls, those of each host by themselves.
    """
    alone = [fitted(group, _PRIOR) for group in groups]
    start = np.array([[host.call_s for host in alone], [host.operator_s for host in alone]])
    return _Calls(groups).solved(_PRIOR, start, [kind for kind in DISPATCHES if kind != "pointwise"])[1]


def _units(groups: Mapping[HostGroup, Sequence[TimedCall]]) -> dict[str, float]:
    """Of hosts that dispatch operators one by one."""
    single = [calls for group, calls in sorted(groups.items()) if group.launch in _DISPATCHED]
    return {f"dispatch.{kind}": units for kind, units in fitted_dispatches(single).items()} if single else {}


def _usual(hosts: Mapping[HostGroup, Host]) -> dict[str, float]:
    """Geometric means over hosts, by how they launch."""
    alike, names = grouped(sorted(hosts.items()), lambda item: item[0].launch), ("call_s", "operator_s")
    return {f"{launch}.{name}": geometric_mean([getattr(host, name) for _, host in several])
            for launch, several in sorted(alike.items()) for name in names}  # fmt: skip


def _row(group: HostGroup, host: Host, calls: Sequence[TimedCall]) -> dict[str, Any]:
    """The words of a group, how many calls, their mean error in percent and the times of its host."""
    error, _ = _Calls([calls]).errors(np.array([[host.call_s], [host.operator_s]]), np.array([*DISPATCHES.values()]))
    times = {"call_us": 1e6 * host.call_s, "operator_us": 1e6 * host.operator_s, "spread": host.spread}
    figures = {"mean": 100.0 * float(np.mean(np.abs(np.expm1(error))))} | times
    return group._asdict() | {"rows": len(calls)} | significant(figures)


HOSTS = ConstantsFit(read=read_hosts, solve=solve_hosts)
