"""Recurrent layers as cuDNN runs them: products with the input for all steps at once, then step by step.

A step is one product of the state with the weights of all gates and one pointwise kernel for what is left (Appleyard
et al. 2016, sections 3.1.1 and 3.1.2). Layers and directions are written out one after another; cuDNN may run them side
by side, and keeps weights of 16 bits on the chip over all steps where they fit (``CUDNN_RNN_ALGO_PERSIST_STATIC``), so
that this is the longer form of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from neusight.kernels import Elementwise, Gemm, Kernel, RowReduction
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.rules.elementwise import pointwise
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec

_CELLS = {0: ("rnn_cell", 1), 1: ("rnn_cell", 1), 2: ("lstm_cell", 4), 3: ("gru_cell", 3)}
"""PyTorch's modes (relu, tanh, LSTM, GRU): the cell and its gates."""
STATES = {"rnn_cell": 1, "gru_cell": 1, "lstm_cell": 2}
"""Vectors that a cell hands to its next step."""
CELL_BACKWARD = "_backward"
"""Suffix of the name of a cell's kernel in the backward pass."""


@dataclass(frozen=True, kw_only=True)
class _Direction:
    """One direction of one layer: ``width`` of what it gets, ``hidden`` of its cell, ``state`` of what it returns."""

    cell: str
    gates: int
    steps: int
    batch: int
    width: int
    hidden: int
    state: int
    dtype: str
    element_bytes: int

    def product(self, m: int, n: int, k: int, layout: str) -> Gemm:
        """C[m, n] of depth k."""
        return Gemm(op="linear", m=m, n=n, k=k, layout=layout, dtype=self.dtype)

    @property
    def projection(self) -> tuple[Gemm, ...]:
        """Projection from the cell's width to a narrower state, if there is one."""
        return () if self.state == self.hidden else (self.product(self.batch, self.state, self.hidden, "tn"),)

    def pointwise(self, op: str, reads: int, writes: int) -> Elementwise:
        """Kernel over the states of a batch that reads ``reads`` and writes ``writes`` vectors of them."""
        elements = self.batch * self.hidden
        return Elementwise(
            op=op, elements=elements, read_bytes=reads * elements * self.element_bytes,
            write_bytes=writes * elements * self.element_bytes, flops=ELEMENTWISE[op].flops * elements,
            dtype=self.dtype,
        )  # fmt: skip

    def forward(self) -> tuple[Kernel, ...]:
        """All steps' products with the input, then each step's with the state; gates of both are read."""
        rows = self.gates * self.hidden
        inputs = self.product(self.steps * self.batch, rows, self.width, "tn")
        states = STATES[self.cell]
        step: tuple[Kernel, ...] = (
            self.product(self.batch, rows, self.state, "tn"),
            self.pointwise(self.cell, 2 * self.gates + states - 1, self.gates + states),
            *self.projection,
        )
        return (inputs, *step * self.steps)

    def backward(self) -> tuple[Kernel, ...]:
        """Step by step the gradients of gates and state; then those of the input, of both weights and of the biases.

        A step's kernel reads the kept gates and states and two gradients for each state, and writes those of the gates.
        """
        rows, all_rows, states = self.gates * self.hidden, self.steps * self.batch, STATES[self.cell]
        turned = tuple(self.product(p.m, p.k, p.n, "nn") for p in self.projection)
        step: tuple[Kernel, ...] = (
            *turned,
            self.pointwise(f"{self.cell}{CELL_BACKWARD}", self.gates + 3 * states, self.gates + states - 1),
            self.product(self.batch, self.state, rows, "nn"),
        )
        after = (
            self.product(all_rows, self.width, rows, "nn"),
            self.product(rows, self.width, all_rows, "nt"),
            self.product(rows, self.state, all_rows, "nt"),
            *(self.product(p.n, p.k, all_rows, "nt") for p in self.projection),
        )
        return (*step * self.steps, *after, self._bias_sum(rows, all_rows))

    def _bias_sum(self, rows: int, cols: int) -> RowReduction:
        size = self.element_bytes
        return RowReduction(
            op="sum", rows=rows, cols=cols, read_bytes=rows * cols * size, write_bytes=rows * size,
            flops=ROW_REDUCTION["sum"].flops * rows * cols, dtype=self.dtype,
        )  # fmt: skip


def _directions(x: TensorSpec, setting: tuple[object, ...]) -> Iterator[_Direction]:
    """Directions of a recurrent layer, from a call's input and its arguments from ``mode`` to ``batch_sizes``, layer by
    layer.
    """
    mode, hidden, projected, layers, batch_first, _, _, both, batch_sizes = setting
    assert isinstance(mode, int) and isinstance(hidden, int) and isinstance(projected, int)
    assert isinstance(layers, int) and isinstance(batch_sizes, tuple)
    cell, gates = _CELLS[mode]
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    if batch_sizes:
        # Packed: every step has as many sequences as are not over; their mean does the same work.
        steps, batch = len(batch_sizes), -(-sum(batch_sizes) // len(batch_sizes))
    ways, state = 1 + bool(both), projected or hidden
    for layer in range(layers):
        width = x.shape[-1] if layer == 0 else ways * state
        direction = _Direction(
            cell=cell, gates=gates, steps=steps, batch=batch, width=width, hidden=hidden, state=state,
            dtype=x.dtype, element_bytes=x.element_bytes,
        )  # fmt: skip
        yield from (direction,) * ways


@rule("_cudnn_rnn")
def recurrent(call: Call) -> tuple[Kernel, ...]:
    """Arguments: input, weights, weight_stride0, weight_buf, hx, cx, mode, hidden_size, proj_size, num_layers,
    batch_first, dropout, train, bidirectional, batch_sizes, dropout_state.
    """
    directions = _directions(call.args[0], call.args[6:15])
    return tuple(chain.from_iterable(direction.forward() for direction in directions))


@rule("_cudnn_rnn_backward")
def recurrent_backward(call: Call) -> tuple[Kernel, ...]:
    """Arguments: input, weights, weight_stride0, weight_buf, hx, cx, output, grad_output, grad_hy, grad_cy, mode, …"""
    directions = list(_directions(call.args[0], call.args[10:19]))
    return tuple(chain.from_iterable(direction.backward() for direction in reversed(directions)))


@rule("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")
def cell(call: Call) -> tuple[Kernel, ...]:
    """Reads the gates of both products, biases and state; writes the new state and the gates for the backward pass."""
    return pointwise(call, "lstm_cell" if "lstm" in call.name else "gru_cell")


@rule("_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell_backward")
def cell_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the kept gates and the gradients of the state, writes the gradients of the gates."""
    op = "lstm_cell_backward" if "lstm" in call.name else "gru_cell_backward"
    hidden = call.args[0].shape[-1] if call.args[0] is not None else call.output.shape[-1] // 4
    gates = call.output.shape[-1] // hidden
    return pointwise(call, op, ELEMENTWISE[op].flops // gates)
