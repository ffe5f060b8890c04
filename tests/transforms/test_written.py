"""Kernels written by hand: what enters a chain is read once, what leaves it is written, nothing in between is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from neusight.errors import InapplicableError
from neusight.requests import Request
from neusight.transforms import sliced, written
from neusight.transforms.phases import alone
from neusight.workloads import Workload, load_workload
from neusight.workloads.dispatch import DISPATCHES, step_kinds
from neusight.workloads.workload import Node

TOKENS, HIDDEN, INNER, CLASSES = 64, 32, 128, 256
SIZE = 4 * TOKENS * HIDDEN
"""Of an input in float32."""


@cache
def step(block: str, **more: int) -> Workload:
    sizes = {"tokens": TOKENS, "hidden": HIDDEN, "round": 2} | more
    text = f"block:{block}@{','.join(f'{name}={size}' for name, size in sizes.items())}"
    return load_workload(text, Request.of(text, mode="training", dtype="float32"), cache=False)


def by_hand(workload: Workload, phase: str = "forward") -> list[Node]:
    return [node for node in workload.nodes if node.operator.startswith("triton.") and node.phase == phase]


def moved(node: Node) -> tuple[int, int]:
    kernels: Any = node.kernels
    return sum(kernel.read_bytes for kernel in kernels), sum(kernel.write_bytes for kernel in kernels)


CASES = [
    ("rms-norm", written.fused_norms, 1, 1),
    ("add-rms-norm", written.fused_added_norms, 2, 2),
    ("relu-squared", written.fused_chains, 1, 1),
]


@pytest.mark.parametrize(("block", "change", "read", "made"), CASES, ids=[case[0] for case in CASES])
def test_a_chain_reads_its_inputs_and_writes_its_results(
    block: str, change: Callable[[Workload], Workload], read: int, made: int
) -> None:
    before = step(block)
    after = change(before)
    (forward,) = by_hand(after)
    assert moved(forward) == pytest.approx((read * SIZE, made * SIZE), rel=0.1)
    assert len(by_hand(after, "backward")) == 1
    assert after.memory.peak < before.memory.peak
    assert sum(map(len, (n.kernels for n in after.nodes))) < sum(map(len, (n.kernels for n in before.nodes)))


def test_an_addition_stays_apart_from_a_norm_alone() -> None:
    after = written.fused_norms(step("add-rms-norm"))
    (forward,) = by_hand(after)
    assert moved(forward) == pytest.approx((SIZE, SIZE), rel=0.1)
    assert next(n.operator for n in after.nodes if n.kernels) == "aten.add.Tensor"


def test_halves_of_a_tensor_are_read_whole() -> None:
    after = written.fused_gates(step("gate"))
    (forward,), (backward,) = by_hand(after), by_hand(after, "backward")
    assert moved(forward) == (SIZE, SIZE // 2)
    assert moved(backward)[1] == SIZE


def test_what_a_gate_made_is_computed_again() -> None:
    before = step("swiglu", intermediate=INNER)
    kept, left = (alone(w, "forward").memory.activations for w in (before, written.fused_gates(before)))
    assert kept - left == pytest.approx(4 * TOKENS * INNER, abs=8)


def test_a_model_without_such_operators_says_so() -> None:
    for change, why in [
        (written.fused_norms, "no RMS norm"), (written.fused_gates, "no activation"),
        (written.fused_rotary, "no rotary"), (written.fused_losses, "no loss"),
        (sliced.tiled_mlps, "no gated MLP"), (sliced.chunked_loss, "no loss"),
    ]:  # fmt: skip
        with pytest.raises(InapplicableError, match=why):
            change(step("softmax"))
    with pytest.raises(InapplicableError, match="no RMS norm"):
        written.fused_norms(written.fused_norms(step("rms-norm")))


def test_chains_of_different_modules_may_be_written_in_any_order() -> None:
    text = "llama-3.2-1b"
    model = load_workload(text, Request.of(text, mode="training", seq_len=16))
    changes = (written.fused_norms, written.fused_gates, written.fused_rotary)

    def kernels(order: tuple[Callable[[Workload], Workload], ...]) -> list[Any]:
        after = model
        for change in order:
            after = change(after)
        return [node.kernels for node in after.nodes if node.kernels]

    assert kernels(changes) == kernels(changes[::-1])
    assert len(kernels(changes)) < 0.6 * sum(node.copies for node in model.nodes if node.kernels)


def test_slices_multiply_as_much_and_hold_less() -> None:
    before = step("swiglu", intermediate=INNER)
    after = sliced.tiled_mlps(before, 4)

    def multiplied(workload: Workload, phase: str) -> int:
        kernels: list[Any] = [k for n in workload.nodes for k in n.kernels if n.phase == phase and k.family == "gemm"]
        return sum(k.m * k.n * k.k for k in kernels)

    assert multiplied(after, "forward") == multiplied(before, "forward")
    assert multiplied(after, "backward") == multiplied(before, "backward") + multiplied(before, "forward")
    assert after.memory.peak < before.memory.peak
    assert len([n for n in after.nodes if n.operator == "aten.cat.default"]) == 1


@pytest.mark.parametrize("parts", [1, 4])
def test_chunks_of_logits_make_all_gradients_in_the_forward_pass(parts: int) -> None:
    before = step("linear-cross-entropy", vocabulary=CLASSES, batch=1)
    after = sliced.chunked_loss(before, parts)
    products: list[Any] = [k for n in after.nodes for k in n.kernels if k.family == "gemm"]
    assert len(products) == 3 * parts
    assert {n.phase for n in after.nodes for k in n.kernels if k.family == "gemm"} == {"forward"}
    assert sum(k.m * k.n * k.k for k in products) == 3 * TOKENS * HIDDEN * CLASSES
    rows = (t.nbytes for t in after.tensors if t.shape[-1:] == (CLASSES,) and t.kind == "intermediate")
    assert max(rows) == 4 * TOKENS * CLASSES // parts


def test_logits_of_a_chunk_are_as_large_as_what_they_are_made_of() -> None:
    after = sliced.chunked_loss(step("linear-cross-entropy", vocabulary=CLASSES, batch=1))
    heads: list[Any] = [k for n in after.nodes for k in n.kernels if k.family == "gemm" and k.layout == "tn"]
    assert {k.m for k in heads} == {TOKENS * HIDDEN // CLASSES}


def test_a_phase_alone_has_its_kernels_and_all_that_was_saved() -> None:
    whole = step("swiglu", intermediate=INNER)
    forward, backward = alone(whole, "forward"), alone(whole, "backward")
    for part, phase in ((forward, "forward"), (backward, "backward")):
        assert [n.kernels for n in part.nodes] == [n.kernels for n in whole.nodes if n.phase == phase]
    # What waits for the backward pass is there all the time, since a benchmark runs it again.
    assert backward.memory.peak >= whole.memory.peak >= forward.memory.activations > 0
    with pytest.raises(InapplicableError, match="no optimizer pass"):
        alone(whole, "optimizer")


def test_a_function_in_python_costs_the_host_more_than_an_operator() -> None:
    kinds = step_kinds(written.fused_chains(step("relu-squared")))
    assert kinds["hand_written"] == 2
    assert DISPATCHES["hand_written"] > DISPATCHES["library"]


def test_a_loss_of_fewer_classes_than_inputs_is_not_sliced() -> None:
    with pytest.raises(InapplicableError, match="no larger than what they are made of"):
        sliced.chunked_loss(step("linear-cross-entropy", vocabulary=32, batch=1))
