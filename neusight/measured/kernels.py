"""Rows of kernels as columns: one batch, with its conditions, for each device and family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import DeviceSpec, load_device
from neusight.engines import library_named
from neusight.errors import CoverageError, NeusightError, nearest
from neusight.kernels import KERNEL_CLASSES, KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.conditions import OPERANDS, TIMERS, TIMINGS, Conditions
from neusight.kernels.named import ColumnError, encode_words, family_of, kernels_of
from neusight.kernels.work import work_of
from neusight.laws.bounds import GEMM_FAMILIES, peak_flops_per_s
from neusight.questions import KernelCall

if TYPE_CHECKING:
    import pandas as pd

Skip = tuple[str, np.ndarray]
"""A reason, and positions of the rows that are skipped for it."""
_FILLED: Mapping[str, tuple[str, Any]] = {
    "launches_per_graph": ("launches", 1.0), "cycled_bytes": ("cycled_bytes", np.inf), "burst": ("burst", np.inf),
    "one_input": ("one_input", False), "recorded": ("recorded", False), "random": ("random", True),
    "timer": ("timing", "stream"), "backend": ("engine", "torch"), "variant": ("variant", ""),
}  # fmt: skip
"""Fields of ``Conditions`` by column, with the values of empty cells."""
CONDITIONS = (*_FILLED, "operands", "operand_sets")
"""Columns that say how a kernel was timed."""
PRODUCTS = (*GEMM_FAMILIES, "attention")
"""Families that run on matrix units."""
ROW_BY_ROW = KernelCall.fields().keys() - {*CONDITIONS, "gpu", "overrides", "per_node", "algorithm", "max_ctas"}
"""Fields of a kernel's question that are not read in columns: where a row fills one, it is asked by itself."""


@dataclass(frozen=True, kw_only=True)
class KernelPart(ColumnRecord):
    """Rows of one device and family; ``rows`` are their positions in the frame."""

    device: DeviceSpec
    batch: KernelBatch
    conditions: Conditions
    rows: np.ndarray


def kernel_parts(
    frame: pd.DataFrame, skipped: list[Skip], devices: Mapping[str, DeviceSpec] = MappingProxyType({})
) -> Iterator[KernelPart]:
    """Rows of a table of kernels, by device and family; those that are no kernel are added to ``skipped``.

    ``devices`` are those that the catalogue lacks, by id.
    """
    keys = ["gpu", *(name for name in ("overrides", "family", "op") if name in frame)]
    for values, rows in frame.groupby(keys, dropna=False, observed=True, sort=False).indices.items():
        key = dict(zip(keys, values if isinstance(values, tuple) else (values,), strict=True))
        try:
            gpu = str(key["gpu"])
            device = devices[gpu] if gpu in devices else _device(gpu, key.get("overrides"))
            family = str(key["family"]) if isinstance(key.get("family"), str) else family_of(str(key.get("op")))
        except NeusightError as error:
            skipped.append((str(error), rows))
            continue
        yield from _part(frame, device, family, rows, skipped)


def _part(
    frame: pd.DataFrame, device: DeviceSpec, family: str, rows: np.ndarray, skipped: list[Skip]
) -> Iterator[KernelPart]:
    """One part; rows at fault are skipped, and the rest is read again."""
    while len(rows):
        try:
            yield kernel_part(frame, device, family, rows)
            return
        except ColumnError as error:
            skipped.append((str(error), rows[error.rows]))
            rows = rows[~error.rows]
        except NeusightError as error:
            skipped.append((str(error), rows))
            return


def kernel_part(frame: pd.DataFrame, device: DeviceSpec, family: str, rows: np.ndarray) -> KernelPart:
    """Rows of one device and family, by their positions in a table of kernels.

    Raises:
        CoverageError: a column that the family lacks. ColumnError: rows that are no kernel.
    """
    batch = kernels_of(family, shape_columns(frame, family, rows))
    return KernelPart(device=device, batch=batch, conditions=conditions_of(frame, batch, rows), rows=rows)


def computed_rows(part: KernelPart, skipped: list[Skip]) -> np.ndarray:
    """Rows of a part in dtypes that its device computes in, as a mask; others are added to ``skipped``."""
    product, computed = part.batch.family in PRODUCTS, np.ones(len(part.batch), dtype=bool)
    for dtype in np.unique(part.batch["dtype"]):
        try:
            peak_flops_per_s(part.device, str(dtype), product=product)
        except NeusightError as error:
            foreign = part.batch["dtype"] == dtype
            computed &= ~foreign
            skipped.append((str(error), part.rows[foreign]))
    return computed


