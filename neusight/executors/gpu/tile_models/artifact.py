"""Artifacts: a trained tile model on disk as manifest, weights and card. Never a pickle."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices.kinship import Silicon
from neusight.devices.spec import GpuSpec
from neusight.errors import ArtifactError
from neusight.executors.gpu.features import FORMULAS, FeatureContract
from neusight.executors.gpu.tile_models.doubts import ANY, Doubt, Kinship, doubt_of
from neusight.executors.gpu.tile_models.protocol import TileModel, backend_class
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import Work, by_distinct
from neusight.laws.effects import Effects
from neusight.paths import read_json, tile_models_dir
from neusight.quick_dataclasses import dataclass

PROTOCOL = 7
"""Version of the files (definition)."""
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a tile model is, what it learned from, and how wrong it was on devices it had not seen.

    ``doubts`` has by kinship, and by name of ``doubt_names`` and its ``levels``, two factors that enclose 90 % of
    execution times and the standard deviation of the log error that a device's kernels share; ``coverage`` how well
    these held on devices that they were learned without, see ``neusight.learn.doubts``; ``effects`` the logit by
    which each training device departs from the model, by kind of kernel, as in ``FittedToDevices``, and ``limited``
    those of them, by ``effect_name``, that were met where power limits them alone; ``domain`` the range of each
    feature and of the kernels' sizes, the ops and the dtypes in training; ``silicon`` what tells their siblings
    (``neusight.devices.kinship``), ``measured`` the ``implementations`` that each of them ran, ``shares`` by kinship
    the share of what was learned that holds, chosen for strangers by leaving kinds out and for siblings, whose share
    is that of effects too, by leaving one device out;
    ``launch_floors_s`` the lone launch of each op in seconds; ``vendors`` how many of the training devices each vendor
    made; ``simulator`` what stands for the devices where they are no GPUs: such a model answers the simulator's own
    package alone, which has the formulas of its features.
    """

    name: str
    backend: str
    parameters: dict[str, Any]
    contract: FeatureContract
    data: dict[str, Any]
    training_gpus: list[str]
    seed: int
    doubts: dict[Kinship, dict[str, Doubt]]
    effects: dict[str, dict[str, float]]
    domain: dict[str, Any]
    launch_floors_s: dict[str, float]
    metrics: dict[str, Any]
    versions: dict[str, str]
    coverage: list[dict[str, Any]] = field(default_factory=list)
    cleaning: dict[str, int] = field(default_factory=dict)
    vendors: dict[str, int] = field(default_factory=dict)
    simulator: str = ""
    silicon: dict[str, list[Any]] = field(default_factory=dict)
    measured: dict[str, list[str]] = field(default_factory=dict)
    limited: list[str] = field(default_factory=list)
    shares: dict[Kinship, float] = field(default_factory=lambda: {"own": 1.0, "sibling": 1.0, "stranger": 1.0})
    weights_sha256: str = ""
    protocol: int = PROTOCOL

    @property
    def interval(self) -> Doubt:
        """Factors that enclose 90 % of execution times on strangers, of all kernels."""
        return self.doubts["stranger"][ANY][:2]

    def doubt(self, name: str, kinship: Kinship) -> Doubt:
        """Of kernels of a name of ``doubt_names``: as on strangers where no sibling was left out."""
        return doubt_of(self.doubts.get(kinship, self.doubts["stranger"]), name)

    def left_out(self) -> dict[str, float]:
        """Mean error in percent of kernels of GPUs that were left out, over GPUs and kinds, by name of ``metrics``."""
        errors = {name: [e for kinds in gpus.values() for e in kinds.values()] for name, gpus in self.metrics.items()}
        return {name: sum(own) / len(own) for name, own in errors.items() if own}

    def without(self, boards: Collection[str]) -> Manifest:
        """The same, as if some boards had never been measured: they are strangers, whose effects do not count. What
        other boards taught the model counts for them alone, since its network learned from all of them.
        """
        left = [gpu for gpu in self.training_gpus if gpu not in boards]
        return replace(self, training_gpus=left, silicon={}, shares=self.shares | {"stranger": 0.0})

    @cached_property
    def devices(self) -> Effects:
        """What training devices have of their own."""
        return Effects(level=self.effects, same_die=self.shares["sibling"])

    def write(self, path: Path) -> None:
        """Write as JSON."""
        content = asdict(self) | {"contract": self.contract.to_dict()}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Artifact:
    """A manifest with its loaded model."""

    manifest: Manifest
    model: TileModel
    folder: Path | None = None

    def kinship(self, device: GpuSpec, batch: KernelBatch, conditions: Conditions) -> np.ndarray:
        """What a device is to those that were learned from, for each kernel: a sibling tells of what it ran itself."""
        if device.id in self.manifest.training_gpus:
            return np.broadcast_to(np.asarray("own"), (len(batch),))
        siblings = self.siblings(device)
        if not siblings:
            return np.broadcast_to(np.asarray("stranger"), (len(batch),))
        ran = {name for gpu in siblings for name in self.manifest.measured.get(gpu, ())}
        return np.where(np.isin(implementations(batch, conditions), sorted(ran)), "sibling", "stranger")

    def learned_share(self, kinship: np.ndarray) -> np.ndarray:
        """Share of what was learned that counts for each kernel: all on devices that were learned from."""
        return by_distinct(kinship, self.manifest.shares.__getitem__)  # type: ignore[arg-type]

    def siblings(self, device: GpuSpec) -> tuple[str, ...]:
        """The training devices that are siblings of another one."""
        own = Silicon.of(device)
        known = ((gpu, Silicon(*content)) for gpu, content in self.manifest.silicon.items())
        return tuple(gpu for gpu, silicon in known if gpu != device.id and own.is_sibling_of(silicon))

    def logits(self, features: np.ndarray, prior: np.ndarray, share: np.ndarray) -> np.ndarray:
        """logit(u) of each ensemble member, shape (members, n), where so much of what was learned counts."""
        if not share.any():
            return prior[None]
        return np.asarray(prior[None] + share * (self.model.logits(features, prior) - prior))

    def effect(self, device: GpuSpec, kind: str) -> float:
        """The logit by which a device departs from the model in a kind of kernel, see ``kernel_kinds``.

        A device that was learned from, but not in that kind, has the mean of its kinds of the operator, or without any
        of all its kinds. A sibling has as much as counts there of what boards of its die have in that kind.
        """
        known = self.manifest.effects.items()
        own = {name: level[device.measured_id] for name, level in known if device.measured_id in level}
        if own and kind not in own:
            alike = [effect for name, effect in own.items() if name.split(" ")[0] == kind.split(" ")[0]]
            alike = alike or list(own.values())
            return sum(alike) / len(alike)
        return self.manifest.devices.of(kind, device, () if own else self.siblings(device)).mean

    def effect_sharing_power(self, device: GpuSpec, kind: str) -> float:
        """The same where other kernels have a part in the device's power: none of a kind that was only met drawing all
        of it, which tells of the board's state and not of the kernel.

        Products of float32 take L4 1.5 and T4 1.2 times as long by themselves, hot, as within models; A100, V100, P100
        and MI100, which nothing limits there, 1.0 times (medians of ``neusight-fp32``).
        """
        boards = (device.measured_id, *self.siblings(device))
        limited = any(effect_name(gpu, kind) in self.manifest.limited for gpu in boards)
        return 0.0 if limited else self.effect(device, kind)

    def beyond(self, features: np.ndarray, work: Work) -> np.ndarray:
        """What of a kernel lies furthest beyond its range in training, of its features and its size, in words; "" where
        all lies within. Shape (n,).
        """
        domain, names = self.manifest.domain, (*self.manifest.contract.features, *SIZES)
        inputs = np.column_stack([features, *sizes(work)])
        low, high = (np.array([*domain[end], *domain[f"size_{end}"]]) for end in ("low", "high"))
        slack = 1e-6 + 0.02 * (high - low)
        excess = np.maximum(low - slack - inputs, inputs - high - slack)
        rows, worst = np.arange(len(inputs)), np.argmax(excess / slack, axis=1)
        texts = np.array(
            [f"{_plain(name)} {side} the range of training" for name in names for side in ("below", "above")]
        )
        number = 2 * worst + (inputs[rows, worst] > high[worst])
        return np.where(excess[rows, worst] > 0, texts[number], "")

    def varied(self, feature: str) -> bool:
        """Whether kernels differed in a feature in training."""
        names, domain = self.manifest.contract.features, self.manifest.domain
        return any(
            name == feature and low < high for name, low, high in zip(names, domain["low"], domain["high"], strict=True)
        )

    def lone_vendor(self, gpu: str, vendor: str) -> bool:
        """Whether fewer than two of the training devices are of a device's vendor and it is none of them: nothing tells
        how devices of that vendor differ.
        """
        return self.manifest.vendors.get(vendor, 0) < 2 and gpu not in self.manifest.training_gpus


