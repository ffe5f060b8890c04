"""The dispatch mode that turns every executed ATen operator into a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.utils._python_dispatch import TorchDispatchMode

from neusight.errors import CoverageError, ModelError
from neusight.kernels import Kernel
from neusight.workloads.rules import fallback, has_rule, kernels_of
from neusight.workloads.tensors import Call, TensorSpec
from neusight.workloads.trace import sizes, values
from neusight.workloads.trace.cuda_only import run
from neusight.workloads.trace.memory import Allocation, Ledger
from neusight.workloads.trace.values import tensors_in
from neusight.workloads.workload import DEPENDS_ON_DATA, Phase

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
"""Asked for by Python wrappers of tensors, of which a real run has none."""
_DTYPE_NAMES: dict[torch.dtype, str] = {}
MOST_ASSUMED_READS = 2_000
"""Values that are assumed in one layer: more are a loop that waits for data."""
_IN_PART = {
    *("embedding", "_embedding_bag", "index", "_unsafe_index", "gather", "index_select", "take", "take_along_dim"),
    *("index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "scatter_add", "scatter_add_"),
    *("index_add", "index_add_", "index_copy_"),
}
"""Operators that touch as many elements of their first argument as the others or the result have."""
_READS_VALUES = {
    *(aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.allclose.default),
}


def _dtype_name(dtype: torch.dtype) -> str:
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor; of a sparse one no rows, as many as those of a fake one."""
    if tensor.is_sparse:
        return TensorSpec((0, *tensor.shape[1:]), _dtype_name(tensor.dtype))
    return TensorSpec(tuple(tensor.shape), _dtype_name(tensor.dtype), tensor.stride())


@dataclass(slots=True, kw_only=True)
class RawNode:
    """One executed operator as it was recorded: ``code`` is equal for equal operators on equal tensors, ``inputs`` are
    the nodes whose results it reads.
    """

    operator: str
    phase: Phase
    kernels: tuple[Kernel, ...]
    reads: tuple[Allocation, ...]
    writes: tuple[Allocation, ...]
    inputs: tuple[int, ...]
    layer: str
    code: int


class _Description(dict[int, TensorSpec]):
    """Arguments as rules see them; a tensor given twice becomes the same spec twice."""

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            spec = self.get(id(value))
            if spec is None:
                spec = self[id(value)] = spec_of(value)
            return spec
        if isinstance(value, list | tuple):
            return tuple(self.of(v) for v in value)
        return value


