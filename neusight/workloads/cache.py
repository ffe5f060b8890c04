"""Traces kept between runs, by content: a changed model, option or library version is another entry."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import neusight
from neusight.errors import DataError
from neusight.paths import cache_dir
from neusight.workloads.serialise import from_json, to_json
from neusight.workloads.workload import Workload


def trace_key(digest: str, options: Mapping[str, Any]) -> str:
    """The name of an entry: content of the model, every option of the trace, and the versions that could change it."""
    libraries = {name: _version(name) for name in ("torch", "transformers")}
    content = {"model": digest, "options": dict(options), "neusight": neusight.__version__, "tracer": _tracer_digest()}
    return hashlib.sha256(json.dumps(content | libraries, sort_keys=True).encode()).hexdigest()


def read_trace(key: str) -> Workload | None:
    """The stored workload, or None when there is none that can be read: a damaged entry is as good as no entry."""
    try:
        return from_json(_file(key).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DataError):
        return None


def write_trace(key: str, workload: Workload) -> None:
    """Store a workload whole or not at all; a folder that cannot be written only costs the next run its time."""
    file = _file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(to_json(workload))
        Path(temporary).replace(file)


def _file(key: str) -> Path:
    return cache_dir() / "traces" / f"{key}.json"


@lru_cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@lru_cache
def _tracer_digest() -> str:
    """The rules that turn operators into kernels, as source: a checkout changes without a new version, but not while
    it runs.
    """
    folder = Path(__file__).resolve().parent
    sources = sorted([*folder.rglob("*.py"), *(folder.parent / "kernels").glob("*.py")])
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
