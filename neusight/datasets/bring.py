"""Bring CSV measurements into the project's schema: the paper's artifact, or one's own table.

Two headers are understood. The artifact's (sitar-lab/NeuSight, ``scripts/asplos/data/dataset``: ``OPName, Latency,
Device, B, M, N, K`` or ``B, H`` or the convolution's) has milliseconds, driver names of GPUs, and calls the inner
extent of a product N and its columns K. One's own has the column names of ``neusight.datasets.schema``.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.datasets.clean import SHAPE, invalid
from neusight.datasets.manifest import About, DatasetManifest, records
from neusight.datasets.schema import KERNEL_TABLES, TABLE_OF_OP, Table
from neusight.devices import load_device
from neusight.errors import DataError, nearest
from neusight.paths import writable

if TYPE_CHECKING:
    import pandas as pd

OPS = {
    "addu": "add_scalar",
    "mulu": "mul_scalar",
    "divu": "div_scalar",
    "powu": "pow_scalar",
    "ln": "layer_norm",
    "conv": "conv2d",
}
_RENAMED = {
    "OPName": "op",
    "Latency": "latency_ms",
    "Device": "gpu",
    "Kernel Name": "kernel_name",
    "Kernels": "kernel_names",
    **{f"{what} {axis}": f"{what.lower()}_{axis}" for what in ("Grid", "Block") for axis in "xyz"},
    "Blocks per SM": "blocks_per_sm",
    "Warps per SM": "warps_per_sm",
    "H": "cols",
    "Input_Channel": "in_channels",
    "Output_Channel": "out_channels",
    "Kernel_Szie": "kernel_size",
    "Input_Size": "input_size",
    "Stride": "stride",
    "Padding": "padding",
}
_NOT_MEASUREMENTS = ("dims", "device_configs")


def import_csv(
    folder: Path,
    out: Path,
    gpu: str | None = None,
    split: str | None = None,
    dtype: str = "float32",
    *,
    about: About | None = None,
) -> DatasetManifest:
    """Read the CSV files of a folder (or one file) and write one parquet a family with a manifest.

    Args:
        folder: searched to the bottom; ``dims`` and ``device_configs`` of the artifact are passed over, and rows that
            several files repeat are kept once.
        out: folder to create; a failure leaves nothing behind.
        gpu: id for files without a GPU column.
        split: default ``train`` or ``test`` where a file's path says so.
        dtype: for files without a dtype column.
        about: origin and licence for the manifest.

    Raises:
        DataError: nothing to read, an unknown header, op or GPU, a value that is no number, or ``out`` exists.
    """
    import pandas as pd

    if out.exists():
        raise DataError(f"{out} is there already: give a new folder, data sets don't change in place")
    writable(out, folder=True)
    frames = [_frame(path, gpu, split, dtype) for path in _csv_files(folder)]
    frame = pd.concat(frames, ignore_index=True)
    repeated = [c for c in ("gpu", "op", "dtype", "split", "latency_ms", *SHAPE) if c in frame]
    frame = frame.drop_duplicates(repeated, ignore_index=True)
    about = about or About(title=out.name, origin=f"imported from {folder.name}", licence="not stated")
    return _write(frame, out, about)


def _csv_files(folder: Path) -> list[Path]:
    if not folder.exists():
        raise DataError(f"{folder} is not there: give a folder of CSV measurements")
    candidates = [folder] if folder.is_file() else sorted(folder.rglob("*.csv"))
    files = [p for p in candidates if not set(p.parent.parts) & set(_NOT_MEASUREMENTS)]
    if not files:
        raise DataError(f"{folder} holds no CSV file: give the folder that has linear.csv and its like below it")
    return files


def _frame(path: Path, gpu: str | None, split: str | None, dtype: str) -> pd.DataFrame:
    """One file in the project's columns, checked."""
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV ({str(error).splitlines()[0]}): check the file") from error
    frame = _from_artifact(frame) if "OPName" in frame else frame
    for name, given in (("gpu", gpu), ("dtype", dtype), ("split", split or _split_of(path))):
        if name not in frame and given is not None:
            frame[name] = given
    _check_header(path, frame)
    frame["gpu"] = frame["gpu"].map({name: load_device(str(name)).id for name in frame["gpu"].unique()})
    tables = [TABLE_OF_OP[op] for op in frame["op"].unique()]
    for column in {c.name: c for t in tables for c in t.columns if c.kind in ("integer", "number")}.values():
        if column.name in frame:
            frame[column.name] = _numbers(path, frame[column.name])
    if (bad := invalid(frame)).any():
        raise DataError(f"{path} row {int(bad.argmax()) + 1}: latency or extent is not positive: fix or drop the row")
    return frame