SIZES = ("log2_flops", "log2_bytes")
"""Of kernels, beside the features of a contract, which hold ratios alone."""


def _plain(feature: str) -> str:
    """``log2_flops`` as ``FLOP``, ``log2_tile_m`` as ``tile m``."""
    words = feature.removeprefix("log2_").replace("_", " ")
    return "FLOP" if words == "flops" else words


def sizes(work: Work) -> list[np.ndarray]:
    """``SIZES`` of kernels, each of shape (n,)."""
    return [np.log2(np.maximum(amount, 1.0)) for amount in (work.flops, work.bytes)]


def sm_kind(device: GpuSpec) -> str:
    """What devices with SMs of one kind have in common: vendor and compute capability, or the architecture's name."""
    return f"{device.vendor} {device.compute_capability or device.architecture}"


HALF = "float16"
HALVES = {"bfloat16": HALF}
"""Dtypes that kernels compute in alike, by the one that kinds are named by."""


def kernel_kinds(batch: KernelBatch) -> np.ndarray:
    """Kind of each kernel, shape (n,): what is known of errors and of devices is known by kind.

    The operator, in other dtypes than float32 with that (both 16-bit ones count as one), with how 8-bit operands are
    scaled and what narrow weights lie in memory as, and for attention whether it is a decode: ``linear``, ``linear
    float16``, ``linear float8 block``, ``forward float16 decode``.
    """
    columns = [batch[name] for name in ("op", "dtype", "scaling", "weight_dtype") if name in batch.columns]
    if batch.family == "attention":
        columns.append(np.where(batch["q_len"] == 1, "decode", ""))
    if all((column == column[0]).all() for column in columns):
        return np.full(len(batch), _kind(*(str(column[0]) for column in columns)))
    codes = np.zeros(len(batch), dtype=np.int64)
    for column in columns:
        distinct, where = np.unique(column, return_inverse=True)
        codes = codes * len(distinct) + where
    _, first, where = np.unique(codes, return_index=True, return_inverse=True)
    return np.array([_kind(*(str(column[row]) for column in columns)) for row in first])[where]


