"""Modules on fake tensors: built without initialisation, copied without weights, and watched for the running layer."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from neusight.errors import ModelError
from neusight.kernels.precision import Precision
from neusight.requests import DTYPES
from neusight.workloads.trace.library_forms import exchange_forms, settle_routers
from neusight.workloads.trace.recorder import Recorder
from neusight.workloads.trace.values import copy_of, has_values, is_small, tensors_in, with_values
from neusight.workloads.trace.wrappers import note_compilers, strip_compilers, unwrap

aten = torch.ops.aten
Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a module's call, in order and by name."""
_FEW = 256
"""Elements of a tensor of settings."""
_MOST_WEIGHTS = 1 << 25
"""Floating numbers of a function's tensors that have values."""
_SMALL_FACTORIES = {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default}
_FILLS = ("normal_", "uniform_", "fill_", "zero_", "trunc_normal_", "random_", "bernoulli_", "exponential_", "erfinv_")


class _Building(TorchDispatchMode):
    """Mode of construction: in-place initialisers return at once, as fake weights have no values; ranges keep theirs.

    Constructors compute settings from short ranges (one dropout rate or width a layer) and read them, so operators that
    have no other tensors run for real.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith(_FILLS):
            return args[0]
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            # Only initialisers ask ("any weight out of range?"); a zero, or False, ends their search.
            return 0.0 if args[0].is_floating_point() else False
        if func in _SMALL_FACTORIES or _all_real(args):
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Sparing(TorchDispatchMode):
    """Tensors have values where they are small, and no storage otherwise, so that a large model needs no memory.

    Floating ones have values until those before them have ``_MOST_WEIGHTS`` elements.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spent = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        has_all = all(map(has_values, tensors_in((*args, *kwargs.values()))))
        if has_all and (func.is_view or func._schema.is_mutable):
            return func(*args, **kwargs)
        try:
            result = _without_storage(func, args, kwargs)
        except (RuntimeError, NotImplementedError):
            # The shape of the result depends on values.
            if not has_all:
                raise
            result = ()
        if has_all and all(map(self._affords, tensors_in((result,)))):
            return with_values(func, args, kwargs)
        if func._schema.is_mutable and has_values(args[0]):
            raise NotImplementedError(f"{func} writes values that are not there")
        return result

    def _affords(self, result: torch.Tensor) -> bool:
        """Tell whether a tensor gets values, and count those against the budget."""
        if not result.is_floating_point() or result.numel() <= _FEW:
            return is_small(result)
        self._spent += result.numel()
        return is_small(result) and self._spent <= _MOST_WEIGHTS


