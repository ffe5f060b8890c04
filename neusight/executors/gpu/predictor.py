"""From kernels to latencies: bound, utilisation and interval for batches of kernels on one device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from neusight.devices.load import gpu_of
from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.errors import CoverageError
from neusight.executors.base import Options
from neusight.executors.costs import Costs, cause_of
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.expected.products import WIDEST_COPY_BYTES, product_of
from neusight.executors.gpu.expected.times import launch_s, lone_s, start_s
from neusight.executors.gpu.features import Situation, feature_matrix, situate
from neusight.executors.gpu.tile_models.artifact import (
    Artifact,
    Manifest,
    kernel_kinds,
    launch_floor_s,
    launch_kinds,
    load_artifacts,
)
from neusight.executors.gpu.tile_models.doubts import THROTTLED, Kinship, doubt_names
from neusight.executors.gpu.tile_models.protocol import utilisation
from neusight.executors.gpu.tiling import TileChoice
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import among, by_distinct
from neusight.laws.bounds import GEMM_FAMILIES
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass

CHUNK = 16384
"""Rows that are worked on together: their columns stay in the cache of a CPU core (numerics)."""
THREADS = os.cpu_count() or 1
"""Chunks that are worked on at a time; numpy lets go of the interpreter while it computes (numerics)."""
LIMITERS = np.array(["compute", "dram", "l2"])
TRANSFER_WIDENING = 1.2
"""Intervals of kernels outside the answering model's training are wider by this power: with it nine in ten measured
steps of torchvision's models, and more of BERT and ResNet-50, lie inside (fitted: twenty GPUs; ``evaluate steps``)."""


def trained_on(artifact: Artifact, batch: KernelBatch) -> np.ndarray:
    """Whether the op and dtype of each kernel occurred in the model's training rows, shape (n,)."""
    domain = artifact.manifest.domain
    known = by_distinct(batch["op"], lambda op: op in domain["ops"]).astype(bool)
    return known & by_distinct(batch["dtype"], lambda dtype: dtype in domain["dtypes"]).astype(bool)


