"""A step of a model on a TensorDash machine: its zeros put to its kernels, its kernels into one estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neusight.devices.spec import DeviceSpec
from neusight.estimates import Estimate, Provenance
from neusight.executors.tensordash.cycles import simulated
from neusight.executors.tensordash.device import MachinePredictor
from neusight.executors.tensordash.machine import machine_of
from neusight.executors.tensordash.operands import with_zeros
from neusight.executors.tensordash.passes import modelled, passes_interval
from neusight.schedule.serial import PreparedGraph, serial
from neusight.transforms.sparsity import SparsityProfile

Sparsity = SparsityProfile | Path | str
NO_ZEROS = "no sparsity given: nothing is skipped and the machine runs like its dense twin; give --sparsity"


def as_profile(sparsity: Sparsity | None) -> SparsityProfile:
    """A profile from a file, from ``activations=0.6,gradients=0.5``, or as it is; without zeros for None.

    Raises:
        DataError: a share outside [0, 1], an unknown operand, or a file that is no profile.
    """
    if sparsity is None:
        return SparsityProfile(model="", source="")
    if isinstance(sparsity, SparsityProfile):
        return sparsity
    text = str(sparsity)
    return SparsityProfile.uniform(text) if "=" in text and not Path(text).exists() else SparsityProfile.load(text)


def machine_predictor(device: DeviceSpec, simulate: bool = False, compression: bool = False) -> MachinePredictor:
    """The predictor of a device's kernels: by the tile model, or by the simulator itself.

    Raises:
        DeviceError: no such machine. ArtifactError: the tile model does not load.
    """
    machine = machine_of(device)
    by_model = machine.skips and not simulate
    return MachinePredictor(
        machine=machine,
        pass_cycles=modelled if by_model else simulated,
        interval=passes_interval() if by_model else (1.0, 1.0),
        compression=compression,
    )


def estimate_step(
    prepared: PreparedGraph,
    device: DeviceSpec,
    profile: SparsityProfile,
    layers: Sequence[str] | None,
    provenance: Provenance,
    simulate: bool = False,
    compression: bool = False,
) -> Estimate:
    """One step on one machine.

    Args:
        prepared: the step.
        device: the machine, or its dense twin.
        profile: zeros of its layers.
        layers: the layer of each of its kernels; None where the profile is the same for all.
        provenance: of the estimate, to which the profile's is added.
        simulate: let the scheduler itself run on drawn masks.
        compression: zeros do not travel to and from DRAM.

    Raises:
        DeviceError: a dtype that the machine lacks. CoverageError: a kernel that has no reduction streams.
    """
    predictor = machine_predictor(device, simulate, compression)
    step = with_zeros(prepared, profile, layers)
    estimate = serial(step, device, predictor.predict, replace(provenance, sparsity=profile.source))
    if predictor.machine.skips and not profile.source:
        return replace(estimate, warnings=(NO_ZEROS, *estimate.warnings))
    return estimate
