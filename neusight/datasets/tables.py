"""Tables of a verification: what a data set covers, how it holds against physics and against itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.clean import alike, by_gpu, clean, explained, throttled, unstable
from neusight.datasets.load import collected
from neusight.datasets.measured import answerable, measured, tile_coverage
from neusight.datasets.schema import read_parquet
from neusight.devices import DeviceSpec, device_ids

if TYPE_CHECKING:
    import pandas as pd

_JUDGED = ("gemm", "elementwise", "row_reduction", "conv2d")
_TILED = ("gemm", "conv2d", "elementwise", "row_reduction")


def tables_of(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> dict[str, pd.DataFrame]:
    """Coverage of everything, conditions and sources of collected rows; of rows that have laws for a single kernel
    physics, noise, tiles, cleaning, and how well they repeat.

    Args:
        frame: valid rows as ``load_kernels`` gives them.
        devices: those beside the data, by id.
    """
    own = collected(frame)
    tables = {"coverage": coverage(frame)}
    rows = frame[own | frame["family"].isin(_JUDGED)]
    rows = rows[_comparable(rows, devices)]
    if len(rows):
        tables |= _judged(rows, devices)
    if own.any():
        tables |= {"conditions": conditions(frame[own]), "sources": sources(frame[own])}
    return {title: table for title, table in tables.items() if len(table)}


def _judged(rows: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> dict[str, pd.DataFrame]:
    work = measured(rows, devices)
    tables = {"physics": physics(work)}
    if "grid_x" in rows and rows["grid_x"].notna().any():
        tiled = rows[rows["family"].isin(_TILED)]
        tables |= {"noise": noise(work), "tiles": tile_coverage(tiled).round(3)}
    report = clean(rows, devices).report
    tables |= {"cleaning": explained(report), "cleaning_by_gpu": by_gpu(report)}
    return tables | ({"repeatability": repeatability(work[collected(work)])} if collected(work).any() else {})


def _comparable(rows: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> np.ndarray:
    """Rows whose GPU is known and has a rate for their dtype."""
    comparable = np.array(rows["gpu"].isin({*device_ids(), *devices}), dtype=bool)
    comparable[comparable] = answerable(rows[comparable], devices)
    return comparable


def _groups(rows: pd.DataFrame) -> list[str]:
    """Rows by what: collected ones, which are of many dtypes, by dtype as well."""
    return ["family", "dtype", "gpu"] if collected(rows).any() else ["family", "gpu"]


def coverage(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows by family, op and GPU; those of collected rows by dtype too, which stands across where there is one GPU."""
    dtype = ["dtype"] if collected(frame).any() else []
    gpu = ["gpu"] if frame["gpu"].nunique() > 1 or not dtype else []
    return frame.groupby(["family", "op", *dtype, *gpu]).size().unstack(fill_value=0)


def physics(work: pd.DataFrame) -> pd.DataFrame:
    """Rows by family and gpu, collected ones by dtype too, and the share of them that beats a datasheet figure, in %.

    ``above_peak``: FLOP/s (convolutions may, by Winograd). ``above_dram``: compulsory bytes/s, ``uncached`` those of
    them whose operands exceed twice the L2. ``utilisation`` is the median of roofline over latency, above 50 µs; the
    launch is left out of the time where it was.
    """
    import pandas as pd

    time_s, keys = work["execution_s"], _groups(work)
    rate = work["bytes"] / time_s > work["bytes_per_s"]
    flags = pd.DataFrame(
        {
            **{name: work[name] for name in keys},
            "above_peak": 100.0 * (work["flops"] / time_s > work["flops_per_s"]),
            "above_dram": 100.0 * rate,
            "uncached": 100.0 * (rate & (work["bytes"] / work["passes"] > 2 * work["l2_bytes"])),
            "utilisation": (work["bound_s"] / time_s).where(time_s > 5e-5),
        }
    )
    grouped = flags.groupby(keys)
    out = grouped[["above_peak", "above_dram", "uncached"]].mean().round(2)
    out.insert(0, "rows", grouped.size())
    out["utilisation"] = grouped["utilisation"].median().round(3)
    return out


def noise(work: pd.DataFrame) -> pd.DataFrame:
    """How far launches that can hardly differ lie apart: median and 95th percentile of |latency / median - 1|, in %.

    It bounds the accuracy of any predictor that sees only the shape.
    """
    import pandas as pd

    groups = work["latency_s"].groupby(alike(work))
    off = (100.0 * (work["latency_s"] / groups.transform("median") - 1.0).abs())[groups.transform("size") >= 3]
    grouped = off.groupby([work[name] for name in _groups(work)])
    return pd.DataFrame({"rows": grouped.size(), **_quantiles(grouped)})