def _outside(artifact: Artifact, s: Situation, native: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """What lies outside of a model's training, in words, shape (n,): the device's vendor, the family, the operator or
    its dtype, a feature or the kernel's size.
    """
    batch = s.batch
    if artifact.lone_vendor(s.device.measured_id, s.device.vendor):
        return np.full(len(batch), f"GPUs of {s.device.vendor}")
    beyond = artifact.beyond(inputs, s.work)
    if native.all():
        return beyond
    ops, dtypes = (batch[name].astype(str) for name in ("op", "dtype"))
    known = among(ops, artifact.manifest.domain["ops"])
    return np.where(native, beyond, np.where(known, np.char.add("dtype ", dtypes), np.char.add("operator ", ops)))


class Correction(Protocol):
    """What is known of a device beyond the tile models: a calibration with measurements of its own."""

    def apply(self, artifact: Artifact, situation: Situation, estimates: Costs) -> Costs:
        """The estimates of a situation's kernels, which a tile model stated, corrected."""

    @property
    def knows_kernels(self) -> bool:
        """Whether any were measured."""

    @property
    def knows_launches(self) -> bool:
        """Whether launches were measured."""

    @property
    def engines(self) -> Mapping[str, Mapping[str, float]]:
        """Constants of serving engines that servers with the device told, by era."""

    def described(self) -> str:
        """In a line, for the provenance of an estimate."""


@dataclass(frozen=True)
class KernelPredictor:
    """Tile models by name with the tile choice they were trained with, and corrections by the id of their device.

    A variant of a device is priced as that device, its bias and corrections included, times what physics says of the
    figures that were changed. Other ``physics`` than the tile models were trained on tell what a law is worth.
    """

    artifacts: Mapping[str, Artifact]
    choice: TileChoice
    physics: Physics
    corrections: Mapping[str, Correction] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> KernelPredictor:
        """Load the tile models in a directory, or those that ship.

        Raises:
            ArtifactError: none there, or one does not load.
        """
        return cls(load_artifacts(path), shipped_choice(path), shipped_physics(path).physics)

    takes: ClassVar[frozenset[str]] = frozenset({"learned"})
    libraries: ClassVar[None] = None

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, options: Options, conditions: Conditions | None = None
    ) -> Costs:
        """As ``predict``, by laws alone where nothing learned counts, unless a calibration measured the board."""
        correction = self.correction(device)
        measured = correction is not None and correction.knows_kernels
        answering = self if options.learned or measured else self._by_laws
        return answering.predict(batch, gpu_of(device), conditions)

    @cached_property
    def _by_laws(self) -> KernelPredictor:
        artifacts = {
            name: replace(artifact, manifest=artifact.manifest.without(artifact.manifest.training_gpus))
            for name, artifact in self.artifacts.items()
        }
        return replace(self, artifacts=artifacts)

    def provenance(self, device: DeviceSpec) -> dict[str, Any]:
        """Tile models, what they learned from, and the calibration of a device."""
        correction = self.correction(device)
        manifests = [a.manifest for a in self.artifacts.values()]
        return {
            "tile_models": {m.name: f"{m.backend}, {m.weights_sha256[:12]}" for m in manifests},
            "training_gpus": tuple(sorted({gpu for m in manifests for gpu in m.training_gpus})),
            "calibration": correction.described() if correction else "",
        }

    def advice(self, device: DeviceSpec, has_zeros: bool) -> tuple[str, ...]:
        """Zeros mean nothing to a GPU."""
        return (f"zeros of tensors change nothing on {device.id}, which multiplies them",) if has_zeros else ()

    def predict(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions | None = None) -> Costs:
        """Estimate every kernel of a batch, under its conditions: by default each as a single launch, operands cold.

        Raises:
            CoverageError: no tile model answers the family. DeviceError: a dtype the device lacks.
        """
        known = Conditions.of(len(batch)) if conditions is None else conditions
        correction = self.correction(device)
        if correction is not None and correction.knows_launches:
            # A calibration was recorded on the host that is asked about.
            known = replace(known, recorded=np.broadcast_to(np.asarray(True), (len(batch),)))
        if len(batch) > CHUNK:
            from concurrent.futures import ThreadPoolExecutor

            rows = [np.arange(i, min(i + CHUNK, len(batch))) for i in range(0, len(batch), CHUNK)]
            with ThreadPoolExecutor(min(THREADS, len(rows))) as pool:
                parts = list(pool.map(lambda r: (r, self.predict(batch.take(r), device, known.take(r))), rows))
            return Costs.in_order(parts)
        names = answering_model(batch, device)
        if len(set(names.tolist())) == 1:
            return self._answer(batch, device, str(names[0]), known)
        homes = [(name, np.flatnonzero(names == name)) for name in sorted(set(names.tolist()))]
        return Costs.in_order([(r, self._answer(batch.take(r), device, name, known.take(r))) for name, r in homes])

    def situate(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions | None = None) -> Situation:
        """The kernels on a device as the tile models see them."""
        return situate(batch, device, self.choice, physics=self.physics, conditions=conditions)

    def correction(self, device: DeviceSpec) -> Correction | None:
        """What corrects the estimates for a device, or for the one that it is a variant of."""
        own = self.corrections.get(device.measured_id)
        return own or (self.corrections.get(device.original.measured_id) if device.original else None)

    def _answer(self, batch: KernelBatch, device: GpuSpec, name: str, conditions: Conditions) -> Costs:
        if name not in self.artifacts:
            raise CoverageError(
                f"no tile model '{name}' for {batch.family} kernels among {', '.join(self.artifacts)}: "
                "train it with neusight train"
            )
        # A board that taught is known better by itself than by another of its die.
        alike = runs_alike(batch, device) & (device.measured_id not in self.artifacts[name].manifest.training_gpus)
        if alike.any() and not alike.all():
            parts = [(rows, batch.take(rows), conditions.take(rows)) for rows in map(np.flatnonzero, (alike, ~alike))]
            return Costs.in_order([(r, self._answer(b, device, name, known)) for r, b, known in parts])
        situation = self.situate(batch, device, conditions)
        if not alike.any():
            return self._corrected(name, situation)[1]
        return self._variant(name, situation, self.situate(batch, device.original, conditions))  # type: ignore[arg-type]

    def _corrected(self, name: str, situation: Situation) -> tuple[Costs, Costs]:
        """(costs by a tile model, the same with what was measured on the board itself)."""
        artifact = self.artifacts[name]
        inputs = feature_matrix(situation, artifact.manifest.contract.features)
        native = trained_on(artifact, situation.batch)
        kinship = artifact.kinship(situation.device, situation.batch, situation.conditions)
        # Products of odd rows run other kernels than those of even ones, which tell nothing of them.
        even = name == "matrix" and not artifact.varied("aligned_16_bytes")
        copied = product_of(situation.batch, situation.device, self.physics).copy_bytes if even else np.inf
        alike = native & (np.asarray(copied) >= WIDEST_COPY_BYTES)
        shares = _shares(artifact, situation, inputs, alike, kinship)
        outside = _outside(artifact, situation, native, inputs)
        costs = _estimates(situation, shares, artifact, native, outside, kinship=kinship)
        correction = self.correction(situation.device)
        return costs, costs if correction is None else correction.apply(artifact, situation, costs)

    def _variant(self, name: str, after: Situation, before: Situation) -> Costs:
        """Costs on a variant of a device: those of the device as it is, times what physics says of the change."""
        artifact = self.artifacts[name]
        costs, known = self._corrected(name, before)
        ratio = _change(before, after)
        execution_s = np.maximum(known.execution_s * ratio, after.bound_s)
        launched_s = _overhead_s(after, costs.execution_s * ratio, artifact.manifest, self.physics)
        launch = np.divide(known.overhead_s, costs.overhead_s, where=costs.overhead_s > 0.0, out=np.ones(len(ratio)))
        overhead_s = launched_s * launch
        inputs = feature_matrix(after, artifact.manifest.contract.features)
        outside = _outside(artifact, after, trained_on(artifact, after.batch), inputs)
        doubts = _variant_doubt(artifact.manifest, after, known, np.where(outside == "", 1.0, TRANSFER_WIDENING))
        demand = replace(after.power_demand, lone=known.demand.lone)  # type: ignore[union-attr]
        variant = _costs(
            after, execution_s, overhead_s, doubts,
            outside=outside, source=known.source, cause=known.cause, demand=demand,
        )  # fmt: skip
        correction = self.corrections.get(after.device.measured_id)
        return variant if correction is None else correction.apply(artifact, after, variant)


