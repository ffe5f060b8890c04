"""``flex_attention`` as a GPU runs it: in the form of attention that was asked for.

PyTorch compiles it for the device at hand and refuses a backward pass on the CPU; what it calls in the end is
exchanged. Blocks that a mask leaves out are counted, as which they are depends on values; a change of scores is part of
the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_MODULE = "torch.nn.attention.flex_attention"
Attention = Callable[..., torch.Tensor]


@contextmanager
def flex_forms(attention: Attention) -> Iterator[None]:
    """Let ``flex_attention`` call ``attention``, which takes what scaled-dot-product attention does."""
    module = sys.modules.get(_MODULE)
    forms = {
        "_validate_device": lambda *_: None,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "flex_attention_hop": lambda *given, **_: _attended(attention, *given),
    }
    before = {name: getattr(module, name) for name in forms if hasattr(module, name)}
    try:
        for name in before:
            setattr(module, name, forms[name])
        yield
    finally:
        for name, original in before.items():
            setattr(module, name, original)


def _attended(attention: Attention, *given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result, with the logarithms of sums and the largest scores, of shape (batch, heads, queries), beside it.

    Args:
        attention: see ``flex_forms``.
        given: queries, keys, values, the change of scores, the blocks of the mask, the scale, and options.
    """
    query, key, value, _, _, scale, *_ = given
    found = attention(query, key, value, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])
    beside = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return found, beside, beside
