"""Functions that a GPU runs as one kernel of a library, where a machine without that library or GPU runs a reference.

Each is an operator of its own, with a backward pass, whose rules stand in ``rules.fused``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.attention import flex_attention
from torch.utils._python_dispatch import _disable_current_modes

from neusight.workloads.target import TargetReader
from neusight.workloads.trace.library_forms import Form, always

_OPERATORS = (
    *("causal_conv1d", "selective_scan", "state_steps", "wkv", "chunk_delta_rule", "chunk_scan", "flex_attention"),
)
_LIBRARY = torch.library.Library("triton", "FRAGMENT")
for _name in _OPERATORS:
    _LIBRARY.define(f"{_name}(Tensor[] operands, int[] shape, int[] sizes) -> Tensor")
    _LIBRARY.define(f"{_name}_backward(Tensor gradient, Tensor[] operands, int[] sizes) -> Tensor[]")
    _LIBRARY.impl(_name, lambda operands, shape, sizes: operands[0].new_empty(shape), "Meta")
    _LIBRARY.impl(f"{_name}_backward", lambda gradient, operands, sizes: list(map(torch.empty_like, operands)), "Meta")


class _Fused(torch.autograd.Function):
    """One operator forward, and one backward that gets the operands again."""

    @staticmethod
    def forward(ctx: Any, name: str, shape: Sequence[int], sizes: list[int], *operands: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*operands)
        ctx.call = name, sizes
        result: torch.Tensor = getattr(torch.ops.triton, name)(operands, shape, sizes)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name, sizes = ctx.call
        gradients = getattr(torch.ops.triton, f"{name}_backward")(gradient, ctx.saved_tensors, sizes)
        return None, None, None, *gradients


def _fuse(name: str, shape: Sequence[int], sizes: list[int], *operands: torch.Tensor | None) -> torch.Tensor:
    """The result of an operator, in the dtype of its first operand."""
    result: torch.Tensor = _Fused.apply(name, list(shape), sizes, *(x for x in operands if x is not None))
    return result


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
    return _fuse("causal_conv1d", x.shape, [], x, weight, bias)


def _convolution_step(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    return _fuse("causal_conv1d", x.shape, [], x, weight, bias, state)


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _selective_scan(
    x: torch.Tensor, delta: torch.Tensor, decay: torch.Tensor, *more: Any, return_last_state: bool = False, **named: Any
) -> Any:
    """Mamba's, of [batch, channels, tokens] (state-spaces/mamba, ``selective_scan_fn``)."""
    states = decay.shape[-1]
    result = _fuse("selective_scan", x.shape, [states], x, delta, decay, *_tensors(*more, *named.values()))
    return (result, x.new_empty(*x.shape[:-1], states)) if return_last_state else result


def _state_update(state: torch.Tensor, x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
    """One token of Mamba's or Mamba-2's states (state-spaces/mamba, ``selective_state_update``)."""
    return _fuse("state_steps", x.shape, [state.shape[-1]], x, state, *_tensors(*more, *named.values()))


def _chunk_scan(
    x: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor, inputs: torch.Tensor, *more: Any,
    return_final_states: bool = False, **named: Any,
) -> Any:  # fmt: skip
    """Mamba-2's, of [batch, tokens, heads, width] (state-spaces/mamba, ``mamba_chunk_scan_combined``)."""
    chunk = next(value for value in (named.get("chunk_size"), *more) if isinstance(value, int))
    result = _fuse("chunk_scan", x.shape, [chunk], x, inputs, dt, decay, *_tensors(*more, *named.values()))
    return (result, x.new_empty(x.shape[0], *x.shape[2:], inputs.shape[-1])) if return_final_states else result


def _delta_rule(operator: str) -> Callable[..., Any]:
    """The gated delta rule over [batch, tokens, heads, width] (flash-linear-attention), in chunks or step by step."""

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, output_final_state: bool = False,
        **named: Any,
    ) -> Any:  # fmt: skip
        state = value.new_empty(value.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
        operands = _tensors(value, query, key, *more, *named.values())
        result = _fuse(operator, value.shape, [key.shape[-1]], *operands)
        return result, state if output_final_state else None

    return run


def _wkv(
    decay: torch.Tensor, first: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, state: Any = None,
    return_state: bool = False,
) -> Any:  # fmt: skip
    """RWKV's attention, of [batch, tokens, channels], and its three states."""
    last = [key.new_empty(key.shape[0], key.shape[-1]) for _ in range(3)] if return_state or state is not None else None
    return _fuse("wkv", value.shape, [], value, key, decay, first), last


_KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": _convolution_step,
    "selective_scan_fn": _selective_scan,
    "selective_state_update": _state_update,
    "mamba_chunk_scan_combined": _chunk_scan,
    **dict.fromkeys(("chunk_gated_delta_rule", "chunk_kda"), _delta_rule("chunk_delta_rule")),
    **dict.fromkeys(("fused_recurrent_gated_delta_rule", "fused_recurrent_kda"), _delta_rule("state_steps")),
}
"""Kernels by the names that transformers has for those of causal-conv1d, mamba-ssm and flash-linear-attention. What
those fuse beyond, projections among it (``mamba_inner_fn``), has the same kernels one after another."""
_FUNCTIONS = {("transformers.models.rwkv.modeling_rwkv", "rwkv_linear_attention"): _wkv}
"""Functions that look for a kernel by themselves."""


