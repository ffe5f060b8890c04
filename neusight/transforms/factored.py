"""Weights of products as two factors of few columns: in their place (Wang, Agarwal and Papailiopoulos 2021,
"Pufferfish"), or trained beside them while they are frozen (Hu et al. 2021, "LoRA").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Conv2d, Elementwise, Gemm, Kernel, Memory
from neusight.kernels.precision import stored_bytes
from neusight.transforms.unrolled import unroll
from neusight.workloads.workload import Node, Tensor, Workload


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Two factors, rows x rank and rank x columns, of a layer's weight; ``tensors`` are the weight and its cast."""

    rows: int
    columns: int
    tensors: frozenset[int]
    rank: int = 0

    @property
    def elements(self) -> int:
        """Number of elements of the weight."""
        return self.rows * self.columns

    @property
    def share(self) -> float:
        """Elements of both factors over those of the weight."""
        return self.rank * (self.rows + self.columns) / self.elements

    def takes(self, kernel: Any) -> bool:
        """True if a product is with the weight, or for its gradient."""
        if isinstance(kernel, Conv2d):
            return _sides(kernel) == (self.rows, self.columns)
        sides = ({kernel.n, kernel.k}, {kernel.m, kernel.n})
        return kernel.op == "linear" and {self.rows, self.columns} in sides

    def makes_gradient(self, kernel: Any, node: Node) -> bool:
        """True if a product of a node computes the weight's gradient: the node reads no weight."""
        if isinstance(kernel, Conv2d):
            return kernel.op == "weight_grad"
        return node.phase == "backward" and self.tensors.isdisjoint(r.tensor for r in node.reads)

    def of(self, kernel: Any, gradient: bool) -> tuple[Kernel, ...]:
        """The two products, one after another, in place of one with the weight or for its gradient."""
        if isinstance(kernel, Conv2d):
            height, width = (_extent(kernel, side) for side in ("height", "width"))
            return (
                replace(kernel, out_channels=self.rank),
                replace(kernel, in_channels=self.rank, height=height, width=width, kernel_height=1, kernel_width=1,
                        stride=1, padding=0, dilation=1),
            )  # fmt: skip
        return replace(kernel, n=self.rank, bias=False), replace(kernel, **{"m" if gradient else "k": self.rank})


