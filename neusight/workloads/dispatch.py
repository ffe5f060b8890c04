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
WRAPPER = 1.3
"""What ``torch.distributed`` adds in Python to a call of its group: an ``all_gather_into_tensor`` among eight ranks
takes a CPU 6.8 µs and the group's own method 4.8, where an addition that keeps a graph takes 1.46 (fastest of seven
times 3,000 calls, a group of the backend ``fake``, PyTorch 2.13)."""
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
    written = node.operator.startswith(f"{HAND_WRITTEN}.")
    return {"hand_written": len(node.kernels)} if written else operator_kinds(node.kernels)


def operator_kinds(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Kinds that an operator with these kernels counts as, with their numbers."""
    kinds = {_kind(kernel.family, getattr(kernel, "op", "")) for kernel in kernels}
    return {max(kinds, key=DISPATCHES.__getitem__, default="view"): 1, "further": max(0, len(kernels) - 1)}


def part_dispatches(part: Part) -> float:
    """Dispatch cost of a kernel of a program that is a separate operator, or a further one of another's; of one that is
    written out each simpler one is an operator. A function of Python that hands its arguments to a C library (ctypes)
    takes as long as a product's search for its kernel (assumption).
    """
    op, passes = (str(part.batch[name][0]) if name in part.batch.columns else "" for name in ("op", "passes"))
    first = DISPATCHES["further" if part.further else _kind(part.batch.family, op)]
    return first + (int(passes or 1) - 1) * DISPATCHES["pointwise"] + part.python_calls * DISPATCHES["library"]


def exchange_dispatches(launch: str) -> float:
    """Dispatch cost of a collective of a training step: a library's call that takes and leaves events of two streams,
    through Python (PyTorch, ``distributed_c10d.py``, ``ProcessGroupNCCL.cpp``), unless compiled code calls the operator
    in C++ (``torch.ops._c10d_functional``, ``torch/_inductor/comm_lowering.py``).
    """
    return DISPATCHES["library"] + WRAPPER * (launch == "eager")


def trained_dispatches(part: Part, engine: Engine) -> float:
    """Dispatches of a kernel or collective of a training step, with views that come with it: compiled code makes none,
    its kernels take pointers and strides. Where layers, and what exchanges their activations, are functions of
    autograd, gradients of weights go through a hook in Python each.
    """
    kernel = exchange_dispatches(engine.launch) if part.group else part_dispatches(part)
    functions = engine.autograd_functions and not _is_in_product(part, engine)
    return kernel + VIEWS * DISPATCHES["view"] * (engine.launch == "eager") + FUNCTION * functions


def _is_in_product(part: Part, engine: Engine) -> bool:
    """Whether a part runs in the function of its product: what sums gradients of biases, and what gathers and scatters
    rows of sequences, in Megatron-LM beside gradients of weights (``LinearWithGradAccumulationAndAsyncCommunication``),
    in Transformer Engine always (transformer_engine/pytorch/module/linear.py, ``_Linear``).
    """
    beside = part.group == "tp" and (part.overlapped or engine.transformer_engine)
    scattered = beside and str(part.batch["op"][0]) != "all_reduce"
    return part.further or scattered or (part.phase == "weights" and part.batch.family == "row_reduction")


def _kind(family: str, op: str) -> str:
    heavy = "reduction" if family == "row_reduction" and op not in _CUDNN else "library"
    return "pointwise" if family in _STREAMS else heavy
