"""One of the many things that a command was asked at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Point(Generic[Answer]):
    """What was asked, with an answer or the ``error`` that stands for it."""

    asked: dict[str, Any]
    estimate: Answer | None = None
    error: str = ""
