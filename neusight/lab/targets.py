"""What was aimed at, what came out and what fell short: a target is declared on a table of results, and computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Where = dict[str, Any]
"""Values of columns: a value, a list of them, a pattern as of files, or ``{ not = … }``, ``{ least = … }``,
``{ below = … }``."""
NEAR = 0.1
"""A figure of the literature, which is no limit, is met within this share of it."""


class StrictModel(BaseModel):
    """Unknown keys are mistakes, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AccuracyTarget(StrictModel):
    """What a figure of results should be: one verdict a row of a table, or one of all rows together.

    Attributes:
        target: its words, filled from the row, as in ``"{kind}, mean over {gpus} held-out GPUs"``.
        table: where the rows stand in results, such as ``kernels.by_kind``; results without it are not judged.
        where: values of the rows that are meant.
        figure: the column that is judged, by its size; ``steps.mean`` is the column ``mean`` of a table in ``steps``.
        over: all rows together: their ``mean``, weighted by the column ``weight`` where one is given, or ``largest``.
        at_most, between, reported: the aim: a limit, two ends, or a figure of the literature.
        times: a further factor of the limit: another column of the row, as in 1.5 times what is known.
        least: rows with a smaller ``count`` are left out.
        misses: words for each row of table ``missing`` (default: the same) that misses the aim, of those that share
            the values of ``alike`` with the row that is judged, and have those of ``among`` (default: of ``where``).
    """

    target: str
    table: str
    figure: str
    where: Where = Field(default_factory=dict)
    over: str = ""
    weight: str = ""
    at_most: float | None = None
    between: tuple[float, float] | None = None
    reported: float | None = None
    times: str = ""
    least: int = 0
    misses: str = ""
    missing: str = ""
    missed: str = ""
    alike: tuple[str, ...] = ()
    among: Where = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_aim(self) -> AccuracyTarget:
        if sum(aim is not None for aim in (self.at_most, self.between, self.reported)) != 1:
            raise ValueError("give one of at_most, between and reported")
        return self

    def verdicts(self, results: Results) -> Iterator[dict[str, Any]]:
        """``target``, ``aim``, ``value``, ``met`` and ``short`` (what misses it), a row each."""
        rows = [row for row in value_of(results, self.table) or () if _fits(row, self.where)]
        rows = [row for row in rows if value_of(row, self.figure) is not None]
        rows = [row for row in rows if row.get("count", self.least) >= self.least]
        if self.over and rows:
            rows = [{**rows[0], "rows": len(rows), self.figure: self._together(rows)}]
        for row in rows:
            value, limit = abs(value_of(row, self.figure)), self._limit(row)
            met = self._met(value, limit)
            short = [] if met else list(self._short(results, row, limit))
            words = self.target.format_map(row)
            yield {"target": words, "aim": self._aim(limit), "value": value, "met": met, "short": short}

    def _together(self, rows: Rows) -> float:
        values = [abs(value_of(row, self.figure)) for row in rows]
        weights = [row[self.weight] for row in rows] if self.weight else None
        return float(max(values) if self.over == "largest" else np.average(values, weights=weights))

    def _limit(self, row: Mapping[str, Any]) -> float:
        return round((self.at_most or 0.0) * row[self.times], 1) if self.times else self.at_most or 0.0

    def _met(self, value: float, limit: float) -> bool:
        if self.between:
            return self.between[0] <= value <= self.between[1]
        return abs(value / self.reported - 1.0) <= NEAR if self.reported else value <= limit

    def _aim(self, limit: float) -> str:
        if self.between:
            return f"{self.between[0]:g} to {self.between[1]:g}"
        return f"{self.reported:g} reported" if self.reported else f"at most {limit:g}"

    def _short(self, results: Results, judged: Mapping[str, Any], limit: float) -> Iterator[str]:
        among = self.among or {name: value for name, value in self.where.items() if name not in self.alike}
        for row in (value_of(results, self.missing or self.table) or ()) if self.misses else ():
            if _fits(row, among) and all(row[key] == judged[key] for key in self.alike):
                value = value_of(row, self.missed or self.figure)
                if not (value if isinstance(value, bool) else value is None or self._met(abs(value), limit)):
                    yield self.misses.format_map(row)


def _fits(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(is_wanted(row.get(name), wanted) for name, wanted in where.items())


def is_wanted(value: Any, wanted: Any) -> bool:
    """Whether a value is that of a ``Where``; none and no number count as ""."""
    if value is None or value != value:
        value = ""
    if isinstance(wanted, Mapping):
        if "not" in wanted:
            return not is_wanted(value, wanted["not"])
        return bool(value != "" and wanted.get("least", -np.inf) <= value < wanted.get("below", np.inf))
    if isinstance(wanted, list | tuple):
        return any(is_wanted(value, one) for one in wanted)
    return fnmatch(str(value), wanted) if isinstance(wanted, str) else bool(value == wanted)


def value_of(table: Mapping[str, Any], path: str) -> Any:
    """What lies at a path of keys, such as ``kernels.cells``; None where there is nothing."""
    value: Any = table
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def verdicts(results: Results, targets: Iterable[AccuracyTarget]) -> list[dict[str, Any]]:
    """Those of all targets, in their order."""
    return [verdict for target in targets for verdict in target.verdicts(results)]