def implementations(batch: KernelBatch, conditions: Conditions) -> np.ndarray:
    """Kind of each kernel with what ran it and how it was timed, shape (n,): ``linear float16, vllm torch graph``.

    Boards of one die differ by little where they ran the same kernels in the same way; sources that did not agree less
    about one board than about two.
    """
    words = (kernel_kinds(batch), ", ", conditions.engine, " ", conditions.variant, " ", conditions.timing)
    joined = np.array([""])
    for word in words:
        joined = np.char.add(joined, np.asarray(word).astype(str))
    return joined


def launch_kinds(batch: KernelBatch, conditions: Conditions) -> np.ndarray:
    """Kind of each kernel as its lone launch goes, shape (n,): that of ``kernel_kinds``, and for products scaled by
    blocks what an engine runs them with, since each plans them on the host in a time of its own: ``linear float8
    block, cutlass``.
    """
    kinds = kernel_kinds(batch)
    if "scaling" not in batch.columns:
        return kinds
    planned = (batch["scaling"] == "block") & (conditions.timing == "stream") & (conditions.variant != "")
    if not planned.any():
        return kinds
    return np.where(planned, np.char.add(np.char.add(kinds.astype(str), ", "), conditions.variant.astype(str)), kinds)


UNPLANNED_S = 70e-6
"""What an engine that was never met plans on the host for, at most: others', in Python, take up to five times as long,
which says nothing of it (assumption: a launch of the slowest hosts; kernels of that engine without a graph would
tell)."""


def launch_floor_s(floors: Mapping[str, float], kind: str, otherwise: float) -> float:
    """Floor [s] of a kind by ``launch_kinds``; that of the plain kind where what ran it was never met."""
    plain, planned, _ = kind.partition(",")
    if kind in floors or not planned:
        return floors.get(kind, otherwise)
    return min(floors[plain], UNPLANNED_S) if plain in floors else otherwise


