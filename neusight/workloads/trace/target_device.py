"""``torch.cuda``, devices of tensors and autocast as a module meets them on the target, while all tensors of a trace
are on the CPU, as fake ones must be where PyTorch has no driver of the target.

PyTorch's own code continues to see where tensors are: it allocates, compares and dispatches by that.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

# Compilers keep a table of PyTorch's functions, which must be made of its own, before any form stands for one.
import torch._dynamo.config
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from neusight.errors import ModelError
from neusight.workloads.target import TargetReader
from neusight.workloads.trace.autocast import cuda_casts
from neusight.workloads.trace.library_forms import Form, always, exchange_forms

_CUDA = torch.device("cuda", 0)
_INTERNAL = ("torch", "neusight")
"""Packages whose code sees the devices that tensors are on."""
_NO_OPS = """
    synchronize empty_cache set_device manual_seed manual_seed_all seed seed_all init ipc_collect
    reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats set_stream set_rng_state
    set_per_process_memory_fraction
"""
_ZEROS = """
    current_device memory_allocated memory_reserved max_memory_allocated max_memory_reserved _exchange_device
    _maybe_exchange_device initial_seed utilization
"""
_CONTEXTS = "Stream Event ExternalStream stream current_stream default_stream device device_of"
_TENSOR_TYPES = """
    FloatTensor HalfTensor BFloat16Tensor DoubleTensor LongTensor IntTensor ShortTensor CharTensor ByteTensor BoolTensor
"""
_AUTOCAST_STATE = "is_autocast_enabled set_autocast_enabled get_autocast_dtype set_autocast_dtype"
_OTHER = {"cuda": "cpu", "cpu": "cuda"}
_ANSWERS: dict[str, Any] = {"elapsed_time": 0.0, "query": True, "is_capturing": False}
"""Results of methods of streams and events; of others None."""


class _Idle:
    """A stream, an event or a context of CUDA: a trace has one stream, in which nothing takes any time."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _ANSWERS.get(name)


class _Devices(TorchFunctionMode):
    """Calls that move tensors to the target leave them where they are; tensors say that they are there."""

    def __init__(self, reader: TargetReader) -> None:
        super().__init__()
        self.reader = reader

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (getter := _GETTERS.get(func)) is not None:
            return getter() if _outside() and self.reader.read("cuda") else func(*args)
        if func in _ON_DEVICE:
            self.reader.require_cuda()
            return args[0]
        kwargs = dict(kwargs or {})
        if func is _TENSOR.to:
            # Where it is already, so that nothing is copied.
            args = tuple(args[0].device if self._moves(value) else value for value in args)
            kwargs = {key: args[0].device if self._moves(value) else value for key, value in kwargs.items()}
        elif self._moves(kwargs.get("device")):
            del kwargs["device"]
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return func(*args, **kwargs)

    def _moves(self, value: Any) -> bool:
        """Tell whether a value is a device of CUDA, where the target has those."""
        if not _is_cuda(value):
            return False
        self.reader.require_cuda()
        if torch.device(value).index:
            self.reader.notes[f"the module uses {value} as well: all of it is priced on one device"] = None
        return True


