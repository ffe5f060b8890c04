"""Figures of one accelerator that physics needs, each with its source: ``DeviceSpec``, and what a kind adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from datetime import date
from math import exp, log
from typing import ClassVar, Literal

from neusight.devices.architectures import ArchitectureFacts, architecture_facts
from neusight.devices.record import PositiveFloat, PositiveInt, Record
from neusight.errors import DeviceError
from neusight.quick_dataclasses import dataclass

USABLE_SHARE = 0.985
"""Usable share of the capacity that a datasheet names in GB, where a driver's figure is not known: the least that any
card of the catalogue leaves (GDDR6 under ECC). Others leave more, since their GB are GiB."""

ECC_LEAVES = 1.015
"""Usable bytes over decimal GB of the datasheet: 15/16 of GiB are 1.007 of GB, all of them 1.07."""

PRICE, LISTED = "price_usd_per_hour", "price list: "
"""Field of a price, and how the source of one from a price list begins."""
CARRIERS = ("bfloat16", "float16", "float32")
"""Formats in which arrays multiply what they do not take by itself, the first that they have: XLA's default precision
rounds operands to bfloat16 (jax.lax.Precision)."""
HALVES = ("float16", "bfloat16")
"""Floating-point formats of 16 bits."""

L2_BYTES_PER_CLOCK_PER_SM = 64.0
"""Port between an SM and L2 [B a clock]: 64 since Volta (Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture
via Microbenchmarking), at most that before."""


Kind = Literal["gpu", "tensordash", "systolic", "microcontroller"]
Vendor = Literal["nvidia", "amd", "intel", "google", "aws", "other"]
LinkKind = Literal["nvlink", "pcie", "infinity-fabric", "xe-link", "ici", "neuronlink", "roce"]
Topology = Literal["", "switch", "mesh", "bridge", "host", "ring", "torus-2d", "torus-3d"]


@dataclass(frozen=True, kw_only=True)
class Link(Record):
    """One kind of link to other devices or the host; bandwidth is one direction, all lanes of the device together.

    ``topology`` is how the devices of a node are joined: all to all by a ``switch`` that gives each pair the whole
    bandwidth, in a ``mesh`` of lanes between pairs, two by two by a ``bridge``, through the ``host``, in cycles through
    all of them that share no link (``ring``), or each with its neighbours along two or three dimensions that close
    (``torus-2d``, ``torus-3d``); "" for what is usual of the kind. ``hop_s`` is what a step of a collective between two
    neighbours takes beside its bytes; None for what NCCL's takes.
    """

    kind: LinkKind
    generation: str
    bandwidth_bytes_per_s: PositiveFloat
    topology: Topology = ""
    hop_s: PositiveFloat | None = None

    @property
    def joins(self) -> str:
        """The topology, where none is stated that of the kind: NVLink's switch, PCIe's host, else a mesh."""
        return self.topology or {"nvlink": "switch", "pcie": "host"}.get(self.kind, "mesh")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec(Record):
    """Figures of one accelerator of any kind in SI units.

    ``matrix_flops_per_s`` holds dense peak rates of matrix units (tensor cores, MFMA, XMX, systolic arrays) and
    ``vector_flops_per_s`` those of the ordinary pipelines, both by dtype, at full clock, without sparsity. ``dram`` is
    the memory that holds weights and tensors of a model.
    """

    resources: ClassVar[tuple[str, ...]] = ("dram_bandwidth_bytes_per_s", "tdp_w")
    """Figures that a kernel's time depends on and of which more is never slower."""
    cores_field: ClassVar[str]
    """Figure that counts what executes by itself."""
    clock_field: ClassVar[str]
    sets_rates: ClassVar[tuple[str, ...]] = ()
    """Figures that peak rates are proportional to."""
    runs_programs: ClassVar[bool] = False
    """True if software compiles each step to one program, which the host starts once."""

    id: str
    name: str
    vendor: Vendor
    kind: Kind
    """What executes kernels there: which room of ``neusight.executors`` answers."""
    architecture: str
    die: str = ""
    """Chip by its maker's name, as GH100; boards of one differ in what is enabled, in clocks, memory and power."""
    compute_capability: str | None = None
    release_date: date
    process_nm: PositiveFloat
    aliases: tuple[str, ...] = ()

    matrix_flops_per_s: dict[str, PositiveFloat] = field(default_factory=dict)
    vector_flops_per_s: dict[str, PositiveFloat]

    dram_kind: str
    dram_bandwidth_bytes_per_s: PositiveFloat
    dram_capacity_bytes: PositiveFloat
    dram_usable_bytes: PositiveFloat | None = None
    """What a process may allocate of it, as the driver tells; see ``usable_bytes``."""

    tdp_w: PositiveFloat
    launch_overhead_s: PositiveFloat
    links: tuple[Link, ...] = ()
    price_usd_per_hour: PositiveFloat | None = None

    sources: dict[str, str] = field(default_factory=dict)
    """Document behind each figure, by field; a rate with its own source as ``matrix_flops_per_s.float16``."""
    notes: str = ""
    hypothetical: tuple[str, ...] = ()
    """Fields changed by the user (``--set``), as ``name=value``: the estimate says so."""
    original: DeviceSpec | None = field(default=None, repr=False)
    """The device as it is, where this is a variant of it; what was learned of that one holds for the variant."""

    @property
    def has_own_price(self) -> bool:
        """True if the price is the user's, by ``--set`` or a device file, so that no price list changes it."""
        return self.price_usd_per_hour is not None and not self.sources.get(PRICE, "").startswith(LISTED)

    @property
    def price_source(self) -> str:
        """Provider, region, date and instance of its price; "" without a price."""
        return self.sources.get(PRICE, "").removeprefix(LISTED)

    @property
    def price_list(self) -> str:
        """Provider and region of its price."""
        return self.price_source.partition(",")[0]

    @property
    def usable_bytes(self) -> float:
        """Memory that a process may allocate [B]: the driver's figure, else ``USABLE_SHARE`` of the datasheet's
        capacity.
        """
        return self.dram_usable_bytes or USABLE_SHARE * self.dram_capacity_bytes

    @property
    def weights_capacity_bytes(self) -> float | None:
        """Capacity of a separate memory for weights [B]; None where they are stored with all other tensors."""
        return None

    @property
    def has_driver(self) -> bool:
        """True if a driver's context and its allocator's slack take memory in addition to tensors."""
        return True

    @property
    def cached_bytes(self) -> float:
        """Bytes that caches between the pipelines and DRAM may keep from one kernel to the next."""
        return 0.0

    @property
    def on_chip_bytes(self) -> float:
        """Memory that all cores share on the chip [B]."""
        return 0.0

    @property
    def on_chip_bytes_per_s(self) -> float:
        """Bandwidth of the memory that cores share on the chip [B/s]; without one nothing waits for it."""
        return float("inf")

    @property
    def core_count(self) -> int:
        """Number of independent cores: SMs of a GPU, else cores."""
        return int(getattr(self, self.cores_field))

    @property
    def core_clock_hz(self) -> float:
        """Clock of its cores under load [Hz]."""
        return float(getattr(self, self.clock_field))

    @property
    def measured_id(self) -> str:
        """Id under which measurements may exist; "" for a variant, which is not measured."""
        return "" if self.hypothetical else self.id

    @property
    def gains(self) -> tuple[float, ...]:
        """Logarithms of a variant's figures over the original's, of those that a kernel's time depends on, positive
        where the variant has more to work with; empty for a device as it is. A smaller process counts as more.
        """
        return () if self.original is None else tuple(_gains(self.original, self))

    @property
    def distance(self) -> float:
        """Distance of a variant from the original: the largest change of a figure, as a logarithm; 0 for none."""
        return max((abs(gain) for gain in self.gains), default=0.0)

    @property
    def likeness(self) -> tuple[str, ...]:
        """A line for a device that is priced like another board of its die: which, and how far its figures lie from
        that one's; none for devices of the catalogue, for their variants, and for unknown dies.
        """
        if self.original is None or self.hypothetical:
            return ()
        other = f", with figures that differ by up to {exp(self.distance) - 1.0:.0%}" if self.distance else ""
        return (f"{self.id} has the die of {self.original.id} and is priced like it{other}",)

    @property
    def facts(self) -> ArchitectureFacts:
        """Facts of the architecture and the kind of board in addition to these figures.

        Raises:
            DeviceError: a compute capability of NVIDIA that is no number.
        """
        return architecture_facts(self.vendor, self.compute_capability, (self.original or self).name)

    @property
    def dram_family(self) -> str:
        """Kind of memory: ``HBM``, ``GDDR`` or ``LPDDR``; other kinds count as GDDR."""
        return next((name for name in ("LPDDR", "HBM") if name in self.dram_kind.upper()), "GDDR")

    def gemm_flops_per_s(self, dtype: str) -> float:
        """Dense peak [FLOP/s] of matrix products in ``dtype``: matrix units where they take it, else vector pipelines.

        Raises:
            DeviceError: the device has no rate for the dtype.
        """
        rate = self._rate(dtype)
        if rate is None:
            dtypes = sorted({*self.matrix_flops_per_s, *self.vector_flops_per_s})
            raise DeviceError(f"{self.id} does not compute in {dtype}: it has {', '.join(dtypes)}")
        return rate

    def multiplies(self, dtype: str) -> bool:
        """True if the device has a rate for matrix products in ``dtype``."""
        return self._rate(dtype) is not None

    def _rate(self, dtype: str) -> float | None:
        return self.matrix_flops_per_s.get(dtype) or self.vector_flops_per_s.get(dtype)


