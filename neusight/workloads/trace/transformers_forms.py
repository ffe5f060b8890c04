"""Hugging Face code that asks fake tensors for values, given the answer of an unpadded, unpacked batch.

With real tensors these models look at the mask to see that nothing is padded and at the positions to see that nothing
is packed; then they run without a mask. Sparse layers run every expert on a padded buffer, whose shape is fixed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def _never(_: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *args, **kwargs: False


def _nothing(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _unpadded(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same question without the padding mask, which comes first."""

    def asked(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        return original(None, *args, **kwargs)

    return asked


def padded_experts(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """A Switch layer with every expert in turn, each on a buffer of batch x expert_capacity tokens.

    Fedus et al. 2022, section 2.2: the capacity bounds the tokens of a sequence that go to one expert; the buffer is
    filled with zeros where fewer come.
    """
    batch, length, width = hidden_states.shape
    chosen, weights, _ = layer.router(hidden_states)
    rows = min(batch * layer.router.expert_capacity, batch * length)
    tokens = hidden_states.reshape(-1, width)
    result = tokens.clone()
    slots = torch.arange(rows)
    for number, expert in enumerate(layer.experts.values()):
        # Stands for the search of the chosen tokens, which real runs do by a boolean mask.
        places = chosen[..., number].reshape(-1).argsort(descending=True)[:rows]
        buffer = tokens.new_zeros(rows, width)
        buffer[slots] = tokens[places]
        result[places] = expert(buffer)[slots]
    return (weights.reshape(-1, 1) * result).reshape(batch, length, width)


def settle_routers(module: torch.nn.Module) -> None:
    """Give Switch routers the dtype that they take in the first forward pass, after which they keep it."""
    routers: list[Any] = [m for m in module.modules() if type(m).__name__ == "SwitchTransformersTop1Router"]
    for router in routers:
        classifier = router.classifier
        if classifier.weight.dtype != router.dtype:
            classifier.weight = torch.nn.Parameter(torch.empty_like(classifier.weight, dtype=router.dtype))
        # Its forward converts the classifier again, which is idle now, and impossible for fake weights.
        classifier.to = lambda *_, classifier=classifier: classifier


_SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers"
_MASKS = "transformers.masking_utils"
_UNCHECKED = "TRANSFORMERS_DISABLE_TORCH_CHECK"
"""Set, models do not compare how many places for images a text has with how many images there are."""
_PATCHES: tuple[tuple[str, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (_MASKS, "is_tracing", _never),
    (_MASKS, "find_packed_sequence_indices", _nothing),
    (_MASKS, "_ignore_causal_mask_sdpa", _unpadded),
    (_MASKS, "_ignore_bidirectional_mask_sdpa", _unpadded),
    (f"{_SWITCH}:SwitchTransformersSparseMLP", "forward", lambda _: padded_experts),
)


def _owner(path: str) -> Any:
    """A loaded module, or a class in one; None when it is not loaded or has no such class."""
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module)
    return getattr(loaded, name, None) if loaded and name else loaded


@contextmanager
def unpadded_batches() -> Iterator[None]:
    """Answer the questions of Hugging Face models inside; other modules are not touched."""
    saved = []
    checked = os.environ.get(_UNCHECKED)
    os.environ[_UNCHECKED] = "1"
    for path, name, replacement in _PATCHES:
        owner = _owner(path)
        if owner is not None and hasattr(owner, name):
            original = getattr(owner, name)
            saved.append((owner, name, original))
            setattr(owner, name, replacement(original))
    try:
        yield
    finally:
        for owner, name, original in saved:
            setattr(owner, name, original)
        if checked is None:
            del os.environ[_UNCHECKED]
        else:
            os.environ[_UNCHECKED] = checked