def runs_alike(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Whether a device is a variant of one that runs each kernel by the same law, shape (n,): a dtype that the original
    lacks tells nothing of it.
    """
    if device.original is None or not device.original.measured_id:
        return np.zeros(len(batch), dtype=bool)
    same = answering_model(batch, device) == answering_model(batch, device.original)
    multiplies = by_distinct(batch["dtype"], device.original.multiplies) if batch.family in GEMM_FAMILIES else True
    return np.logical_and(same, multiplies)


def _change(before: Situation, after: Situation) -> np.ndarray:
    """Expected time of executions on a variant over that on the device as it is, shape (n,): never above 1 where the
    variant has no less of anything, since it may leave the rest idle, nor below 1 where it has no more.
    """
    ratio, gains = after.expected_s / before.expected_s, after.device.gains
    least = 1.0 if max(gains) <= 0.0 else 0.0
    return np.clip(ratio, least, 1.0 if min(gains) >= 0.0 else np.inf)


def _variant_doubt(
    manifest: Manifest, s: Situation, known: Costs, power: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low and high factor on the execution, spread) of a variant: those of the board itself where it is next to that,
    and of a device that nobody measured once a figure has moved by a factor of e, which is how far the devices lie
    apart from which that was learned.
    """
    far, strangers = min(s.device.distance, 1.0), np.broadcast_to(np.asarray("stranger"), (len(s.batch),))
    low, high = ((end - known.overhead_s) / known.execution_s for end in (known.low_s, known.high_s))
    stranger_low, stranger_high, stranger = _doubts(manifest, s, strangers, power)
    return (
        low ** (1.0 - far) * np.minimum(low, stranger_low) ** far,
        high ** (1.0 - far) * np.maximum(high, stranger_high) ** far,
        np.sqrt((1.0 - far) * known.spread**2 + far * np.maximum(known.spread, stranger) ** 2),
    )


def _shares(
    artifact: Artifact, s: Situation, inputs: np.ndarray, native: np.ndarray, kinship: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(utilisation of each kernel; factor by which it takes longer where it draws all of the power by itself, beyond
    what the power law says). What was learned of some operators, in some dtypes, says nothing of others: those are as
    physics has them.
    """
    learned = np.where(native, artifact.logits(inputs, s.prior, artifact.learned_share(kinship)), s.prior)
    kinds, known = kernel_kinds(s.batch), native & (kinship != "stranger")
    alone = np.where(known, by_distinct(kinds, partial(artifact.effect, s.device)), 0.0)
    shared = np.where(known, by_distinct(kinds, partial(artifact.effect_sharing_power, s.device)), 0.0)
    share = utilisation(learned, alone)
    return share, np.ones(len(share)) if (alone == shared).all() else utilisation(learned, shared) / share


def _doubts(
    manifest: Manifest, s: Situation, kinship: np.ndarray, power: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(low and high factor on the execution, spread) by name and kinship, wider by ``power``."""
    names = doubt_names(kernel_kinds(s.batch), s)
    low, high, spread = (_by_kinship(names, kinship, partial(_doubt, manifest, place)) for place in range(3))
    return low**power, high**power, spread * power


def _doubt(manifest: Manifest, place: int, kinship: Kinship, name: str) -> float:
    return manifest.doubt(name, kinship)[place]


def _by_kinship(names: np.ndarray, kinship: np.ndarray, value: Callable[[Kinship, str], float]) -> np.ndarray:
    """A value for each name and what the device is to those that were learned from, shape (n,)."""
    if kinship.strides == (0,):
        return by_distinct(names, partial(value, str(kinship[0])))  # type: ignore[arg-type]
    out = np.empty(len(names))
    for level in sorted(set(kinship.tolist())):
        rows = np.flatnonzero(kinship == level)
        out[rows] = by_distinct(names[rows], partial(value, level))
    return out


def _estimates(
    s: Situation,
    shares: tuple[np.ndarray, np.ndarray],
    artifact: Artifact,
    native: np.ndarray,
    outside: np.ndarray,
    *,
    kinship: np.ndarray,
) -> Costs:
    manifest, (share, lone) = artifact.manifest, shares
    execution_s = s.bound_s / share
    overhead_s = _overhead_s(s, execution_s, manifest, s.physics)
    power = np.where(outside == "", 1.0, TRANSFER_WIDENING)
    # A device that was measured is no better known in operators that nobody measured.
    kinship = kinship if native.all() else np.where(native, kinship, "stranger")
    doubts = _doubts(manifest, s, kinship, power)
    cause = np.full(len(s.batch), cause_of(s.device, manifest.name))
    source = np.where(native, manifest.name, f"{manifest.name} (transferred)")
    demand = replace(s.power_demand, lone=lone)
    return _costs(s, execution_s, overhead_s, doubts, outside=outside, source=source, demand=demand, cause=cause)


def _costs(
    s: Situation,
    execution_s: np.ndarray,
    overhead_s: np.ndarray,
    doubts: tuple[np.ndarray, np.ndarray, np.ndarray],
    **known: Any,
) -> Costs:
    """Costs of executions and launches of so long, with (low and high factor on the execution, spread)."""
    return Costs.of(
        *(s.bound_s, execution_s, overhead_s, doubts[:2]),
        limiter=np.where(overhead_s > execution_s, "launch", _limiter(s)),
        tile=s.tiling.label,
        tile_count=s.tiling.tile_count,
        waves=s.tiling.waves,
        spread=doubts[2],
        **known,
    )


def _overhead_s(s: Situation, execution_s: np.ndarray, manifest: Manifest, physics: Physics) -> np.ndarray:
    """What a launch adds to the executions [s]: its share of a graph's, nothing as a profiler sees it, and alone in a
    stream what the device's host takes, whatever the kernel, with the start of kernels whose executions were learned
    without. Of the hosts that recorded data sets it is what is left of the kind's floor there.
    """
    conditions, device = s.conditions, s.device
    stream = conditions.timing == "stream"
    alone_s = device.launch_overhead_s + np.where(s.fixed_overhead_s > 0.0, 0.0, start_s(device, conditions, physics))
    overhead_s = np.where(stream, alone_s, launch_s(conditions, physics))
    recorded = stream & conditions.recorded
    if not recorded.any():
        return overhead_s
    kinds = launch_kinds(s.batch, conditions)
    floor_s = by_distinct(kinds, lambda kind: launch_floor_s(manifest.launch_floors_s, kind, np.nan))
    lone = lone_s(floor_s, execution_s, s.fixed_overhead_s, physics) - execution_s
    # A floor no longer than the kernel's own start was no lone launch.
    least = (1.0 - physics.start.hidden) * (floor_s - s.fixed_overhead_s)
    return np.where(recorded & (floor_s > s.fixed_overhead_s), np.maximum(lone, least), overhead_s)


def _limiter(s: Situation) -> np.ndarray:
    """The resource with the longest expected time, or power where its limit stretches the kernel."""
    longest = LIMITERS[np.argmax(np.stack([s.times.compute_s, s.times.dram_s, s.times.l2_s]), axis=0)]
    return np.where(s.throttle > THROTTLED, "power", longest)


def load(tile_models: Path | None = None, calibrations: Path | None = None) -> KernelPredictor:
    """The executor of GPUs, with tile models and calibrations from where they lie."""
    from neusight.executors.gpu.calibration.calibration import load_calibrations

    kernels = KernelPredictor.load(tile_models)
    if calibrations is None:
        return kernels
    return replace(kernels, corrections=load_calibrations(calibrations, kernels))