@dataclass(frozen=True, kw_only=True)
class GpuSpec(DeviceSpec):
    """A GPU, or a machine described in its terms. "SM" stands for compute unit (AMD) and Xe core (Intel) as well."""

    resources = (
        *("sm_count", "boost_clock_hz", "dram_bandwidth_bytes_per_s", "l2_capacity_bytes", "l2_bytes_per_clock_per_sm"),
        *("shared_memory_per_sm_bytes", "registers_per_sm", "max_threads_per_sm", "max_blocks_per_sm", "tdp_w"),
        *("cached_bytes", "memory_cache_bytes_per_s"),
    )
    cores_field = "sm_count"
    clock_field = "boost_clock_hz"
    sets_rates = ("sm_count", "boost_clock_hz")

    kind: Literal["gpu", "tensordash"] = "gpu"
    sm_count: PositiveInt
    base_clock_hz: PositiveFloat
    boost_clock_hz: PositiveFloat
    l2_capacity_bytes: PositiveFloat
    l2_bandwidth_bytes_per_s: PositiveFloat | None = None
    memory_cache_capacity_bytes: PositiveFloat | None = None
    """Capacity of a cache between L2 and DRAM (AMD's Infinity Cache)."""
    memory_cache_bandwidth_bytes_per_s: PositiveFloat | None = None
    shared_memory_per_sm_bytes: PositiveFloat
    registers_per_sm: PositiveInt
    max_threads_per_sm: PositiveInt
    max_blocks_per_sm: PositiveInt
    warp_size: PositiveInt
    original: GpuSpec | None = field(default=None, repr=False)

    def gemm_flops_per_s(self, dtype: str) -> float:
        """Rate of products [FLOP/s], as of any device. Where 16-bit arithmetic is slower than float32 (compute
        capability 6.1: 1/64), products of 16-bit operands run in float32, in which PyTorch asks cuBLAS to accumulate
        them in any case (``CUBLAS_COMPUTE_32F``).
        """
        rate = super().gemm_flops_per_s(dtype)
        return max(rate, self.vector_flops_per_s.get("float32", 0.0)) if dtype in HALVES else rate

    @property
    def on_chip_bytes(self) -> float:
        """Capacity of L2 [B]."""
        return self.l2_capacity_bytes

    @property
    def on_chip_bytes_per_s(self) -> float:
        """Bandwidth of L2 [B/s], see ``l2_bytes_per_s``."""
        return self.l2_bytes_per_s

    @property
    def cached_bytes(self) -> float:
        """Capacity of L2 and a cache between it and DRAM together [B]."""
        return self.l2_capacity_bytes + (self.memory_cache_capacity_bytes or 0.0)

    @property
    def memory_cache_bytes_per_s(self) -> float:
        """Bandwidth of a cache between L2 and DRAM [B/s], DRAM's where there is none."""
        return self.memory_cache_bandwidth_bytes_per_s or self.dram_bandwidth_bytes_per_s

    @property
    def l2_bytes_per_clock_per_sm(self) -> float:
        """Port between an SM and L2 [B a clock], wider or narrower where a variant's L2 was made faster or slower."""
        return L2_BYTES_PER_CLOCK_PER_SM * self._l2_gain

    @property
    def sustained_l2_bytes_per_s(self) -> float:
        """Rate that reads of all SMs sustain through their ports to L2 [B/s], by microbenchmarks."""
        return self.sm_count * self.boost_clock_hz * self.l2_bytes_per_clock_per_sm * self.facts.l2_port_share

    @property
    def l2_bytes_per_s(self) -> float:
        """Bandwidth of L2 [B/s]: the published one, or that of all SMs' ports where none, or less, is published.

        Source: datasheets, else ``64 B · SMs · boost clock`` (Jia et al. 2018). Validity: an upper end; sustained reads
        reach about a third of it.
        """
        gain, published_bytes = self._l2_gain, self.l2_bandwidth_bytes_per_s
        published = published_bytes / gain if published_bytes else None
        ports = self.sm_count * self.boost_clock_hz * L2_BYTES_PER_CLOCK_PER_SM
        return gain * max(published or ports, ports)

    @property
    def _l2_gain(self) -> float:
        """Bandwidth of L2 that a variant states over the original's; 1 where it states no other."""
        if self.original is None or self.l2_bandwidth_bytes_per_s in (None, self.original.l2_bandwidth_bytes_per_s):
            return 1.0
        return self.l2_bandwidth_bytes_per_s / self.original.l2_bytes_per_s

    @property
    def cuda_cores_per_sm(self) -> float:
        """Float32 lanes of an SM: FMA a clock."""
        return self.vector_flops_per_s["float32"] / (2.0 * self.sm_count * self.boost_clock_hz)

    @property
    def inline_ecc(self) -> bool:
        """True if check bits are stored in the same memory as data: GDDR of a board that has them, of which a driver
        offers no more than the datasheet's figure read as decimal GB, since one in sixteen of the installed GiB stores
        check bits. A variant is like its original.
        """
        board = self.original or self
        withheld = board.usable_bytes < ECC_LEAVES * board.dram_capacity_bytes
        return self.dram_family == "GDDR" and board.facts.inline_ecc and withheld


