"""Exported programs as modules that a trace can run: what the CPU would compose otherwise is called by the names that
are replaced, and the evaluation mode that they are in need not be chosen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten


def _attention(*given: Any, **how: Any) -> torch.Tensor:
    """Looked up when it is called, as a trace exchanges it."""
    return functional.scaled_dot_product_attention(*given, **how)


_BY_FUNCTION = {
    aten.scaled_dot_product_attention.default: _attention,
    aten.dropout.default: torch.dropout,
    aten.lstm.input: torch.lstm,
    aten.gru.input: torch.gru,
    aten.rnn_tanh.input: torch.rnn_tanh,
    aten.rnn_relu.input: torch.rnn_relu,
}
"""Operators of programs, and the functions whose calls ``gpu_forms`` sees."""


class Exported(torch.nn.Module):
    """A program with its inputs by name, in whatever mode it was exported."""

    def __init__(self, program: Any, names: list[str]) -> None:
        super().__init__()
        self.program = program
        self.names = names

    def forward(self, **inputs: Any) -> Any:
        """What the program returns."""
        return self.program(*(inputs[name] for name in self.names))

    def train(self, mode: bool = True) -> Exported:
        """As it is: exported modules have one mode."""
        return self


def as_module(program: torch.export.ExportedProgram) -> Exported:
    """The module of a program, without the checks of its inputs' values."""
    with _disable_current_modes():
        module: Any = program.module()
        for node in list(module.graph.nodes):
            if node.op == "call_function" and node.target in _BY_FUNCTION:
                node.target = _BY_FUNCTION[node.target]
            if node.op == "call_module" and node.target == "_guards_fn":
                module.graph.erase_node(node)
        module.graph._codegen = torch.fx.graph.CodeGen()
        module.recompile()
    return Exported(module, [str(name) for name in program.graph_signature.user_inputs])
