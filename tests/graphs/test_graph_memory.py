"""Memory: what is alive when, and what the peak is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from neusight.workloads.graph import Graph
from neusight.workloads.trace.memory import Ledger


def test_views_share_an_allocation_and_death_frees_it() -> None:
    ledger = Ledger()
    x = torch.zeros(10)
    assert ledger.add(x, "forward") is ledger.add(x.view(2, 5), "forward")
    assert ledger.live_bytes == 40
    y = torch.zeros(5)
    ledger.add(y, "forward")
    del x
    assert ledger.live_bytes == 20


def test_peak_is_where_most_is_alive_and_split_by_kind() -> None:
    ledger = Ledger()
    weight = torch.zeros(100)
    ledger.add(weight, "forward", "weights")
    ledger.now = 0
    saved = torch.zeros(10)
    ledger.add(saved, "forward")
    ledger.now = 1
    passing = torch.zeros(30)
    ledger.add(passing, "forward")
    ledger.now = 2
    del passing
    ledger.now = 3
    small = torch.zeros(5)
    ledger.add(small, "backward")
    profile = ledger.profile(forward_end=2)
    assert (profile.weights, profile.activations, profile.temporary) == (400, 40, 120)
    assert profile.peak == 560
    del saved, small, weight


def test_inference_holds_weights_and_what_is_passing(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2()
    memory = graph.memory
    assert (memory.gradients, memory.optimizer, memory.activations) == (0, 0, 0)
    assert memory.weights == 4 * graph.parameters
    assert memory.temporary > 0


@pytest.mark.parametrize(("optimizer", "states"), [("none", 0), ("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_training_needs_weights_gradients_and_state(gpt2: Callable[..., Graph], optimizer: str, states: int) -> None:
    graph = gpt2(mode="training", optimizer=optimizer)
    assert graph.memory.weights == 4 * graph.parameters
    assert graph.memory.optimizer == 4 * graph.parameters * states
    assert graph.memory.peak >= 4 * graph.parameters * (2 + states)


def test_activations_grow_linearly_with_the_batch(gpt2: Callable[..., Graph]) -> None:
    one, two, four = (gpt2(batch=b, mode="training").memory.activations for b in (2, 4, 8))
    # The causal mask, the positions and their embeddings do not depend on the batch.
    assert four - two == 2 * (two - one)
    assert two > 1.9 * one


def test_fused_attention_saves_the_scores(gpt2: Callable[..., Graph]) -> None:
    batch, seq_len, heads, layers = 2, 128, 4, 4
    eager, fused = (gpt2(batch, seq_len, mode="training", attention=a).memory.activations for a in ("eager", "sdpa"))
    # Softmax and dropout keep their results, dropout a byte mask; the fused kernel a row sum of four bytes.
    scores = batch * heads * seq_len**2 * layers
    assert eager - fused == pytest.approx(9 * scores, rel=0.01)


def test_live_bytes_of_the_nodes_stay_below_the_peak(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training", optimizer="adamw")
    assert all(graph.memory.weights <= n.live_bytes <= graph.memory.peak for n in graph.nodes)


def test_gpt2_large_training_does_not_fit_in_32_gb_and_fits_in_80() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from neusight.workloads.tensors import TensorSpec
    from neusight.workloads.trace.tracing import trace

    config = GPT2Config(n_layer=36, n_embd=1280, n_head=20, use_cache=False)
    graph = trace(
        lambda: GPT2LMHeadModel._from_config(config, attn_implementation="eager"),
        {"input_ids": TensorSpec((4, 1024), "int64")},
        name="gpt2-large",
        mode="training",
        batch=4,
        seq_len=1024,
        optimizer="adamw",
    )
    assert 32e9 < graph.memory.peak < 80e9
    # Korthikanti et al. 2022, section 4.1, for half precision: s b h (34 + 5 a s / h) bytes a layer; float32 doubles
    # what is not a byte mask, and GPT-2's written-out GELU keeps several tensors more.
    tokens, hidden, heads, seq_len = 4096, 1280, 20, 1024
    per_layer = tokens * hidden * (2 * 34 - 2 + (2 * 5 - 1) * heads * seq_len / hidden)
    assert 36 * per_layer < graph.memory.activations < 1.8 * 36 * per_layer
