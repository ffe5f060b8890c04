"""Verify a data set: hashes, units, physics, noise, coverage, and what cleaning would remove."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.beside import devices_beside
from neusight.datasets.clean import invalid
from neusight.datasets.collected import SKIPPED, collected, doubled
from neusight.datasets.load import every_row, tables_in
from neusight.datasets.manifest import (
    FileRecord,
    Manifest,
    dataset_folder,
    find_dataset,
    list_datasets,
    read_manifest,
    sha256,
)
from neusight.datasets.tables import session_agreement, skipped, tables_of
from neusight.devices import DeviceSpec, device_ids
from neusight.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class VerifyReport:
    """What verification found; ``ok`` when no hash, unit or shape is wrong. The tables inform, they don't fail.

    ``hashes``: path to ``ok``, ``changed``, ``missing`` or ``unlisted``. ``tables`` by title, pandas frames:
    coverage, physics, noise, tiles, cleaning, cleaning_by_gpu, sessions; for collected rows repeatability, conditions,
    sources and skipped.
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

    A named data set lies beside its manifest or below ``$NEUSIGHT_DATA`` and is held against its manifest; a folder
    against the ``manifest.json`` in it, if there is one. GPUs are those of the catalogue and of its ``devices/*.toml``.

    Raises:
        DataError: neither a name nor a path, nothing to read, a truncated or foreign file.
    """
    folder, manifest = _locate(str(name_or_path))
    hashes = check_hashes(folder, manifest.files) if manifest else {}
    problems = [f"{path} is {state}: copy it again from its source" for path, state in hashes.items() if state != "ok"]
    tables: dict[str, pd.DataFrame] = {}
    if tables_in(folder):
        devices, frame = devices_beside(folder), every_row(folder)
        problems += implausible(frame, devices)
        tables = tables_of(frame[~invalid(frame) & ~doubled(frame)], devices)
        if (operators := folder / "models" / "operators.parquet").is_file():
            tables["sessions"] = session_agreement(frame, operators)
    if beside := sorted(folder.glob(SKIPPED)):
        tables["skipped"] = skipped(beside)
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
    return dataset_folder(manifest), manifest


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


def implausible(frame: pd.DataFrame, devices: Mapping[str, DeviceSpec]) -> list[str]:
    """Problems of units and names: broken or doubled rows, GPUs that neither the catalogue nor the data set has,
    latencies that can't be milliseconds.

    A kernel between 0.5 µs and 1000 s is plausible; a median outside 5 µs to 10 s means another unit, unless the
    project itself measured the rows: those are in milliseconds however small the kernels are.
    """
    problems = []
    if count := int(invalid(frame).sum()):
        problems.append(f"{count} rows have no positive latency or extent: drop them")
    if (again := doubled(frame)).any():
        first = frame.loc[again, "sample"].iloc[0]
        problems.append(f"{int(again.sum())} samples are there more than once, such as {first}: keep one row of each")
    if unknown := sorted(set(frame["gpu"]) - {*device_ids(), *devices}):
        problems.append(f"GPU {unknown[0]} is not in the catalogue: use its id, or add a device file to devices/")
    outside = ~frame["latency_ms"].between(5e-4, 1e6)
    if outside.any():
        problems.append(f"{int(outside.sum())} latencies are outside 0.5 µs to 1000 s: is the unit milliseconds?")
    foreign = frame.loc[~collected(frame), "latency_ms"]
    if len(foreign) and not 5e-3 <= (median := foreign.median()) <= 1e4:
        problems.append(f"the median latency is {median:g} ms: is the unit milliseconds?")
    return problems
