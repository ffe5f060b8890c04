"""Cost of dispatching operators on a host, in units of one that runs a single pointwise kernel.

A view makes no more than a tensor; a reduction plans its blocks; a product, a convolution or a batch norm asks cuBLAS
or cuDNN, which look up a kernel and its workspace (PyTorch, ``CUDABlas.cpp``, ``Conv_v8.cpp``, ``Reduce.cuh``). The
figures are those that ``neusight fit hosts`` finds in timed programs (``dispatch``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from neusight.engines import Engine
from neusight.kernels.families import Kernel
from neusight.workloads.program import Part
from neusight.workloads.workload import Node, Workload

DISPATCHES: Mapping[str, float] = {
    "view": 0.36, "pointwise": 1.0, "reduction": 2.1, "library": 3.85, "further": 0.37, "hand_written": 6.8, "bags": 316
}  # fmt: skip
"""Of an operator, by what it is; ``further``: of each of its kernels after the first; ``hand_written``: a function of
autograd in Python, whose calls and allocations take a host five times as long as an addition that keeps a graph (timed
on a CPU), and Triton's launch of 18 µs (triton-lang/triton, pull request 3648); ``bags``: beside each of three
exchanges a step of ranks that share tables of embeddings, for TorchRec 1.8 counts, permutes and awaits rows in Python,
which takes a host 2.20 ms beside the 0.455 ms of the 196 of DLRM's networks (medians of eight runs on a CPU with two
ranks and next to no arithmetic; 4 and 104 tables take as much)."""
FUNCTION = 5.0
"""What a function of Python that PyTorch calls, such as one of autograd, adds to its kernels (``hand_written``)."""
VIEWS = 1.6
"""Views that come with an operator: so many are in traces of layers of GPT-2, 21 with 13 operators of its forward pass
and 43 with 28 of its backward pass."""
CHECKPOINT = FUNCTION + 12.0
"""Of what is computed again: a function of autograd that reads the states of random numbers, three of them, in the
forward pass, and reads, sets and sets them back in the backward pass (Megatron-LM, ``CheckpointFunction``)."""
HAND_WRITTEN = "triton"
"""Begins the operators that are such functions."""
_STREAMS = ("elementwise", "memory", "optimizer", "collective")
_CUDNN = ("batch_norm", "batch_norm_backward")
"""Reductions of a library."""


def dispatches(counts: Mapping[str, int]) -> float:
    """Dispatch cost of operators, from their number by kind."""
    return sum(DISPATCHES[kind] * count for kind, count in counts.items())


def step_kinds(workload: Workload) -> Counter[str]:
    """Number of operators of a step by kind, views included. The start of a graph is one; where kernels were chosen
    before, each is as one of a pointwise operator.
    """
    counts: Counter[str] = Counter()
    launch = workload.request.engine.launch
    if launch == "graph":
        return Counter(pointwise=1)
    if launch == "static":
        more = sum(node.runs * max(0, len(node.kernels) - 1) for node in workload.nodes)
        return Counter(pointwise=sum(node.runs for node in workload.nodes if node.kernels), further=more)
    for node in workload.nodes:
        for kind, count in _node_kinds(node).items():
            counts[kind] += node.runs * count
    return counts


def node_dispatches(node: Node, launch: str) -> float:
    """Dispatch cost of one run of an operator or a collective of a trace, where views are separate operators."""
    if ops := [getattr(kernel, "op", "") for kernel in node.kernels if kernel.family == "collective"]:
        return exchange_dispatches(launch) + DISPATCHES["bags"] * ("_bag" in node.operator) * ops.count("all_to_all")
    return dispatches(_node_kinds(node))


def _node_kinds(node: Node) -> Mapping[str, int]:
    if node.operator.startswith(f"{HAND_WRITTEN}."):
        return {"hand_written": len(node.kernels)}
    return operator_kinds(node.kernels)


def operator_kinds(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Kinds that an operator with these kernels counts as, with their numbers."""
    kinds = {_kind(kernel.family, getattr(kernel, "op", "")) for kernel in kernels}
    return {max(kinds, key=DISPATCHES.__getitem__, default="view"): 1, "further": max(0, len(kernels) - 1)}


def part_dispatches(part: Part) -> float:
    """Dispatch cost of a kernel of a program that is a separate operator, or a further one of another's; of one that is
    written out each simpler one is an operator. A function of Python that hands its arguments to a C library (ctypes)
    takes as long as a product's search for its kernel (assumption).
    """
    columns = part.batch.columns
    op = str(part.batch["op"][0]) if "op" in columns else ""
    passes = int(part.batch["passes"][0]) - 1 if "passes" in columns else 0
    first = DISPATCHES["further" if part.further else _kind(part.batch.family, op)]
    return first + passes * DISPATCHES["pointwise"] + part.python_calls * DISPATCHES["library"]


def exchange_dispatches(launch: str) -> float:
    """Dispatch cost of a collective of a training step: a library's call that takes and leaves events of two streams,
    within a function of Python (PyTorch, ``distributed_c10d.py``, ``ProcessGroupNCCL.cpp``), unless compiled code calls
    the operator in C++ (``torch.ops._c10d_functional``, ``torch/_inductor/comm_lowering.py``).
    """
    return DISPATCHES["library"] + FUNCTION * (launch == "eager")


def trained_dispatches(part: Part, engine: Engine) -> float:
    """Dispatches of a kernel or collective of a training step, with views that come with it: compiled code makes none,
    its kernels take pointers and strides. Where layers, and what exchanges their activations, are functions of
    autograd, gradients of weights go through a hook in Python each; what sums gradients of biases is a part of its
    product's function.
    """
    kernel = exchange_dispatches(engine.launch) if part.group else part_dispatches(part)
    views = VIEWS * DISPATCHES["view"] * (engine.launch == "eager")
    further = part.further or (part.phase == "weights" and part.batch.family == "row_reduction")
    return kernel + views + FUNCTION * (engine.autograd_functions and not further)


def _kind(family: str, op: str) -> str:
    if family in _STREAMS:
        return "pointwise"
    return "reduction" if family == "row_reduction" and op not in _CUDNN else "library"