def repeatability(work: pd.DataFrame) -> pd.DataFrame:
    """How far repetitions lie from the first measurement: pairs, median and 95th percentile of |b / a - 1|, in %.

    For the latency, and for the execution alone where it was measured.
    """
    import pandas as pd

    times = [name for name in ("latency_ms", "execution_ms") if name in work and work[name].notna().any()]
    first, again = (work[work["repeat"] == n].drop_duplicates("same").set_index("same") for n in (0, 1))
    first = first.loc[first.index.intersection(again.index)]
    off = 100.0 * (again[times].reindex(first.index) / first[times] - 1.0).abs()
    grouped = off.groupby([first["family"], first["dtype"]])
    table = pd.DataFrame({"pairs": grouped.size()})
    for name, prefix in zip(times, ("", "execution_"), strict=False):
        table = table.join(pd.DataFrame(_quantiles(grouped[name])).add_prefix(prefix))
    return table


def _quantiles(grouped: Any) -> dict[str, pd.Series]:
    return {"median_percent": grouped.quantile(0.5).round(2), "p95_percent": grouped.quantile(0.95).round(2)}


def conditions(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by gpu and family, those set aside as unstable or throttled, and the device's state (medians) meanwhile."""
    import pandas as pd

    state = [name for name in ("clock_mhz", "memory_clock_mhz", "power_w", "temperature_c") if name in rows]
    flags = pd.DataFrame({"unstable": unstable(rows), "throttled": throttled(rows)}, index=rows.index)
    grouped = flags.join(rows[["gpu", "family", *state]]).groupby(["gpu", "family"])
    table = pd.DataFrame({"rows": grouped.size()}).join(grouped[list(flags)].sum())
    return table.join(grouped[state].median().dropna(axis=1, how="all").round(0))


def sources(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by who measured them, with what, and when: days of the first and the last."""
    import pandas as pd

    columns = {name: rows[name].fillna("") for name in ("gpu", "worker", "framework", "version") if name in rows}
    columns = {name: column for name, column in columns.items() if (column != "").any()}
    days = rows["measured_at"].str[:10] if "measured_at" in rows else pd.Series("", index=rows.index)
    grouped = days.groupby(list(columns.values()))
    return pd.DataFrame({"rows": grouped.size(), "first": grouped.min(), "last": grouped.max()})


def skipped(files: Sequence[Path]) -> pd.DataFrame:
    """Samples that could not be measured, by family (or table of what is no single kernel), dtype and reason."""
    import pandas as pd

    rows = pd.concat([read_parquet(path).to_pandas() for path in files]).drop_duplicates("sample")
    if "table" in rows:
        rows["family"] = rows["family"].fillna(rows["table"])
    return rows.groupby(["family", "dtype", "reason"], dropna=False).size().to_frame("samples")


def session_agreement(kernels: pd.DataFrame, operators: Path) -> pd.DataFrame:
    """Linear layers timed inside models over the same shapes timed alone (test split), by gpu.

    A ratio far from one says that the two sessions ran at different clocks: no single model can fit both.
    """
    import pandas as pd

    rows = read_parquet(operators).to_pandas()
    rows = rows[(rows["kind"] == "call_module") & (rows["forward_ms"] > 0.2)]
    shapes = [_linear_shape(i, o) for i, o in zip(rows["input_shapes"], rows["output_shape"], strict=True)]
    rows = rows.assign(shape=shapes)[[s is not None for s in shapes]]
    rows = rows[~rows["target"].str.lower().str.contains("norm|ln_|drop|act")]
    alone = kernels[(kernels["op"] == "linear") & (kernels["split"] == "test")]
    alone = alone.groupby(["gpu", "m", "n", "k"])["latency_ms"].median()
    keys = [(g, *s) for g, s in zip(rows["gpu"], rows["shape"], strict=True)]
    ratio = pd.Series(rows["forward_ms"].to_numpy() / alone.reindex(keys).to_numpy(), index=rows["gpu"]).dropna()
    grouped = ratio.groupby(level=0)
    quantiles = {name: grouped.quantile(q).round(2) for name, q in (("p5", 0.05), ("median", 0.5), ("p95", 0.95))}
    return pd.DataFrame({"layers": grouped.size(), **quantiles})


def _linear_shape(inputs: str, output: str) -> tuple[float, float, float] | None:
    """(m, n, k) of a layer that maps [..., k] to [..., n], else None."""
    given, result = json.loads(inputs or "[]"), [int(v) for v in re.findall(r"\d+", output or "")]
    if not given or len(given[0]) < 2 or len(given[0]) != len(result) or given[0][:-1] != result[:-1]:
        return None
    return float(np.prod(result[:-1])), float(result[-1]), float(given[0][-1])
