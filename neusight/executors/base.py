"""The protocol of executors, and where each kind of device has its own."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from neusight.devices.spec import DeviceSpec
from neusight.engines import Libraries
from neusight.errors import DeviceError
from neusight.executors.costs import Costs
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.laws.fitted import FittedConstants
from neusight.quick_dataclasses import dataclass

_HOMES = {
    "gpu": "neusight.executors.gpu.predictor",
    "systolic": "neusight.executors.systolic.predictor",
    "microcontroller": "neusight.executors.microcontroller",
    "tensordash": "neusight.executors.tensordash.device",
}
LINK, _LINK_HOME = "link", "neusight.executors.link"
"""What answers collectives, whatever kind of device they join."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an executor answers.

    ``simulate`` runs a simulated machine's scheduler in place of the tile model that learned from it; with
    ``compression`` zeros don't travel to and from DRAM; without ``learned`` laws answer alone, and nothing counts that
    tile models learned from kernels by themselves.
    """

    simulate: bool = False
    compression: bool = False
    learned: bool = True

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that are not at their default."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


class Executor(Protocol):
    """What kernels cost on devices of one kind."""

    takes: ClassVar[frozenset[str]]
    """Options that mean something to it, and ``sparsity`` where zeros do."""

    @property
    def libraries(self) -> Libraries | None:
        """Those whose kernels run where nothing else is said; None for those that were measured."""

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, options: Options, conditions: Conditions | None = None
    ) -> Costs:
        """Costs of every kernel of a batch of one family, by default each launched alone, operands cold. Conditions
        mean nothing to a machine that is simulated.

        Raises:
            CoverageError: no rule for such kernels. DeviceError: a dtype that the device lacks.
        """

    def provenance(self, device: DeviceSpec) -> dict[str, Any]:
        """What the costs come from: ``tile_models`` by name, ``training_gpus``, ``calibration``."""

    def advice(self, device: DeviceSpec, has_zeros: bool) -> tuple[str, ...]:
        """What a user should know of an estimate, beside what its figures say."""


class FittedExecutor:
    """What executors have in common that learned nothing but the constants of their laws."""

    takes: ClassVar[frozenset[str]] = frozenset()
    source: ClassVar[str]
    """Names the constants in estimates."""
    fitted: FittedConstants[Any]

    @property
    def libraries(self) -> Libraries | None:
        """None: those that were measured."""
        return None

    def provenance(self, device: DeviceSpec) -> dict[str, Any]:
        """The constants, and the devices that they were fitted to."""
        known = {self.source: f"{len(self.fitted.values)} constants, {self.fitted.rows} rows"}
        return {"tile_models": known, "training_gpus": tuple(self.fitted.gpus), "calibration": ""}

    def advice(self, device: DeviceSpec, has_zeros: bool) -> tuple[str, ...]:
        """Zeros are multiplied like all else."""
        return (f"zeros of tensors change nothing on {device.id}, which multiplies them",) if has_zeros else ()


def load_executor(kind: str, tile_models: Path | None = None, calibrations: Path | None = None) -> Executor:
    """The executor of a kind of device.

    Args:
        kind: ``DeviceSpec.kind``, or ``LINK``.
        tile_models: folder that ``neusight train`` wrote; default: those that ship.
        calibrations: a calibration or a folder of them.

    Raises:
        DeviceError: an unknown kind. ArtifactError: what it loads is damaged.
    """
    if kind == LINK:
        return import_module(_LINK_HOME).load(tile_models, calibrations)
    if kind not in _HOMES:
        raise DeviceError(f"no executor for devices of kind '{kind}': one of {', '.join(_HOMES)}")
    return import_module(_HOMES[kind]).load(tile_models, calibrations)
