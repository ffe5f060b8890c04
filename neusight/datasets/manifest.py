"""Manifests: what a data set is, where it comes from, and the hash of every file.

``datasets/<name>/manifest.json`` of a checkout is written from the data; a wheel has no such folder.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from neusight.datasets.load import SKIPPED
from neusight.datasets.published import published
from neusight.datasets.schema import COLLECTED_TABLES, KERNEL_TABLES, MODEL_TABLE, read_parquet
from neusight.errors import DataError, nearest
from neusight.paths import checkout_dir, data_dir, read_json

PROTOCOL = 1
_TABLES = (*KERNEL_TABLES.values(), *COLLECTED_TABLES.values(), MODEL_TABLE)
_UNITS = {c.name: c.unit for t in _TABLES for c in t.columns if c.unit}


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file: path below the data set's folder, hash, and for a table its rows, columns and rows by GPU."""

    path: str
    sha256: str
    size_bytes: int
    rows: int | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Column name to arrow type, with the unit in brackets where it has one."""
    gpus: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class About:
    """What no file says: a person writes it once, and it stays when the manifest is written again."""

    title: str
    origin: str
    licence: str
    version: str = "1"
    training_gpus: tuple[str, ...] = ()
    held_out_gpus: tuple[str, ...] = ()
    known_faults: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DatasetManifest:
    """A data set by name; ``dataset_folder`` tells where its files lie."""

    name: str
    about: About
    files: tuple[FileRecord, ...]
    protocol: int = PROTOCOL

    @property
    def rows(self) -> int:
        """Rows of all tables of measurements together."""
        return sum(f.rows or 0 for f in self.files if not PurePath(f.path).match(SKIPPED))

    @property
    def gpus(self) -> dict[str, int]:
        """Rows by GPU over all tables."""
        total: dict[str, int] = {}
        for record in self.files:
            for gpu, rows in record.gpus.items():
                total[gpu] = total.get(gpu, 0) + rows
        return dict(sorted(total.items()))

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        content = asdict(self)
        content["files"] = [{k: v for k, v in file.items() if v not in (None, {})} for file in content["files"]]
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def list_datasets() -> list[DatasetManifest]:
    """The data sets that this checkout knows, by name.

    Raises:
        DataError: not in a checkout, or a manifest that cannot be read.
    """
    return [read_manifest(path) for path in sorted(manifests_dir().glob("*/manifest.json"))]


def find_dataset(name: str) -> DatasetManifest:
    """The manifest of a data set of this checkout.

    Raises:
        DataError: not in a checkout, or no data set of that name.
    """
    path = manifests_dir() / name / "manifest.json"
    if not path.is_file():
        known = [p.parent.name for p in sorted(manifests_dir().glob("*/manifest.json"))]
        raise DataError(f"no data set '{name}': one of {', '.join(known)}{nearest(name, known)}")
    return read_manifest(path)


def dataset_folder(manifest: DatasetManifest) -> Path:
    """Folder with the files of a data set of this checkout: beside its manifest, else below ``$NEUSIGHT_DATA``.

    Raises:
        DataError: neither is there.
    """
    own = manifests_dir() / manifest.name
    if any((own / file.path).is_file() for file in manifest.files):
        return own
    folder = data_dir() / manifest.name
    if not folder.is_dir():
        raise DataError(f"{folder} is not there: put the data set {manifest.name} below NEUSIGHT_DATA")
    return folder


def manifests_dir() -> Path:
    """The folder ``datasets/`` of the checkout.

    Raises:
        DataError: not in a checkout.
    """
    folder = checkout_dir("datasets")
    if not any(folder.glob("*/manifest.json")):
        raise DataError(
            f"no data set manifests in {folder}: they lie in a checkout, not in a wheel; run from a checkout"
        )
    return folder


def read_manifest(path: Path) -> DatasetManifest:
    """Read a ``manifest.json``.

    Raises:
        DataError: no manifest, or one of another protocol.
    """
    try:
        raw = read_json(path)
        protocol = raw["protocol"]
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw["about"].items()}
        about = About(**fields)
        files = tuple(FileRecord(**record) for record in raw["files"])
        manifest = DatasetManifest(name=raw["name"], about=about, files=files, protocol=protocol)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no data set manifest ({error!r}): write it again from the data") from error
    if protocol != PROTOCOL:
        raise DataError(f"{path} has protocol {protocol}, not {PROTOCOL}: write it again from the data")
    return manifest


def records(folder: Path) -> tuple[FileRecord, ...]:
    """A record for every file below ``folder``, in order of path; hidden files and manifests are left out.

    Raises:
        DataError: no such folder, nothing in it, or a parquet file that cannot be read.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    files = [p for p in files if p.name not in ("manifest.json", "card.md")]
    if not files:
        raise DataError(f"{folder} holds no data: give the folder of a data set")
    return tuple(_record(folder, path) for path in files)


def _record(folder: Path, path: Path) -> FileRecord:
    fixed: dict[str, Any] = {
        "path": path.relative_to(folder).as_posix(),
        "sha256": sha256(path),
        "size_bytes": path.stat().st_size,
    }
    table = _read_table(path)
    if table is None:
        return FileRecord(**fixed)
    units = {n: f" [{_UNITS[n]}]" if n in _UNITS else " [ms]" if n.endswith("_ms") else "" for n in table.schema.names}
    columns = {n: f"{t}{units[n]}" for n, t in zip(table.schema.names, table.schema.types, strict=True)}
    foreign = published(columns)
    gpus = (
        foreign.canonical(table.to_pandas())["gpu"] if foreign else table["gpu"].to_pylist() if "gpu" in columns else []
    )
    counts = dict(sorted(Counter(map(str, gpus)).items()))
    return FileRecord(**fixed, rows=table.num_rows, columns=columns, gpus=counts)


def _read_table(path: Path) -> Any:
    if path.suffix == ".parquet":
        return read_parquet(path)
    if path.suffix == ".csv":
        from pyarrow import csv

        return csv.read_csv(path)
    return None


def sha256(path: Path) -> str:
    """Hash of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
