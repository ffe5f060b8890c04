"""Words that a shell completes: choices, ids of devices, and names of models and clusters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neusight.questions.field import FieldSpec


def is_completing() -> bool:
    """True if a shell runs the program to complete a command line."""
    return "_NEUSIGHT_COMPLETE" in os.environ


def completer(field: FieldSpec) -> Callable[[str], list[str]] | None:
    """Completions of an unfinished value, for a list those of its last part; None where the shell completes files."""
    names_of = (lambda: field.choices) if field.choices else _NAMES.get(field.complete)
    if names_of is None:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if field.listable else ("", "", incomplete)
        return [f"{before}{comma}{name}" for name in names_of() if name.startswith(last)]

    return complete


def _devices() -> Iterable[str]:
    from neusight.devices import device_ids

    return device_ids()


def _clusters() -> Iterable[str]:
    from neusight.devices import cluster_ids

    return cluster_ids()


def _models() -> Iterable[str]:
    from neusight.workloads import list_traced, list_workloads

    return (info.name for info in (*list_workloads(), *list_traced()))


def _decoders() -> Iterable[str]:
    from neusight.workloads import list_workloads
    from neusight.workloads.decoders.known import known_decoders

    return (*known_decoders(), *(info.name for info in list_workloads() if info.kind == "causal-lm"))


_NAMES = {"devices": _devices, "clusters": _clusters, "models": _models, "decoders": _decoders}