def _device(gpu: str, overrides: Any) -> DeviceSpec:
    return load_device(gpu, KernelCall.fields()["overrides"].canonical(overrides) if isinstance(overrides, str) else ())


def shape_columns(frame: pd.DataFrame, family: str, rows: np.ndarray) -> dict[str, np.ma.MaskedArray[Any, Any]]:
    """Fields of a family that rows have, empty cells masked."""
    names = [f.name for f in fields(KERNEL_CLASSES[family])] + ["rows", "cols", "size", "kernel", "seq_len"]
    columns = {name: column(frame, name, rows) for name in dict.fromkeys(names) if name in frame}
    return {name: cells for name, cells in columns.items() if not np.ma.getmaskarray(cells).all()}


def column(frame: pd.DataFrame, name: str, rows: np.ndarray) -> np.ma.MaskedArray[Any, Any]:
    """Cells of a column, empty ones masked."""
    import pandas as pd

    series = frame[name]
    if isinstance(series.dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()[rows]
        words = np.append(series.cat.categories.to_numpy(dtype=str), "")
        return np.ma.array(words[codes], mask=codes < 0)
    cells = series.iloc[rows]
    empty = cells.isna().to_numpy()
    if cells.dtype == object or pd.api.types.is_string_dtype(cells.dtype):
        return np.ma.array(_objects(cells, empty), mask=empty)
    return np.ma.array(cells.fillna(0).to_numpy() if empty.any() else cells.to_numpy(), mask=empty)


def _objects(cells: pd.Series, empty: np.ndarray) -> np.ndarray:
    """Truth values with gaps as such, everything else as text."""
    values = cells.to_numpy(dtype=object)
    if not empty.all() and all(isinstance(value, bool) for value in values[~empty]):
        return np.where(empty, False, values).astype(bool)
    return np.where(empty, "", values).astype(str)


def conditions_of(frame: pd.DataFrame, batch: KernelBatch, rows: np.ndarray) -> Conditions:
    """How rows were timed; empty cells are as ``Conditions.of`` has them."""
    cells = {name: column(frame, name, rows) for name in CONDITIONS if name in frame}
    given: dict[str, Any] = {}
    for name, (field, default) in _FILLED.items():
        if name in cells:
            column_cells = cells[name] if isinstance(default, str) else cells[name].astype(type(default))
            given[field] = np.ma.filled(column_cells, default)
    for field, rename in (("timing", _timing), ("engine", library_named)):
        if field in given:
            given[field] = _renamed(given[field], rename)
    if "operands" in cells:
        given["cycled_bytes"] = _cycled_bytes(cells, batch)
    return Conditions.of(len(rows), **given)


def _cycled_bytes(cells: dict[str, np.ma.MaskedArray[Any, Any]], batch: KernelBatch) -> np.ndarray:
    """Bytes between two uses of an operand, from the place of operands or the sets that take turns."""
    place = np.ma.filled(cells["operands"], OPERANDS[0])
    if (unknown := ~np.isin(place, (*OPERANDS, "rotating"))).any():
        word = place[unknown][0]
        raise ColumnError(f"operands '{word[:40]}' is unknown: one of {', '.join(OPERANDS)}, rotating", unknown)
    sets = np.ma.filled(cells.get("operand_sets", np.ma.ones(len(place))).astype(float), 1.0)
    return np.where(place == OPERANDS[0], np.inf, sets * work_of(batch).bytes)


def _timing(word: str) -> str:
    """Today's words and those of tables."""
    if word not in (*TIMERS, *TIMINGS):
        raise CoverageError(f"unknown timer '{word[:40]}'{nearest(word, TIMERS)}: one of {', '.join(TIMERS)}")
    return TIMERS.get(word, word)


def _renamed(words: np.ndarray, rename: Callable[[str], str]) -> np.ndarray:
    """Words by other names.

    Raises:
        ColumnError: rows with a word that has none.
    """
    codes, names = encode_words(words)
    for place, name in enumerate(names):
        try:
            names[place] = rename(name)
        except NeusightError as error:
            raise ColumnError(str(error), codes == place) from None
    return np.array(names)[codes]


def skipped_counts(skipped: Sequence[Skip]) -> list[dict[str, Any]]:
    """Reasons with the number of rows, most first."""
    counts: Counter[str] = Counter()
    for reason, rows in skipped:
        counts[reason] += len(rows)
    return [{"reason": reason, "rows": n} for reason, n in counts.most_common()]
