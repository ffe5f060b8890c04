"""Pruned weights: zeros put into a real module on purpose.

*Unstructured*, at rate p: the p of a layer's weights that are smallest in magnitude become zero; zeros that were there
go first. *n:m*, such as 2:4: of every m weights that follow each other along the reduction (input channels at one
kernel position), the n largest in magnitude stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neusight.collect.sparsity.streams import as_filters, measured_layers
from neusight.errors import DataError


@dataclass(frozen=True)
class Unstructured:
    """The ``rate`` of weights that are smallest in magnitude, layer by layer, become zero; rate in [0, 1)."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise DataError(f"a pruning rate is at least 0 and below 1, not {self.rate}: write it like 0.8")

    def __str__(self) -> str:
        return f"{self.rate:.4g} of each layer's weights pruned by magnitude"

    def kept(self, weights: torch.Tensor) -> torch.Tensor:
        """True where a weight stays; of any shape."""
        mask = torch.ones(weights.numel(), dtype=torch.bool)
        mask[weights.detach().abs().flatten().topk(round(self.rate * len(mask)), largest=False).indices] = False
        return mask.reshape(weights.shape)


@dataclass(frozen=True)
class Grouped:
    """The ``count`` largest of every ``group`` weights stay, along the reduction; 1 ≤ count ≤ group."""

    count: int
    group: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.group:
            ratio = f"{self.count}:{self.group}"
            raise DataError(f"n:m keeps 1 to m of every m weights, not {ratio}: write it like 2:4")

    def __str__(self) -> str:
        return f"weights pruned to {self.count}:{self.group}"

    def kept(self, weights: torch.Tensor) -> torch.Tensor:
        """True where a weight stays; weights of shape (…, reduction), whose last group may be incomplete."""
        missing = -weights.shape[-1] % self.group
        # Below every magnitude, so that what is no weight goes first.
        padded = torch.nn.functional.pad(weights.detach().abs(), (0, missing), value=-1.0)
        groups = padded.reshape(*weights.shape[:-1], -1, self.group)
        order = groups.sort(dim=-1, descending=True, stable=True).indices
        mask = torch.zeros(groups.shape, dtype=torch.bool).scatter_(-1, order[..., : self.count], True)
        return mask.reshape(padded.shape)[..., : weights.shape[-1]]


Pruning = Unstructured | Grouped


def pruning(text: str) -> Pruning:
    """``0.8`` as a rate, ``2:4`` as n:m.

    Raises:
        DataError: neither, or out of range.
    """
    remaining, colon, group = text.partition(":")
    try:
        return Grouped(int(remaining), int(group)) if colon else Unstructured(float(text))
    except ValueError:
        raise DataError(f"cannot read '{text}' as pruning: write a rate like 0.8, or n:m like 2:4") from None


def prune_module(module: torch.nn.Module, how: Pruning) -> dict[str, torch.Tensor]:
    """Prune the weights of a module's convolutions and linear layers in place.

    Returns:
        By module path, True where a weight stays, in the shape of ``as_filters``: training that goes on has to hold the
        others at zero, with ``hold_pruned``.
    """
    masks = {path: how.kept(as_filters(layer)) for path, layer in measured_layers(module).items()}
    hold_pruned(module, masks)
    return masks


def hold_pruned(module: torch.nn.Module, masks: dict[str, torch.Tensor]) -> None:
    """Set the weights that do not stay to zero."""
    with torch.no_grad():
        for path, mask in masks.items():
            as_filters(module.get_submodule(path)).mul_(mask)
