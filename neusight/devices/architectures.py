"""Facts of a GPU's architecture and board that no figure of its file tells, from ``architectures.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

from neusight.errors import DeviceError
from neusight.quick_dataclasses import dataclass

_FILE = Path(__file__).resolve().parent / "architectures.toml"
_NUMBERED = "nvidia"
"""Vendor whose architectures have numbers."""


@dataclass(frozen=True, kw_only=True)
class ArchitectureFacts:
    """Facts of a GPU that kernels, libraries and laws need in addition to its figures.

    ``elements_per_thread`` are those of each tensor that a thread of PyTorch's pointwise kernels takes;
    ``blas_generation`` is the first architecture that its library's kernels ran on; ``issue`` how float32 FMAs share
    the issue slots of an SM: ``free``, ``contended`` by whatever else a loop holds, ``paired`` where peaks count two
    operations a lane; ``issue_slots_per_sm`` the least instructions of threads that an SM issues a
    clock, beside one a lane; ``l2_partitions`` the parts of L2 that each keep a copy; ``l2_port_share`` what reads
    sustain of ports of 64 bytes a clock between SMs and L2; ``panel_sharing_levels`` how many times neighbouring blocks
    share the panels that they fetch; with ``reads_shared_memory`` matrix units read operands from there by themselves,
    once for ``matrix_rows`` of A; ``tile_accumulators`` are those of the largest tile where libraries bring kernels of
    all widths, 0 where of a few shapes; ``shared_memory_gain`` is what shared memory brings a clock, over its vendor's
    usual; ``exponentials_per_clock`` are those of an SM (CUDA C++ Programming Guide, throughput of native arithmetic).
    ``half_constants``, ``prologue_constants`` and ``step_constants`` name constants of products that multiply the
    common one there; ``sparse_products``: matrix units skip two of four weights that are zero;
    ``applies_block_scales``: they apply scales of blocks themselves; ``narrow_layouts``: they take 8-bit operands along
    any dimension; with
    ``stalls_untuned_groups`` CUTLASS's grouped kernels are slow where nobody chose among them. ``channels`` are the
    thread blocks of NCCL's collectives, which move ``channel_bytes_per_s`` each, 0 where nobody says; ``switch_share``
    is the share of links that sums in switches pass, 0 where switches form none. ``inline_ecc`` is false for boards
    that keep no check bits whatever their driver leaves of the memory.
    """

    blas_generation: Literal["maxwell", "volta", "ampere", "tensile", "other"]
    issue: Literal["free", "contended", "paired"]
    issue_slots_per_sm: int = 0
    elements_per_thread: int = 4
    l2_partitions: int = 1
    l2_port_share: float = 0.34
    early_memory_controller: bool = False
    unified_l1: bool = False
    tf32: bool = False
    bfloat16: bool = False
    sparse_products: bool = False
    reads_shared_memory: bool = False
    panel_sharing_levels: int = 0
    matrix_rows: int = 64
    tile_accumulators: int = 0
    shared_memory_gain: float = 1.0
    exponentials_per_clock: float = 16.0
    half_constants: tuple[str, ...] = ()
    prologue_constants: tuple[str, ...] = ()
    step_constants: tuple[str, ...] = ()
    applies_block_scales: bool = False
    narrow_layouts: bool = False
    stalls_untuned_groups: bool = False
    switch_share: float = 0.0
    large_blas_workspace: bool = False
    small_serving_limits: bool = False
    channels: int
    channel_bytes_per_s: float = 0.0
    clock_above_boost: bool = False
    inline_ecc: bool = True


@cache
def architecture_facts(vendor: str, capability: str | None, name: str = "") -> ArchitectureFacts:
    """Facts of a GPU.

    Args:
        vendor: nvidia, amd, intel or other.
        capability: NVIDIA's compute capability such as ``8.9``: what is new from the newest listed one on that is not
            above it holds. Others' say nothing here.
        name: of the product, which tells the kind of board.

    Raises:
        DeviceError: a compute capability of NVIDIA that is no number.
    """
    table = _table()
    vendor_facts = table[vendor if vendor in table else "other"]
    facts: dict[str, Any] = {
        key: value for key, value in vendor_facts.items() if key != "untold" and not isinstance(value, dict)
    }
    if vendor == _NUMBERED:
        capability_number = _number(capability or vendor_facts["untold"], name)
        since = {float(key): value for key, value in vendor_facts.items() if isinstance(value, dict)}
        for number in sorted(since):
            facts |= since[number] if number <= capability_number else {}
    for board in table["boards"]:
        if any(word in name for word in board["words"]):
            facts |= {key: value for key, value in board.items() if key != "words"}
    lists: dict[str, Any] = {key: tuple(value) for key, value in facts.items() if isinstance(value, list)}
    return ArchitectureFacts(**facts | lists)


def architecture_name(vendor: str, capability: str | None, name: str = "") -> str:
    """Name of the table of facts that a GPU has, with the kind of its board: GPUs of one name differ by figures alone.

    ``nvidia 10.0`` for compute capability 10.3, ``nvidia 8.6 GeForce`` for an RTX 4090; other vendors' GPUs by what
    their files call the capability. Arguments and errors as of ``architecture_facts``.
    """
    board = " GeForce" if architecture_facts(vendor, capability, name).clock_above_boost else ""
    if vendor != _NUMBERED:
        return f"{vendor} {capability or ''}{board}"
    facts_of = _table()[_NUMBERED]
    number = _number(capability or facts_of["untold"], name)
    since = [float(key) for key, value in facts_of.items() if isinstance(value, dict) and float(key) <= number]
    return f"{vendor} {max(since, default=0.0)}{board}"


def is_between(capability: str | None, since: str, until: str) -> bool:
    """True if a compute capability such as ``8.9`` is one from ``since`` on and before ``until``; False if it is
    unknown.
    """
    at, begin, end = ([int(part) for part in (text or "-1").split(".")] for text in (capability, since, until))
    return begin <= at < end


def _number(capability: str, name: str) -> float:
    try:
        return float(capability)
    except ValueError:
        raise DeviceError(f"{name}: compute capability '{capability}' is not a number such as 8.9") from None


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