def _outside() -> bool:
    """Tell whether the code that called a form belongs to no internal package; modes hand calls on to each other."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _INTERNAL


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


_TENSOR = torch.Tensor
_GETTERS: dict[Any, Callable[[], Any]] = {
    _TENSOR.device.__get__: lambda: _CUDA,
    _TENSOR.is_cuda.__get__: lambda: True,  # type: ignore[attr-defined]
    _TENSOR.is_cpu.__get__: lambda: False,  # type: ignore[attr-defined]
    _TENSOR.get_device: lambda: 0,
}
_ON_DEVICE = {_TENSOR.cuda, _TENSOR.pin_memory}


@contextmanager
def on_target(reader: TargetReader) -> Iterator[None]:
    """Let code inside, but for PyTorch's own, meet the target: what it reads of it is noted by ``reader``."""
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(_autocast_dtype())
        forms = _forms(reader, stack)
        devices = _Devices(reader)
        backward = (torch.autograd, "_engine_run_backward", lambda own: partial(_in_mode, devices, own))
        stack.enter_context(exchange_forms([*forms, backward]))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.enter_context(devices)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what libraries log and warn of: it is about the machine at hand, or in the error where they raise one."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _autocast_dtype() -> Iterator[None]:
    """The dtype that CUDA's autocast casts to unless it is given one, as that of the CPU's, which stands for it."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


def _forms(reader: TargetReader, stack: ExitStack) -> list[Form]:
    """Attributes of PyTorch's modules and classes, with what stands for them while a target is met."""
    read = reader.read
    cuda = {
        **dict.fromkeys(_NO_OPS.split(), lambda *_, **__: None),
        **dict.fromkeys(_ZEROS.split(), lambda *_, **__: 0),
        **dict.fromkeys(_CONTEXTS.split(), _Idle),
        **{name: getattr(torch, name) for name in _TENSOR_TYPES.split()},
        "is_available": lambda: read("cuda"),
        "is_initialized": lambda: read("cuda"),
        "device_count": lambda: int(read("cuda")),
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda *_: read("name"),
        "get_device_capability": lambda *_: _major_minor(reader),
        "get_device_properties": lambda *_: _properties(reader),
        "get_arch_list": lambda: ["sm_{}{}".format(*_major_minor(reader))],
        "mem_get_info": lambda *_: (read("memory_bytes"), read("memory_bytes")),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or read("bf16"),
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
    }
    accelerator = {
        "is_available": lambda: read("cuda"),
        "current_accelerator": lambda *_, **__: torch.device("cuda") if read("cuda") else None,
        "device_count": lambda: int(read("cuda")),
        "synchronize": lambda *_: None,
    }
    nvtx = dict.fromkeys(("range_push", "range_pop", "mark", "range_start", "range_end"), lambda *_: 0)
    nested = dict.fromkeys(("nested_tensor", "nested_tensor_from_jagged", "as_nested_tensor"), refuse_nested)
    values: dict[Any, dict[str, Any]] = {torch.cuda: cuda, torch.cuda.nvtx: nvtx, torch.nested: nested}
    forms = [(owner, name, always(value)) for owner, named in values.items() for name, value in named.items()]
    return [
        *forms,
        *((torch.accelerator, name, partial(_outside_form, form)) for name, form in accelerator.items()),
        *(
            (torch, name, lambda own, name=name: _autocast_form(name, own, reader, stack))
            for name in _AUTOCAST_STATE.split()
        ),
        (torch, "set_default_device", always(lambda *_: None)),
        (_TENSOR, "record_stream", always(lambda *_: None)),
        (torch, "Generator", always(_Generator)),
        (DeviceContext, "__init__", _context_form),
        (FakeTensor, "device", lambda own: _device_form(own, reader)),
    ]


def refuse_nested(*_: Any, **__: Any) -> None:
    """Raises:
    ModelError: always.
    """
    raise ModelError("nested (jagged) tensors are not traced, since the lengths in them are values: pad them instead")


def _in_mode(mode: TorchFunctionMode, own: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The backward pass, in which a mode that saw the call of it would be off."""
    with mode:
        return own(*given, **options)


def _major_minor(reader: TargetReader) -> tuple[int, int]:
    """Major and minor version; for AMD's architectures, as in ROCm, the digits before the stepping."""
    text: str = reader.read("capability")
    architecture = text.removeprefix("gfx")
    if architecture != text:
        return int(architecture[:-2]), int(architecture[-2], 16)
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _properties(reader: TargetReader) -> SimpleNamespace:
    """The fields of ``torch.cuda.get_device_properties`` that are known of any device."""
    major, minor = _major_minor(reader)
    return SimpleNamespace(
        name=reader.read("name"),
        major=major,
        minor=minor,
        total_memory=reader.read("memory_bytes"),
        multi_processor_count=reader.read("cores"),
        warp_size=reader.read("warp_size"),
    )


def _outside_form(form: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """A function that PyTorch's own code continues to call as it is."""
    return lambda *given, **options: (form if _outside() else own)(*given, **options)


def _device_form(own: Any, reader: TargetReader) -> property:
    getter = own.fget

    def device(tensor: FakeTensor) -> torch.device:
        return _CUDA if _outside() and reader.read("cuda") else getter(tensor)

    return property(device, own.fset)


def _context_form(own: Callable[..., None]) -> Callable[..., None]:
    """``with torch.device("cuda"):`` allocates where a module is built and traced."""

    def initialise(context: Any, device: Any) -> None:
        current = torch.utils._device.CURRENT_DEVICE or "cpu"
        own(context, current if _is_cuda(device) else device)

    return initialise


class _Generator(torch.Generator):
    """A generator of random numbers on the CPU, for whichever device."""

    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls)


def _autocast_form(name: str, own: Callable[..., Any], reader: TargetReader, stack: ExitStack) -> Callable[..., Any]:
    """A function of autocast's state: that of CUDA is kept as the CPU's, whose tensors a trace has, and CUDA's casts
    are registered when it is first switched on.
    """
    target_type = "cuda" if reader.target.cuda else "cpu"
    casts: list[None] = []

    def state(device_type: Any = "cuda", *values: Any) -> Any:
        if not isinstance(device_type, str):
            device_type, values = "cuda", (device_type,)
        if name == "set_autocast_enabled" and device_type == target_type and values[0] and not casts:
            casts.append(stack.enter_context(cuda_casts()))
        return own(_OTHER[device_type] if reader.target.cuda and device_type in _OTHER else device_type, *values)

    return state
