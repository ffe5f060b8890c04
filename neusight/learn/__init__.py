"""Fitting physics, training tile models, folds, calibration. No prediction imports it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Report = Callable[[str, int, int, float], None]
"""What long work calls with its progress: (task, done, of, error)."""


@dataclass(frozen=True, kw_only=True)
class FoundConstants:
    """Constants that stand in code, as a fit finds them again; fields are those of ``FittedConstants``."""

    values: Mapping[str, float]
    gpus: Sequence[str]
    data: Mapping[str, str]
    rows: int
    error: float
    errors: Sequence[Mapping[str, Any]] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