def _kind(op: str, dtype: str, *more: str) -> str:
    words = (op, "" if dtype == "float32" else HALVES.get(dtype, dtype), *more)
    return " ".join(word for word in words if word)


def effect_name(gpu: str, kind: str) -> str:
    """A device and a kind of kernel as one word: ``t4/linear``, ``h100-sxm-80gb/linear float16``."""
    return f"{gpu}/{kind}"


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    return sha256(path.read_bytes()).hexdigest()


def save_artifact(artifact: Artifact, folder: Path, card: str) -> Path:
    """Write manifest, weights and card as one folder; an older one is replaced only when all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        artifact.model.save(building)
        weights_sha256 = file_sha256(building / artifact.model.weights_file)
        replace(artifact.manifest, weights_sha256=weights_sha256).write(building / MANIFEST)
        (building / "card.md").write_text(card)
        building.chmod(0o755)
        (building / artifact.model.weights_file).chmod(0o644)
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def load_manifest(folder: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        ArtifactError: missing, malformed, of another protocol, or with features that this version lacks.
    """
    path = folder / MANIFEST
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read the tile model {path}: {error}; run neusight train") from None
    protocol = content.get("protocol") if isinstance(content, dict) else None
    if protocol != PROTOCOL:
        raise ArtifactError(f"{path}: protocol {protocol} is not {PROTOCOL}: retrain with neusight train")
    try:
        known = None if content.get("simulator") else FORMULAS.keys()
        contract = FeatureContract.from_dict(content["contract"], str(path), known)
        return Manifest(**content | {"contract": contract})
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: manifest is not as expected ({error}): retrain with neusight train") from None


def load_artifact(folder: Path, expected: FeatureContract | None = None) -> Artifact:
    """Load a tile model after checking protocol, features and hash.

    Args:
        folder: holds manifest.json and the weights.
        expected: contract that the model must have, for callers that built the features themselves.

    Raises:
        ArtifactError: any of them differs; the message names the leaf.
    """
    manifest = load_manifest(folder)
    if expected is not None and manifest.contract.features != expected.features:
        theirs, ours = manifest.contract.features, expected.features
        leaf = next(
            (f"{a} where {b} is expected" for a, b in zip(theirs, ours, strict=False) if a != b), "their number"
        )
        raise ArtifactError(f"{folder / MANIFEST}: features differ: {leaf}; retrain with neusight train")
    kind = backend_class(manifest.backend)
    weights = folder / kind.weights_file
    if not weights.is_file():
        raise ArtifactError(f"{weights} is missing: copy the whole folder, or retrain with neusight train")
    if file_sha256(weights) != manifest.weights_sha256:
        raise ArtifactError(f"{weights} is not the file its manifest describes (sha256): copy it again or retrain")
    try:
        model = kind.load(folder, manifest.parameters)
    except TypeError as error:
        raise ArtifactError(
            f"{folder / MANIFEST}: parameters do not fit ({error}): retrain with neusight train"
        ) from None
    _check_inputs(model, manifest, folder)
    return Artifact(manifest, model, folder)


def _check_inputs(model: TileModel, manifest: Manifest, folder: Path) -> None:
    mean = getattr(model, "state_", {}).get("mean")
    if mean is not None and len(mean) != len(manifest.contract.features):
        raise ArtifactError(
            f"{folder}: weights take {len(mean)} features, the manifest names {len(manifest.contract.features)}: "
            "retrain with neusight train"
        )


def artifact_folders(directory: Path | None = None) -> list[Path]:
    """Folders with a manifest in ``directory`` (default: the models that ship).

    Raises:
        ArtifactError: there is none.
    """
    directory = directory or tile_models_dir()
    inputs = sorted(p.parent for p in directory.glob(f"*/{MANIFEST}"))
    if not inputs:
        raise ArtifactError(f"no tile models in {directory}: train some with neusight train --out {directory}")
    return inputs


def load_artifacts(directory: Path | None = None) -> dict[str, Artifact]:
    """All tile models of GPU kernels in a directory by name; those of simulated devices are left to their packages."""
    folders = [folder for folder in artifact_folders(directory) if not load_manifest(folder).simulator]
    return {folder.name: load_artifact(folder) for folder in folders}