def _from_artifact(frame: pd.DataFrame) -> pd.DataFrame:
    """The artifact's header and ops in ours: x[B,M,N] W[K,N]ᵀ and [B,M,N][B,N,K] are m = M, k = N, n = K."""
    import pandas as pd

    out = frame.rename(columns=_RENAMED)
    out["op"] = out["op"].replace(OPS)
    if "M" in frame:
        linear = out["op"] == "linear"
        out["batch"] = frame["B"].where(~linear, 1)
        out["m"] = frame["M"].where(~linear, frame["B"] * frame["M"])
        out["k"], out["n"] = frame["N"], frame["K"]
    elif "in_channels" in out:
        out["batch"] = frame["B"]
    else:
        out["rows"] = frame["B"]
    if "Torch Version" in frame:
        cuda = "+" + frame["CUDA Version"].astype(str) if "CUDA Version" in frame else ""
        out["framework"] = "torch " + frame["Torch Version"].astype(str).str.removeprefix("p") + cuda
    known = {c.name for t in KERNEL_TABLES.values() for c in t.columns}
    return pd.DataFrame({c: out[c] for c in out if c in known})


def _split_of(path: Path) -> str | None:
    parts = [p.lower() for p in path.parts]
    return next((s for s in ("train", "test") if s in parts or path.stem.lower() == s), None)


def _check_header(path: Path, frame: pd.DataFrame) -> None:
    for name in ("op", "latency_ms", "gpu"):
        if name not in frame:
            remedy = "name it in the call or the file" if name == "gpu" else "rename its columns to the schema's"
            raise DataError(f"{path} has no column {name} (it has {', '.join(list(frame)[:6])}): {remedy}")
    ops = [str(op) for op in frame["op"].unique()]
    if unknown := [op for op in ops if op not in TABLE_OF_OP]:
        hint = nearest(unknown[0], TABLE_OF_OP)
        raise DataError(f"{path}: op '{unknown[0]}' is not known: one of {', '.join(TABLE_OF_OP)}{hint}")
    for op in ops:
        if missing := [c for c in TABLE_OF_OP[op].required if c not in frame]:
            raise DataError(f"{path} lacks {', '.join(missing)} for {op}: add the column")


def _numbers(path: Path, column: pd.Series) -> pd.Series:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    wrong = numbers.isna() & column.notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(f"{path} row {row + 1}: {column.name} is '{column.iloc[row]}', not a number: fix the file")
    return numbers


def _write(frame: pd.DataFrame, out: Path, about: About) -> DatasetManifest:
    """Write into a folder beside ``out`` and move it there when it is whole."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        family = frame["op"].map({op: table.name for op, table in TABLE_OF_OP.items()})
        for name in sorted(family.unique()):
            _write_table(frame[family == name], KERNEL_TABLES[name], partial / f"{name}.parquet")
        manifest = DatasetManifest(name=out.name, about=about, files=records(partial))
        (partial / "manifest.json").write_text(manifest.to_json())
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _write_table(rows: pd.DataFrame, table: Table, path: Path) -> None:
    """The columns of ``table`` that the rows fill, in its order and types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [c.name for c in table.columns if c.name in rows and (c.required or rows[c.name].notna().any())]
    for column in table.columns:
        if column.required and rows[column.name].isna().any():
            raise DataError(f"{column.name} is empty in a row of {rows['op'].iloc[0]}: fill it or drop the row")
    try:
        pq.write_table(pa.Table.from_pandas(rows[names], schema=table.arrow(names), preserve_index=False), path)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{table.name} rows don't fit the schema ({reason}): give whole numbers as shapes") from error
