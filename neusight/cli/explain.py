"""Doubts of an answer in words, by size, each with what would lessen it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from math import expm1, hypot
from pathlib import Path
from typing import Any

from neusight.cli.output import line, table
from neusight.laws.doubts import NORMAL_90, OWN
from neusight.laws.link_kinds import NETWORK

_FILE = Path(__file__).with_name("doubts.toml")
_SMALL = 0.005
"""Doubts whose 90 % interval is narrower, to either side, are not shown."""


def show_doubts(estimate: Any, question: Any, of: str = "") -> None:
    """Show the doubts of the time of an answer, the largest first; those with the same words as one.

    Args:
        estimate: the answer.
        question: what it answers.
        of: name of the answer among several.
    """
    sizes: dict[tuple[str, str], float] = {}
    for key, size in estimate.doubts.items():
        row = words_of(key), remedy_of(key, question, estimate.doubts)
        sizes[row] = hypot(sizes.get(row, 0.0), size)
    ends = {row: expm1(NORMAL_90 * size) for row, size in sorted(sizes.items(), key=lambda item: -item[1])}
    line()
    shown = ((words, _interval(end), remedy) for (words, remedy), end in ends.items() if end >= _SMALL)
    table((f"~doubt{of and f' of {of}'}", ">90 %", "~what lessens it"), shown)


def _interval(end: float) -> str:
    """The 90 % interval of a factor whose upper end exceeds 1 by ``end``."""
    return f"± {end:.1%}" if end < 1.0 else f"×÷ {1.0 + end:.1f}"


def words_of(key: str) -> str:
    """The doubt of a key in words."""
    cause, _, what = key.partition(":")
    where, _, part = what.partition("/")
    words = _words()[cause]
    template: str = words["part" if part and "part" in words else "words"]
    return template.format(where=where if part or "part" in words else what, part=_words()["kinds"].get(part, part))


def remedy_of(key: str, question: Any, doubts: Iterable[str]) -> str:
    """What lessens the doubt of a key among ``doubts``: the option of a field that the question leaves open, or a
    measurement. A lone collective by itself depends on its network as well.
    """
    cause, _, what = key.partition(":")
    alone = f"{cause}:" == OWN and question.KIND == "kernel" and any(each.endswith(NETWORK) for each in doubts)
    open_field = "network" if key.endswith(NETWORK) or alone else what if cause == "unset" else ""
    if open_field:
        return f"give {question.fields()[open_field].option}"
    remedies = _words()[cause]
    return str(remedies.get(question.KIND) or remedies["this" if "/" in what and "this" in remedies else "remedy"])


def _words() -> Mapping[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
