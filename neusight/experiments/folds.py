"""A hash of the code that decides what constants learn."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.paths import checkout_dir

LEARNERS = ("kernels", "devices", "laws", "datasets", "executors/gpu", "learn")
"""Rooms whose code decides what is learned."""


def code_sha256() -> str:
    """A hash of the code and the contracts that decide what tile models learn."""
    package = Path(__file__).resolve().parent.parent
    rooms = [*(package / room for room in LEARNERS), checkout_dir("features")]
    files = [file for room in rooms for kind in ("*.py", "*.toml") for file in sorted(room.rglob(kind))]
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
