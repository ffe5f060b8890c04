"""Memory and traffic: what is alive when, what the peak is made of, and which bytes no cache can keep."""

from __future__ import annotations

import pytest
import torch
from small_models import BATCH, HEADS, LENGTH, traced
from torch import nn

from neusight.requests import Request
from neusight.workloads import Workload, load_workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.memory import Ledger
from neusight.workloads.trace.tracing import trace

STATES = {"none": 0, "sgd": 1, "adam": 2, "adamw": 2}


def test_views_share_an_allocation_and_death_ends_it() -> None:
    ledger = Ledger()
    x = torch.zeros(10)
    one = ledger.add(x, "weight")
    assert ledger.add(x.view(2, 5), "weight") is one
    ledger.now = 3
    del x
    assert (one.nbytes, one.born, one.died) == (40, -1, 3)
    assert len(ledger.allocations) == 1


def test_inference_holds_weights_and_what_is_passing() -> None:
    workload = traced("gpt2")
    memory = workload.memory
    assert (memory.gradients, memory.optimizer, memory.activations) == (0, 0, 0)
    assert memory.weights == 4 * workload.parameters
    assert memory.temporary > 0


def test_training_needs_weights_gradients_and_state() -> None:
    for optimizer, states in STATES.items():
        workload = traced("gpt2", mode="training", optimizer=optimizer)
        parameter_bytes = 4 * workload.parameters
        assert workload.memory.weights == parameter_bytes
        assert workload.memory.optimizer == parameter_bytes * states, optimizer
        assert workload.memory.peak >= parameter_bytes * (2 + states), optimizer
        alive = workload.alive.sum(axis=1)
        assert alive.min() >= parameter_bytes and alive.max() == workload.memory.peak


def test_activations_grow_linearly_with_the_batch() -> None:
    one, two, four = (traced("gpt2", batch=b, mode="training").memory.activations for b in (2, 4, 8))
    # The causal mask, the positions and their embeddings do not depend on the batch.
    assert four - two == 2 * (two - one)
    assert two > 1.9 * one


def test_fused_attention_saves_the_scores() -> None:
    options = {"seq_len": 128, "mode": "training"}
    eager, fused = (traced("gpt2", attention=a, **options).memory.activations for a in ("eager", "sdpa"))
    # Softmax and dropout keep their results, dropout a byte mask; the fused kernel a row sum of four bytes.
    scores = BATCH * HEADS * 128**2 * 4
    assert eager - fused == pytest.approx(9 * scores, rel=0.01)


def test_gpt2_large_training_does_not_fit_in_32_gb_and_fits_in_80() -> None:
    options = {"mode": "training", "optimizer": "adamw", "batch": 4, "seq_len": 1024, "attention": "eager"}
    memory = load_workload("gpt2-large", **options).memory
    assert 32e9 < memory.peak < 80e9
    # Korthikanti et al. 2022, section 4.1, for half precision: s b h (34 + 5 a s / h) bytes a layer; float32 doubles
    # what is not a byte mask, and GPT-2's written-out GELU keeps several tensors more.
    tokens, hidden, heads, seq_len = 4096, 1280, 20, 1024
    per_layer = tokens * hidden * (2 * 34 - 2 + (2 * 5 - 1) * heads * seq_len / hidden)
    assert 36 * per_layer < memory.activations < 1.8 * 36 * per_layer


SAMPLES, WIDTHS = 8, (32, 64, 16)
SMALL_BYTES = 64
"""Scalars: the loss and its gradient, steps of the optimizer."""


class Listed(nn.Module):
    """A result whose sum is the loss, not one of classes."""

    def forward(self, result: torch.Tensor) -> tuple[torch.Tensor]:
        return (result,)


def mlp_step(**options: str) -> Workload:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.ReLU(), nn.Linear(*WIDTHS[1:]), Listed())

    request = Request.of("mlp", batch=SAMPLES, **options)
    return trace(build, [TensorSpec((SAMPLES, WIDTHS[0]))], request, time_loss=False)


def test_traffic_of_a_small_network_is_what_formulas_say() -> None:
    """Float32: weights and input are read once, whatever comes of it; a training step writes and reads what it keeps
    between passes, and changes every weight and moment.
    """
    weights, source, hidden, result = mlp_step().parameters, SAMPLES * 32, SAMPLES * 64, SAMPLES * 16
    cases = [
        ({}, [weights + source, result]),
        # Gradients are left behind; the activation behind the ReLU is written and read again.
        ({"mode": "training"}, [weights + source, weights, hidden, hidden]),
        # Two moments a weight; gradients are written and wait for the update.
        (
            {"mode": "training", "optimizer": "adamw"},
            [3 * weights + source, 3 * weights, hidden, hidden, weights, weights],
        ),
    ]
    for options, values in cases:
        traffic = mlp_step(**options).traffic_bytes
        assert len(traffic) == len(values), options
        assert all(4 * v <= f <= 4 * v + SMALL_BYTES for f, v in zip(traffic, values, strict=True)), (options, traffic)


def test_a_table_as_large_as_what_is_taken_from_it_is_touched_whole() -> None:
    class Gather(nn.Module):
        def forward(self, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            return torch.gather(table, 1, places)

    workload = trace(Gather, [TensorSpec((4, 8), "int64")] * 2, Request.of("m"))
    assert workload.traffic_bytes == (2 * 4 * 8 * 8, 4 * 8 * 8)


def test_of_a_table_only_the_rows_that_are_touched_count() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(10_000, 64), nn.Linear(64, 8))

    tokens = TensorSpec((BATCH, LENGTH), "int64")
    inference, training = (
        trace(build, [tokens], Request.of("m", mode=mode), time_loss=False) for mode in ("inference", "training")
    )
    rows = 4 * BATCH * LENGTH * 64
    rest = 4 * (64 * 8 + 8) + 8 * BATCH * LENGTH
    assert inference.traffic_bytes[0] == training.traffic_bytes[0] == rows + rest
    updated = trace(build, [tokens], Request.of("m", mode="training", optimizer="sgd"), time_loss=False)
    # The update reads and writes all of it.
    assert updated.traffic_bytes[0] > 2 * 4 * 10_000 * 64
