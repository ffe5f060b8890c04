"""Which files and which of their rows are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neusight.devices.load import find_device
from neusight.errors import DataError, DeviceError, shown
from neusight.measured.table import MeasuredTable
from neusight.serving.slo import Slo


def files_of(names: Iterable[str | Path]) -> list[Path]:
    """Files that names stand for, some of which may be patterns such as ``kernels/*.parquet``; each file once.

    Raises:
        DataError: a pattern that matches nothing.
    """
    files: dict[Path, None] = {}
    for name in map(Path, names):
        pattern = any(sign in str(name) for sign in "*?[") and not name.exists()
        matches = sorted(Path(name.anchor).glob(str(name.relative_to(name.anchor)))) if pattern else [name]
        if not matches:
            raise DataError(f"no file matches '{shown(str(name))}': correct the pattern")
        files |= dict.fromkeys(matches)
    return list(files)


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """Rows of a table that are compared: of some devices, of a split, of a source; ``limit`` of them, drawn by a seed;
    with those that are suspect, or without; with a column for each of ``slos``, service levels that may have held.
    """

    gpus: tuple[str, ...] = ()
    split: str = ""
    source: str = ""
    limit: int | None = None
    seed: int = 0
    suspect: bool = False
    slos: tuple[str, ...] = ()

    def of(self, table: MeasuredTable) -> tuple[MeasuredTable, int]:
        """The rows, under their numbers in the table, and how many more are left out because they are suspect."""
        frame = table.frame
        kept = np.ones(len(frame), dtype=bool)
        if self.gpus:
            names = frame["gpu"].astype(str).astype("category") if "gpu" in frame else None
            kept &= False if names is None else names.map(_id_of).isin(self.gpus).to_numpy()
        for name, value in {"split": self.split, "source": self.source}.items():
            if value:
                kept &= frame[name].astype(str).to_numpy() == value if name in frame else False
        sound = kept & ~filled_cells(table, "suspect") if not self.suspect else kept
        rows = np.flatnonzero(sound)
        if self.limit is not None and self.limit < len(rows):
            rows = np.sort(np.random.default_rng(self.seed).choice(rows, self.limit, replace=False))
        return with_levels(replace(table, frame=frame.iloc[rows]), self.slos), int((kept & ~sound).sum())


def with_levels(table: MeasuredTable, slos: Iterable[str]) -> MeasuredTable:
    """The table with a column for each service level: 1 where measured times are within its bounds, 0 where not, and
    NaN where one of them was not measured.
    """
    frame = table.frame
    for slo in slos:
        limits_ms = {f"{bound}_ms": 1e3 * bound.limit_s for bound in Slo.named(slo).bounds}
        times_ms = frame.reindex(columns=[*limits_ms])
        held = (times_ms <= [*limits_ms.values()]).all(axis=1).astype(float)
        frame = frame.assign(**{slo: held.where(times_ms.notna().all(axis=1))})
    return replace(table, frame=frame)


def filled_cells(table: MeasuredTable, name: str) -> np.ndarray:
    """Whether each row has a value in a column."""
    if name not in table.frame:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(table.frame[name].notna() & table.frame[name].astype(str).ne(""))


def _id_of(name: str) -> str:
    try:
        return find_device(name).name
    except DeviceError:
        return name
