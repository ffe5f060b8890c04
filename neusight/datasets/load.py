"""Read measurements: parquet to checked pandas frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.checks import check_columns, check_filled, check_known, table_without_op
from neusight.datasets.collected import SKIPPED, collected_frame, doubled, is_collected
from neusight.datasets.schema import COLLECTED_TABLES, KERNEL_TABLES, MODEL_TABLE, TABLE_OF_OP, read_parquet
from neusight.errors import DataError
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = tuple(dict.fromkeys((*KERNEL_TABLES, *COLLECTED_TABLES)))
"""Names of all tables of kernels, whatever their origin."""


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


def tables_in(path: Path) -> list[Path]:
    """The files of kernels at a path: itself, those in ``kernels`` below a folder, or its own; there may be none."""
    if path.is_file():
        return [path]
    folder = path / "kernels" if (path / "kernels").is_dir() else path
    return sorted(file for file in folder.glob("*.parquet") if not file.match(SKIPPED))


def _kernel_frame(path: Path) -> pd.DataFrame:
    """One file, checked, with ``family``, ``op`` and ``split`` filled in."""
    table = read_parquet(path)
    if is_collected(table.schema.names):
        frame = collected_frame(path, table)
    elif "op" in table.schema.names:
        frame = _named_ops(path, table)
    else:
        found = table_without_op(path, table.schema)
        check_columns(path, found, table.schema)
        frame = table.to_pandas()
        frame["op"] = frame["family"] = found.name
    check_filled(path, frame, ("gpu", "op", "latency_ms"))
    if "split" not in frame:
        frame["split"] = ""
    return frame


def _named_ops(path: Path, table: Any) -> pd.DataFrame:
    """A file of kernels whose family follows from their op. Its samples, if it has any, are no collection's."""
    ops = [op for op in table["op"].unique().to_pylist() if op is not None]
    check_known(path, "op", ops, TABLE_OF_OP)
    for found in {TABLE_OF_OP[op].name: TABLE_OF_OP[op] for op in ops}.values():
        check_columns(path, found, table.schema)
    frame: pd.DataFrame = table.to_pandas().drop(columns="sample", errors="ignore")
    frame["family"] = frame["op"].map({op: TABLE_OF_OP[op].name for op in ops})
    return frame
