"""Traces of requests from files: CSV, JSON lines or parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.errors import DataError, LoadError, reason
from neusight.serving.load import Trace

if TYPE_CHECKING:
    import pandas as pd

NAMES = {
    "arrival_s": ("arrival_s", "timestamp", "timestamp_s", "arrived_at", "arrival_time"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "isl", "contexttokens", "context_tokens", "request_tokens"),
    "output_tokens": ("output_tokens", "osl", "generatedtokens", "generated_tokens", "response_tokens"),
}
"""What files call the columns of a trace, without regard to case, blanks as underscores: this project, Azure's LLM
inference traces, BurstGPT. Mooncake's traces, whose ``timestamp`` is in milliseconds, are not among them on purpose:
their lengths have other names, so that they are refused and not read a thousand times too slow."""


def read_trace(path: Path | str) -> Trace:
    """The requests of a ``.csv``, ``.jsonl`` or ``.parquet`` file, in the order of its rows.

    Times are seconds, or dates, which count from the first row.

    Raises:
        DataError: a file that is missing or cannot be read, a column that is missing, or a value that is no number.
        LoadError: no rows, times that are negative or out of order, or lengths that are no counts; the first row is 1.
    """
    path = Path(path)
    frame = _frame(path)
    if frame.empty:
        raise LoadError(f"{path} holds no requests: give at least one row")
    frame.columns = [str(c).strip().lower().replace(" ", "_") for c in frame.columns]
    found = {what: frame[_column(path, frame, what)] for what in NAMES}
    return Trace(
        arrival_s=_seconds(path, found["arrival_s"]),
        prompt_tokens=_numbers(path, found["prompt_tokens"]),
        output_tokens=_numbers(path, found["output_tokens"]),
    )


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    try:
        if path.suffix in (".jsonl", ".ndjson"):
            return pd.read_json(path, lines=True, convert_dates=False)
        if path.suffix in readers:
            return readers[path.suffix](path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the trace {path}: {reason(error)}") from error
    raise DataError(f"{path} is no trace: give a .csv, .jsonl or .parquet file")


def _column(path: Path, frame: pd.DataFrame, what: str) -> str:
    for name in NAMES[what]:
        if name in frame:
            return name
    raise DataError(f"{path} has no column {what}: name it so, or one of {', '.join(NAMES[what][1:])}")


def _numbers(path: Path, column: pd.Series) -> np.ndarray:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    if (wrong := np.isnan(numbers)).any():
        at = int(np.argmax(wrong))
        raise DataError(f"{path}, row {at + 1}: {column.name} '{column.iloc[at]}' is no number")
    return numbers


def _seconds(path: Path, column: pd.Series) -> np.ndarray:
    """Numbers as they are, dates from the first on."""
    import pandas as pd

    if pd.to_numeric(column, errors="coerce").notna().any():
        return _numbers(path, column)
    dates = pd.to_datetime(column, errors="coerce", utc=True, format="mixed")
    if not dates.notna().all():
        return _numbers(path, column)
    return ((dates - dates.iloc[0]) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
