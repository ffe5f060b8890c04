"""Hosts that are left out: rows take the times of calls that other hosts' rows tell."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from neusight.api import Predictor
from neusight.learn.hosts import HostGroup, TimedCall, by_group, group_of, others, timed_calls
from neusight.measured import MeasuredTable, read_table


@lru_cache(maxsize=1)
def _groups(path: Path) -> dict[HostGroup, list[TimedCall]]:
    """Timed calls of a file, by host, GPU, day and how they are launched."""
    return by_group(timed_calls([read_table(path)], Predictor.load()).rows)


def with_hosts_of_others(part: MeasuredTable, table: MeasuredTable) -> MeasuredTable:
    """Rows of a table, whose hosts' times are those that rows of other hosts tell that launch as they do."""
    groups, wanted = _groups(table.path), [group_of(row) for row in part.frame.to_dict("records")]
    known = {group: others(groups, group) for group in set(wanted)}
    times = [(1e6 * known[group].call_s, 1e6 * known[group].operator_s, known[group].spread) for group in wanted]
    columns = dict(zip(("host_call_us", "host_operator_us", "host_spread"), np.array(times).T, strict=True))
    return replace(part, frame=part.frame.assign(**columns))
