"""Columns that tables of measured rows may have, with what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from neusight.errors import DataError, nearest
from neusight.kernels import KERNEL_CLASSES
from neusight.kernels.named import PUBLIC_NAMES
from neusight.measured.table import CHANGES, NOUNS, PROVENANCE, QUANTITIES
from neusight.questions.question import NamedField

KINDS = (*NOUNS, "gains")
"""Commands whose questions rows are, and gains."""


def described_columns(kind: str = "") -> list[dict[str, Any]]:
    """Name, unit or choices and meaning of every column: the question's, quantities, and where a row comes from.

    Args:
        kind: one of ``KINDS``; "" for all.

    Raises:
        DataError: an unknown kind.
    """
    if kind and kind not in KINDS:
        raise DataError(f"no rows are of kind '{kind[:40]}'{nearest(kind, KINDS)}: one of {', '.join(KINDS)}")
    nouns = [NOUNS[kind]] if kind in NOUNS else [noun for noun in NOUNS.values() if not kind or noun.KIND != "kernel"]
    names = {name: declared for noun in nouns for name, declared in noun.fields().items()}
    rows = [_question(each) for name, each in names.items() if (name, each.field.kind) != ("shape", "texts")]
    if kind in ("", "kernel"):
        rows += _shapes()
    if kind != "kernel":
        rows += [_row("question", name, "", meaning) for name, meaning in CHANGES.items()]
    rows += [_row("quantity", name, *text.split(": ", 1)) for name, text in QUANTITIES.items()]
    return rows + [_row("provenance", name, "", meaning) for name, meaning in PROVENANCE.items()]


def _row(part: str, name: str, unit: str, meaning: str) -> dict[str, Any]:
    return {"part": part, "name": name, "unit": unit, "meaning": meaning}


def _question(declared: NamedField) -> dict[str, Any]:
    field = declared.field
    former = f" Formerly {', '.join(field.former)}." if field.former else ""
    unit = "|".join(field.choices) or field.unit or field.kind
    return _row("question", declared.name, unit, f"{declared.help}{former}")


def _shapes() -> Iterator[dict[str, Any]]:
    """Fields of families of kernels."""
    families: dict[str, list[str]] = {}
    kinds = {}
    for family, each in KERNEL_CLASSES.items():
        for field in fields(each):
            name = PUBLIC_NAMES.get(field.name, field.name)
            families.setdefault(name, []).append(family)
            kinds[name] = {"int": "whole", "bool": "switch"}.get(str(field.type), "text")
    yield _row("question", "family", "|".join(KERNEL_CLASSES), "Family of the kernel, where its op does not tell it.")
    for name, owners in families.items():
        yield _row("question", name, kinds[name], f"Field of {', '.join(owners)}.")
