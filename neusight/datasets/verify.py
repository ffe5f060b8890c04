"""Verify a data set: hashes, units, physics, noise, coverage, and what cleaning would remove."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.clean import alike, by_gpu, clean, explained, invalid, measured
from neusight.datasets.load import DTYPE_NAMES, load_kernels
from neusight.datasets.manifest import FileRecord, Manifest, find_dataset, list_datasets, read_manifest, sha256
from neusight.datasets.observe import tile_coverage
from neusight.datasets.schema import read_parquet
from neusight.devices import device_ids, load_device
from neusight.errors import DataError
from neusight.kernels import DTYPE_BYTES
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

_JUDGED = ("gemm", "elementwise", "row_reduction", "conv2d")


@dataclass(frozen=True)
class VerifyReport:
    """What verification found; ``ok`` when no hash, unit or shape is wrong. The tables inform, they don't fail.

    ``hashes``: path to ``ok``, ``changed``, ``missing`` or ``unlisted``. ``tables`` by title, pandas frames:
    coverage, physics, noise, tiles, cleaning, cleaning_by_gpu, sessions.
    """

    name: str
    folder: Path
    hashes: dict[str, str]
    problems: tuple[str, ...]
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the data are what the manifest and the schema say."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON: every table is a list of rows."""
        rows = {title: json.loads(t.reset_index().to_json(orient="records")) for title, t in self.tables.items()}
        head = {"name": self.name, "folder": str(self.folder), "ok": self.ok}
        return {**head, "problems": list(self.problems), "hashes": self.hashes, "tables": rows}


def verify(name_or_path: str | Path) -> VerifyReport:
    """Check a data set of the checkout by name, or any folder or file of measurements by path.

    A named data set lies below ``$NEUSIGHT_DATA`` and is held against its manifest; a folder against the
    ``manifest.json`` in it, if there is one.

    Raises:
        DataError: neither a name nor a path, nothing to read, a truncated or foreign file.
    """
    folder, manifest = _locate(str(name_or_path))
    hashes = check_hashes(folder, manifest.files) if manifest else {}
    problems = [f"{path} is {state}: copy it again from its source" for path, state in hashes.items() if state != "ok"]
    kernels = next((p for p in (folder / "kernels", folder) if p.is_file() or any(p.glob("*.parquet"))), None)
    tables: dict[str, pd.DataFrame] = {}
    if kernels is not None:
        frame = load_kernels(kernels)
        problems += implausible(frame)
        tables = _tables(frame[~invalid(frame)])
    operators = folder / "models" / "operators.parquet"
    if kernels is not None and operators.is_file():
        tables["sessions"] = session_agreement(frame, operators)
    name = manifest.name if manifest else folder.name
    return VerifyReport(name, folder, hashes, tuple(problems), tables)


def _locate(said: str) -> tuple[Path, Manifest | None]:
    path = Path(said)
    if path.exists():
        beside = path / "manifest.json"
        if beside.is_file():
            return path, read_manifest(beside)
        if path.is_dir():
            named = _known(path.name)
            return path, named
        return path, None
    manifest = find_dataset(said)
    folder = data_dir() / manifest.name
    if not folder.is_dir():
        raise DataError(f"{folder} is not there: put the data set {said} below NEUSIGHT_DATA")
    return folder, manifest


def _known(name: str) -> Manifest | None:
    """The checkout's manifest for a folder of that name, if it has one."""
    try:
        return next((m for m in list_datasets() if m.name == name), None)
    except DataError:
        return None


def check_hashes(folder: Path, expected: tuple[FileRecord, ...]) -> dict[str, str]:
    """State of every listed and every unlisted parquet or CSV file below ``folder``."""
    states = {}
    for record in expected:
        path = folder / record.path
        same = path.is_file() and sha256(path) == record.sha256
        states[record.path] = "ok" if same else "changed" if path.is_file() else "missing"
    found = [p for kind in ("*.parquet", "*.csv") for p in folder.rglob(kind)]
    return states | {p: "unlisted" for f in found if (p := f.relative_to(folder).as_posix()) not in states}


