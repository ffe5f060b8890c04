"""``Scored``: predictions beside what was measured, and every figure of their errors.

All errors are in percent of what was measured: below zero where a prediction is too low.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from neusight.errors import DataError, NeusightError

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
Progress = Callable[[int, int], None]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Scored:
    """Rows that were predicted and measured, in columns of shape (n,).

    Attributes:
        keys: what tells rows apart, a column each, by which they can be grouped.
        predicted, measured: in one unit.
        low, high: ends of the 90 % interval; NaN where none is stated.
    """

    keys: pd.DataFrame
    predicted: np.ndarray
    low: np.ndarray
    high: np.ndarray
    measured: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row], unit: str = "") -> Scored:
        """Of rows that ``compared`` made; those that were not measured are left out."""
        import pandas as pd

        kept = [row for row in rows if row[f"measured{unit}"] is not None]
        columns = {name: [row[f"{name}{unit}"] for row in kept] for name in ("predicted", "low", "high", "measured")}
        # Rows of one table may say more than others: phases are timed of some steps alone.
        names = dict.fromkeys(name for row in rows for name in row)
        keys = pd.DataFrame({name: pd.Series([row.get(name) for row in kept], dtype=object) for name in names})
        return cls(keys, **{name: np.array(values, dtype=float) for name, values in columns.items()})

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def bias(self) -> np.ndarray:
        """Signed errors."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    @property
    def inside(self) -> np.ndarray:
        """1 where the interval holds what was measured, 0 where it does not, NaN where none is stated."""
        held = (self.low <= self.measured) & (self.measured <= self.high)
        return np.where(np.isnan(self.low) | np.isnan(self.high), np.nan, held.astype(float))

    @property
    def width(self) -> np.ndarray:
        """Of intervals: high less low, in percent of the prediction."""
        return 100.0 * (self.high - self.low) / self.predicted

    def take(self, chosen: np.ndarray) -> Scored:
        """Some of the rows: positions, or a mask."""
        columns = (self.predicted, self.low, self.high, self.measured)
        where = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Scored(self.keys.iloc[where].reset_index(drop=True), *(column[where] for column in columns))

    def where(self, **values: Any) -> Scored:
        """Rows that have these values: a value, or a collection of them, for each key."""
        mask = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            several = isinstance(value, Collection) and not isinstance(value, str)
            mask &= self.keys[name].isin(list(value) if several else [value]).to_numpy(bool)
        return self.take(mask)

    def groups(self, *keys: str, ordered: bool = True) -> list[tuple[dict[str, Any], Scored]]:
        """Rows that share the values of keys, with those values: in their order, or as they come."""
        if not keys:
            return [({}, self)]
        parts = self.keys.reset_index(drop=True).groupby(list(keys), sort=ordered, observed=True, dropna=False)
        return [(dict(zip(keys, names, strict=True)), self.take(part.index.to_numpy())) for names, part in parts]

    def summary(self, *keys: str) -> list[dict[str, Any]]:
        """``figures`` of the rows that share the values of keys, one entry each; of all of them without any key."""
        return [names | part.figures() for names, part in self.groups(*keys)]

    def figures(self) -> dict[str, Any]:
        """count; mean, median and worst absolute error; bias (mean signed error); inside, the percent of rows within
        their interval, and width, the median of its width, where one is stated.
        """
        if not len(self):
            return {"count": 0}
        ape, inside = np.abs(self.bias), self.inside
        figures = {"count": len(self), "mean": float(ape.mean()), "median": float(np.median(ape))}
        figures |= {"worst": float(ape.max()), "bias": float(self.bias.mean())}
        if np.isnan(inside).any():
            return figures
        return figures | {"inside": 100.0 * float(inside.mean()), "width": float(np.median(self.width))}


def joined(parts: Iterable[Scored]) -> Scored:
    """Several tables one below the other; keys that one lacks are empty in its rows."""
    import pandas as pd

    listed = list(parts)
    names = ("predicted", "low", "high", "measured")
    columns = (np.concatenate([getattr(part, name) for part in listed]) for name in names)
    return Scored(pd.concat([part.keys for part in listed], ignore_index=True), *columns)


def compared(predicted: float, interval: tuple[float, float], measured: float | None, unit: str = "") -> dict[str, Any]:
    """Columns of one row: predicted, low, high and measured with the unit behind their names, ape, bias and inside."""
    low, high = interval
    bias = None if measured is None else 100.0 * (predicted / measured - 1.0)
    times = {"predicted": predicted, "low": low, "high": high, "measured": measured}
    return {
        **{f"{name}{unit}": value for name, value in times.items()},
        "ape": None if bias is None else abs(bias),
        "bias": bias,
        "inside": None if measured is None else low <= measured <= high,
    }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows of a table are predicted: of one source, of some GPUs, and ``limit`` of those, drawn by a seed.
    Default: all.
    """

    source: str = ""
    gpus: tuple[str, ...] = ()
    limit: int | None = None
    seed: int = 0

    def of(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the GPUs, in the table's order; ``source`` is left to tables that have one."""
        kept = [row for row in rows if not self.gpus or row.get("gpu") in self.gpus]
        if self.limit is None or self.limit >= len(kept):
            return kept
        chosen = np.random.default_rng(self.seed).choice(len(kept), self.limit, replace=False)
        return [kept[place] for place in sorted(chosen)]


def answered(
    rows: Sequence[Row],
    ask: Callable[[Row], Answer],
    named: Callable[[Row, int], dict[str, Any]],
    progress: Progress | None = None,
) -> tuple[list[Answer], list[dict[str, Any]]]:
    """The answer to every row, and the rows that have none.

    Args:
        rows: of a table.
        ask: predicts one and compares it.
        named: names a row (and its number) among those that are skipped.
        progress: called with (done, of) a row.

    Returns:
        Answers, and of each row that was skipped its name and the ``reason``.
    """
    answers, skipped = [], []
    for done, row in enumerate(rows, start=1):
        try:
            answers.append(ask(row))
        except NeusightError as error:
            skipped.append({**named(row, done), "reason": str(error)})
        if progress:
            progress(done, len(rows))
    return answers, skipped


def some(rows: Sequence[Any], path: object, skipped: Sequence[Row], otherwise: str = "it has none") -> None:
    """Raises:
    DataError: there is no row, with the first reason why.
    """
    if not rows:
        why = skipped[0]["reason"] if skipped else otherwise
        raise DataError(f"no row of {path} can be compared: {why}")


def renamed(rows: Iterable[Row], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with some figures under other names, and without those that have none there."""
    return [{names.get(key, key): value for key, value in row.items() if names.get(key, key)} for row in rows]