def _extent(kernel: Conv2d, side: str) -> int:
    """Height or width of a convolution's result [pixels]."""
    extent, taps = getattr(kernel, side), getattr(kernel, f"kernel_{side}")
    return int((extent + 2 * kernel.padding - kernel.dilation * (taps - 1) - 1) // kernel.stride + 1)


def low_rank(workload: Workload, share: float) -> Workload:
    """The step with two factors in place of weights of products and convolutions of the second half of its layers, the
    last one excepted (Wang et al. 2021, section 3: hybrid networks).

    Args:
        workload: the step.
        share: rank over the shorter side of a weight.

    Raises:
        InapplicableError: no weight would be smaller.
    """
    step = unroll(workload)
    weights = list(weights_of(step).items())
    factors = {
        layer: replace(factor, rank=max(1, round(share * min(factor.rows, factor.columns))))
        for layer, factor in weights[len(weights) // 2 : -1]
    }
    smaller = {layer: factor for layer, factor in factors.items() if factor.share < 1.0}
    if not smaller:
        raise InapplicableError("no weight of the model's second half is smaller as two factors")
    return _Factored(step, smaller, frozen=False).step_of()


def with_adapters(workload: Workload, rank: int) -> Workload:
    """The step with two trained factors beside each weight of a product, all other weights frozen, the last product,
    which is the head, among them (Hu et al. 2021, section 4.1; PEFT, ``lora.Linear``).

    Raises:
        InapplicableError: inference, or no product has a weight.
    """
    if workload.request.mode != "training":
        raise InapplicableError("inference trains no weights")
    step = unroll(workload)
    weights = list(weights_of(step, Gemm).items())[:-1]
    if not weights:
        raise InapplicableError("the model has no products of weights beside its head")
    factors = {layer: replace(weight, rank=rank) for layer, weight in weights}
    return _Factored(step, factors, frozen=True).step_of()


def weights_of(step: Workload, *kinds: type) -> dict[str, LowRank]:
    """Weights of products and convolutions, or of some ``kinds``, by their layers, in the order of the forward pass,
    without a rank.
    """
    weights: dict[str, LowRank] = {}
    for node in step.nodes:
        for kernel in node.kernels if node.phase == "forward" else ():
            sides = _sides(kernel) if isinstance(kernel, kinds or (Gemm, Conv2d)) else None
            if sides and (tensors := {r.tensor for r in node.reads if _holds(step, r.tensor, node, sides)}):
                weights[node.layer.name()] = LowRank(rows=sides[0], columns=sides[1], tensors=frozenset(tensors))
    return weights


def _holds(step: Workload, at: int, node: Node, sides: tuple[int, int]) -> bool:
    """True if a tensor is a weight with such sides, or autocast's copy of one."""
    tensor = step.tensors[at]
    cast = bool(step.request.precision.autocast) and tensor.layer == node.layer
    return (tensor.kind == "weight" or cast) and _elements(tensor) == sides[0] * sides[1]


def _sides(kernel: Any) -> tuple[int, int] | None:
    if isinstance(kernel, Conv2d):
        taps = kernel.in_channels * kernel.kernel_height * kernel.kernel_width
        return (kernel.out_channels, taps) if kernel.groups == 1 else None
    return (kernel.n, kernel.k) if kernel.op == "linear" else None


class _Factored:
    """A step whose weights of some layers are factors, or are frozen with factors beside them."""

    def __init__(self, step: Workload, factors: dict[str, LowRank], *, frozen: bool) -> None:
        self.step, self.factors, self.frozen = step, factors, frozen
        self.factor_of = self._sizes()
        trained = sum(round(factor.share * factor.elements) for factor in factors.values())
        every = step.parameters
        before = 0 if frozen else every - sum(factor.elements for factor in factors.values())
        self.updated = (before + trained) / every
        self.parameters = (every if frozen else before) + trained

    def _sizes(self) -> dict[int, float]:
        """LowRank of tensors' bytes: weights of layers with factors, their casts, and gradients."""
        sizes: dict[int, float] = {}
        for node in self.step.nodes:
            low = self.factors.get(node.layer.name())
            for at in {r.tensor for r in (*node.reads, *node.writes)}:
                tensor = self.step.tensors[at]
                if tensor.kind == "gradient" and self.frozen:
                    sizes.setdefault(at, 0.0)
                if low and _elements(tensor) == low.elements and tensor.kind in ("weight", "gradient", "intermediate"):
                    weight = 1.0 if self.frozen and tensor.kind != "gradient" else 0.0
                    sizes[at] = weight + low.share
        return sizes

    def step_of(self) -> Workload:
        """The step with its kernels and sizes."""
        nodes = tuple(replace(node, kernels=tuple(self._kernels(node))) for node in self.step.nodes)
        tensors = tuple(self._tensor(at, tensor) for at, tensor in enumerate(self.step.tensors))
        return replace(self.step, nodes=nodes, tensors=tensors, parameters=self.parameters)

    def _tensor(self, at: int, tensor: Tensor) -> Tensor:
        share = self.updated if tensor.kind == "state" else self.factor_of.get(at, 1.0)
        sizes = {name: round(share * getattr(tensor, name)) for name in ("nbytes", "touched_bytes")}
        return replace(tensor, **sizes) if share != 1.0 else tensor

    def _kernels(self, node: Node) -> Iterator[Kernel]:
        factor = self.factors.get(node.layer.name())
        for kernel in node.kernels:
            if node.phase == "optimizer":
                yield _part(kernel, self.updated)
            elif factor and isinstance(kernel, Gemm | Conv2d) and factor.takes(kernel):
                yield from self._products(kernel, factor, node)
            elif factor and isinstance(kernel, Memory) and kernel.elements == factor.elements and not self.frozen:
                yield _part(kernel, factor.share)
            elif not self._makes_frozen(node):
                yield kernel

    def _products(self, kernel: Any, one: LowRank, node: Node) -> Iterator[Kernel]:
        gradient = one.makes_gradient(kernel, node)
        if self.frozen and not gradient:
            yield kernel
        yield from one.of(kernel, gradient)
        if self.frozen and not gradient:
            yield _sum(kernel)

    def _makes_frozen(self, node: Node) -> bool:
        """True if a node makes only gradients, all of frozen weights."""
        made = [w.tensor for w in node.writes]
        gradients = [at for at in made if self.step.tensors[at].kind == "gradient"]
        return self.frozen and node.phase == "backward" and bool(made) and gradients == made and not any(
            self.factor_of[at] for at in made
        )  # fmt: skip


def _elements(tensor: Tensor) -> int:
    return round(tensor.nbytes / stored_bytes(tensor.dtype))


def _sum(kernel: Gemm) -> Elementwise:
    """The adapters' result, scaled and added to the result of the frozen weight."""
    elements = kernel.m * kernel.n
    size = round(elements * stored_bytes(kernel.dtype))
    return Elementwise(op="add", elements=elements, read_bytes=2 * size, write_bytes=size, flops=2 * elements,
                       dtype=kernel.dtype)  # fmt: skip


_SIZES: Sequence[str] = ("elements", "read_bytes", "write_bytes", "flops")


def _part(kernel: Any, share: float) -> Kernel:
    """A kernel over a share of its values."""
    sizes = {name: max(1, round(share * getattr(kernel, name))) for name in _SIZES if getattr(kernel, name, 0)}
    part: Kernel = replace(kernel, **sizes)
    return part
