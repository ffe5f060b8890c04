"""``Scored``: predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


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

    def __len__(self) -> int:
        return len(self.predicted)

    def take(self, chosen: np.ndarray) -> Scored:
        """Some of the rows: positions, or a mask."""
        columns = (self.predicted, self.low, self.high, self.measured)
        where = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Scored(self.keys.iloc[where].reset_index(drop=True), *(column[where] for column in columns))


def joined(parts: Iterable[Scored]) -> Scored:
    """Several tables one below the other; keys that one lacks are empty in its rows."""
    import pandas as pd

    listed = list(parts)
    names = ("predicted", "low", "high", "measured")
    columns = (np.concatenate([getattr(part, name) for part in listed]) for name in names)
    return Scored(pd.concat([part.keys for part in listed], ignore_index=True), *columns)
