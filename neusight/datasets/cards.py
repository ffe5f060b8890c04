"""Cards: a data set for people. Tables come from the data, between two marks; people write the text around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.manifest import About, Manifest, find_dataset, manifests_dir, write_manifest
from neusight.datasets.verify import VerifyReport, verify
from neusight.errors import DataError
from neusight.paths import checkout_dir, data_dir

if TYPE_CHECKING:
    import pandas as pd

_BEGIN, _END = "<!-- generated: begin -->", "<!-- generated: end -->"
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


def show(name: str) -> str:
    """The card of a data set, as Markdown; its facts where the card is missing.

    Raises:
        DataError: not in a checkout, or no data set of that name.
    """
    manifest = find_dataset(name)
    card = manifests_dir() / name / "card.md"
    return card.read_text() if card.is_file() else facts(manifest)


def write_dataset_card(folder: Path, about: About | None = None) -> Manifest:
    """Write ``manifest.json`` and ``card.md`` of a data set into its own folder, wherever that lies.

    Args:
        folder: of the data set, whose name it has.
        about: default what the manifest there says.

    Raises:
        DataError: as ``describe``.
    """
    folder = folder.resolve()
    return describe(folder.name, about, folder.parent, folder)


def describe(name: str, about: About | None = None, data: Path | None = None, into: Path | None = None) -> Manifest:
    """Write manifest and card of a data set from its files: hashes, rows, and what verification finds.

    Args: as ``write_manifest``. Text around the marks of an existing card stays as it is.

    Raises:
        DataError: no such folder, a file that cannot be read, or no ``about`` and no manifest there yet.
    """
    manifest = write_manifest(name, about, data, into)
    folder = (data if data is not None else data_dir()) / name
    card = (into if into is not None else checkout_dir("datasets") / name) / "card.md"
    _write(card, manifest, facts(manifest) + asked(folder) + findings(verify(folder)))
    return manifest


def facts(manifest: Manifest) -> str:
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
        *(
            f"| {f.path} | {'' if f.rows is None else format(f.rows, ',')} | `{f.sha256[:16]}…` |"
            for f in manifest.files
        ),
        "",
        "| gpu | rows |",
        "|---|---:|",
        *(f"| {gpu} | {rows:,} |" for gpu, rows in manifest.gpus.items()),
    ]
    return "\n".join(lines)


def asked(folder: Path) -> str:
    """What a collection was asked to do and ran with, as its ``collection.json`` says, as Markdown; '' without one.

    Raises:
        DataError: the file is no JSON object.
    """
    path = folder / "collection.json"
    if not path.is_file():
        return ""
    try:
        said = dict(_flat(json.loads(path.read_text())))
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is no JSON object ({error}): copy it again from its source") from error
    lines = ["| asked | |", "|---|---|", *(f"| {name} | {value} |" for name, value in said.items())]
    return "\n\n### How it was collected\n\n" + "\n".join(lines)


def _flat(said: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of every leaf; names of nested objects are joined by dots."""
    for name, value in said.items():
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


def _write(path: Path, manifest: Manifest, generated: str) -> None:
    """Replace what lies between the marks; a new card gets a title and the known faults as its text."""
    block = f"{_BEGIN}\n{generated}\n{_END}"
    if path.is_file() and _BEGIN in (old := path.read_text()) and _END in old:
        path.write_text(old.split(_BEGIN)[0] + block + old.split(_END)[1])
        return
    faults = "\n".join(f"- {fault}" for fault in manifest.about.known_faults)
    path.write_text(f"# {manifest.about.title}\n\n{block}\n\n## Known faults\n\n{faults or 'None known.'}\n")
