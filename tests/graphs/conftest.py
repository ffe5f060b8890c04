"""Small Hugging Face models, traced once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from neusight.workloads.graph import Graph
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

GPT2 = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 500, "n_positions": 128}


@cache
def _traced_gpt2(batch: int, seq_len: int, layers: int, options: tuple[tuple[str, Any], ...]) -> Graph:
    from transformers import GPT2Config, GPT2LMHeadModel

    attention = dict(options).get("attention", "eager")
    config = GPT2Config(**{**GPT2, "n_layer": layers}, use_cache=False)
    implementation = "eager" if attention == "eager" else "sdpa"
    return trace(
        lambda: GPT2LMHeadModel._from_config(config, attn_implementation=implementation),
        {"input_ids": TensorSpec((batch, seq_len), "int64")},
        name="gpt2",
        batch=batch,
        seq_len=seq_len,
        **dict(options),
    )


@pytest.fixture(scope="session")
def gpt2() -> Callable[..., Graph]:
    """A function that traces GPT-2 with hidden size 64, 4 heads and 500 tokens."""

    def traced(batch: int = 2, seq_len: int = 32, layers: int = 4, **options: Any) -> Graph:
        return _traced_gpt2(batch, seq_len, layers, tuple(sorted(options.items())))

    return traced
