"""Draft the device file of the machine at hand: the catalogue's where it knows the device, else from the driver."""

from __future__ import annotations

from dataclasses import dataclass

from neusight import units
from neusight.collect.drafting_cpu import cpu_spec
from neusight.collect.drafting_cpu_readings import probe_cpu, read_cpu
from neusight.collect.drafting_gpu import gpu_spec
from neusight.collect.drafting_gpu_readings import GpuReadings, read_gpu
from neusight.collect.drafting_sheet import ASSUMPTION
from neusight.devices import DeviceSpec, load_device
from neusight.devices.schema import FIGURES, LINK_BANDWIDTH, Figure
from neusight.errors import DeviceError

TOLERANCE = 0.03
"""By how much of the catalogue's figure a driver may differ before it is worth a word."""

_SYMBOLS = {"bytes": "B", "bytes_per_s": "B/s", "hz": "Hz", "w": "W"}


@dataclass(frozen=True)
class Draft:
    """A device at hand. ``known``: the catalogue has its driver's name, and ``spec`` is the catalogue's; then
    ``differences`` names each figure in which the driver disagrees.
    """

    spec: DeviceSpec
    known: bool
    differences: tuple[str, ...] = ()


def draft_device(target: str, index: int = 0) -> Draft:
    """Draft the device file of a GPU or of the CPU; a CPU is measured for about two seconds.

    Args:
        target: ``cuda`` (also for PyTorch's ROCm builds) or ``cpu``.
        index: which of several GPUs, as PyTorch counts them.

    Raises:
        DeviceError: no such device.
    """
    if target == "cuda":
        return draft_gpu(read_gpu(index))
    if target != "cpu":
        raise DeviceError(f"unknown kind of device '{target}': use cuda or cpu")
    if index:
        raise DeviceError(f"no CPU {index}: all cores together are device 0")
    return Draft(cpu_spec(read_cpu(), probe_cpu()), known=False)


def draft_gpu(readings: GpuReadings) -> Draft:
    """Draft the device file of a GPU from what its driver reports.

    Raises:
        DeviceError: a figure that cannot be.
    """
    drafted = gpu_spec(readings)
    try:
        catalogued = load_device(readings.name)
    except DeviceError:
        return Draft(drafted, known=False)
    return Draft(catalogued, known=True, differences=differences(drafted, catalogued))


def differences(drafted: DeviceSpec, catalogued: DeviceSpec) -> tuple[str, ...]:
    """Figures that the driver reports more than ``TOLERANCE`` off the catalogue, such as
    ``sm_count: driver 132, catalogue 108``. What was assumed or follows from other figures is not compared.
    """
    found = []
    for key, figure in FIGURES.items():
        said, known = getattr(drafted, figure.field), getattr(catalogued, figure.field)
        reported = not drafted.sources.get(figure.field, ASSUMPTION).startswith(ASSUMPTION)
        if key == "links" and reported:
            found += _differing_links(drafted, catalogued)
        elif reported and isinstance(said, int | float | str) and known and _differ(said, known):
            found.append(f"{key}: driver {_shown(said, figure)}, catalogue {_shown(known, figure)}")
    return tuple(found)


def _differing_links(drafted: DeviceSpec, catalogued: DeviceSpec) -> list[str]:
    known = {link.kind: link.bandwidth_bytes_per_s for link in catalogued.links}
    said = {link.kind: link.bandwidth_bytes_per_s for link in drafted.links if link.kind in known}
    return [
        f"links.{kind}: driver {_shown(value, LINK_BANDWIDTH)}, catalogue {_shown(known[kind], LINK_BANDWIDTH)}"
        for kind, value in said.items()
        if _differ(value, known[kind])
    ]


def _differ(said: float | str, known: float | str) -> bool:
    if isinstance(said, str) or isinstance(known, str):
        return said != known
    return abs(said - known) > TOLERANCE * known


def _shown(value: float | str, figure: Figure) -> str:
    symbol = _SYMBOLS.get(figure.quantity)
    return units.scaled(float(value), symbol, digits=4) if symbol else str(value)
