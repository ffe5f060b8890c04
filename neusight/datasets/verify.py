"""Verify a data set (hashes, units, physics, noise, coverage, what cleaning would remove) and write its card.

A card is the data set for people: tables come from the data, between two marks; people write the text around them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from neusight.datasets.clean import invalid
from neusight.datasets.load import (
    SKIPPED,
    collected,
    devices_beside,
    doubled,
    every_row,
    is_kernel_table,
    parquet_files,
    tables_in,
)
from neusight.datasets.manifest import (
    About,
    DatasetManifest,
    FileRecord,
    dataset_folder,
    find_dataset,
    list_datasets,
    manifests_dir,
    read_manifest,
    records,
    sha256,
)
from neusight.datasets.tables import session_agreement, skipped, tables_of
from neusight.devices import DeviceSpec, device_ids
from neusight.errors import DataError
from neusight.paths import checkout_dir, data_dir

if TYPE_CHECKING:
    import pandas as pd

_BEGIN, _END = "<!-- generated: begin -->", "<!-- generated: end -->"
MOST_LISTED = 20
"""Files of one folder that are no tables, which a card lists one by one."""
_TITLES = {
    "sources": "Who measured the rows, with what, and when",
    "coverage": "Rows by family, op and dtype or GPU",
    "conditions": "State of the device while it was measured (medians), and rows that cleaning sets aside for it",
    "repeatability": "Kernels measured twice: distance of the second from the first [%]",
    "physics": "Against the datasheet: rows that beat a figure of it [%], and the median of roofline over latency",
    "noise": "Launches alike in kernel, grid and shape: distance from their median",
    "cleaning": "Rows that cleaning removes from training, and why",
    "cleaning_by_gpu": "The same by GPU and op",
    "sessions": "Linear layers timed inside models over the same shapes timed alone",
    "skipped": "Samples that could not be measured, and why",
}


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
    if tables_in(folder) and (manifest is None or any(is_kernel_table(file.columns) for file in manifest.files)):
        devices, frame = devices_beside(folder), every_row(folder)
        problems += implausible(frame, devices)
        tables = tables_of(frame[~invalid(frame) & ~doubled(frame)], devices)
        if (operators := folder / "models" / "operators.parquet").is_file():
            tables["sessions"] = session_agreement(frame, operators)
    if skipped_files := sorted(folder.glob(SKIPPED)):
        tables["skipped"] = skipped(skipped_files)
    elif manifest is None:
        parquet_files(folder)
    name = manifest.name if manifest else folder.name
    return VerifyReport(name, folder, hashes, tuple(problems), tables)


def _locate(name_or_path: str) -> tuple[Path, DatasetManifest | None]:
    path = Path(name_or_path)
    if path.exists():
        own = path / "manifest.json"
        if own.is_file():
            return path, read_manifest(own)
        if path.is_dir():
            named = _known(path.name)
            return path, named
        return path, None
    manifest = find_dataset(name_or_path)
    return dataset_folder(manifest), manifest


def _known(name: str) -> DatasetManifest | None:
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
    files = [p for kind in ("*.parquet", "*.csv") for p in folder.rglob(kind)]
    return states | {p: "unlisted" for f in files if (p := f.relative_to(folder).as_posix()) not in states}


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


def show(name: str) -> str:
    """The card of a data set, as Markdown; its facts where the card is missing.

    Raises:
        DataError: not in a checkout, or no data set of that name.
    """
    manifest = find_dataset(name)
    card = manifests_dir() / name / "card.md"
    return card.read_text() if card.is_file() else facts(manifest)


def describe(data: str | Path, about: About | None = None, into: Path | None = None) -> DatasetManifest:
    """Write ``manifest.json`` and ``card.md`` of a data set from its files: hashes, rows, and what verification finds.
    Text around the marks of an existing card stays as it is.

    Args:
        data: the data set's folder, or its name below ``$NEUSIGHT_DATA``.
        about: default what the manifest there says.
        into: folder to write to; default the data set's own, of a name ``datasets/<name>`` of the checkout.

    Raises:
        DataError: no such folder, a file that cannot be read, or no ``about`` and no manifest there yet.
    """
    folder = data.resolve() if isinstance(data, Path) else data_dir() / data
    target = into or (folder if isinstance(data, Path) else checkout_dir("datasets") / data)
    about = about if about is not None else read_manifest(target / "manifest.json").about
    manifest = DatasetManifest(name=folder.name, about=about, files=records(folder))
    target.mkdir(parents=True, exist_ok=True)
    (target / "manifest.json").write_text(manifest.to_json())
    _write(target / "card.md", manifest, facts(manifest) + collection_facts(folder) + findings(verify(folder)))
    return manifest


def facts(manifest: DatasetManifest) -> str:
    """Origin, licence, files and rows by GPU, as Markdown."""
    about = manifest.about
    lines = [
        f"| {manifest.name} | version {about.version} |",
        "|---|---|",
        f"| origin | {about.origin} |",
        f"| licence | {about.licence} |",
        f"| rows | {manifest.rows:,} |",
        f"| training GPUs | {', '.join(about.training_gpus) or '–'} |",
        f"| held-out GPUs | {', '.join(about.held_out_gpus) or '–'} |",
        "",
        "| file | rows | sha256 |",
        "|---|---:|---|",
        *_file_lines(manifest.files),
        "",
        "| gpu | rows |",
        "|---|---:|",
        *(f"| {gpu} | {rows:,} |" for gpu, rows in manifest.gpus.items()),
    ]
    return "\n".join(lines)


def _file_lines(files: Sequence[FileRecord]) -> list[str]:
    """A line a file; of a folder with many files that are no tables one line, and their hashes in the manifest."""
    folders = Counter(str(PurePath(f.path).parent) for f in files if f.rows is None)
    many = {folder: count for folder, count in folders.items() if count > MOST_LISTED}
    listed = [f for f in files if f.rows is not None or str(PurePath(f.path).parent) not in many]
    return [
        *(f"| {f.path} | {'' if f.rows is None else format(f.rows, ',')} | `{f.sha256[:16]}…` |" for f in listed),
        *(f"| {folder}/ ({count} files) | | in manifest.json |" for folder, count in many.items()),
    ]


def collection_facts(folder: Path) -> str:
    """What a collection was to do and ran with, as its ``collection.json`` says, as Markdown; '' without one.

    Raises:
        DataError: the file is no JSON object.
    """
    path = folder / "collection.json"
    if not path.is_file():
        return ""
    try:
        options = dict(_flat(json.loads(path.read_text())))
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is no JSON object ({error}): copy it again from its source") from error
    lines = ["| option | |", "|---|---|", *(f"| {name} | {value} |" for name, value in options.items())]
    return "\n\n### How it was collected\n\n" + "\n".join(lines)


def _flat(options: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of every leaf; names of nested objects are joined by dots."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", (", ".join(map(str, value)) if isinstance(value, list) else str(value)) or "–"


def findings(report: VerifyReport) -> str:
    """The tables of a verification that say something about the data, as Markdown; '' when there are none."""
    shown = [(title, report.tables[key]) for key, title in _TITLES.items() if key in report.tables]
    return "".join(f"\n\n### {title}\n\n{_markdown(table)}" for title, table in shown if len(table))


def _markdown(table: pd.DataFrame) -> str:
    flat = table.reset_index()
    rows = [flat.columns, *flat.itertuples(index=False)]
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("---:" if flat[c].dtype.kind in "if" else "---" for c in flat) + "|")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value != value:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write(path: Path, manifest: DatasetManifest, generated: str) -> None:
    """Replace what lies between the marks; a new card gets a title and the known faults as its text."""
    block = f"{_BEGIN}\n{generated}\n{_END}"
    if path.is_file() and _BEGIN in (old := path.read_text()) and _END in old:
        path.write_text(old.split(_BEGIN)[0] + block + old.split(_END)[1])
        return
    faults = "\n".join(f"- {fault}" for fault in manifest.about.known_faults)
    path.write_text(f"# {manifest.about.title}\n\n{block}\n\n## Known faults\n\n{faults or 'None known.'}\n")