@dataclass(frozen=True, kw_only=True)
class SystolicSpec(DeviceSpec):
    """A chip whose products run in systolic arrays beside vector units: TPU, Trainium, Gaudi, or one of one's own.

    ``matrix_flops_per_s`` names the formats that arrays multiply, bfloat16 where it is empty; floating-point operands
    of 16 and 32 bits in others are converted by the vector units.
    """

    resources = (
        *("clock_hz", "array_count", "dram_bandwidth_bytes_per_s", "on_chip_capacity_bytes", "tdp_w"),
        "on_chip_bytes_per_s",
    )
    cores_field = "cores"
    clock_field = "clock_hz"
    sets_rates = ("array_count", "array_rows", "array_columns", "clock_hz")
    runs_programs = True

    kind: Literal["systolic"] = "systolic"
    cores: PositiveInt = 1
    clock_hz: PositiveFloat
    array_rows: PositiveInt
    """Along which products are summed: the stationary operand's part of the contraction."""
    array_columns: PositiveInt
    array_count: PositiveInt
    """Number of arrays of all cores."""
    padded_rows: PositiveInt = 1
    """Multiple to which rows that stream through an array are padded, 1 for no padding."""
    row_lanes: PositiveInt | None = None
    """Lanes of the vector units side by side among which the elements of a row lie; 1 where each lane has rows of its
    own, as many as were fitted where nothing is stated."""
    on_chip_capacity_bytes: PositiveFloat
    on_chip_bandwidth_bytes_per_s: PositiveFloat | None = None
    original: SystolicSpec | None = field(default=None, repr=False)

    @property
    def on_chip_bytes(self) -> float:
        """Capacity of the memories that software fills [B]."""
        return self.on_chip_capacity_bytes

    @property
    def on_chip_bytes_per_s(self) -> float:
        """Their bandwidth [B/s]; not a limit where it is not published."""
        return self.on_chip_bandwidth_bytes_per_s or float("inf")

    @property
    def cached_bytes(self) -> float:
        """A program finds in the on-chip memories what the one before left there [B]."""
        return self.on_chip_capacity_bytes

    @property
    def multiplier_flops_per_s(self) -> float:
        """Two operations of every multiplier a clock [FLOP/s]."""
        return 2.0 * self.array_rows * self.array_columns * self.array_count * self.clock_hz

    def _rate(self, dtype: str) -> float | None:
        """Rate of the format itself, else of the format that operands of 16 and 32 bits are rounded to, else, without
        any stated rate, that of the multipliers.
        """
        rounded = dtype in (*CARRIERS, "tf32")
        formats = (dtype, *CARRIERS) if rounded else (dtype,)
        rate = next((self.matrix_flops_per_s[name] for name in formats if name in self.matrix_flops_per_s), None)
        return self.multiplier_flops_per_s if rounded and not self.matrix_flops_per_s else rate


