"""Names of models that are traced when they are asked for: configurations of transformers, of diffusers, of modules
of this folder.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from neusight.workloads.catalogue import WorkloadInfo, config_max_seq_len, normal_name


def list_traced() -> list[WorkloadInfo]:
    """Every one of them, families together, in the order of the file."""
    return [_info(name, entry) for name, entry in _entries().items()]


def traced_name(name: str) -> str | None:
    """The name that a name or alias stands for, or None; written as those of ready workloads may be."""
    return _names().get(normal_name(name))


def traced_config(name: str) -> dict[str, Any]:
    """The configuration of one of ``list_traced``."""
    return dict(_entries()[name]["config"])


def _info(name: str, entry: dict[str, Any]) -> WorkloadInfo:
    config = entry["config"]
    return WorkloadInfo(
        name=name,
        kind=entry["kind"],
        parameters=entry["parameters"],
        max_seq_len=config_max_seq_len(config) if "model_type" in config else None,
        aliases=tuple(entry.get("aliases", ())),
    )


@cache
def _entries() -> dict[str, dict[str, Any]]:
    file = files("neusight.workloads.models") / "catalogue.json"
    return json.loads(file.read_text(encoding="utf-8"))


@cache
def _names() -> dict[str, str]:
    return {normal_name(n): name for name, entry in _entries().items() for n in (name, *entry.get("aliases", ()))}
