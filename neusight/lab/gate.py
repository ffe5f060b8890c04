"""The gate: predictions and errors of the predictor that ships, committed, so that a diff shows what got worse.

The summary has three tables, one line a row: errors of kernels and of whole models over a seeded sample of the tables
that ``gate.toml`` names, and its single predictions on devices of all kinds. It holds no measured row.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, DeviceError
from neusight.lab.results import as_text
from neusight.measured import RowChoice, compare, errors, read_table
from neusight.paths import checkout_dir, data_dir

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor

Row = dict[str, Any]
Summary = dict[str, list[Row]]

SAMPLE = 400
"""Rows of each table and group."""
SEED = 10
ERROR_SLACK = 0.05
"""Percentage points that an error may differ by: rounding, and other processors."""
LATENCY_SLACK = 1e-3
"""The same for single predictions, relative."""
REWRITE = "neusight experiments gate --write"

_KEYS = {
    "kernels": ("data", "family", "dtype", "gpu"),
    "models": ("data", "gpu", "mode"),
    "single": ("gpu", "what"),
}
"""What tells the rows of each table apart; their other columns are figures."""
_ERRORS = ("mape", "bias", "inside")
_TIMES = ("latency_ms", "low_ms", "high_ms")
_WORDS = {
    **{"mape": "mean error", "bias": "mean signed error", "inside": "rows inside their 90 % interval"},
    **{"count": "number of rows", "latency_ms": "latency"},
    **{"low_ms": "low end", "high_ms": "high end"},
}
"""What figures are called where they differ."""


def _declared() -> dict[str, Any]:
    return tomllib.loads((checkout_dir("experiments") / "gate" / "gate.toml").read_text(encoding="utf-8"))


def summary_path() -> Path:
    """Where the summary is committed."""
    return checkout_dir("experiments") / "gate" / "summary.json"


def summarise(predictor: Predictor, data: Path | None = None) -> Summary:
    """All three tables.

    Args:
        predictor: whose predictions.
        data: folder of measured rows; default ``$NEUSIGHT_DATA``.

    Raises:
        DataError: no data.
    """
    folder = data_dir() if data is None else data
    declared = _declared()
    errors = {
        table: [
            row
            for name in declared[table]
            for path in sorted(folder.glob(name))
            for row in _rows(path, predictor, _KEYS[table][1:])
        ]
        for table in ("kernels", "models")
    }
    return {**errors, "single": single_predictions(predictor)}


def _rows(path: Path, predictor: Predictor, keys: Sequence[str]) -> list[Row]:
    """Errors of a sample of a file's latencies, by its name and keys."""
    table, _ = RowChoice().of(read_table(path))
    if "latency_ms" not in table.quantities:
        return []
    wanted = [name for name in table.quantities if name != "latency_ms"]
    frame, known = table.frame.drop(columns=wanted), [key for key in keys if key in table.frame]
    lines, _ = compare(replace(table, frame=_sample(frame, known)), predictor)
    words = frame[known].astype(object).fillna("").assign(**dict.fromkeys({*keys} - {*known}, ""))
    return [{"data": path.stem, **_rounded(row, keys)} for row in errors.summarise(lines.join(words, on="place"), keys)]


