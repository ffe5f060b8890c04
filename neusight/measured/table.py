"""Files of measured rows: their kind, their columns, and what is wrong with them in one line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.engines import ENGINES
from neusight.errors import DataError, nearest
from neusight.kernels.named import PUBLIC_NAMES, SHAPE_NAMES
from neusight.questions import KernelCall, Serving, Step, Training
from neusight.questions.question import Question

if TYPE_CHECKING:
    import pandas as pd

NOUNS: Mapping[str, type[Question]] = {noun.KIND: noun for noun in (Step, Training, Serving, KernelCall)}
"""Questions of rows, by the command that answers them; a row is the first whose fields its filled columns are."""
TRUTH = ("fits", "oom")
"""Quantities that are true or false."""
STATISTIC = re.compile(r"_(min|p10|p50|p90|p99|max|std)(?=_)")
"""Part of the name of a column that is a statistic of another one."""
_SPREADS = re.compile(
    r"^(repeated|doubted|predicted|before|after)(_|$)|^std_ms$|^(latency|execution)_(min|max|p10|p90)_ms$"
    r"|^(neusight|habitat|li|roofline)_ms$"
)
"""Columns that say more of a measured figure: its spread, or what others predicted."""
_STANDS_IN = r'\["engine", "[^"]*is none of them'
"""What `assumed` says of an engine that another one stands in for."""
_MEASURED_STATE = (
    "clock_mhz", "memory_clock_mhz", "temperature_c", "board_power_w", "gflop_per_s", "gb_per_s", "forward_ms",
    "backward_ms", "optimizer_ms", "cached_ms",
)  # fmt: skip


def _resource(name: str) -> Mapping[str, Any]:
    return tomllib.loads((files("neusight.measured") / name).read_text(encoding="utf-8"))


QUANTITIES: Mapping[str, str] = _resource("quantities.toml")
"""Units and meanings of measured columns by name."""
CHANGES: Mapping[str, str] = _resource("changes.toml")
"""Meanings of columns of what changes a question, by name."""
PROVENANCE: Mapping[str, str] = _resource("provenance.toml")
"""Meanings of columns that say where a row comes from, by name."""


def is_quantity(column: str) -> bool:
    """Whether a column is a measured quantity or a statistic of one, but for spreads of repeated measurements, or a
    service level, which holds or does not.
    """
    return "=" in column or (not _SPREADS.search(column) and STATISTIC.sub("", column, count=1) in QUANTITIES)


def is_truth(quantities: pd.Series) -> pd.Series:
    """Which quantities are true or false: those of ``TRUTH``, and service levels such as ``ttft=1s``."""
    return quantities.isin([name for name in quantities.unique() if name in TRUTH or "=" in name])


@dataclass(frozen=True)
class MeasuredTable:
    """Rows of one file.

    Attributes:
        path: of the file; files that rows name, such as traces, are looked for below its folder.
        kind: ``kernels``, ``gains`` or ``models``: steps, training steps and served models.
        frame: the rows, in columns of today's names; empty cells are NaN.
    """

    path: Path
    kind: str
    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def quantities(self) -> list[str]:
        """Measured columns."""
        return [str(name) for name in self.frame if is_quantity(str(name))]


def read_table(path: Path) -> MeasuredTable:
    """A parquet or CSV file of measured rows.

    Raises:
        DataError: no such file, an empty or truncated one, another format, an unknown column, none that is measured,
            or no row.
    """
    return table_of(path, read_frame(path))


def table_of(path: Path, frame: pd.DataFrame) -> MeasuredTable:
    """Rows of a frame as those of the file that they are of.

    Raises:
        DataError: as ``read_table``.
    """
    frame = frame.reset_index(drop=True)
    kind = "gains" if "gain" in frame else "kernels" if {"family", "op", "name"} & {*frame} else "models"
    frame = _with_engines_that_ran(frame.rename(columns={name: _known(path, kind, str(name)) for name in frame}))
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{path} has column {twice} twice, under an old and a new name: leave out one of them")
    table = MeasuredTable(path, kind, _with_options_that_were_set(_with_variants_that_ran(frame)))
    if not table.quantities:
        raise DataError(f"{path} has no measured column: name it latency_ms, step_ms, ttft_ms, tokens_per_s, …")
    if frame.empty:
        raise DataError(f"{path} has no rows: give a table with at least one")
    for name in table.quantities:
        frame[name] = _numbers(path, name, frame[name])
    return table


def _with_engines_that_ran(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose engine stands in for software that was no engine when they were written, or is another of its family,
    with that software where it is one by now, and without the precision of gradients, which the other engine's habits
    had filled in.
    """
    if not {"assumed", "software", "engine"} <= {*frame}:
        return frame
    ran = frame["software"].fillna("").str.lower().str.split(r"[ ,]").str[0]
    alike = frame["engine"].astype(str).str.extract(r"(.*-)")[0] == ran.str.extract(r"(.*-)")[0]
    # What follows in a pair names the engine that stands in.
    alike &= "then" not in frame
    replaced = (alike | frame["assumed"].fillna("").str.contains(_STANDS_IN)) & ran.isin([*ENGINES])
    frame["engine"] = frame["engine"].astype(object).where(~replaced, ran)
    if "gradient_dtype" in frame:
        frame["gradient_dtype"] = frame["gradient_dtype"].astype(object).mask(replaced, None)
    return frame


