"""What follows from a GPU's architecture: operations a clock by dtype, and a catalogued device of the same kind.

Operations a clock and multiprocessor are those behind the catalogue's published rates, which name their documents
(vector pipelines: throughput tables of the CUDA C++ Programming Guide; matrix units: the architectures' whitepapers);
a test compares the two. Everything else that no driver says is taken from the catalogued device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOPPER_TENSOR_CLOCK = 1830 / 1980
"""NVIDIA rates Hopper's tensor cores at 1830 MHz where the multiprocessors' boost clock is 1980 MHz."""
BLACKWELL_TENSOR_CLOCK = 0.96
"""Share of boost clock at which the B200 (0.945) and GB200 (0.974) tensor cores reach their published rates."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One compute capability or GCN architecture.

    Attributes:
        capability: ``9.0`` or ``gfx942``.
        like: id of a catalogued device that has it.
        geforce_like: the same among GeForce boards.
        matrix: dense operations a clock and multiprocessor on matrix units, by dtype; a multiply-add is two.
        vector: the same for the ordinary pipelines.
        transfers_per_clock: of the memory bus, at the memory clock that the driver reports.
        sms_per_die: multiprocessors of one die, where each die has an L2 of its own.
    """

    capability: str
    like: str
    geforce_like: str = ""
    matrix: Mapping[str, float]
    vector: Mapping[str, float]
    transfers_per_clock: int = 2
    sms_per_die: int = 0


def _rates(**rates: float) -> dict[str, float]:
    """``float16`` stands for bfloat16 as well unless that is given (0: not computed)."""
    rates.setdefault("bfloat16", rates.get("float16", 0.0))
    return {dtype: rate for dtype, rate in rates.items() if rate}


def _share(share: float, **rates: float) -> dict[str, float]:
    return {dtype: share * rate for dtype, rate in _rates(**rates).items()}


_AMPERE = _rates(tf32=512, float16=1024, int8=2048, int4=4096)
_ADA = _rates(tf32=512, float16=1024, float8=2048, int8=2048)
_GRAPHICS = _rates(float64=4, float32=256, float16=256)
_HOPPER = _share(HOPPER_TENSOR_CLOCK, tf32=2048, float16=4096, float8=8192, int8=8192)
_BLACKWELL = _share(BLACKWELL_TENSOR_CLOCK, tf32=4096, float16=8192, float8=16384, float6=16384, float4=32768)

_RDNA3 = _rates(float16=512, int8=512, int4=1024)

ARCHITECTURES = (
    Architecture(
        capability="5.2",
        like="m40-12gb",
        matrix={},
        vector=_rates(float64=8, float32=256, float16=256, bfloat16=0),
    ),
    Architecture(
        capability="6.0",
        like="p100-sxm2-16gb",
        matrix={},
        vector=_rates(float64=64, float32=128, float16=256, bfloat16=0),
    ),
    Architecture(
        capability="6.1",
        like="p4",
        geforce_like="gtx-1080-ti",
        matrix={},
        vector=_rates(float64=8, float32=256, float16=4, bfloat16=0, int8=1024),
    ),
    Architecture(
        capability="7.0",
        like="v100-sxm2-32gb",
        matrix=_rates(float16=1024, bfloat16=0),
        vector=_rates(float64=64, float32=128, float16=256, bfloat16=0),
    ),
    Architecture(
        capability="7.5",
        like="t4",
        geforce_like="rtx-2080-ti",
        matrix=_rates(float16=1024, bfloat16=0, int8=2048, int4=4096),
        vector=_rates(float64=4, float32=128, float16=256, bfloat16=0),
    ),
    Architecture(
        capability="8.0",
        like="a100-sxm-80gb",
        matrix=_rates(float64=128, tf32=1024, float16=2048, int8=4096, int4=8192),
        vector=_rates(float64=64, float32=128, float16=512, bfloat16=256),
    ),
    Architecture(capability="8.6", like="a10", geforce_like="rtx-3090", matrix=_AMPERE, vector=_GRAPHICS),
    Architecture(
        capability="8.7",
        like="jetson-agx-orin",
        matrix=_rates(tf32=1024, float16=2048, int8=4096),
        vector=_GRAPHICS,
    ),
    Architecture(capability="8.9", like="l40s", geforce_like="rtx-4090", matrix=_ADA, vector=_GRAPHICS),
    Architecture(
        capability="9.0",
        like="h100-sxm-80gb",
        matrix={"float64": 256, **_HOPPER},
        vector=_rates(float64=128, float32=256, float16=512),
    ),
    Architecture(
        capability="10.0",
        like="b200-sxm-180gb",
        matrix={"float64": 128, **_BLACKWELL, "int8": _BLACKWELL["float8"]},
        vector=_rates(float64=128, float32=256, float16=256),
    ),
    Architecture(
        capability="10.3",
        like="b300-sxm-288gb",
        matrix={"float64": 4, **_BLACKWELL, "float4": 1.5 * _BLACKWELL["float4"], "int8": 512},
        vector=_GRAPHICS,
    ),
    Architecture(
        capability="11.0",
        like="jetson-thor-t5000",
        matrix=_rates(tf32=4096, float16=8192, float8=16384, float6=16384, float4=32768, int8=16384),
        vector=_GRAPHICS,
    ),
    Architecture(
        capability="12.0",
        like="rtx-pro-6000-server",
        geforce_like="rtx-5090",
        matrix=_rates(tf32=512, float16=1024, float8=2048, float4=4096, int8=2048),
        vector=_GRAPHICS,
    ),
    Architecture(
        capability="gfx908",
        like="mi100",
        matrix=_rates(float32=256, float16=1024, bfloat16=512, int8=1024),
        vector=_rates(float64=64, float32=128, float16=256, bfloat16=128),
    ),
    Architecture(
        capability="gfx90a",
        like="mi210",
        matrix=_rates(float64=256, float32=256, float16=1024, int8=1024),
        vector=_rates(float64=128, float32=128, float16=256, bfloat16=128),
    ),
    Architecture(
        capability="gfx942",
        like="mi300x",
        matrix=_rates(float64=256, float32=256, tf32=1024, float16=2048, float8=4096, int8=4096),
        vector=_rates(float64=128, float32=256, float16=256),
        transfers_per_clock=4,
        sms_per_die=38,
    ),
    Architecture(
        capability="gfx950",
        like="mi355x",
        matrix=_rates(float64=128, float32=256, float16=4096, float8=8192, float6=16384, float4=16384, int8=8192),
        vector=_rates(float64=128, float32=256, float16=256),
        transfers_per_clock=4,
        sms_per_die=32,
    ),
    Architecture(
        capability="gfx1100",
        like="rx-7900-xtx",
        matrix=_RDNA3,
        vector=_rates(float64=8, float32=256, float16=256),
        transfers_per_clock=16,
    ),
    Architecture(
        capability="gfx1101",
        like="rx-7700-xt",
        matrix=_RDNA3,
        vector=_rates(float64=8, float32=256, float16=256),
        transfers_per_clock=16,
    ),
)

_HALVED_ON_GEFORCE = ("tf32", "float16", "bfloat16", "float8")
"""Products that GeForce boards sum in float32 at half rate."""


def architecture_of(capability: str) -> Architecture:
    """The architecture of a compute capability or GCN name; for an unknown one the newest known that is not above it
    (the oldest, where all are above).
    """
    amd = capability.startswith("gfx")
    known = sorted((a for a in ARCHITECTURES if a.capability.startswith("gfx") == amd), key=_order)
    return next((a for a in reversed(known) if _rank(a.capability) <= _rank(capability)), known[0])


def like_of(architecture: Architecture, name: str) -> str:
    """Id of the catalogued device that is most like a device of that name."""
    return (is_geforce(name) and architecture.geforce_like) or architecture.like


def matrix_rates(architecture: Architecture, name: str) -> dict[str, float]:
    """Operations a clock and multiprocessor on matrix units for a device of that name: GTX boards have none."""
    if "GTX" in name.upper():
        return {}
    halved = _HALVED_ON_GEFORCE if is_geforce(name) else ()
    return {dtype: rate / 2 if dtype in halved else rate for dtype, rate in architecture.matrix.items()}


def is_geforce(name: str) -> bool:
    """Whether a driver's name is that of a GeForce board."""
    return "GEFORCE" in name.upper()


def _order(architecture: Architecture) -> tuple[int, int]:
    return _rank(architecture.capability)


def _rank(capability: str) -> tuple[int, int]:
    """Sorts ``8.9`` before ``10.0``, and ``gfx90a`` before ``gfx942``."""
    if capability.startswith("gfx"):
        return int(capability.removeprefix("gfx"), 16), 0
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)
