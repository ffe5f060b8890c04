"""Forms that a trace takes of libraries' code that fake tensors on a CPU cannot run, or run otherwise than a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from neusight.errors import NeusightError


def _never(_: Callable[..., Any]) -> Callable[..., bool]:
    return lambda *args, **kwargs: False


def _nothing(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _without_padding(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same question without the padding mask, which comes first."""

    def call(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
        return original(None, *args, **kwargs)

    return call


def padded_experts(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """A Switch layer with every expert in turn, each on a buffer of batch x expert_capacity tokens.

    Fedus et al. 2022, section 2.2: the capacity bounds the tokens of a sequence that go to one expert; the buffer is
    filled with zeros where fewer come.
    """
    batch, length, width = hidden_states.shape
    chosen, weights, _ = layer.router(hidden_states)
    rows = min(batch * layer.router.expert_capacity, batch * length)
    tokens = hidden_states.reshape(-1, width)
    result = tokens.clone()
    slots = torch.arange(rows)
    for number, expert in enumerate(layer.experts.values()):
        # Stands for the search of the chosen tokens, which real runs do by a boolean mask.
        places = chosen[..., number].reshape(-1).argsort(descending=True)[:rows]
        buffer = tokens.new_zeros(rows, width)
        buffer[slots] = tokens[places]
        result[places] = expert(buffer)[slots]
    return (weights.reshape(-1, 1) * result).reshape(batch, length, width)


def settle_routers(module: torch.nn.Module) -> None:
    """Give Switch routers the dtype that they take in the first forward pass, after which they keep it."""
    routers: list[Any] = [m for m in module.modules() if type(m).__name__ == "SwitchTransformersTop1Router"]
    for router in routers:
        classifier = router.classifier
        if classifier.weight.dtype != router.dtype:
            classifier.weight = torch.nn.Parameter(torch.empty_like(classifier.weight, dtype=router.dtype))
        # Its forward converts the classifier again, which is idle now, and impossible for fake weights.
        classifier.to = lambda *_, classifier=classifier: classifier


_SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers"
_MASKS = "transformers.masking_utils"
_WITH_FORMS = (_MASKS, _SWITCH, "torchvision.ops.boxes", "torchvision.ops.roi_align")
_UNCHECKED = "TRANSFORMERS_DISABLE_TORCH_CHECK"
"""Set, models do not compare how many places for images a text has with how many images there are."""
_PATCHES: tuple[tuple[str, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (_MASKS, "is_tracing", _never),
    (_MASKS, "find_packed_sequence_indices", _nothing),
    (_MASKS, "_ignore_causal_mask_sdpa", _without_padding),
    (_MASKS, "_ignore_bidirectional_mask_sdpa", _without_padding),
    (f"{_SWITCH}:SwitchTransformersSparseMLP", "forward", lambda _: padded_experts),
)


Form = tuple[Any, str, Callable[[Any], Any]]
"""A module, class or other object, the name of its attribute, and what makes the form that stands for that."""


@contextmanager
def exchange_forms(forms: Sequence[Form]) -> Iterator[None]:
    """Exchange attributes of modules and classes inside the context for the results of a function of them, where there
    are any.
    """
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in forms if hasattr(owner, name)]
    makers = {(id(owner), name): make for owner, name, make in forms}
    try:
        for owner, name, original in before:
            setattr(owner, name, makers[id(owner), name](original))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def always(form: Any) -> Callable[[Any], Any]:
    """Function that returns ``form`` for every original, for ``exchange_forms``."""
    return lambda _: form


def _owner(path: str) -> Any:
    """A loaded module, or a class in one; None when it is not loaded or has no such class."""
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module)
    return getattr(loaded, name, None) if loaded and name else loaded


class LateImportError(NeusightError):
    """A library with forms was imported while a module ran, which therefore ran without them."""


@contextmanager
def library_forms(more: Sequence[Form] = ()) -> Iterator[None]:
    """Run code of the libraries that are loaded in its forms.

    Raises:
        LateImportError: another library was loaded inside.
    """
    forms = [*((_owner(path), name, make) for path, name, make in _PATCHES), *_torchvision_forms(), *more]
    missing = [name for name in _WITH_FORMS if name not in sys.modules]
    checked = os.environ.get(_UNCHECKED)
    os.environ[_UNCHECKED] = "1"
    try:
        with exchange_forms(forms):
            yield
    finally:
        if checked is None:
            del os.environ[_UNCHECKED]
        else:
            os.environ[_UNCHECKED] = checked
        if any(name in sys.modules for name in missing):
            raise LateImportError("a library was imported while the module ran: trace it again")


def _torchvision_forms() -> list[Form]:
    """Forms of torchvision on a GPU: its compiled kernels, and one suppression for all classes together.

    Where values decide how many boxes there are, a loop over classes would be one over as many as there are boxes.
    """
    boxes = sys.modules.get("torchvision.ops.boxes")
    align = sys.modules.get("torchvision.ops.roi_align")
    together = getattr(boxes, "_batched_nms_coordinate_trick", None)
    forms: list[Form] = [
        (boxes, "_assert_has_ops", always(lambda: None)),
        (align, "_assert_has_ops", always(lambda: None)),
        (align, "_has_ops", always(lambda: True)),
        (boxes, "_batched_nms_vanilla", lambda own: together or own),
    ]
    return forms if boxes and align else []


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
    """Exported program with its inputs by name, in the mode in which it was exported."""

    def __init__(self, program: Any, names: list[str]) -> None:
        super().__init__()
        self.program = program
        self.names = names

    def forward(self, **inputs: Any) -> Any:
        """Results of the program."""
        return self.program(*(inputs[name] for name in self.names))

    def train(self, mode: bool = True) -> Exported:
        """Return the module unchanged: exported modules have one mode."""
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
