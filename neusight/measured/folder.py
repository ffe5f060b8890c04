"""Tables of measured kernels in a folder, those that constants learn from, and what their rows have in common."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices import DeviceSpec, load_device
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.kernels.conditions import TIMERS
from neusight.kernels.named import family_of
from neusight.measured.kernels import KernelPart, Skip, kernel_parts
from neusight.measured.manifest import unlearned_files
from neusight.measured.table import MeasuredTable, columns_of, read_table

if TYPE_CHECKING:
    import pandas as pd

FITTED = "fit"
"""``split`` of rows that constants learn from, in tables of whole runs."""
ALIKE = ("table", "gpu", "family", "op", "dtype", "weight_dtype", "scaling", "quantised")
"""Columns that rows share of which more tell no more, beside libraries and whether attention decodes."""
DECODED = 2
"""Tokens that a sequence decodes at once, at most."""
_VERSION = r" \S*(\d\.\d|->)\S*"
"""Words of ``software`` that are a version, or dtypes."""


def _learned_files(folder: Path) -> list[Path]:
    """Tables in a folder that constants learn from, by name."""
    return [file for file in sorted(folder.glob("*.parquet")) if f"{folder.name}/{file.name}" not in unlearned_files()]


def kernel_files(
    data: Path, wanted: Callable[[str, str], bool] = lambda family, gpu: True, kind: type[DeviceSpec] | None = None
) -> list[Path]:
    """Tables of measured kernels in a folder, or in its ``kernels`` and in those of sets that were added to it, by
    name: those with rows of a family and device that are wanted, of a kind of devices; or the one that is given.

    Raises:
        DataError: nothing there.
    """
    if not data.exists():
        raise DataError(f"{data} is not there: give a table of measured kernels or a folder of them")
    if data.is_file():
        return [data]
    folder = data / "kernels" if (data / "kernels").is_dir() else data
    files = [*_learned_files(folder), *sorted(data.glob("*/kernels/*.parquet"))]
    return [file for file in files if any(wanted(*rows) and _is_of(kind, rows[1], file) for rows in _kinds(file))]


def step_files(data: Path, kind: type[DeviceSpec]) -> list[Path]:
    """Tables of steps on a kind of devices in a folder of measured rows and in sets that were added to it, by name."""
    files = [*sorted(data.glob("steps/*.parquet")), *sorted(data.glob("*/steps/*.parquet"))]
    return [file for file in files if any(_is_of(kind, gpu, file) for gpu in _cells(file, "gpu")["gpu"])]


def _is_of(kind: type[DeviceSpec] | None, gpu: str, table: Path) -> bool:
    return kind is None or isinstance(device_in(table, gpu), kind)


def table_parts(table: MeasuredTable, skipped: list[Skip]) -> Iterator[KernelPart]:
    """Rows of kernels by device and family, see ``kernel_parts``, on devices beside the table too."""
    return kernel_parts(table.frame, skipped, {gpu: one for gpu, (_, one) in devices_beside(table.path).items()})


def device_in(table: Path, gpu: str) -> DeviceSpec:
    """A device of a table's rows: as described beside it, else in the catalogue.

    Raises:
        DeviceError: neither has it.
    """
    brought = devices_beside(table)
    return brought[gpu][1] if gpu in brought else load_device(gpu)


def devices_beside(table: Path) -> dict[str, tuple[Path, DeviceSpec]]:
    """File and description of devices by id, from ``devices/*.toml`` beside a table or its folder.

    Raises:
        DeviceError, UnitError: a malformed description.
    """
    folders = (folder / "devices" for folder in (table.absolute().parent, table.absolute().parent.parent))
    files = [file for folder in folders for file in sorted(folder.glob("*.toml"))]
    return {device.id: (file, device) for file in files for device in [load_device(str(file))]}


def _kinds(file: Path) -> set[tuple[str, str]]:
    """Families, by their operators where none are stated, and devices of a table; none of another table."""
    cells = _cells(file, "family", "gpu")
    if {*cells.columns} == {"gpu"}:
        cells = _cells(file, "op", "gpu").rename(columns={"op": "family"})
    if len(cells.columns) < 2:
        return set()
    return {(family_of(str(name)), gpu) for name, gpu in zip(cells["family"], cells["gpu"], strict=True)}


def _cells(file: Path, *names: str) -> pd.DataFrame:
    """Distinct cells of columns of a table of kernels, by their names of today, of those that it has."""
    import pyarrow.parquet as pq

    today = columns_of("kernels")
    columns = {name: today.get(name, name) for name in pq.read_schema(file).names if today.get(name, name) in names}
    frame: pd.DataFrame = pq.read_table(file, columns=list(columns)).to_pandas()
    return frame.rename(columns=columns).drop_duplicates()


def sources_of(files: Iterable[Path]) -> set[str]:
    """Who measured the rows of tables of kernels; "" where a table does not say it."""
    return {str(source) for file in files for source in _cells(file, "source").get("source", ("",))}


def states_rates(file: Path) -> bool:
    """Whether a table of kernels states rates of products, of which times follow."""
    return "tflop_per_s" in _cells(file, "tflop_per_s")


def is_of_lone_launches(file: Path) -> bool:
    """Whether all kernels of a table were launched by themselves."""
    return bool((timings_of(_cells(file, "timer")) == "stream").all())


def timings_of(frame: pd.DataFrame) -> np.ndarray:
    """One of ``TIMINGS`` for each row, whose timer may have the name that people give it."""
    if "timer" not in frame:
        return np.full(len(frame), "stream", dtype=object)
    return np.array([TIMERS.get(str(timer), str(timer)) for timer in frame["timer"].astype(object).fillna("stream")])


def program_files(data: Path) -> list[Path]:
    """Tables of timings of programs in a folder of measured rows."""
    return sorted((data / "programs").glob("*.parquet"))


def learned_tables(data: Path, kind: str) -> list[MeasuredTable]:
    """Tables of a kind, such as ``gains``, in a folder of measured rows that constants learn from."""
    return [read_table(file) for file in _learned_files(data / kind)]


def rows_to_fit(data: Path, kind: str, left_out: Counter[str], quantity: str = "") -> list[MeasuredTable]:
    """Tables of a kind, such as ``serving``, with the rows alone that constants learn from: those whose ``split`` is
    ``fit``, of tables without this column all that nobody doubts.

    Args:
        data: folder of measured rows.
        kind: name of the folder in it.
        left_out: gets the number of other rows that are doubted, by reason.
        quantity: column that rows must have measured.

    Raises:
        DataError: no such rows.
    """
    chosen = []
    for file in _learned_files(data / kind):
        table = read_table(file)
        frame = table.frame.reindex(columns=[*{*table.frame, "split", "suspect", quantity or "source"}])
        measured = frame[quantity or "source"].notna()
        taught = measured & (frame["split"] == FITTED if "split" in table.frame else frame["suspect"].isna())
        if taught.any():
            left_out.update(frame.loc[measured & ~taught, "suspect"].dropna())
            chosen.append(replace(table, frame=table.frame[taught]))
    if not chosen:
        raise DataError(f"{data} has no rows of {kind} to learn from: give the folder of measured rows")
    return chosen


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """Of tables, by the names of their folder and file, and of their set where two are called so."""
    names: dict[str, str] = {}
    for file in files:
        name = f"{file.parent.name}/{file.name}"
        names[f"{file.parent.parent.name}/{name}" if name in names else name] = file_sha256(file)
    return names


def alike(frame: pd.DataFrame) -> list[np.ndarray]:
    """Positions of rows of which more tell no more."""
    names = [name for name in ALIKE if name in frame]
    keys = frame[names].assign(library=_libraries(frame), decodes=_decodes(frame))
    return list(keys.groupby(list(keys), dropna=False, observed=True, sort=True).indices.values())


def _libraries(frame: pd.DataFrame) -> np.ndarray:
    """Number of who ran the kernels, and by which of them, in any version."""
    import pandas as pd

    if "software" not in frame:
        return np.zeros(len(frame), dtype=int)
    codes, names = pd.factorize(frame["software"])
    kinds, _ = pd.factorize(np.array([re.sub(_VERSION, "", str(name)) for name in names], dtype=object))
    return np.append(kinds, -1)[codes]


def _decodes(frame: pd.DataFrame) -> np.ndarray:
    """Whether rows of compressed or sparse attention decode, which is other work than reading a prompt."""
    if "value_dim" not in frame:
        return np.zeros(len(frame), dtype=bool)
    return np.asarray(frame["value_dim"].notna() & (frame["q_len"] <= DECODED))


def stated(frame: pd.DataFrame, name: str) -> np.ndarray:
    """Figures of a column; NaN where there is none, or only an assumed one."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    figures = frame[name].to_numpy(dtype=float)
    if "assumed" not in frame:
        return figures
    reasons = [reason for reason in frame["assumed"].dropna().unique() if f'["{name}"' in reason]
    return np.where(frame["assumed"].isin(reasons), np.nan, figures) if reasons else figures


def suspected(frame: pd.DataFrame, rule: str) -> np.ndarray:
    """Rows that are doubted by a rule, as a mask."""
    if "suspect" not in frame:
        return np.zeros(len(frame), dtype=bool)
    doubts = [doubt for doubt in frame["suspect"].dropna().unique() if doubt.startswith(f"{rule}:")]
    return np.asarray(frame["suspect"].isin(doubts))


def sound(frame: pd.DataFrame) -> np.ndarray:
    """Rows that nobody doubts, as a mask."""
    return np.asarray(frame["suspect"].isna()) if "suspect" in frame else np.ones(len(frame), dtype=bool)
