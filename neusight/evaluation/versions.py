"""What kernels of other versions of libraries take, by steps on other boards.

cuBLAS and cuDNN get better kernels for an architecture for years after it is sold, and PyTorch for its own operators:
the version is a condition of how a step was timed, and what it costs is about the same for all boards of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.engines import Libraries

Version = tuple[str, ...]
"""Of libraries, then the dtype of their kernels, then whether those of the backward pass are among them."""
_PRIOR = 0.15
"""Assumption: standard deviation of the logarithm of what kernels of a version take over those that were measured, at
least, and what those of a dtype take over all of the version."""
_MANY = 4
"""Versions from which on their own spread tells more than an assumption."""
_BOARD = 0.1
"""Assumption: the same from one board to another."""


@dataclass(frozen=True, kw_only=True)
class VersionFit:
    """Versions by what boards took: ``errors`` are logarithms of measured over predicted times of steps that kernels
    decide, by version and board.
    """

    errors: Mapping[tuple[Version, str], Sequence[float]]

    def libraries(self, version: Version, board: str) -> Libraries:
        """Of a version, by all boards but one: each further word has something of its own, as far as they tell."""
        centre, variance, prior = 0.0, 0.0, max(_PRIOR, self._apart(board))
        for length in range(1, len(version) + 1):
            boards: dict[str, list[float]] = {}
            for (known, other), errors in self.errors.items():
                if other != board and known[:length] == version[:length]:
                    boards.setdefault(other, []).extend(errors)
            medians = [float(np.median(errors)) for errors in boards.values()]
            kept = 1.0 / (1.0 + len(medians) * (prior / _BOARD) ** 2)
            centre, variance = kept * centre + (1.0 - kept) * float(np.mean(medians or [0.0])), kept * prior**2
            prior = _PRIOR
        return Libraries(factor=float(np.exp(centre)), spread=float(np.sqrt(variance + _BOARD**2)))

    def tells(self, version: Version, board: str) -> bool:
        """Whether any other board ran a version."""
        return any(known[0] == version[0] for known, other in self.errors if other != board)

    def _apart(self, board: str) -> float:
        """How far versions lie apart on all boards but one, as far as several tell."""
        first: dict[str, list[float]] = {}
        for (version, other), errors in self.errors.items():
            if other != board:
                first.setdefault(version[0], []).extend(errors)
        medians = [float(np.median(errors)) for errors in first.values()]
        return float(np.std(medians)) if len(medians) > _MANY else 0.0
