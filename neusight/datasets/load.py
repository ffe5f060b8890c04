"""Read a data set: parquet to checked pandas frames, and the devices that lie beside the tables.

Files of a collection have the columns ``sample`` and ``family``, a row its kernel's fields. Collectives run several
devices and are no single kernels: their rows are of the table ``nccl``, which has no family.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.published import beside_kernels, published
from neusight.datasets.schema import (
    ARROW,
    COLLECTED_TABLES,
    KERNEL_TABLES,
    MODEL_TABLE,
    TABLE_OF_OP,
    Field,
    Kind,
    Table,
    read_parquet,
)
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DataError, DeviceError, nearest
from neusight.kernels import KERNEL_CLASSES
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = tuple(dict.fromkeys((*KERNEL_TABLES, *COLLECTED_TABLES)))
"""Names of all tables of kernels, whatever their origin."""
SKIPPED = "skipped*.parquet"
"""Files of what a collection could not measure, beside its tables: sample, family, op, dtype, reason."""
PARTS = ("kernels", "models")
"""Folders of a data set that hold its tables."""
NODE_GPUS = {
    "a100_dgx": "a100-sxm-80gb",
    "a100_pairwise_nvlink": "a100-pcie-80gb",
    "h100_dgx": "h100-sxm-80gb",
    "h100_pairwise_nvlink": "h100-nvl-94gb",
}
"""GPUs of the machines that tables of collectives name instead."""


def load_kernels(path: Path | None = None, families: Sequence[str] | None = None) -> pd.DataFrame:
    """Kernel measurements as one frame, a row a measured kernel, ``latency_ms`` in milliseconds.

    Args:
        path: a parquet file, a folder of them, or the folder of a data set that keeps them in ``kernels``; default
            ``$NEUSIGHT_DATA/neusight-fp32/kernels``.
        families: names of tables to keep (gemm, elementwise, row_reduction, conv2d, …); default all.

    Returns:
        The columns of all files, with ``family`` (the table's name) and, where a file has none, ``op`` and ``split``.
        A column that a family lacks is NaN in its rows. A sample that several files hold is there once a GPU.

    Raises:
        DataError: nothing there, a truncated or foreign file, an unknown op or family, a required cell that is empty.
    """
    frame = every_row(path if path is not None else data_dir() / "neusight-fp32" / "kernels", families)
    return frame[~doubled(frame)].reset_index(drop=True)


def every_row(path: Path, families: Sequence[str] | None = None) -> pd.DataFrame:
    """As ``load_kernels``, with the rows of a sample that several files hold."""
    import pandas as pd

    check_known(path, "family", families or (), FAMILIES)
    files = parquet_files(path)
    if families and len(files) > 1:
        files = [f for f in files if _family_of(f) not in FAMILIES or _family_of(f) in families]
    frames = [_kernel_frame(f) for f in files]
    if families:
        frames = [f[f["family"].isin(list(families))] for f in frames]
    frames = [f for f in frames if len(f)]
    if not frames:
        raise DataError(f"{path} has no row of {', '.join(families or FAMILIES)}: give another file")
    return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0].reset_index(drop=True)


def _family_of(path: Path) -> str:
    """What the name of a file promises: ``gemm.parquet`` and ``gemm-part-0001.parquet`` hold gemm rows."""
    return path.stem.partition("-part-")[0]


def load_models(path: Path | None = None) -> pd.DataFrame:
    """Whole-model measurements: the columns of ``MODEL_TABLE`` that the file has, and these filled in.

    dtype float32, option '', attention eager and optimizer none where nothing is said; forward_ms and backward_ms NaN
    where a phase was not timed; ``seq_len`` None for images.

    Args:
        path: the parquet file; default ``$NEUSIGHT_DATA/neusight-fp32/models/latency.parquet``.

    Raises:
        DataError: the file is missing, truncated, or no table of model latencies.
    """
    import pandas as pd

    path = path if path is not None else data_dir() / "neusight-fp32" / "models" / "latency.parquet"
    table = read_parquet(path)
    check_columns(path, MODEL_TABLE, table.schema)
    frame = table.to_pandas()
    check_filled(path, frame, ("gpu", "model", "mode", "batch", "e2e_ms"))
    check_known(path, "mode", list(frame["mode"].unique()), ("inference", "training"))
    for name, usual in {"dtype": "float32", "option": "", "attention": "eager", "optimizer": "none"}.items():
        frame[name] = frame[name].fillna(usual) if name in frame else usual
    if frame["seq_len"].isna().any():
        lengths = [None if pd.isna(n) else int(n) for n in frame["seq_len"]]
        frame["seq_len"] = pd.Series(lengths, index=frame.index, dtype=object)
    for name in ("forward_ms", "backward_ms"):
        frame[name] = frame[name].astype("float64") if name in frame else np.nan
    return frame


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or the parquet files of kernels in a folder, in order of name.

    Raises:
        DataError: nothing there.
    """
    if not path.exists():
        raise DataError(f"{path} is not there: give a parquet file or a folder of them")
    files = tables_in(path)
    if not files:
        raise DataError(f"{path} holds no parquet file: give the folder that holds gemm.parquet and its like")
    return files


def sets_in(folder: Path) -> list[Path]:
    """The data sets of kernels in a folder of several, by name."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and _holds_kernels(p))


def _holds_kernels(folder: Path) -> bool:
    """Whether a data set has a folder ``kernels``, or tables of kernels as others publish them."""
    return (folder / "kernels").is_dir() or any(published(_columns(file)) for file in folder.glob("*.parquet"))


def _columns(file: Path) -> list[str]:
    """Names of a file's columns; none of a file that is no parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(file).names)
    except (pa.ArrowException, OSError):
        return []


def tables_in(path: Path) -> list[Path]:
    """The files of kernels at a path: itself, those in ``kernels`` below a folder, or its own; there may be none."""
    if path.is_file():
        return [path]
    folder = path / "kernels" if (path / "kernels").is_dir() else path
    files = {file: _columns(file) for file in sorted(folder.glob("*.parquet")) if not file.match(SKIPPED)}
    others = [file for file, names in files.items() if published(names)]
    # Tables that others publish may lie beside those of whole models.
    return others or [file for file, names in files.items() if not beside_kernels(names)]


def _kernel_frame(path: Path) -> pd.DataFrame:
    """One file, checked, with ``family``, ``op`` and ``split`` filled in."""
    table = read_parquet(path)
    if foreign := published(table.schema.names):
        frame = foreign.canonical(table.to_pandas())
    elif is_collected(table.schema.names):
        frame = collected_frame(path, table)
    elif "op" in table.schema.names:
        frame = _named_ops(path, table)
    else:
        kind = table_without_op(path, table.schema)
        check_columns(path, kind, table.schema)
        frame = table.to_pandas()
        frame["op"] = frame["family"] = kind.name
    if "gpu" not in frame and "node" in frame:
        frame["gpu"] = frame["node"].map(NODE_GPUS)
    check_filled(path, frame, ("gpu", "op", "latency_ms"))
    if "split" not in frame:
        frame["split"] = ""
    return frame


def _named_ops(path: Path, table: Any) -> pd.DataFrame:
    """A file of kernels whose family follows from their op. Its samples, if it has any, are no collection's."""
    ops = [op for op in table["op"].unique().to_pylist() if op is not None]
    check_known(path, "op", ops, TABLE_OF_OP)
    for kind in {TABLE_OF_OP[op].name: TABLE_OF_OP[op] for op in ops}.values():
        check_columns(path, kind, table.schema)
    frame: pd.DataFrame = table.to_pandas().drop(columns="sample", errors="ignore")
    frame["family"] = frame["op"].map({op: TABLE_OF_OP[op].name for op in ops})
    return frame


def check_columns(path: Path, table: Table, schema: Any) -> None:
    """Hold a file's ``pyarrow.Schema`` against ``table``: all required columns, each of a fitting type.

    Raises:
        DataError: naming the columns that are missing or of the wrong type.
    """
    names = set(schema.names)
    if missing := [c.name for c in table.columns if c.required and c.name not in names]:
        hint = nearest(missing[0], names - set(table.required))
        raise DataError(
            f"{path} lacks {', '.join(missing)} of a {table.name} table: it needs {', '.join(table.required)}{hint}"
        )
    for column in table.columns:
        if column.name in names and not _fits(schema.field(column.name).type, column.kind):
            actual = schema.field(column.name).type
            raise DataError(
                f"{path}: column {column.name} is {actual}, not {column.kind}: store it as {ARROW[column.kind]}"
            )


def _fits(actual: Any, kind: Kind) -> bool:
    """Whether an arrow type can stand for ``kind``; an all-null column fits everything that is optional."""
    import pyarrow.types as t

    if t.is_dictionary(actual):
        actual = actual.value_type
    number = t.is_integer(actual) or t.is_floating(actual)
    tests = {
        "string": t.is_string(actual) or t.is_large_string(actual) or t.is_string_view(actual),
        "integer": t.is_integer(actual),
        "number": number,
        "boolean": t.is_boolean(actual),
    }
    return t.is_null(actual) or tests[kind]


def table_without_op(path: Path, schema: Any) -> Table:
    """The kernel table that a file without an ``op`` column is, by its columns.

    Raises:
        DataError: no table has its required columns there.
    """
    candidates = [t for t in KERNEL_TABLES.values() if not t.ops and set(t.required) <= set(schema.names)]
    if not candidates:
        raise DataError(
            f"{path} is no kernel table (columns {', '.join(schema.names[:6])}, …): "
            "it needs gpu, op, dtype, latency_ms and the op's shape"
        )
    return max(candidates, key=lambda t: len(t.required))


def is_kernel_table(names: Collection[str]) -> bool:
    """Whether a file with columns of these names holds measured kernels or collectives."""
    required = [set(t.required) for t in KERNEL_TABLES.values()]
    foreign = published(names) is not None
    return foreign or is_collected(list(names)) or any(needed <= set(names) for needed in required)


def check_known(path: Path, column: str, values: Sequence[Any], known: Collection[str]) -> None:
    """Refuse values of a column that are none of ``known``.

    Raises:
        DataError: naming the first, with the nearest known ones.
    """
    if unknown := sorted({str(v) for v in values} - set(known)):
        hint = nearest(unknown[0], known)
        raise DataError(f"{path}: {column} '{unknown[0]}' is not known: one of {', '.join(known)}{hint}")


def check_filled(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse empty cells in these columns.

    Raises:
        DataError: naming the column and the row in the file.
    """
    for name in columns:
        empty = frame[name].isna().to_numpy()
        if empty.any():
            raise DataError(
                f"{path}: {name} is empty in row {frame.index[int(empty.argmax())]}: fill it or drop the row"
            )


def is_collected(names: Sequence[str]) -> bool:
    """Whether a file with columns of these names is one of ``COLLECTED_TABLES``."""
    return {"sample", "family"} <= set(names)


def collected(frame: pd.DataFrame) -> np.ndarray:
    """The rows of a frame that carry the fields of their kernel, as a mask."""
    if not is_collected(list(frame)):
        return np.zeros(len(frame), dtype=bool)
    return (frame["sample"].notna() & frame["family"].isin(COLLECTED_TABLES)).to_numpy(dtype=bool)


def doubled(frame: pd.DataFrame) -> np.ndarray:
    """Rows whose sample has an earlier row on the same GPU, as a mask."""
    if "sample" not in frame:
        return np.zeros(len(frame), dtype=bool)
    return (frame.duplicated(["gpu", "sample"]) & frame["sample"].notna()).to_numpy(dtype=bool)


def kernel_columns(family: str) -> tuple[Field, ...]:
    """The columns of a collected table that are fields of its kernel."""
    names = {f.name for f in fields(KERNEL_CLASSES[family])}
    return tuple(c for c in COLLECTED_TABLES[family].columns if c.name in names)


def collected_frame(path: Path, table: Any) -> pd.DataFrame:
    """The rows of a collected file, checked; columns that no row fills have the type of their table all the same.

    Args:
        path: of the file, for messages.
        table: the ``pyarrow.Table`` that it holds.

    Raises:
        DataError: an unknown family, a missing column, one of another type, or a required one that is empty.
    """
    families = [f for f in table["family"].unique().to_pylist() if f is not None]
    check_known(path, "family", families, COLLECTED_TABLES)
    for family in families:
        check_columns(path, COLLECTED_TABLES[family], table.schema)
    frame: pd.DataFrame = _typed(table, families).to_pandas()
    check_filled(path, frame, ("sample", "family"))
    for family in families:
        check_filled(path, frame[frame["family"] == family], COLLECTED_TABLES[family].required)
    return frame


def _typed(table: Any, families: Sequence[str]) -> Any:
    """The table with every known column in the type of its kind."""
    types = {f.name: f.type for family in families for f in COLLECTED_TABLES[family].arrow()}
    for place, name in enumerate(table.schema.names):
        if name in types:
            table = table.set_column(place, name, table[name].cast(types[name]))
    return table


def devices_beside(path: Path) -> dict[str, DeviceSpec]:
    """Devices by id from ``devices/*.toml`` of a data set; empty where it has none.

    Args:
        path: the folder of the data set, its ``kernels`` or ``models`` folder, or a file in one of them.

    Raises:
        DeviceError: a device file that is malformed.
        UnitError: a value in one without its unit or with another one.
    """
    specs = [load_device(str(file)) for file in sorted((root_of(path) / "devices").glob("*.toml"))]
    return {spec.id: spec for spec in specs}


def root_of(path: Path) -> Path:
    """Folder of the data set that a folder or file belongs to."""
    folder = path.absolute() if path.is_dir() else path.absolute().parent
    within = folder.name in PARTS and not (folder / "devices").is_dir()
    return folder.parent if within else folder


def device_of(gpu: str, devices: Mapping[str, DeviceSpec]) -> DeviceSpec:
    """The device of a measured row: of ``devices`` where it is there, else of the catalogue.

    Raises:
        DeviceError: neither has it.
    """
    if gpu in devices:
        return devices[gpu]
    try:
        return load_device(gpu)
    except DeviceError as error:
        raise DeviceError(f"{error} (or put its device file into devices/ of the data set)") from None