def _sample(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """``SAMPLE`` rows at most of each group, the same every time."""
    kept = []
    for rows in frame.groupby(list(keys), dropna=False, observed=True).indices.values():
        rng = np.random.default_rng(SEED)
        kept.append(rng.choice(rows, SAMPLE, replace=False) if len(rows) > SAMPLE else rows)
    return frame.iloc[np.sort(np.concatenate(kept))]


def _rounded(row: Mapping[str, Any], names: Sequence[str]) -> Row:
    errors = {"mape": row["mean"], "bias": row["bias"]} | ({"inside": row["inside"]} if "inside" in row else {})
    figures = {name: round(value, 2) for name, value in errors.items()}
    return {**{name: str(row[name]) for name in names}, "count": row["rows"], **figures}


def single_predictions(predictor: Predictor) -> list[Row]:
    """Each declared question on each of its GPUs that computes in its dtype; needs no data."""
    rows = []
    for kind, asked in _declared()["single"].items():
        for what, gpu in product(asked["questions"], asked["gpus"]):
            try:
                times_s = _ANSWERS[kind](predictor, gpu, *what.split())
            except DeviceError:
                continue
            figures = {name: float(f"{1e3 * t:.4g}") for name, t in zip(_TIMES, times_s, strict=True)}
            rows.append({"gpu": gpu, "what": what, **figures})
    return rows


def _of_kernel(predictor: Predictor, gpu: str, name: str, *options: str) -> tuple[float, ...]:
    """Latency and interval in seconds."""
    kernel = predictor.kernel(name, gpu, **dict(pair.split("=") for pair in options))
    return kernel.latency_s, kernel.low_s, kernel.high_s


def _of_model(predictor: Predictor, gpu: str, name: str, *options: str) -> tuple[float, ...]:
    """Latency of a step and its interval in seconds."""
    fields = {"attention": "eager", **dict(pair.split("=") for pair in options)}
    step: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in fields.items()}
    estimate = predictor.estimate(name, gpu, **step)
    return estimate.latency_s, *estimate.interval


_ANSWERS: Mapping[str, Callable[..., tuple[float, ...]]] = {"kernels": _of_kernel, "models": _of_model}


def write_summary(summary: Summary, path: Path) -> None:
    """One line a row, so that a diff names what changed."""
    ordered = {table: sorted(summary[table], key=partial(_key, table)) for table in _KEYS}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(ordered), encoding="utf-8")


def read_summary(path: Path) -> Summary:
    """What ``write_summary`` wrote.

    Raises:
        DataError: it is not there, or is something else.
    """
    try:
        summary: Summary = json.loads(path.read_text(encoding="utf-8"))
        {_key(table, row) for table in _KEYS for row in summary[table]}
    except OSError:
        raise DataError(f"{path} is not there: write it with `{REWRITE}` in a checkout") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is no summary of the gate: write it again with `{REWRITE}`") from None
    return summary


def differences(committed: Summary, summary: Summary) -> list[str]:
    """What differs by more than rounding, a line each: rows that are gone or new, errors, single predictions.

    Tables that were not computed are not compared.
    """
    return [line for table in summary for line in _table_differences(table, committed[table], summary[table])]


def _table_differences(table: str, committed: list[Row], summary: list[Row]) -> Iterator[str]:
    before, after = ({_key(table, row): row for row in rows} for rows in (committed, summary))
    for key in sorted(before.keys() | after.keys()):
        where = " ".join((table, *key))
        if key in before and key in after:
            for name, now in after[key].items():
                if not _alike(name, was := before[key][name], now):
                    yield f"{where}: {_WORDS.get(name, name)} {_moved(name, was, now)}"
        else:
            yield f"{where}: {'the row is no longer there' if key in before else 'a new row'}"


def _moved(name: str, before: Any, after: Any) -> str:
    """A figure before and after; of mean errors which is worse, and of times the change in percent."""
    unit = " ms" if name in _TIMES else " %" if name in _ERRORS else ""
    judged = f" ({100 * (after / before - 1):+.2f} %)" if name in _TIMES else ""
    judged = f" ({'worse' if after > before else 'better'})" if name == "mape" else judged
    return f"{before}{unit} -> {after}{unit}{judged}"


def _key(table: str, row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in _KEYS[table])


def _alike(name: str, before: Any, after: Any) -> bool:
    if name in _ERRORS:
        # Both are rounded to 0.01, which has no exact binary form.
        return bool(abs(after - before) <= ERROR_SLACK + 1e-9)
    if name in _TIMES:
        return bool(abs(after - before) <= LATENCY_SLACK * before)
    return bool(before == after)
