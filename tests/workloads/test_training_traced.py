"""Units of one rank are the step that transformers' own modules run, forward and backward.

Fusions that tell them apart, undone here: what a framework joins in one matrix, transformers may keep apart (each name
goes with a framework that does as it does). Attention is one kernel in both, and no dropout runs.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from small_decoders import module_class, parsed
from trained_units import LENGTH, SEQUENCES, built, every

from neusight.kernels import Attention, Gemm, Kernel, KernelBatch
from neusight.kernels.work import work_of
from neusight.requests import Request
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

APART = (
    "llama",
    "llama biased",
    "qwen3",
    "olmo2",
    "stablelm",
    "nemotron",
    "starcoder2",
    "cohere",
    "phi",
    "opt",
    "seed_oss",
)
JOINED = ("gpt2", "gpt_neox", "gpt_neox serial", "phi3")
SHORT = LENGTH // 2
Shape = tuple[int, int, int]


@cache
def traced(name: str) -> Counter[Kernel]:
    kind, config = module_class(name), parsed(name)
    asked = Request.of(name, mode="training", batch=SEQUENCES, seq_len=SHORT, dtype="bfloat16", attention="sdpa")
    found = trace(
        lambda: kind._from_config(config, attn_implementation="sdpa"),
        {"input_ids": TensorSpec((SEQUENCES, SHORT), "int64")},
        asked,
    )
    return Counter(kernel for node, _ in found.expanded() for kernel in node.kernels)


def units(name: str) -> Counter[Kernel]:
    _, found = built(name, "torchtitan" if name in APART else "fsdp", seq_len=SHORT)
    made: Counter[Kernel] = Counter()
    for unit, count in every(found):
        for part in unit.parts:
            made[part.batch.kernel(0)] += count * part.runs
    return made


def products(kernels: Counter[Kernel]) -> Counter[Shape]:
    """Both ways round: PyTorch may compute a gradient of weights as itself or transposed."""
    found: Counter[Shape] = Counter()
    for kernel, count in kernels.items():
        if isinstance(kernel, Gemm) and kernel.op == "linear":
            found[(*sorted((kernel.m, kernel.n)), kernel.k)] += count  # type: ignore[index]
    return found


@pytest.mark.parametrize("name", [*APART, *JOINED])
def test_products_are_those_of_the_traced_step_one_by_one(name: str) -> None:
    assert products(units(name)) == products(traced(name))


@pytest.mark.parametrize("name", ["llama", "nemotron", "gpt2", "gpt_neox"])
def test_attention_is_that_of_the_traced_step(name: str) -> None:
    def work(kernels: Counter[Kernel], op: str) -> tuple[int, float]:
        found = [(k, count) for k, count in kernels.items() if isinstance(k, Attention) and k.op == op]
        return sum(c for _, c in found), sum(c * float(work_of(KernelBatch.of([k])).flops[0]) for k, c in found)

    for op in ("forward", "backward"):
        assert work(units(name), op) == work(traced(name), op)
        assert work(units(name), op)[0] > 0
