"""A prefill of a serving engine is the forward pass of the same decoder by the same engine: kernel by kernel, but for
what only one of the two does, each with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.engines import ENGINES
from neusight.engines.libraries import variant_of
from neusight.executors.costs import Costs
from neusight.executors.pricing import price
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import MANY_LAUNCHES, Conditions
from neusight.kernels.work import work_of
from neusight.requests import Plan
from neusight.serving import Setup
from neusight.serving.passes import group_of
from neusight.workloads.decoders.build import step_program, units_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Local, Steps
from neusight.workloads.program import Part, Program

SEQUENCES, LENGTH = 2, 512
DENSE = ("gpt2", "opt-1.3b", "llama-3.1-8b", "mistral-7b", "qwen3-8b")
SPARSE = ("mixtral-8x7b", "qwen3-30b-a3b")
LATENT = ("deepseek-v3",)
OWN = {
    "cache write": "keys and values stay for the tokens that follow",
    "rope": "queries and keys turn in one kernel with its table, in training each in one whose gradient is its own",
    "activation": "silu_and_mul of halves that lie side by side, in training swiglu",
    "shared activation": "the same, of shared experts",
}
"""What a prefill runs in layers that is not in the forward pass, or is there in another form."""
OWN_MIXTURE = {
    "routing": "softmax and choice in one kernel, in training three and a permutation",
    "experts": "both products and what is between in one fused kernel, in training a grouped product each",
}
JOINS = {"queries join", "keys join"}
"""Of latent attention in training: rotated and other halves are joined by a copy; engines write them in place."""
MIXTURE = {
    *("router probabilities", "router choice", "router order", "permute", "expert gate up", "expert down", "unpermute"),
    "activation",
}
"""What stands in the forward pass for ``OWN_MIXTURE``."""
REDUCED_APART = {"reduce output", "reduce of experts", "reduce shared output"}
"""In training shared experts are summed up over ranks by themselves, engines sum them up with the routed ones: of the
same all-reduce the forward pass has one more, whichever of its names that is.
"""
MATRIX = ("gemm", "grouped_gemm", "moe", "attention")


def prefill(decoder: Decoder, tp: int, engine: str) -> Program:
    steps = Steps.of(prompts=SEQUENCES, prompt_tokens=LENGTH)
    return step_program(decoder, steps, ServingPrecision(), Plan(tp=tp), ENGINES[engine])


def forward(decoder: Decoder, tp: int, engine: str) -> Program:
    return units_of(decoder, Local(batch=SEQUENCES, seq_len=LENGTH, tp=tp, etp=tp), ENGINES[engine])


def running(parts: Iterable[Part]) -> list[Part]:
    """Parts of a forward pass that run, with plain counts."""
    counted = [replace(p, runs=float(p.runs if isinstance(p.runs, int | float) else p.runs[0])) for p in parts]
    return [part for part in counted if part.runs and part.phase == "forward"]


def kernel(part: Part) -> tuple[Any, ...]:
    fields = tuple((name, column[0].item()) for name, column in sorted(part.batch.columns.items()))
    return part.batch.family, fields


def differences(served: Iterable[Part], trained: Iterable[Part]) -> tuple[set[str], set[str]]:
    """Names of parts whose kernels only one of the two has, or has more often."""
    ours, theirs = running(served), running(trained)
    counts = [Counter[tuple[Any, ...]]() for _ in range(2)]
    for count, parts in zip(counts, (ours, theirs), strict=True):
        for part in parts:
            count[kernel(part)] += part.runs  # type: ignore[assignment]
    more, less = counts[0] - counts[1], counts[1] - counts[0]
    return {p.name for p in ours if kernel(p) in more}, {p.name for p in theirs if kernel(p) in less}


def matrix_flops(parts: Iterable[Part]) -> float:
    """Of products and attention."""
    return sum(p.runs * float(work_of(p.batch).flops[0]) for p in running(parts) if p.batch.family in MATRIX)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", DENSE + SPARSE + LATENT)
def test_layers_of_a_prefill_are_those_of_the_forward_pass(name: str, tp: int, engine: str) -> None:
    decoder = known_decoder(name)
    for served, trained in zip(prefill(decoder, tp, engine).layers, forward(decoder, tp, engine).layers, strict=True):
        more, less = differences(served.parts, trained.parts)
        assert more <= {*OWN, *OWN_MIXTURE}
        shared = REDUCED_APART if tp > 1 and "shared activation" in more else set()
        assert less <= {*OWN, *JOINS, *MIXTURE, *shared}
        assert ("experts" in more) == ("expert down" in less)
        assert matrix_flops(served.parts) == matrix_flops(trained.parts)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", DENSE)
def test_a_prefill_begins_like_the_forward_pass_and_ends_in_a_sample(name: str, tp: int) -> None:
    decoder = known_decoder(name)
    served, trained = prefill(decoder, tp, "vllm"), forward(decoder, tp, "vllm")
    # Ranks of training set the rows to zero whose words others have; engines' kernels read none for them.
    assert differences(served.before.parts, trained.before.parts) == (set(), {"embedding blank"} if tp > 1 else set())
    heads = [next(p.batch for p in program.after.parts if p.name == "head") for program in (served, trained)]
    assert [int(head["m"][0]) for head in heads] == [SEQUENCES, SEQUENCES * LENGTH]
    assert len({(int(head["n"][0]), int(head["k"][0])) for head in heads}) == 1
    _, less = differences(served.after.parts, trained.after.parts)
    assert {"loss", "loss probabilities"} <= less


def test_a_prefill_takes_what_the_kernels_of_the_forward_pass_take(predictor: Predictor) -> None:
    """Times of parts are those of the forward pass's kernels, priced by themselves, times the engine's factors; learned
    parts are sums in float32, whose order depends on what else is priced with them.
    """
    decoder, device = known_decoder("llama-3.1-8b"), load_device("h100-sxm-80gb")
    replica = Setup(engine="vllm").replica(decoder, device, predictor._priced)
    costs = replica.predict(Steps.of(prompts=SEQUENCES, prompt_tokens=LENGTH))

    def cost(batch: KernelBatch) -> Costs:
        ran = {"engine": "vllm", "variant": variant_of(replica.engine, device, batch)}
        conditions = Conditions.of(len(batch), timing="graph", launches=MANY_LAUNCHES, **ran)
        return predictor._priced(batch, device, conditions)

    parts = running(forward(decoder, 1, "vllm").counted_parts)
    seconds = Counter[str]()
    for part, priced in zip(parts, price(parts, cost), strict=True):
        factor = replica.engine.serving.factors[group_of(part)]
        seconds[part.name] += factor * part.runs * float(priced.latency_s[0])  # type: ignore[assignment]
    names = {"attention": "attention of prompts"}
    for name in ("qkv", "attention", "output", "gate up", "down", "embedding", "add and norm"):
        assert float(costs.parts_s[names.get(name, name)][0]) == pytest.approx(seconds[name], rel=1e-6), name
