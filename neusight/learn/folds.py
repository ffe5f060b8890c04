"""Leave-one-GPU-out folds, kept on disk as they finish so that an interrupted training can resume."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fold:
    """One held-out GPU: its error after each epoch, and by op quantiles of the log ratio measured / predicted."""

    gpu: str
    history: list[float]
    ratios: dict[str, list[float]]
    mape: dict[str, float]


class FoldStore:
    """Finished folds on disk, usable only by a run with the same key.

    Args:
        folder: where they are kept.
        key: everything that a fold depends on.
        resume: keep what an earlier run left.
    """

    def __init__(self, folder: Path, key: str, resume: bool) -> None:
        self.folder = folder
        self.key = key
        if not resume:
            self.clear()

    def load(self, family: str, gpu: str) -> Fold | None:
        """A finished fold, or None."""
        path = self._path(family, gpu)
        if not path.is_file():
            return None
        content = json.loads(path.read_text())
        return Fold(**content["fold"]) if content["key"] == self.key else None

    def save(self, family: str, fold: Fold) -> None:
        """Keep a finished fold; written beside and renamed, so that it is whole or absent."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(family, fold.gpu)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"key": self.key, "fold": vars(fold)}))
        partial.replace(path)

    def clear(self) -> None:
        """Forget all folds."""
        for path in self.folder.glob("*"):
            path.unlink()
        if self.folder.is_dir():
            self.folder.rmdir()

    def _path(self, family: str, gpu: str) -> Path:
        return self.folder / f"{family}--{gpu}.json"