@dataclass(frozen=True, kw_only=True)
class MicrocontrollerSpec(DeviceSpec):
    """A microcontroller: one core without DRAM. What the base calls ``dram`` is its SRAM, which holds tensors; weights
    and program lie in flash. ``tdp_w`` is what it draws while it runs at full clock.

    ``vector_flops_per_s`` are rates of multiply-adds by the core's SIMD instructions alone, loads beside it. How fast
    everything else of a kernel runs, ``coremark_per_mhz`` tells: the score of EEMBC's CoreMark over the clock, from the
    memories and with the caches that the chip has.
    """

    resources = ("clock_hz", "dram_bandwidth_bytes_per_s", "coremark_per_mhz")
    clock_field = "clock_hz"
    sets_rates = ("clock_hz",)

    kind: Literal["microcontroller"] = "microcontroller"
    dram_kind: str = "SRAM"
    clock_hz: PositiveFloat
    coremark_per_mhz: PositiveFloat
    flash_capacity_bytes: PositiveFloat
    launch_overhead_s: PositiveFloat = 1e-6
    """A call of a function (assumption: about a hundred cycles)."""
    original: MicrocontrollerSpec | None = field(default=None, repr=False)

    @property
    def usable_bytes(self) -> float:
        """All of the SRAM [B]."""
        return self.dram_capacity_bytes

    @property
    def has_driver(self) -> bool:
        """None: the program lies in flash."""
        return False

    @property
    def weights_capacity_bytes(self) -> float:
        """Capacity of the flash memory [B]."""
        return self.flash_capacity_bytes

    @property
    def core_count(self) -> int:
        """One."""
        return 1

    def lanes(self, dtype: str) -> float:
        """Multiply-adds a cycle in a dtype.

        Raises:
            DeviceError: the core has none.
        """
        return self.gemm_flops_per_s(dtype) / (2.0 * self.clock_hz)


SPECS: dict[str, type[DeviceSpec]] = {
    "gpu": GpuSpec, "tensordash": GpuSpec, "systolic": SystolicSpec, "microcontroller": MicrocontrollerSpec,
}  # fmt: skip
"""Class that describes a device of each kind."""


def _gains(before: DeviceSpec, after: DeviceSpec) -> Iterator[float]:
    for name in before.resources:
        yield log(getattr(after, name) / getattr(before, name))
    for old_rates, new_rates in (
        (before.matrix_flops_per_s, after.matrix_flops_per_s),
        (before.vector_flops_per_s, after.vector_flops_per_s),
    ):
        yield from (log(rate / old_rates[dtype]) for dtype, rate in new_rates.items() if dtype in old_rates)
    yield log(before.process_nm / after.process_nm)
    lanes = {(link.kind, link.joins): link.bandwidth_bytes_per_s for link in before.links}
    for link in after.links:
        yield log(link.bandwidth_bytes_per_s / lanes.get((link.kind, link.joins), link.bandwidth_bytes_per_s))
