"""Registry of rules, keyed by ATen operator name without overload; a second registration is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neusight.errors import CoverageError, nearest
from neusight.kernels import Elementwise, Kernel
from neusight.workloads.tensors import Call, TensorSpec

Rule = Callable[[Call], tuple[Kernel, ...]]
_RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operators (``addmm``, ``relu_``; other namespaces as ``ns::op``).

    Raises:
        ValueError: one of them has a rule already.
    """

    def register(function: Rule) -> Rule:
        for operator in operators:
            if operator in _RULES:
                raise ValueError(f"operator '{operator}' has a rule already, in {_RULES[operator].__module__}")
            _RULES[operator] = function
        return function

    return register


def has_rule(operator: str) -> bool:
    """Tell whether an operator has a rule."""
    return _rule_of(operator) is not None


def _rule_of(operator: str) -> Rule | None:
    """The rule of an operator; an in-place variant (``add_``) without one of its own has that of ``add``."""
    return _RULES.get(operator) or _RULES.get(operator.removesuffix("_"))


def kernels_of(call: Call) -> tuple[Kernel, ...]:
    """The kernels that a GPU runs for a call; none for views and host work.

    Raises:
        CoverageError: the operator has no rule.
    """
    registered = _rule_of(call.name)
    if registered is None:
        raise CoverageError(
            f"operator 'aten.{call.name}' has no kernel rule{nearest(call.name, _RULES)}: register one with "
            "neusight.workloads.rules.rule, or allow the analytic fallback (--allow-fallback)"
        )
    return registered(call)


def one_pass(call: Call, op: str, elements: int, flops: int, **fields: Any) -> tuple[Elementwise, ...]:
    """One kernel that reads all operands of a call and writes its results, but for ``fields``; none of no elements."""
    if not elements:
        return ()
    whole: dict[str, Any] = {"read_bytes": call.read_bytes, "write_bytes": call.write_bytes, "dtype": call.dtype}
    return (Elementwise(op=op, elements=elements, flops=flops, **whole | fields),)


_CUBIC = ("linalg_", "_linalg_", "cholesky", "lu_", "ormqr", "triangular", "matrix_")
"""Prefixes of names of operators that factor or multiply matrices."""


def fallback(call: Call) -> tuple[Kernel, ...]:
    """An operator without a rule as one pass over its tensors, one FLOP an output element.

    Where its name says that it works on whole matrices, it does at least the m n min(m, n) FLOP of one elimination.
    """
    elements = sum(t.elements for t in call.outputs)
    flops = max([elements, *map(_elimination, call.inputs)]) if call.name.startswith(_CUBIC) else elements
    return one_pass(call, "fallback", elements, flops)


def _elimination(tensor: TensorSpec) -> int:
    return tensor.elements * min(tensor.shape[-2:]) if len(tensor.shape) > 1 else 0


VIEWS = """
    view _unsafe_view _reshape_alias reshape expand expand_as t transpose numpy_T permute select slice split
    split_with_sizes chunk unbind squeeze unsqueeze alias detach as_strided diagonal view_as unfold flatten
    movedim swapaxes narrow lift lift_fresh squeeze_ unsqueeze_ transpose_ t_ detach_ view_as_real view_as_complex
    real imag _conj conj _neg_view resolve_conj positive unsafe_split unsafe_chunk
    _indices _values _coalesced_ is_coalesced _sparse_coo_tensor_with_dims_and_tensors
"""
ALLOCATIONS = "empty empty_like empty_strided new_empty new_empty_strided resize_ set_"
HOST = """
    scalar_tensor _local_scalar_dense sym_size sym_stride sym_numel sym_storage_offset is_same_size size stride item
    _assert_async _assert_scalar _assert_tensor_metadata is_pinned prim::device
    profiler::_record_function_enter_new profiler::_record_function_exit
"""


@rule(*VIEWS.split(), *ALLOCATIONS.split(), *HOST.split())
def nothing(call: Call) -> tuple[Kernel, ...]:
    """No kernel."""
    return ()
