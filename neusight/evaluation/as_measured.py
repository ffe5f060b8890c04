"""Steps of attention as they were when whole models were measured, where today's libraries take others.

Libraries rewrite eager attention: OPT's of 2023 scaled the queries before the product and held the masked scores above
the least float32 with a ``max`` over all of them; today's scales the scores and has no ``max``. A table of the measured
operators beside the measurements says which steps over the scores there were; those that the workload lacks are added
to its estimate, and those that only it has are taken from it. So are the kernels of dropout's gradient, where that was
measured in the form that can be differentiated again.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.kernels import KernelBatch
from neusight.kernels.operators import operator, operator_bytes

if TYPE_CHECKING:
    import numpy as np

    from neusight.workloads.workload import Launch

OPERATORS = "operators.parquet"
STEPS = {
    **dict.fromkeys(("truediv", "mul", "mul_scalar", "div_scalar"), "scale"),
    "add": "added mask",
    **dict.fromkeys(("where", "masked_fill"), "chosen mask"),
    **dict.fromkeys(("max", "clamp_min"), "floor"),
}
"""What a step over scores is for, by name: those of torch, and those of kernels."""
FORWARD = {
    "scale": ("mul_scalar",),
    "added mask": ("add",),
    "chosen mask": ("masked_fill",),
    "floor": ("clamp_min",),
}
BACKWARD = {
    "scale": ("mul_scalar",),
    "added mask": (),
    "chosen mask": ("masked_fill",),
    "floor": ("eq", "div_scalar", "where", "lt", "masked_fill"),
}
"""Kernels of a step. The gradient of ``max`` is halved where both are equal and nothing where the other is larger
(PyTorch, ``derivatives.yaml``): five kernels."""
_FUNCTION = re.compile(r"(?:function|method) (\w+)")
_MATCHED = frozenset({"truediv", "add"})
"""Steps between the two products of attention, beside softmax and dropout, that Inductor of PyTorch 2.1 takes for
scaled-dot-product attention on CUDA: a mask that is added, not one that is chosen by ``where`` (``fuse_attention.py``;
pytorch/pytorch#107578, #108327, and #121866 on GPT-2's form)."""
WIDTH = 4
"""Bytes of float32, in which these models were measured."""
DROPPED, DIFFERENTIABLE = "dropout_backward", ("mask", "mul_scalar", "mul")
"""The gradient of dropout as one kernel, and as ``create_graph`` runs it: the mask as numbers, scaled, times the
gradient (PyTorch, ``FunctionsManual.cpp``, ``infinitely_differentiable_native_dropout_backward``)."""
TWICE = 2.0
"""Times its forward that a gradient of dropout takes that is no single kernel: one kernel moves as many bytes."""


@dataclass(frozen=True)
class Change:
    """``count`` more, or fewer, kernels of an operator over ``elements``, in a phase, beside which a mask of
    ``mask_bytes`` is read; None where the operator tells what it reads.
    """

    op: str
    phase: str
    elements: int
    count: int
    mask_bytes: int | None = None


@lru_cache(maxsize=4)
def _table(path: Path) -> dict[tuple[str, str, int, int], list[dict[str, Any]]]:
    """Measured operators of each (model, mode, batch, seq_len); every GPU ran the same."""
    from neusight.datasets.schema import read_parquet

    if not path.is_file():
        return {}
    steps: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    first: dict[tuple[str, str, int, int], str] = {}
    for row in read_parquet(path).to_pylist():
        key = (row["model"], row["mode"], row["batch"], row["seq_len"])
        if first.setdefault(key, row["gpu"]) == row["gpu"]:
            steps.setdefault(key, []).append(row)
    return steps


def changes(operators: Path, record: Mapping[Any, Any], launches: Sequence[Launch]) -> list[Change]:
    """What differs between a step as measured and its workload: steps over the scores of attention, kernels of dropout.

    Args:
        operators: the table of measured operators; where there is none, nothing differs.
        record: of ``load_models``.
        launches: of the workload.
    """
    key = (record["model"], record["mode"], record["batch"], record["seq_len"])
    rows = _table(operators).get(key, [])
    scores = next((_elements(row) for row in rows if _function(row) == "softmax"), 0)
    layers = sum(launch.count for launch in launches if launch.kernel.op == "softmax" and _size(launch) == scores)
    if not scores or not layers:
        return []
    more: Counter[str] = Counter()
    masks: dict[str, int] = {}
    for row in rows:
        if (step := STEPS.get(_function(row), "")) and _elements(row) == scores:
            more[step] += layers
            masks |= _mask_bytes(step, row)
    for launch in launches:
        if launch.phase == "forward" and _size(launch) == scores and (step := STEPS.get(launch.kernel.op, "")):
            more[step] -= launch.count
            masks.setdefault(step, max(0, getattr(launch.kernel, "read_bytes", 0) - WIDTH * scores))
    steps = (_of_step(step, scores, more[step], record["mode"], masks.get(step)) for step in FORWARD if more[step])
    return [*(change for found in steps for change in found), *_of_dropout(rows, launches)]


def inductor_attends(operators: Path, record: Mapping[Any, Any]) -> bool:
    """Whether ``torch.compile`` ran the measured model's attention as one kernel.

    Args:
        operators: the table of measured operators; where there is none, attention stays as it was written.
        record: of ``load_models``.
    """
    rows = _table(operators).get((record["model"], record["mode"], record["batch"], record["seq_len"]), [])
    scores = next((_elements(row) for row in rows if _function(row) == "softmax"), 0)
    steps = {name for row in rows if (name := _function(row)) in STEPS and _elements(row) == scores}
    return bool(scores) and steps <= _MATCHED


def _of_step(step: str, elements: int, count: int, mode: str, mask_bytes: int | None) -> Iterator[Change]:
    mask = mask_bytes if step.endswith("mask") else None
    yield from (Change(op, "forward", elements, count, mask) for op in FORWARD[step])
    if mode == "training":
        yield from (Change(op, "backward", elements, count, mask) for op in BACKWARD[step])


def _mask_bytes(step: str, row: Mapping[str, Any]) -> dict[str, int]:
    """Of a step with a mask that its operands tell: the smaller of those that are no number."""
    sizes = [prod(shape) for shape in literal_eval(row.get("input_shapes") or "[]")]
    width = 1 if step == "chosen mask" else WIDTH
    return {step: width * min(size for size in sizes if size > 1)} if max(sizes, default=0) > 1 else {}


def _of_dropout(rows: Sequence[Mapping[str, Any]], launches: Sequence[Launch]) -> Iterator[Change]:
    """Kernels of gradients of dropout in the form that can be differentiated again, which their time tells."""
    largest = max((row for row in rows if "drop" in row["target"]), key=_elements, default=None)
    if largest is None or not largest.get("backward_ms", 0.0) > TWICE * largest.get("forward_ms", 0.0):
        return
    for launch in launches:
        if launch.kernel.op == DROPPED:
            yield Change(DROPPED, launch.phase, _size(launch), -launch.count)
            yield from (Change(op, launch.phase, _size(launch), launch.count) for op in DIFFERENTIABLE)


def _function(row: Mapping[str, Any]) -> str:
    match = _FUNCTION.search(row["target"]) if row["kind"] == "call_function" else None
    return match.group(1) if match else ""


def _elements(row: Mapping[str, Any]) -> int:
    return prod(literal_eval(row["output_shape"]))


def _size(launch: Launch) -> int:
    kernel: Any = launch.kernel
    return int(getattr(kernel, "elements", 0) or getattr(kernel, "rows", 0) * getattr(kernel, "cols", 0))


def changed_s(changes: Sequence[Change], seconds: Callable[[KernelBatch], np.ndarray]) -> dict[str, float]:
    """Seconds that changes add to each phase.

    Args:
        found: the changes.
        seconds: what kernels take [s], shape (n,).
    """
    added: dict[str, float] = {}
    for change in changes:
        added[change.phase] = added.get(change.phase, 0.0) + change.count * float(seconds(kernel_of(change))[0])
    return added


def kernel_of(change: Change) -> KernelBatch:
    """The kernel of a change, alone in a batch."""
    name = "mul_scalar" if change.op == "mask" else change.op
    known, elements = operator("elementwise", name), change.elements
    read, written = operator_bytes(known, (elements, 1, elements), WIDTH)
    # A comparison with a scalar reads one tensor.
    read = elements * WIDTH if change.op in ("eq", "lt") else read
    # A mask becomes numbers, a byte each.
    read = elements if change.op == "mask" else read
    read = read if change.mask_bytes is None else elements * WIDTH + change.mask_bytes
    stated = {"read_bytes": read, "write_bytes": written, "flops": known.flops * elements, "passes": known.passes}
    return KernelBatch.from_columns("elementwise", op=[name], dtype=["float32"], elements=[elements], **stated)
