"""The rows of an estimate: one kernel, one operator, the memory verdict, and where the figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from neusight.devices.spec import DeviceSpec
from neusight.laws.doubts import OWN, by_cause
from neusight.plans.allocator import ALLOCATOR_SHARE, CONTEXT_BYTES
from neusight.plans.margins import MemoryFit, reserved
from neusight.quick_dataclasses import dataclass
from neusight.workloads.workload import MemoryProfile

HOST = "host"
"""Phase, operator and limiter of time in which the device waits for the host to dispatch."""


@dataclass(frozen=True, kw_only=True)
class KernelEstimate:
    """One kernel: ``count`` launches of ``latency_s`` each. All times are for one launch, in seconds.

    ``latency_s >= bound_s``; ``low_s <= latency_s <= high_s`` enclose the 90 % interval of this kernel. ``errors_s``
    are signed standard deviations in seconds by key of ``laws.doubts``, since a wait for the host cancels what it
    hides; that of its own ends with ``kernel``, see ``doubts_s``. ``limiter`` is the law that sets the
    latency: compute, dram, l2, power, launch, or host. ``source`` is the tile model that answered,
    that model with ``(transferred)`` when it was trained on another family, or ``roofline``. ``outside`` says in words
    what of the kernel or its device lies outside of that model's training, "" where nothing does. ``compute_j``,
    ``sram_j`` and ``dram_j`` are the energy of one launch, 0 where the device's is not known. ``flop`` and
    ``moved_bytes`` are its arithmetic and its compulsory bytes. ``modules`` says how many of the launches are of each
    module, by the pattern of its path, ``h.{}.mlp``: none where that is not known.
    """

    kernel: str
    family: str
    operator: str = ""
    phase: str = ""
    count: float = 1
    latency_s: float
    low_s: float
    high_s: float
    bound_s: float
    utilisation: float
    limiter: str
    tile: str = ""
    tile_count: int = 0
    waves: float = 0.0
    outside: str = ""
    source: str = ""
    errors_s: tuple[tuple[str, float], ...] = ()
    compute_j: float = 0.0
    sram_j: float = 0.0
    dram_j: float = 0.0
    flop: float = 0.0
    moved_bytes: float = 0.0
    modules: tuple[tuple[str, int], ...] = ()

    @property
    def in_domain(self) -> bool:
        """Whether kernel and device lie within the training of the tile model that answered."""
        return not self.outside

    @property
    def doubts_s(self) -> dict[str, float]:
        """Doubts of one launch by key [s]."""
        return {f"{key}/{self.kernel}" if key.startswith(OWN) else key: size_s for key, size_s in self.errors_s}

    @property
    def total_s(self) -> float:
        """All launches together."""
        return self.count * self.latency_s


@dataclass(frozen=True, kw_only=True)
class LoneKernel(KernelEstimate):
    """A kernel by itself, its launch included.

    ``question`` are the words that were asked, ``assumed`` values of fields that they left open, ``given`` what
    measurements of one's own changed, ``warnings`` what is not known.
    """

    question: Mapping[str, Any] = field(default_factory=dict, compare=False)
    assumed: Mapping[str, str] = field(default_factory=dict, compare=False)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    warnings: tuple[str, ...] = ()

    @property
    def doubts(self) -> dict[str, float]:
        """Signed standard deviations of the logarithm of the latency by key."""
        return {key: size_s / self.latency_s for key, size_s in self.doubts_s.items()} if self.latency_s else {}

    @property
    def errors(self) -> dict[str, float]:
        """Standard deviations as shares of the latency by cause, see ``by_cause``."""
        return by_cause(self.doubts)


@dataclass(frozen=True, kw_only=True)
class OperatorEstimate:
    """All kernels of one operator in one phase; ``share`` is of the whole latency, ``limiter`` the costliest one."""

    operator: str
    phase: str
    count: float
    latency_s: float
    share: float
    limiter: str


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Device memory at the moment of the peak, part by part, against what the device has; bytes.

    ``weights_capacity_bytes`` are of a memory of their own that weights lie in, 0 where they lie with all other parts.
    ``reserve`` is what the driver's context, libraries' workspaces and the allocator's slack take beside the tensors.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    temporary: int = 0
    reserve: int = 0
    capacity_bytes: float
    weights_capacity_bytes: float = 0.0

    @staticmethod
    def of(profile: MemoryProfile, device: DeviceSpec, reserve: int | None = None) -> MemoryEstimate:
        """The profile of a step against a device's memory, with the reserve, default the usual one."""
        usual = int(CONTEXT_BYTES + ALLOCATOR_SHARE * profile.peak) if device.has_driver else 0
        return MemoryEstimate(
            **asdict(profile),
            reserve=usual if reserve is None else reserve,
            capacity_bytes=device.usable_bytes,
            weights_capacity_bytes=device.weights_capacity_bytes or 0.0,
        )

    @property
    def parts(self) -> dict[str, int]:
        """Name → bytes."""
        names = ("weights", "gradients", "optimizer", "activations", "temporary")
        return {name: getattr(self, name) for name in names}

    @property
    def peak_bytes(self) -> int:
        """Sum of all parts."""
        return sum(self.parts.values())

    @property
    def fit(self) -> MemoryFit:
        """The peak and the reserve against the capacity; of two memories that of the fuller one."""
        terms, capacity = reserved(self.parts, self.reserve), self.weights_capacity_bytes
        if not capacity:
            return MemoryFit(terms=terms, usable_bytes=self.capacity_bytes)
        others = {name: size for name, size in terms.items() if name != "weights"}
        memories = (
            MemoryFit(terms=others, usable_bytes=self.capacity_bytes, memory="SRAM"),
            MemoryFit(terms={"weights": terms["weights"]}, usable_bytes=capacity, memory="flash"),
        )
        return max(memories, key=lambda one: one.needed_bytes / one.usable_bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak and the reserve are within the capacity."""
        return self.fit.fits


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where an estimate comes from.

    ``tile_models`` maps the name of each tile model to its backend and version; ``hypothetical`` lists the device
    figures that the user changed; ``calibration`` says what was measured on the device itself, '' where nothing was;
    ``sparsity`` which zeros a sparse device met.
    """

    neusight: str
    tile_models: Mapping[str, str] = field(default_factory=dict)
    training_gpus: tuple[str, ...] = ()
    hypothetical: tuple[str, ...] = ()
    calibration: str = ""
    sparsity: str = ""

    def merged(self, other: Provenance) -> Provenance:
        """The provenance of a sum of two estimates."""
        if self == other:
            return self
        return Provenance(
            neusight=joined(self.neusight, other.neusight),
            tile_models={**self.tile_models, **other.tile_models},
            training_gpus=union(self.training_gpus, other.training_gpus),
            hypothetical=union(self.hypothetical, other.hypothetical),
            calibration=joined(self.calibration, other.calibration),
            sparsity=joined(self.sparsity, other.sparsity),
        )


def joined(first: str, second: str) -> str:
    """One name for two: themselves if equal, else ``a + b``; one that is empty does not count."""
    if not first or not second:
        return first or second
    return first if second in first.split(" + ") else f"{first} + {second}"


def union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """All of ``first``, then what only ``second`` has."""
    return (*first, *(item for item in second if item not in first))
