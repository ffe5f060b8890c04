"""Manifests of measured data: which files a source has, their hashes, and the licence that each may be passed on by.

``datasets/<name>/manifest.json`` of a checkout lies beside ``card.md``, whose table of files is written from it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path, PurePath

from neusight.errors import DataError, nearest
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.paths import checkout_dir, data_dir, read_json

PROTOCOL = 2
UNLICENSED = "none"
"""Licence of files whose source states none, or whose figures were read off pages: they are not passed on."""
_BEGIN, _END = "<!-- generated: begin -->", "<!-- generated: end -->"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file below the folder of measured rows: its path, the SPDX name of its licence, its hash and, of a table, its
    rows; ``learned``: constants that ship have learned from it, or may.
    """

    path: str
    licence: str
    sha256: str = ""
    size_bytes: int = 0
    rows: int | None = None
    learned: bool = True


@dataclass(frozen=True, kw_only=True)
class DataDescription:
    """What is known of the files of a source, or of several that belong together."""

    name: str
    title: str
    origin: str
    files: tuple[DataFile, ...]
    known_faults: tuple[str, ...] = ()
    protocol: int = PROTOCOL

    @property
    def rows(self) -> int:
        """Rows of all tables of kinds."""
        return sum(file.rows or 0 for file in self.files if not _nested(file))

    @property
    def licences(self) -> tuple[str, ...]:
        """Licences of the files, each once."""
        return tuple(sorted({file.licence for file in self.files}))

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        content = asdict(self)
        content["files"] = [
            {name: v for name, v in file.items() if v is not None and v is not True} for file in content["files"]
        ]
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def list_descriptions(folder: Path | None = None) -> list[DataDescription]:
    """All manifests in a folder of them, by name; default those of the checkout.

    Raises:
        DataError: a manifest that cannot be read, or none at all.
    """
    folder = folder or checkout_dir("datasets")
    found = [read_description(path) for path in sorted(folder.glob("*/manifest.json"))]
    if not found:
        raise DataError(f"no manifests of measured data in {folder}: run from a checkout")
    return found


@cache
def unlearned_files() -> frozenset[str]:
    """Paths of files that no constants have learned from yet, as manifests of the checkout say; none without one."""
    manifests = map(read_description, sorted(checkout_dir("datasets").glob("*/manifest.json")))
    return frozenset(file.path for manifest in manifests for file in manifest.files if not file.learned)


def find_description(name: str) -> DataDescription:
    """The manifest of a name.

    Raises:
        DataError: no data are described by that name.
    """
    known = {each.name: each for each in list_descriptions()}
    if name not in known:
        raise DataError(f"'{name[:80]}' is no file or data set{nearest(name, known)}: see `neusight datasets list`")
    return known[name]


def read_description(path: Path) -> DataDescription:
    """Read a ``manifest.json``.

    Raises:
        DataError: no manifest, or one of another protocol.
    """
    try:
        content = read_json(path)
        files = tuple(DataFile(**file) for file in content.pop("files"))
        faults = tuple(content.pop("known_faults", ()))
        found = DataDescription(**content, files=files, known_faults=faults)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no manifest of measured data ({error!r}): write it again") from error
    if found.protocol != PROTOCOL:
        raise DataError(f"{path} has protocol {found.protocol}, not {PROTOCOL}: write it again")
    return found


def describe(description: DataDescription, into: Path, data: Path | None = None) -> DataDescription:
    """Write ``manifest.json`` and the table of files in ``card.md``, with hashes and rows of the files as they are.

    Args:
        description: its files need no more than path and licence.
        into: folder of manifest and card; text around the table of an existing card stays as it is.
        data: folder of the files; default ``$NEUSIGHT_DATA``.

    Raises:
        DataError: a file that is not there.
    """
    folder = data or data_dir()
    measured = replace(description, files=tuple(_hashed(folder, file) for file in description.files))
    into.mkdir(parents=True, exist_ok=True)
    (into / "manifest.json").write_text(measured.to_json(), encoding="utf-8")
    card = into / "card.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else _new_card(measured)
    before, _, rest = text.partition(_BEGIN)
    card.write_text(f"{before}{_BEGIN}\n{facts(measured)}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return measured


def _new_card(description: DataDescription) -> str:
    faults = "".join(f"- {fault}\n" for fault in description.known_faults)
    return f"# {description.title}\n\n{_BEGIN}\n{_END}\n" + (f"\n## Known faults\n\n{faults}" if faults else "")


def _hashed(folder: Path, file: DataFile) -> DataFile:
    path = folder / file.path
    if not path.is_file():
        raise DataError(f"{path} is not there: correct the manifest, or point NEUSIGHT_DATA at the measured rows")
    return replace(file, sha256=file_sha256(path), size_bytes=path.stat().st_size, rows=_rows(path))


def _rows(path: Path) -> int | None:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows) if path.suffix == ".parquet" else None


def facts(description: DataDescription) -> str:
    """Origin, licences and files, as Markdown; files of folders within a kind are counted alone."""
    lines = [f"| {description.name} | {description.rows:,} rows |", "|---|---|", f"| origin | {description.origin} |"]
    lines += ["", "| file | rows | licence | sha256 |", "|---|---:|---|---|"]
    nested = Counter((str(PurePath(file.path).parent), file.licence) for file in description.files if _nested(file))
    for file in description.files:
        if not _nested(file):
            rows = "" if file.rows is None else f"{file.rows:,}"
            lines.append(f"| {file.path} | {rows} | {file.licence} | `{file.sha256[:16]}…` |")
    for (folder, licence), count in nested.items():
        lines.append(f"| {folder}/ ({count} files) | | {licence} | in manifest.json |")
    return "\n".join(lines)


def _nested(file: DataFile) -> bool:
    return len(PurePath(file.path).parts) > 2
