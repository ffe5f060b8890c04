"""Tables that ``neusight collect`` writes, in columns of measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_STATE = (
    "worker", "measured_at", "framework", "version", "stable", "throttle", "power_w", "iterations",
    "replays", "cached_ms", "optimizer_ms", "peak_memory_bytes", "kernel_name",
    "kernel_names", "blocks_per_sm", "warps_per_sm",
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
)  # fmt: skip
"""Columns that say how a row was measured, and on what."""


def renamed_columns(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The table as it is, or one of a collection without the state of its measuring.

    Whole models, ``e2e_ms`` with an ``option``, get the configurations that lie in ``configs`` of their folder.
    """
    if {"e2e_ms", "option"} <= {*frame}:
        configs = {name: folder / "configs" / f"{name}.json" for name in frame["model"].unique()}
        texts = {name: file.read_text(encoding="utf-8") for name, file in configs.items() if file.is_file()}
        launch = frame["option"].map({"fusion": "compiled"})
        frame = frame.drop(columns="option").rename(columns={"e2e_ms": "latency_ms"})
        frame = frame.assign(config=frame["model"].map(texts), launch=launch)
    elif not {"worker", "replays"} & {*frame}:
        return frame
    return frame.drop(columns=list(_STATE), errors="ignore").rename(columns={"launches": "repeats"})
