"""``ColumnRecord``: dataclasses whose fields are columns with a value for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Self

import numpy as np


class ColumnRecord:
    """A dataclass of columns: arrays whose first axis is that of the rows, or records of such; all other fields hold
    for every row.
    """

    def __len__(self) -> int:
        cells = (getattr(self, name) for name in _names(self))
        return next(len(cell) for cell in cells if isinstance(cell, (np.ndarray, ColumnRecord)))

    def take(self, index: np.ndarray) -> Self:
        """The rows that ``index`` (integers or a mask) selects."""
        return type(self)(**{name: _taken(getattr(self, name), index) for name in _names(self)})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, one part after another; what holds for every row is that of the first."""
        names = _names(parts[0])
        return type(parts[0])(**{name: _joined([getattr(part, name) for part in parts]) for name in names})


def _names(record: Any) -> tuple[str, ...]:
    return _names_of(type(record))  # type: ignore[arg-type]


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _taken(cell: Any, index: np.ndarray) -> Any:
    if isinstance(cell, np.ndarray):
        return cell[index]
    return cell.take(index) if isinstance(cell, ColumnRecord) else cell


def _joined(cells: Sequence[Any]) -> Any:
    if isinstance(cells[0], np.ndarray):
        return np.concatenate(cells)
    return type(cells[0]).joined(cells) if isinstance(cells[0], ColumnRecord) else cells[0]
