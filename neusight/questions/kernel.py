"""``KernelCall``: one kernel with its shape, under the conditions in which it is timed."""

from __future__ import annotations

from neusight.kernels.conditions import OPERANDS, TIMERS
from neusight.questions.field import number, required, switch, text, texts, whole
from neusight.questions.parts import ENGINE, MODEL, RECORDED, OnCluster
from neusight.questions.unset import usual
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KernelCall(OnCluster):
    """A kernel: its name, ``field=value`` of its shape, whose kernel it is and what a timer sees of it."""

    name: str = required(
        "A family (gemm, conv2d, attention, …) or an operator (softmax, gelu, all_reduce, …).", MODEL, listable=True
    )
    shape: tuple[str, ...] = texts("Shape of the kernel.", MODEL, metavar="FIELD=VALUE")
    backend: str = text(
        "Library or engine whose kernel runs: torch, vllm, sglang, tensorrt-llm, flashinfer, deepgemm, aiter, xla, …",
        ENGINE, "torch", former=("engine",), metavar="NAME",
    )  # fmt: skip
    variant: str = text(
        "Implementation that the backend chooses, such as fa2, fa3, triton or cutlass.",
        ENGINE, if_unset=usual("attention_backend"), metavar="NAME",
    )  # fmt: skip
    timer: str = text(
        "What the figure holds: a launch between events, a replay of a CUDA graph, the kernel alone (profiler), or the "
        "mean of calls in a loop (wall).",
        ENGINE, "events", choices=tuple(TIMERS), former=("timing",),
        meanings={"stream": "events", "graph": "cuda_graph"},
    )  # fmt: skip
    operands: str = text(
        "Place of operands: device memory, L2 as far as they fit, or --operand-sets that take turns.",
        ENGINE, "cold", choices=(*OPERANDS, "rotating"),
    )  # fmt: skip
    operand_sets: int | None = whole("Sets of operands that take turns.", ENGINE, high=10**6)
    cycled_bytes: float | None = number(
        "Bytes that are touched between two uses of an operand, in place of --operands.",
        RECORDED, low=0.0, high=1e18, unit="bytes", metavar="SIZE",
    )  # fmt: skip
    one_input: bool = switch("Weights alone take turns; the input is the same each time.", RECORDED)
    launches_per_graph: int | None = whole(
        "Kernels that share the launch of a graph. Default: those of a model's step.", ENGINE, former=("launches",)
    )
    burst: float | None = number(
        "Kernels that run back to back before the device rests. Default: without end.", ENGINE, low=1.0, high=1e12
    )
    random: bool = switch("Operands hold random values, which draw more power than equal ones.", RECORDED, True)
    recorded: bool = switch("The launch is that of the host that recorded the source.", RECORDED)