def implausible(frame: pd.DataFrame) -> list[str]:
    """Problems of units and names: broken rows, GPUs that the catalogue lacks, latencies that can't be milliseconds.

    A kernel between 0.5 µs and 1000 s is plausible; a median outside 5 µs to 10 s means another unit.
    """
    problems = []
    if count := int(invalid(frame).sum()):
        problems.append(f"{count} rows have no positive latency or extent: drop them")
    if unknown := sorted(set(frame["gpu"]) - set(device_ids())):
        problems.append(f"GPU {unknown[0]} is not in the catalogue: use its id, or add a device file")
    outside = ~frame["latency_ms"].between(5e-4, 1e6)
    if outside.any():
        problems.append(f"{int(outside.sum())} latencies are outside 0.5 µs to 1000 s: is the unit milliseconds?")
    median = frame["latency_ms"].median()
    if not 5e-3 <= median <= 1e4:
        problems.append(f"the median latency is {median:g} ms: is the unit milliseconds?")
    return problems


def _tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Coverage of everything; physics, noise, tiles and cleaning of the families that have laws for a single kernel."""
    found = {"coverage": frame.groupby(["family", "op", "gpu"]).size().unstack(fill_value=0)}
    rows = frame[frame["family"].isin(_JUDGED)]
    rows = rows[_computable(rows).to_numpy()]
    if not len(rows):
        return found
    work = measured(rows)
    found["physics"] = physics(work)
    if "grid_x" in rows:
        found["noise"] = noise(work)
        found["tiles"] = tile_coverage(rows).round(3)
    report = clean(rows).report
    found["cleaning"], found["cleaning_by_gpu"] = explained(report), by_gpu(report)
    return found


def _computable(rows: pd.DataFrame) -> pd.Series:
    """Rows in a dtype for which the catalogue gives their GPU a rate."""
    pairs = rows[["gpu", "dtype"]].drop_duplicates()
    good = {(g, d) for g, d in pairs.itertuples(index=False) if g in device_ids() and _has_rate(g, d)}
    return rows.set_index(["gpu", "dtype"]).index.isin(list(good)) & rows["dtype"].notna()


def _has_rate(gpu: str, dtype: str) -> bool:
    name, spec = DTYPE_NAMES.get(dtype, dtype), load_device(gpu)
    return name in DTYPE_BYTES and (name in spec.matrix_flops_per_s or name in spec.vector_flops_per_s)


def physics(work: pd.DataFrame) -> pd.DataFrame:
    """Rows by family and gpu, and which share of them beats a datasheet figure, in percent.

    ``above_peak``: FLOP/s (convolutions may, by Winograd). ``above_dram``: compulsory bytes/s, ``uncached`` those of
    them whose operands exceed twice the L2. ``utilisation`` is the median of roofline over latency, above 50 µs.
    """
    import pandas as pd

    rate = work["bytes"] / work["latency_s"] > work["bytes_per_s"]
    flags = pd.DataFrame(
        {
            "family": work["family"],
            "gpu": work["gpu"],
            "above_peak": 100.0 * (work["flops"] / work["latency_s"] > work["flops_per_s"]),
            "above_dram": 100.0 * rate,
            "uncached": 100.0 * (rate & (work["bytes"] > 2 * work["l2_bytes"])),
            "utilisation": (work["bound_s"] / work["latency_s"]).where(work["latency_s"] > 5e-5),
        }
    )
    grouped = flags.groupby(["family", "gpu"])
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
    grouped = off.groupby([work["family"], work["gpu"]])
    quantiles = {"median_percent": grouped.quantile(0.5).round(2), "p95_percent": grouped.quantile(0.95).round(2)}
    return pd.DataFrame({"rows": grouped.size(), **quantiles})


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
