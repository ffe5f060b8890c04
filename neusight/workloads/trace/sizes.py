"""Results whose shape depends on values that are not known, by operator.

As much as there can be is selected, every element of a mask and every value distinct, unless a smaller share is
expected or given; every sequence has its full length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from neusight.errors import ModelError
from neusight.requests import NOTHING_SELECTED
from neusight.workloads.trace.expected import ALL, EVEN, FactStore

aten = torch.ops.aten
NONE = NOTHING_SELECTED[0][1]


class Shares:
    """Shares that a user gives of what is selected by values that are not known.

    Args:
        given: by the name of an operator, ``nonzero``, or of a layer, ``h.*.moe``, which counts for all within it.
    """

    def __init__(self, given: Mapping[str, float]) -> None:
        self.given = dict(given)
        self._unused = dict.fromkeys(given)
        self._names: dict[str, None] = {}

    def of(self, operator: str, layer: str) -> float | None:
        """The share for an operator without its namespace, in a layer; None where none is given."""
        self._names |= dict.fromkeys(filter(None, (operator, layer)))
        layers = [name for name in self.given if fnmatchcase(layer, name) or fnmatchcase(layer, f"{name}.*")]
        name = max(layers, key=len, default=operator)
        self._unused.pop(name, None)
        return self.given.get(name)

    def check(self) -> None:
        """Raises:
        ModelError: a name is that of nothing in the model that depends on unknown values.
        """
        for name in self._unused:
            remedy = f"one of {', '.join(self._names)}" if self._names else "leave it out, nothing of the model does"
            raise ModelError(f"--share {name}: no result of that name depends on unknown values: {remedy}")


class Count:
    """Number of places that an operator selects by the values of tensors: by the share that is given, else that which
    is expected of a tensor, else all.
    """

    def __init__(self, known: FactStore, shares: Shares, operator: str, layer: str) -> None:
        self.known = known
        self.share_given: Callable[[], float | None] = lambda: shares.of(operator, layer)
        self.assumption, self.remedy = ALL, ""
        self._remedy = f"; --share {layer or operator}=0.5 takes half of all"

    def __call__(self, tensor: torch.Tensor, most: int) -> int:
        """Number of places, of at most ``most``, that the values of a tensor select."""
        if tensor.dtype == torch.bool and self.has_values(tensor):
            with unset_fake_temporarily():
                return most * int(tensor.count_nonzero()) // max(1, tensor.numel())
        requested, share = self.share_given(), self.known.of(tensor).share
        if requested is not None:
            self.assumption = ""
        elif share is not None:
            self.assumption = EVEN
        self.remedy = self._remedy
        share = requested if requested is not None else 1.0 if share is None else share
        return min(most, max(int(requested != NONE), round(most * share)))

    def has_values(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has values, so that nothing is assumed."""
        has_values = self.known.known(tensor)
        self.assumption = "" if has_values else self.assumption
        return has_values

    def levels(self, x: torch.Tensor) -> int:
        """Number of values a tensor can have, where that is bounded, so that nothing is assumed; else 0."""
        levels = self.known.of(x).levels
        self.assumption = "" if levels else self.assumption
        return levels

    def distinct(self, x: torch.Tensor, most: int) -> int:
        """Number of distinct elements, of at most ``most``: no more than there are values."""
        return self(x, min(most, self.known.of(x).levels or most))


def _places(count: Count, x: torch.Tensor) -> torch.Tensor:
    return torch.empty(count(x, x.numel()), x.dim(), dtype=torch.long)


def _select(count: Count, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.new_empty(count(mask, torch.broadcast_shapes(x.shape, mask.shape).numel()))


def _index(count: Count, x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Result of indexing, where masks become the places that they choose, one index a dimension."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        places += _chosen_by(count, index) if mask and index is not None else [index]
    return torch.empty_like(aten.index.Tensor(x, places))


def _chosen_by(count: Count, mask: torch.Tensor) -> list[torch.Tensor | None]:
    chosen = count(mask, mask.numel())
    return [torch.empty(chosen, dtype=torch.long) for _ in range(mask.dim())]


def _distinct(count: Count, x: torch.Tensor, *flags: Any, **_: Any) -> tuple[torch.Tensor, ...]:
    distinct = count.distinct(x, x.numel())
    inverse = torch.empty(x.shape, dtype=torch.long)
    return x.new_empty(distinct), inverse, torch.empty(distinct, dtype=torch.long)


def _distinct_along(count: Count, x: torch.Tensor, dim: int, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    places = torch.empty(x.shape[dim], dtype=torch.long)
    distinct = x.narrow(dim, 0, count.distinct(x, x.shape[dim]))
    return torch.empty_like(distinct), places, torch.empty(distinct.shape[dim], dtype=torch.long)


def _counts(count: Count, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Counts with as many bins as are requested or as there are values, else one for each element."""
    bins = max(minlength, count.levels(x)) or x.numel()
    return torch.empty(bins, dtype=torch.long if weights is None else weights.dtype)


def _repeat(_: Count, repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    return torch.empty(output_size or repeats.numel(), dtype=torch.long)


def _align(
    _: Count, log_probs: torch.Tensor, targets: torch.Tensor, *__: Any, **___: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and forward variables of connectionist temporal classification, [N] and [N, T, 2 S + 1]."""
    steps, batch = log_probs.shape[:2]
    length = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // batch)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * length + 1)


def _solve(_: Count, a: torch.Tensor, b: torch.Tensor, *__: Any, **___: Any) -> tuple[torch.Tensor, ...]:
    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    return (
        b.new_empty(*batch, n, b.shape[-1]),
        b.new_empty(*batch, b.shape[-1]),
        torch.empty(batch, dtype=torch.long),
        a.new_empty(*batch, min(m, n)),
    )


def _pack(count: Count, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed sequences: each has full length unless lengths are known, so that all steps have all of them."""
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    if count.has_values(lengths):
        with unset_fake_temporarily():
            rows, sizes = int(lengths.sum()), (lengths > torch.arange(int(lengths.max()))[:, None]).sum(1)
        return x.new_empty(rows, *x.shape[2:]), sizes
    return x.new_empty(steps * batch, *x.shape[2:]), torch.empty(steps, dtype=torch.long)


def _kept(count: Count, boxes: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(count(boxes, boxes.shape[0]), dtype=torch.long)


RESULTS: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _places,
    aten.masked_select.default: _select,
    aten.index.Tensor: _index,
    aten._unique2.default: _distinct,
    aten.unique_consecutive.default: _distinct,
    aten.unique_dim.default: _distinct_along,
    aten.bincount.default: _counts,
    aten.repeat_interleave.Tensor: _repeat,
    aten._ctc_loss.default: _align,
    aten._ctc_loss.Tensor: _align,
    aten.linalg_lstsq.default: _solve,
    aten._pack_padded_sequence.default: _pack,
}
"""Functions of how many are selected and of an operator's arguments, on fake tensors."""


OTHERS: dict[str, Callable[..., Any]] = {"torchvision::nms": _kept}
"""The same of operators that other libraries define, by name."""


def result(func: Any) -> Callable[..., Any] | None:
    """Function that makes the result of an operator from a ``Count`` and its arguments; None where no size can be
    assumed.
    """
    return RESULTS.get(func) or OTHERS.get(func._schema.name)
