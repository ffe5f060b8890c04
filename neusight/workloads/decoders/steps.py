"""``Steps``: what serving engines put into one pass of a model, many passes as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Passes through a model, columns of shape (n,): sequences with new prompt tokens and sequences that generate.

    ``prompts`` sequences bring ``prompt_tokens`` new tokens each (a chunk of a prompt, or all of it) behind
    ``prompt_cached`` tokens that the cache holds already; ``decodes`` sequences generate one token each behind
    ``decode_cached`` tokens. Means where sequences differ; the first three are 0 in a pass that only generates.
    """

    prompts: np.ndarray
    prompt_tokens: np.ndarray
    prompt_cached: np.ndarray
    decodes: np.ndarray
    decode_cached: np.ndarray

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, **columns: Any) -> Steps:
        """Columns given as arrays or scalars; what is missing is 0."""
        length = max((len(v) for v in columns.values() if np.ndim(v)), default=1)
        return cls(**{f.name: np.broadcast_to(np.asarray(columns.get(f.name, 0)), (length,)) for f in fields(cls)})

    @property
    def tokens(self) -> np.ndarray:
        """New tokens of a pass, shape (n,)."""
        return np.asarray(self.prompts * self.prompt_tokens + self.decodes)

    @property
    def sequences(self) -> np.ndarray:
        """Sequences of a pass, each of which gets one token sampled, shape (n,)."""
        return np.asarray(self.prompts + self.decodes)
