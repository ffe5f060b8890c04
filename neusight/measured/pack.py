"""One archive of the measured rows that may be passed on, with their cards, hashes and licences."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.measured.manifest import UNLICENSED, DataDescription, DataFile, list_descriptions
from neusight.paths import checkout_dir

_README = """# Measured rows: questions with their answers

Unpacked, this folder is `NEUSIGHT_DATA` of neusight. `datasets/<name>/` has the card and the manifest of each source,
with the hash, the origin and the licence of every file. Sources whose licence is not stated are left out.

"""


@dataclass(frozen=True)
class Packed:
    """Files that an archive has, and those that it leaves out with the reason, by the name of their manifest."""

    files: list[tuple[str, DataFile]]
    left_out: list[tuple[str, DataFile, str]]


def pack(archive: Path, data: Path) -> Packed:
    """Write the files whose licence allows it, below their paths, so that the archive unpacked is ``NEUSIGHT_DATA``.

    Raises:
        DataError: a file that is missing or whose hash is not that of its manifest.
    """
    packed = Packed([], [])
    with tarfile.open(archive, "w:gz") as tar:
        for description in list_descriptions():
            absent = not any((data / file.path).is_file() for file in description.files)
            kept = tuple(file for file in description.files if file.licence != UNLICENSED and not absent)
            packed.files.extend((description.name, file) for file in kept)
            reason = "not there" if absent else "no licence is stated"
            packed.left_out.extend((description.name, file, reason) for file in description.files if file not in kept)
            if kept:
                _add_source(tar, data, replace(description, files=kept))
        _add_text(tar, "README.md", _README + _table(packed))
    return packed


def _add_source(tar: tarfile.TarFile, data: Path, description: DataDescription) -> None:
    folder = f"datasets/{description.name}"
    for file in description.files:
        path = data / file.path
        if not path.is_file() or file_sha256(path) != file.sha256:
            raise DataError(f"{path} is missing or changed: `neusight datasets verify {data}` names all that are")
        tar.add(path, file.path)
    tar.add(checkout_dir("datasets") / description.name / "card.md", f"{folder}/card.md")
    _add_text(tar, f"{folder}/manifest.json", description.to_json())


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, BytesIO(content))


def _table(packed: Packed) -> str:
    rows = [f"| {file.path} | {file.licence} | {file.sha256} |" for _, file in packed.files]
    return "\n".join(["| file | licence | sha256 |", "|---|---|---|", *rows, ""])
