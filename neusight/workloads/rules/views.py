"""Operators that launch nothing: views, metadata, allocations and what the host does alone."""

from __future__ import annotations

from neusight.kernels import Kernel
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call

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
