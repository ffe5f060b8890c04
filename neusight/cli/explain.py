"""Doubts of an answer by size, each with what would lessen it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from math import expm1, hypot
from pathlib import Path
from typing import Any

from neusight.cli.output import line, table
from neusight.executors.costs import NORMAL_90
from neusight.laws.doubts import OWN
from neusight.laws.link_kinds import NETWORK

_FILE = Path(__file__).with_name("remedies.toml")
_SMALL = 0.005
"""Doubts whose 90 % interval is narrower, to either side, are not shown."""


def show_doubts(estimate: Any, question: Any) -> None:
    """Show the doubts of the time of an answer, the largest first; errors of kernels by themselves as one."""
    sizes: dict[str, float] = {}
    for key, size in estimate.doubts.items():
        key = key.partition("/")[0] if key.startswith(OWN) else key
        sizes[key] = hypot(sizes.get(key, 0.0), size)
    ends = {key: expm1(NORMAL_90 * size) for key, size in sorted(sizes.items(), key=lambda item: -item[1])}
    line()
    shown = ((key, f"± {end:.1%}", remedy_of(key, question)) for key, end in ends.items() if end >= _SMALL)
    table(("doubt", ">90 %", "~what lessens it"), shown)


def remedy_of(key: str, question: Any) -> str:
    """What lessens the doubt of a key: the option of a field that the question leaves open, or a measurement."""
    cause, _, what = key.partition(":")
    open_field = "network" if key.endswith(NETWORK) else what if cause == "unset" else ""
    return f"give {question.fields()[open_field].option}" if open_field else _remedies().get(cause, "")


def _remedies() -> Mapping[str, str]:
    remedies: Mapping[str, str] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return remedies
