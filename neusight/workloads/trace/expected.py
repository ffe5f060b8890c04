"""Expectations of unknown values: how many different ones there are, and the true share of a mask.

An index along n places, such as that of the largest of n scores, has n values. Each is expected equally often, so that
a mask of the places where the index is one of them is true for 1 / n: masks for all n values choose every element once,
as experts share tokens between them. Counts of true elements follow from that share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

EVEN = "as an even share of each value"
ALL = "as large as it can be"
ZEROS = "as it follows from zeros in inputs without values"
_INDICES = {"topk": 1, "sort": 1, "max": 1, "min": 1, "argmax": 0, "argmin": 0, "argsort": 0, "multinomial": 0}
"""Operators that return indices along a dimension, by the place of those among their results."""
_ELEMENTS = ("_to_copy", "clone", "copy_", "index", "index_select", "gather", "repeat", "masked_select", "cat", "sort")
"""Operators whose first result has elements of their first argument."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the elements of a storage.

    ``overwritten``: unknown values were written to it. ``assumed``: what its values rest on. ``levels``: how many
    different values its integers can have, 0 if unknown. ``share``: of its elements, how many are expected to be true.
    """

    overwritten: bool = False
    assumed: str = ""
    levels: int = 0
    share: float | None = None


class FactStore(Protocol):
    """Store of facts about tensors."""

    def of(self, tensor: torch.Tensor) -> Facts:
        """Facts about a tensor's elements."""

    def known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has values."""

    def note(self, tensor: torch.Tensor, facts: Facts) -> None:
        """Remember what is known of a tensor."""


def note_expected(func: Any, named: Mapping[str, Any], result: Any, known: FactStore) -> Any:
    """Note the expected elements of an operator's result on fake tensors and return it; counts have their expected
    values.

    Args:
        func: the operator.
        named: its arguments by name.
        result: what it returned.
        known: what is known of tensors, where that of the result is noted.
    """
    name = func.__name__.partition(".")[0]
    results = result if isinstance(result, tuple | list) else (result,)
    place, first = _INDICES.get(name, len(results)), _first_tensor(named)
    if first is None:
        return result
    if place < len(results):
        dim = named.get("dim", -1)
        known.note(results[place], Facts(levels=first.numel() if dim is None else first.shape[dim]))
    if name in _ELEMENTS:
        known.note(results[0], known.of(first))
    if (rule := _SHARES.get(name)) is not None and (share := rule(named, first, known)) is not None:
        known.note(results[0], Facts(share=share))
    count = _COUNTS.get(name)
    return result if count is None else count(named, first, result, known)


def _first_tensor(named: Mapping[str, Any]) -> torch.Tensor | None:
    value = next(iter(named.values()), None)
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) and value.dim() else None


Rule = Callable[[Mapping[str, Any], torch.Tensor, FactStore], float | None]


def _equal(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    """Share of true elements where an index is compared with one of its values, or a mask with a truth value."""
    facts, other = known.of(first), named["other"]
    if facts.share is not None and not isinstance(other, torch.Tensor):
        return facts.share if other else 1 - facts.share
    levels = facts.levels or (known.of(other).levels if isinstance(other, torch.Tensor) else 0)
    return 1 / levels if levels else None


def _unequal(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    share = _equal(named, first, known)
    return None if share is None else 1 - share


def _negate(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    share = known.of(first).share
    return None if share is None or first.dtype != torch.bool else 1 - share


def _positive(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    other = named.get("other")
    return known.of(first).share if not isinstance(other, torch.Tensor) and other == 0 else None


def _both(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    """Share of true elements of two masks together: at most the smaller share; one may be unknown."""
    shares = [share for mask in (first, named["other"]) if (share := known.of(mask).share) is not None]
    return min(shares, default=None)


def _scatter_into(named: Mapping[str, Any], first: torch.Tensor, known: FactStore) -> float | None:
    """Share of zeros that others are written to, at as many distinct places of a dimension as an index has."""
    dim, index = named["dim"], named["index"]
    others = "src" in named or bool(named.get("value"))
    return index.shape[dim] / first.shape[dim] if known.of(index).levels and others else None


_SHARES: dict[str, Rule] = {
    "eq": _equal,
    "ne": _unequal,
    "gt": _positive,
    "bitwise_not": _negate,
    "logical_not": _negate,
    "bitwise_and": _both,
    "logical_and": _both,
    "scatter": _scatter_into,
    "scatter_": _scatter_into,
}


def _total(named: Mapping[str, Any], first: torch.Tensor, result: Any, known: FactStore) -> Any:
    """Sums of a mask: shares where they are at most one, else counts."""
    share = known.of(first).share
    if share is None and first.dtype != torch.bool:
        return result
    total = round((1.0 if share is None else share) * first.numel())
    if share is not None and total <= result.numel() and result.dim():
        known.note(result, Facts(share=total / result.numel()))
        return result
    return _spread(total, result, EVEN if share is not None else ALL, known)


def _any(named: Mapping[str, Any], first: torch.Tensor, result: Any, known: FactStore) -> Any:
    share = known.of(first).share
    if share is not None and isinstance(result, torch.Tensor):
        known.note(result, Facts(share=min(1.0, share * first.numel() / max(1, result.numel()))))
    return result


def _bins(named: Mapping[str, Any], first: torch.Tensor, result: Any, known: FactStore) -> Any:
    """Counts of each value of an index."""
    return _spread(first.numel(), result, EVEN, known) if known.of(first).levels else result


_COUNTS: dict[str, Callable[..., Any]] = {
    "sum": _total,
    "any": _any,
    "amax": _any,
    "bincount": _bins,
    "histc": _bins,
}


def _spread(total: int, like: torch.Tensor, assumption: str, known: FactStore) -> torch.Tensor:
    """Whole numbers of a result's shape, as even as can be, that add up to a total."""
    with unset_fake_temporarily():
        quotient, rest = divmod(total, max(1, like.numel()))
        values = torch.full((like.numel(),), quotient, dtype=like.dtype)
        values[:rest] += 1
        spread = values.reshape(like.shape)
    known.note(spread, Facts(assumed=assumption))
    return spread