class _Any(Container[str]):
    """Every name of a parameter."""

    def __contains__(self, _: object) -> bool:
        return True


def kernel_forms(reader: TargetReader) -> list[Form]:
    """Forms of transformers' functions that run a kernel of a library where it is installed, on a GPU."""
    models = [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]
    wrapped = {id(f): f for module in models for f in vars(module).values() if hasattr(f, "__wrapped__")}
    cells = [cells for f in wrapped.values() if (cells := _cells(f)).keys() >= {"func_name", "implementation"}]
    forms: list[Form] = []
    for cell in cells:
        if (kernel := _KERNELS.get(cell["func_name"].cell_contents)) is not None:
            values = {"implementation": kernel, "applicable_params": _Any(), "is_new_implementation": True}
            forms += [(cell[name], "cell_contents", always(value)) for name, value in values.items()]
    forms += [(sys.modules.get(module), name, always(form)) for (module, name), form in _FUNCTIONS.items()]
    return forms if forms and reader.read("cuda") else []


def _cells(function: Any) -> dict[str, Any]:
    """Variables of a function's closure."""
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return dict(zip(code.co_freevars, closure, strict=True)) if code and closure else {}


def flex_forms(unfused: Callable[..., torch.Tensor] | None, notes: dict[str, None]) -> list[Form]:
    """Let ``flex_attention`` be one kernel, or call ``unfused``, which takes what scaled-dot-product attention does;
    ``notes`` gets lines on masks that are not known.
    """
    forms: dict[str, Any] = {
        "_validate_device": lambda *_: None,
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "flex_attention_hop": lambda *given, **_: _attend(unfused, notes, *given),
    }
    return [(flex_attention, name, always(form)) for name, form in forms.items()]


def _attend(
    unfused: Callable[..., torch.Tensor] | None, notes: dict[str, None], *given: Any
) -> tuple[torch.Tensor, ...]:
    """The result, with the logarithms of sums and the largest scores, of shape (batch, heads, queries), beside it.

    Args:
        unfused, notes: see ``flex_forms``.
        given: queries, keys, values, the change of scores, the blocks of the mask, the scale, and options.
    """
    query, key, value, _, blocks, scale, *_ = given
    if unfused is not None:
        output = unfused(query, key, value, scale=scale, enable_gqa=query.shape[-3] != key.shape[-3])
    else:
        sizes = _mask_sizes(blocks[-1], query.shape[-2], key.shape[-2])
        if sizes is None:
            sizes = [0, 0, 0]
            notes["the mask of flex_attention depends on values of tensors: every key is taken to count"] = None
        output = _fuse("flex_attention", (*query.shape[:-1], value.shape[-1]), sizes, query, key, value)
    auxiliary = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return output, auxiliary, auxiliary


_MASK_ELEMENTS = 1 << 22
"""Elements of a mask that are looked at: whole rows of it, evenly apart."""


def _mask_sizes(mask: Callable[..., torch.Tensor], queries: int, keys: int) -> list[int] | None:
    """Sizes of a mask: whether it is causal, its window, and else the keys of a query on average; all 0 where every key
    counts. The mask of the first sample and head stands for all; None where it depends on tensors without values.
    """
    rows = max(1, min(queries, _MASK_ELEMENTS // keys))
    try:
        with _disable_current_modes(), unset_fake_temporarily():
            query, key = torch.arange(queries)[:: -(-queries // rows)], torch.arange(keys)
            zero = torch.zeros((), dtype=torch.long)
            over_keys = torch.vmap(mask, in_dims=(None, None, None, 0))
            chosen = torch.vmap(over_keys, in_dims=(None, None, 0, None))(zero, zero, query, key)
    except Exception:  # A mask is code of a user's, and may hold tensors that have no values.
        return None
    if isinstance(chosen, FakeTensor):
        return None
    past = (query[:, None] + keys - queries) - key
    counts = chosen.sum(1)
    window = int(counts.max())
    if bool(chosen.all()):
        return [0, 0, 0]
    for width in (0, window):
        if torch.equal(chosen, (past >= 0) & (past < (width or keys))):
            return [1, width, 0]
    return [0, 0, max(1, round(float(counts.float().mean())))]