def _with_options_that_were_set(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with the options of ``options.toml`` where the table says none, or others than those that ran."""
    for rule in (each for each in _resource("options.toml")["options"] if {*each["of"]} <= {*frame}):
        rows = frame[[*rule["of"]]].isin(rule["of"]).all(axis=1)
        stated = rule.get("instead", {})
        for name, value in (rule.get("with", {}) | stated).items() if rows.any() else ():
            cells = frame.get(name, rows.map(lambda _: None)).astype(object)
            frame[name] = cells.where(~rows | (cells.notna() & (name not in stated)), value)
    return frame


def _with_variants_that_ran(frame: pd.DataFrame) -> pd.DataFrame:
    """Kernels by the narrower variants that ``variants.toml`` knows for what their source calls them."""
    if "software" not in frame:
        return frame
    names = frame["software"].dropna().unique()
    for rule in _resource("variants.toml")["variants"]:
        rows = frame["software"].isin([name for name in names if f" {rule['software']} " in f" {name} "])
        for column, value in rule.get("with", {}).items():
            rows &= column in frame and frame[column] == value
        if rows.any():
            frame["variant"] = frame["variant"].astype(object) if "variant" in frame else None
            frame.loc[rows, "variant"] = rule["variant"]
    return frame


def read_frame(path: Path) -> pd.DataFrame:
    """A parquet or CSV file of any columns.

    Raises:
        DataError: no such file, an empty or truncated one, or another format.
    """
    return _csv(path) if path.suffix == ".csv" else _parquet(path)


def _numbers(path: Path, name: str, cells: pd.Series) -> pd.Series:
    """A measured column as numbers, none of which is below zero or, but for truth values, zero.

    Raises:
        DataError: a cell is no such number.
    """
    import pandas as pd

    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    wrong = cells.notna() & ~(numbers >= 0 if name in TRUTH else numbers > 0)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(f"{path}: row {row + 1}: {name} is '{str(cells.iloc[row])[:40]}': give a number above 0")
    return numbers


def _known(path: Path, kind: str, name: str) -> str:
    """Today's name of a column.

    Raises:
        DataError: no column is called so, with the nearest that is.
    """
    columns = columns_of(kind)
    if name in columns:
        return columns[name]
    if is_quantity(name) or name in PROVENANCE or name in _MEASURED_STATE or _SPREADS.search(name):
        return name
    hint = nearest(name, [*columns, *QUANTITIES, *PROVENANCE])
    raise DataError(f"{path}: unknown column '{name[:40]}'{hint}: see `neusight datasets columns`")


@cache
def columns_of(kind: str) -> Mapping[str, str]:
    """Today's names of question columns, by each name that they have or had."""
    nouns: list[type[Question]] = [KernelCall] if kind == "kernels" else [Step, Training, Serving]
    names: dict[str, str] = {}
    for one in (one for noun in nouns for one in noun.fields().values()):
        names |= dict.fromkeys((*one.field.former, one.name), one.name)
    if kind == "kernels":
        names |= dict(zip(SHAPE_NAMES, SHAPE_NAMES, strict=True)) | {"family": "family"}
        names |= {public: name for name, public in PUBLIC_NAMES.items()}
    else:
        names |= {name: name for name in CHANGES}
    return names


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    _check_file(path)
    content = path.read_bytes()
    try:
        frame: pd.DataFrame = pq.read_table(pa.BufferReader(content)).to_pandas()
    except (pa.ArrowException, OSError) as error:
        reason = f"damaged ({str(error).splitlines()[0]})"
        fault = reason if content[-4:] == b"PAR1" else "truncated (its parquet footer is missing)"
        fault = fault if content[:4] == b"PAR1" else "neither a parquet nor a .csv file"
        raise DataError(f"{path} is {fault}: copy it again from its source") from None
    return frame


def _csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    _check_file(path)
    try:
        return pd.read_csv(path)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV ({str(error).strip()}): correct the file") from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise DataError(f"{path} {fault}: give a parquet or CSV file of measured rows")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty: give a table with at least one row")


def filled(row: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Cells of a row that have a value, of some columns."""
    return {name: row[name] for name in names if name in row and not _is_empty(row[name])}


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and isnan(value))