def _without_storage(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operator on tensors of the same shapes without values."""
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return func(*args, **kwargs | ({"device": torch.device("meta")} if "device" in kwargs else {}))


def _all_real(args: tuple[Any, ...]) -> bool:
    """Tell whether all tensors have values; among numbers they must be few, as settings are and tables of positions
    not.
    """
    leaves = torch.utils._pytree.tree_leaves(args)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or any(isinstance(t, FakeTensor) for t in tensors):
        return False
    return len(tensors) == len(leaves) or all(t.numel() <= _FEW for t in tensors)


class ReusedModule:
    """A module to trace with several inputs in turn: built once, on the fake tensors of one mode.

    Args:
        source: a function that builds it, without initialising anything; or a module, of which a copy without the
            weights is made.
    """

    def __init__(self, source: torch.nn.Module | Callable[[], Any]) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.notes: dict[str, None] = {}
        """Lines on its wrappers."""
        self.launch = ""
        """How those launch it."""
        self._source = source
        self._module: torch.nn.Module | None = None
        self._refusal: Exception | None = None

    def module(self, dtype: str) -> torch.nn.Module:
        """The module without gradients of an earlier trace; ``dtype`` '' leaves each of its tensors in its own.

        Raises:
            ModelError: as ``built``; the same one again where it was refused before.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._module is None:
            self._module = self._made(dtype)
        self._module.zero_grad()
        return self._module

    def _made(self, dtype: str) -> torch.nn.Module:
        source = self._source
        floating = getattr(torch, dtype) if dtype else None
        try:
            if isinstance(source, torch.nn.Module):
                whole, self.launch = unwrap(source, self.notes)
                module = copy_as_fake(whole, floating)
            else:
                whole, self.launch = unwrap(built(source, floating or torch.float32), self.notes)
                module = whole
            if not self.launch:
                note_compilers(whole, self.notes)
            strip_compilers(module)
        except Exception as refusal:
            self._refusal = refusal
            raise
        settle_routers(module)
        return module


def built(build: Callable[[], Any], dtype: torch.dtype) -> torch.nn.Module:
    """The module that a function builds, on fake tensors, with ``dtype`` as the default of its floating ones.

    Raises:
        ModelError: the function returns something else.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Building():
            module = build()
    finally:
        torch.set_default_dtype(before)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"the model's function returned {type(module).__name__}: return a torch.nn.Module")
    return module


def own_precision(module: torch.nn.Module, inputs: Any) -> Precision:
    """The dtype that most of a module's floating parameters have; without any, that of its inputs, else float32.

    Raises:
        ModelError: whole models are not estimated in it.
    """
    counts: Counter[str] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        counts[_name(tensor.dtype)] += tensor.numel()
    of_inputs = [_name(value.dtype) for value in torch.utils._pytree.tree_leaves(inputs) if hasattr(value, "dtype")]
    candidates = (*(dtype for dtype, _ in counts.most_common()), *of_inputs)
    dtype = next((dtype for dtype in candidates if dtype.startswith(("float", "bfloat"))), "float32")
    if dtype not in DTYPES:
        raise ModelError(f"the module is in {dtype}, in which no whole model is estimated: give dtype='float32', say")
    return Precision.named(dtype)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def copy_as_fake(module: torch.nn.Module, dtype: torch.dtype | None) -> torch.nn.Module:
    """A deep copy whose parameters are fake, and buffers without values, floating ones of ``dtype``, or each of its own
    where that is None; tied weights stay tied.
    """

    def kind(tensor: torch.Tensor) -> torch.dtype:
        return dtype if dtype and tensor.is_floating_point() else tensor.dtype

    memo: dict[int, Any] = {id(buffer): copy_of(buffer, kind(buffer)) for buffer in module.buffers()}
    for tensor in module.parameters():
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind(tensor))
        memo[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad)
    with torch.utils._python_dispatch._disable_current_modes():
        # Tensors that are neither, such as the blocks of a mask, keep their values.
        return copy.deepcopy(module, memo)


def channels_last(module: torch.nn.Module, given: Given) -> tuple[torch.nn.Module, Given]:
    """The module and its inputs with all that has four dimensions in NHWC, as ``memory_format=torch.channels_last``.

    Fake parameters cannot be changed in place, so each is exchanged, wherever it is used.
    """
    turned: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, old in part.named_parameters(recurse=False, remove_duplicate=False):
            if old.dim() == 4:
                new = turned.setdefault(id(old), torch.nn.Parameter(_in_nhwc(old.detach()), old.requires_grad))
                setattr(part, name, new)
    args, kwargs = given
    return module, (tuple(map(_in_nhwc, args)), {key: _in_nhwc(value) for key, value in kwargs.items()})


def _in_nhwc(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return value
    with unset_fake_temporarily() if has_values(value) else nullcontext():
        return value.contiguous(memory_format=torch.channels_last)


@contextmanager
def track_layers(module: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Tell the recorder which submodule's forward is running."""
    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, path=path: recorder.layers.append(path)))
        handles.append(part.register_forward_hook(lambda *_: _left(recorder), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watched_reads(recorder: Recorder) -> AbstractContextManager[None]:
    """Tell the recorder which tensors are read as a list or an array, of which no operator tells."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            recorder.note_read(tensor)
            return original(tensor, *args, **kwargs)

        return read

    return exchange_forms([(torch.Tensor, name, watch) for name in ("tolist", "numpy")])


def _left(recorder: Recorder) -> None:
    recorder.layers.pop()
