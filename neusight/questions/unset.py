"""Values that people run where a question leaves a field open: ``unset.toml``, each list with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.engines.server import era_of
from neusight.questions.field import Usual

if TYPE_CHECKING:
    from neusight.questions.question import Question

_FILE = Path(__file__).with_name("unset.toml")


def usual(name: str) -> Callable[[Question], Sequence[Usual]]:
    """``if_unset`` of a field: the values of its entries in ``unset.toml`` that are for the question, of those that say
    most of it.
    """

    def values(question: Question) -> Sequence[Usual]:
        entries = [entry for entry in _entries()[name] if _is_for(question, entry)]
        closest = max((len(entry.get("of", {})) for entry in entries), default=0)
        return [
            Usual(value=value, source=entry["source"], weight=weight)
            for entry in entries
            if len(entry.get("of", {})) == closest
            for value, weight in zip(entry["values"], entry.get("counts", [1.0] * len(entry["values"])), strict=True)
        ]

    return values


def versions_by_era(engine: str, versions: Sequence[Usual]) -> tuple[tuple[str, float], ...]:
    """(version, share of all runs) of the version that most run in each era of an engine: all of an era have the same
    constants. () where there is one era.
    """
    total = sum(each.weight for each in versions)
    eras: dict[str, list[Usual]] = {}
    for each in versions:
        eras.setdefault(era_of(engine, each.value).name, []).append(each)
    if len(eras) < 2:
        return ()
    most_run = [max(era, key=lambda each: each.weight) for era in eras.values()]
    shares = [sum(each.weight for each in era) / total for era in eras.values()]
    return tuple((each.value, share) for each, share in zip(most_run, shares, strict=True))


@cache
def _entries() -> Mapping[str, list[dict[str, Any]]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def _is_for(question: Question, entry: Mapping[str, Any]) -> bool:
    """True if the words of an entry's ``of`` are those of the question."""
    return all(getattr(question, name, None) == word for name, word in entry.get("of", {}).items())