class Recorder(TorchDispatchMode):
    """Runs operators on fake tensors and records them, with the phase and the layer they belong to.

    The operators of the backward pass get the layer of the forward operator whose autograd node runs them.
    """

    def __init__(self, ledger: Ledger, *, allow_fallback: bool, shares: sizes.Shares) -> None:
        super().__init__()
        self.shares = shares
        self.ledger = ledger
        self.allow_fallback = allow_fallback
        self.values = values.Values()
        self.nodes: list[RawNode] = []
        self.uncovered: dict[str, None] = {}
        self.assumed: dict[str, None] = {}
        """What was taken for granted where values decide, in lines for a reader of the estimate."""
        self.assumed_reads: Counter[str] = Counter()
        self.undecided = False
        """Whether a value was asked for that there was not."""
        self.values_decide = False
        """Whether values that are known were read, or decided a shape."""
        self.phase: Phase = "forward"
        self.layers: list[str] = [""]
        self.recording = False
        self._layer_of_sequence: dict[int, str] = {}
        self._codes: dict[Any, int] = {}

    @contextmanager
    def during(self, phase: Phase, *, record: bool = True, layer: str = "") -> Iterator[None]:
        """Record what runs inside as part of a phase; with ``record`` False only its memory is tracked."""
        before = self.phase, self.recording, self.layers
        self.phase, self.recording, self.layers = phase, record, [layer]
        try:
            yield
        finally:
            self.phase, self.recording, self.layers = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS_VALUES:
            return self._value(func, args, kwargs)
        if func is _DEVICE:
            return func(*args, **kwargs)
        if self.recording:
            self.ledger.now = len(self.nodes)
        result = self._result(func, args, kwargs)
        outputs = list(tensors_in(result if isinstance(result, list | tuple) else (result,)))
        if self.recording:
            self._record(func, args, kwargs, outputs)
        else:
            self._layer()
            for tensor in outputs:
                self.ledger.add(tensor)
        return result

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator, with its values where they are known; where its shape depends on others, as large
        as is expected or can be.
        """
        result = self.values.compute(func, args, kwargs)
        if result is not values.UNKNOWN:
            if torch.Tag.dynamic_output_shape in func.tags:
                self._decide(self.values.assumption(*args), self._calls(func))
            return result
        if func is aten.split_with_sizes.default and (even := values.even_sizes(*args, **kwargs)):
            self._assume(f"{self._where()} splits a tensor by values of another: taken as even shares")
            args = (args[0], even, *args[2:])
        if func is aten.index.Tensor:
            places = self.values.places(args[1])
            if any(a is not b for a, b in zip(places, args[1], strict=False)):
                self._decide(self.values.assumption(args[1]), self._calls(func))
            args = (args[0], places)
        try:
            result = run(func, args, kwargs)
        except DynamicOutputShapeException:
            result = self._assume_size(func, args, kwargs)
        return self.values.learn(func, args, kwargs, result)

    def _assume_size(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result whose shape depends on unknown values."""
        make = sizes.result(func)
        if make is None:
            self.undecided = True
            raise ModelError(
                f"{self._where()} calls {func}, whose result's shape depends on data: give the layer a form with "
                "fixed shapes"
            )
        operator, layer = _plain(func).partition(".")[2], self.layers[-1]
        count = sizes.Count(self.values, self.shares, operator, layer)
        made = make(count, *args, **kwargs)
        self._decide(count.assumption and f"{count.assumption}{count.remedy}", self._calls(func))
        return made

    def _calls(self, func: Any) -> str:
        return f"{self._where()} calls {_plain(func)}, {DEPENDS_ON_DATA}"

    def _decide(self, assumption: str, line: str) -> None:
        """Note that values which are known decide what runs, and what they rest on where they are assumed."""
        self.values_decide = True
        if assumption:
            self._assume(f"{line}: taken {assumption}")

    def note_read(self, tensor: torch.Tensor) -> None:
        """Note that the host reads all values of a tensor, if it has any."""
        if self.values.known(tensor):
            self._decide(self.values.assumption(tensor), f"{self._where()} reads the values of a tensor")

    def _value(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A number that the host reads. Optimizers read their step counters, which are one after the first step."""
        value, reads = self.values.compute(func, args, kwargs), f"{self._where()} reads a value"
        if value is not values.UNKNOWN:
            self._decide(self.values.assumption(*args), f"{reads}, {value}")
            return value
        if self.phase == "optimizer":
            return 1.0
        self.assumed_reads[self.layers[-1]] += 1
        if self.assumed_reads[self.layers[-1]] > MOST_ASSUMED_READS:
            raise ModelError(
                f"{reads} that is not known, {MOST_ASSUMED_READS:,} times: a loop that ends by data has no known end: "
                "give it a number of rounds"
            )
        maker = self._maker(args[0])
        value = values.assumed_value(func, args, maker, self.values.of(args[0]).share)
        made = f" of the result of {maker.rpartition('.')[0]}" if maker else ""
        self._assume(f"{reads}{made} that is not known: taken as {value}")
        return value

    def _maker(self, tensor: torch.Tensor) -> str:
        """The operator that wrote a tensor last; nothing where that came before the step."""
        writer = self.ledger.add(tensor).writer
        return self.nodes[writer].operator if writer >= 0 else ""

    def _assume(self, line: str) -> None:
        self.undecided = True
        if self.recording:
            self.assumed.setdefault(line)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]) -> None:
        index, layer = len(self.nodes), self._layer()
        inputs = list(tensors_in((*args, *kwargs.values())))
        read = [self.ledger.add(t, "input", layer) for t in inputs]
        sources = {storage.writer for storage in read} - {-1}
        written = self._write(func, args, outputs, index, layer)
        call = _call(func, args, kwargs, outputs)
        kernels = self._kernels(call)
        if kernels and self.phase != "optimizer":
            self._touch(call, (*zip(read, map(spec_of, inputs), strict=True), *written))
        tensors = (*call.inputs, *call.outputs)
        code = (func, tuple((t.shape, t.dtype, t.strides) for t in tensors), len(sources))
        self.nodes.append(
            RawNode(
                operator=f"{func.namespace}.{func.__name__}",
                phase=self.phase,
                kernels=kernels,
                reads=tuple({id(storage): storage for storage in read}.values()),
                writes=tuple({id(storage): storage for storage, _ in written}.values()),
                inputs=tuple(sorted(sources)),
                layer=layer,
                code=self._codes.setdefault(code, len(self._codes)),
            )
        )

    def _write(
        self, func: Any, args: tuple[Any, ...], outputs: list[torch.Tensor], index: int, layer: str
    ) -> list[tuple[Allocation, TensorSpec]]:
        """This node becomes the last writer of what it makes or changes; a view writes nothing."""
        written = []
        for tensor in outputs:
            allocation = self.ledger.add(tensor, layer=layer)
            if allocation.born == index and allocation.writer < 0:
                allocation.writer = index
                written.append((allocation, spec_of(tensor)))
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.is_write:
                    for tensor in tensors_in((value,)):
                        changed = self.ledger.add(tensor, layer=layer)
                        changed.writer = index
                        written.append((changed, spec_of(tensor)))
        return written

    @staticmethod
    def _touch(call: Call, seen: Iterable[tuple[Allocation, TensorSpec]]) -> None:
        """Note how much of each storage the operator's kernels touch: as much as its view of it holds."""
        partly = call.name in _IN_PART
        table = call.args[0] if partly else None
        others = [t.nbytes for t in (*call.inputs, *call.outputs) if t is not table]
        for allocation, spec in seen:
            size = max(others, default=0) if partly and spec == table else spec.nbytes
            allocation.touched_bytes = max(allocation.touched_bytes, size)

    def _where(self) -> str:
        return f"layer '{self.layers[-1]}'" if self.layers[-1] else "the model"

    def _layer(self) -> str:
        if self.phase == "forward":
            layer = self.layers[-1]
            # An operator without a gradient takes no number: the number is that of the last one that has.
            self._layer_of_sequence.setdefault(torch.autograd._get_sequence_nr() - 1, layer)
            return layer
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            return self._layer_of_sequence.get(node._sequence_nr(), "") if node is not None else self.layers[-1]
        return ""

    def _kernels(self, call: Call) -> tuple[Kernel, ...]:
        if has_rule(call.name):
            return kernels_of(call)
        if not self.allow_fallback:
            try:
                return kernels_of(call)
            except CoverageError as error:
                raise CoverageError(f"{error} (in {self._where()}, {self.phase})") from None
        self.uncovered[f"aten.{call.name}"] = None
        return fallback(call)


def _plain(func: Any) -> str:
    """An operator as a reader knows it, without its overload: ``aten.unique`` for ``aten._unique2.default``."""
    return f"{func.namespace}.{func.__name__.partition('.')[0].strip('_').removesuffix('2')}"


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]) -> Call:
    packet, _, overload = func.__name__.partition(".")
    name = packet if func.namespace == "aten" else f"{func.namespace}::{packet}"
    description = _Description()
    described = {key: description.of(value) for key, value in kwargs.items()}
    return Call(name, overload, description.of(args), described, tuple(spec_of(t) for t in outputs))
