"""How wrong tile models are: factors that enclose 90 % of execution times, and how far a device's kernels are off
together, by kind of kernel and by whether the power limit stretches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from neusight.executors.gpu.features import Situation

Kinship = Literal["own", "sibling", "stranger"]
"""Whether a device taught a tile model itself, a sibling of it did, or neither."""
Doubt = list[float]
"""Low and high factor on execution time, and the standard deviation of the log error that a device's kernels share."""
ANY = "*"
THROTTLED = 1.15
"""A kernel that the power limit stretches by more than this is limited by power (definition)."""
_THROTTLED = ", throttled"


def doubt_names(kinds: np.ndarray, s: Situation) -> np.ndarray:
    """Kinds of kernels with whether power limits them, shape (n,): boards differ more in the power that they draw than
    in what their units do.
    """
    throttled = np.broadcast_to(s.throttle > THROTTLED, kinds.shape)
    return np.where(throttled, np.char.add(kinds.astype(str), _THROTTLED), kinds) if throttled.any() else kinds


def levels(name: str) -> tuple[str, ...]:
    """A name of ``doubt_names`` and what it is one of, the nearest first: kernels of the same words behind the operator
    (``* float16``), all that power limits, all.
    """
    kind, _, limited = name.partition(",")
    limit = _THROTTLED if limited else ""
    alike = f"{ANY} {kind.partition(' ')[2]}".rstrip()
    return tuple(dict.fromkeys((name, alike + limit, ANY + limit, ANY)))


def doubt_of(doubts: Mapping[str, Doubt], name: str) -> Doubt:
    """That of a name, or of the nearest level that is known, which for kernels that power limits is the kind without a
    limit where nothing limited was measured: ``doubts`` has all of ``ANY``.
    """
    wanted = (*levels(name)[:-1], *levels(name.partition(",")[0]))
    return doubts[next(level for level in wanted if level in doubts)]
