"""A calibration: what was measured on one GPU, as a correction of every estimate for it, in a small file.

Several lie in a folder, one a GPU, and are read when their GPU is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import ArtifactError
from neusight.executors.costs import Costs
from neusight.executors.gpu.calibration.corrections import WIDTH, Observations, Points, Posterior, points_of
from neusight.executors.gpu.features import Situation
from neusight.executors.gpu.tile_models.artifact import Artifact
from neusight.kernels.work import by_distinct
from neusight.laws.doubts import NORMAL_90
from neusight.paths import calibrations_dir, read_json
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.executors.gpu.predictor import KernelPredictor

PROTOCOL = 3
"""Version of the file (definition)."""
DIGITS = 6
"""Significant digits of numbers in the file (numerics)."""
_REMEDY = "measure again or fit again with neusight calibrate"
_FIGURES = {
    *("process_nm", "sm_count", "base_clock_hz", "boost_clock_hz", "matrix_flops_per_s", "vector_flops_per_s"),
    *("dram_kind", "dram_bandwidth_bytes_per_s", "l2_capacity_bytes", "l2_bandwidth_bytes_per_s"),
    *("memory_cache_capacity_bytes", "memory_cache_bandwidth_bytes_per_s"),
    *("shared_memory_per_sm_bytes", "registers_per_sm", "max_threads_per_sm", "max_blocks_per_sm", "warp_size"),
    *("tdp_w", "launch_overhead_s"),
}
_TEXTS, _DOUBTS, _NUMBERS = ("model", "kind"), ("level", "own"), ("share", "log_ratio", "noise")
"""Columns of a row of the file beside its inputs: of ``Points``, and of ``Observations``."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Corrections of one GPU's execution and launch times.

    ``tile_models`` are the hashes of what it corrects, ``device`` the figures that the device had, ``data`` the number
    of rows and the sha256 of the files, ``scale`` by how much kernels of a kind differ more from each other there than
    their estimates state. ``engines`` are constants of serving engines that servers with this GPU showed, by era
    (``engines.server.era_of``).
    """

    gpu: str
    neusight: str
    device: Mapping[str, Any]
    tile_models: Mapping[str, str]
    data: Mapping[str, Any]
    scale: Mapping[str, float]
    observations: Observations
    engines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def posterior(self) -> Posterior:
        """Corrections given what was observed."""
        return Posterior(self.observations)

    def apply(self, artifact: Artifact, situation: Situation, estimates: Costs) -> Costs:
        """Correct the estimates of a situation's kernels, which a tile model stated; none where nothing was measured.
        ``latency_s >= bound_s`` holds.

        Raises:
            ArtifactError: the device has other figures than those that the calibration was fitted with.
        """
        if not self.knows_kernels:
            return estimates
        self._check_device(situation.device)
        points = with_scales(points_of(artifact, situation, estimates), self.scale)
        mean, variance, level = self.posterior.execution(points)
        spread = np.sqrt(variance + points.noise**2)
        low, high = np.exp(-NORMAL_90 * spread), np.exp(NORMAL_90 * spread)
        if artifact.manifest.name not in self.observations.points.model:
            # Intervals of a tile model none of whose kernels were measured keep their skew.
            share = spread / np.maximum(np.hypot(estimates.spread, estimates.own_spread), 1e-9)
            ends = (estimates.low_s - estimates.overhead_s, estimates.high_s - estimates.overhead_s)
            low, high = ((end / estimates.execution_s) ** share for end in ends)
        bound_s, overhead_s = estimates.bound_s, estimates.overhead_s * np.exp(self.posterior.launch)
        execution_s = np.maximum(estimates.execution_s * np.exp(mean), bound_s)
        return replace(
            estimates,
            latency_s=overhead_s + execution_s,
            low_s=overhead_s + np.maximum(execution_s * low, bound_s),
            high_s=overhead_s + execution_s * high,
            overhead_s=overhead_s,
            utilisation=bound_s / execution_s,
            spread=np.sqrt(level),
        )

    def check_models(self, predictor: KernelPredictor, where: str) -> None:
        """Refuse tile models that it was not fitted on.

        Raises:
            ArtifactError: with the name of the first that differs.
        """
        loaded = fingerprint(predictor)
        names = sorted({*loaded, *self.tile_models})
        if differing := [name for name in names if loaded.get(name) != self.tile_models.get(name)]:
            raise ArtifactError(f"{where} was fitted on another '{differing[0]}' tile model than is loaded: {_REMEDY}")

    def _check_device(self, device: GpuSpec) -> None:
        now = figures(device)
        if differing := [name for name in now if now[name] != self.device.get(name)]:
            raise ArtifactError(
                f"the calibration of {self.gpu} was fitted with another {differing[0]} of the device: {_REMEDY}"
            )

    def errors(self) -> list[dict[str, Any]]:
        """By kind of kernel, with the dtypes that were measured, the mean errors in percent, ``before`` correcting and
        ``after``, each measurement from all others; ``rows``, and ``factor``, by which the kind took longer than
        predicted on average.
        """
        if not self.knows_kernels:
            return []
        own = self.observations.share > 0
        ratio, kind = self.observations.log_ratio[own], self.observations.points.kind[own]
        left = ratio - self.posterior.left_out()[0][own]
        return [
            {
                "kind": self.data.get("kinds", {}).get(str(name), str(name)),
                "rows": int((kind == name).sum()),
                "before": _percent(ratio[kind == name]),
                "after": _percent(left[kind == name]),
                "factor": float(np.exp(ratio[kind == name].mean())),
            }
            for name in np.unique(kind)
        ]

    @property
    def knows_kernels(self) -> bool:
        """Whether any were measured."""
        return len(self.observations) > 0

    @property
    def knows_launches(self) -> bool:
        """Whether launches were measured, alone or within what was timed."""
        return bool((self.observations.share < 1.0).any())

    def described(self) -> str:
        """In a line, for the provenance of an estimate."""
        digests = ", ".join(digest[:12] for digest in self.data["sha256"].values())
        kernels = f"{self.data['rows']} kernels measured on {self.gpu}" + (f" ({digests})" if digests else "")
        servers = f"what servers with {self.gpu} told of {', '.join(sorted(self.engines))}"
        return " and ".join([*([kernels] * self.knows_kernels), *([servers] * bool(self.engines))]) or kernels

    def save(self, path: Path) -> Path:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "protocol": PROTOCOL,
            **{name: getattr(self, name) for name in ("gpu", "neusight", "device", "tile_models", "data", "scale")},
            "observations": _to_rows(self.observations),
            "engines": {era: dict(constants) for era, constants in self.engines.items()},
        }
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
        return path

    @staticmethod
    def load(path: Path) -> Calibration:
        """Read what ``save`` wrote.

        Raises:
            ArtifactError: missing, malformed, of another protocol, or with inputs that this version lacks.
        """
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"cannot read the calibration {path}: {error}; {_REMEDY}") from None
        protocol = content.get("protocol") if isinstance(content, dict) else None
        if protocol != PROTOCOL:
            raise ArtifactError(f"{path}: protocol {protocol} is not {PROTOCOL}: {_REMEDY}")
        try:
            return _read(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"{path} is no calibration of this version ({error}): {_REMEDY}") from None


def _percent(log_ratio: np.ndarray) -> float:
    """Mean error of predictions that are off by these factors."""
    return 100 * float(np.abs(np.exp(-log_ratio) - 1.0).mean())


def fingerprint(predictor: KernelPredictor) -> dict[str, str]:
    """What a correction is of: the hash of each tile model's weights."""
    return {name: artifact.manifest.weights_sha256 for name, artifact in sorted(predictor.artifacts.items())}


def figures(device: GpuSpec) -> dict[str, Any]:
    """The numbers of a device that estimates depend on."""
    return device.to_dict(_FIGURES)


def with_scales(points: Points, scale: Mapping[str, float]) -> Points:
    """Kernels whose own errors are larger by a factor of their kind; those of a kind without one are as stated."""
    return replace(points, own=points.own * by_distinct(points.kind, lambda kind: scale.get(kind, 1.0)))


def rounded(observations: Observations) -> Observations:
    """As it will be read back from a file."""
    points = observations.points
    doubts = {name: np.round(getattr(points, name), DIGITS) for name in ("inputs", *_DOUBTS)}
    numbers = {name: np.round(getattr(observations, name), DIGITS) for name in _NUMBERS}
    return Observations(replace(points, **doubts), **numbers)


def _to_rows(o: Observations) -> list[dict[str, Any]]:
    columns = {name: getattr(o.points, name).tolist() for name in (*_TEXTS, *_DOUBTS)}
    columns["inputs"] = [np.trim_zeros(row, "b").tolist() for row in o.points.inputs]
    columns |= {name: getattr(o, name).tolist() for name in _NUMBERS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _read(content: dict[str, Any]) -> Calibration:
    rows = content["observations"]
    inputs = np.zeros((len(rows), WIDTH))
    for place, row in enumerate(rows):
        inputs[place, : len(row["inputs"])] = row["inputs"]
    texts = {name: np.array([row[name] for row in rows], dtype=str) for name in _TEXTS}
    numbers = {name: np.array([row[name] for row in rows], dtype=float) for name in (*_DOUBTS, *_NUMBERS)}
    points = Points(**texts, inputs=inputs, **{name: numbers.pop(name) for name in _DOUBTS})
    names = {f.name for f in fields(Calibration)} - {"observations"}
    return Calibration(**{name: content[name] for name in names}, observations=Observations(points, **numbers))


def load_calibrations(path: Path, predictor: KernelPredictor) -> Mapping[str, Calibration]:
    """Corrections for ``KernelPredictor.corrections`` by the id of their device.

    Args:
        path: a file of ``Calibration.save``, or a folder of them, each named after its GPU; the user's own folder need
            not be there.
        predictor: with the tile models that they must have been fitted on.

    Raises:
        ArtifactError: the file does not load, or was fitted on other tile models; those of a folder say so when
            their GPU is asked for.
    """
    if path.is_dir() or path == calibrations_dir():
        return CalibrationFolder(path, predictor)
    calibration = _checked(path, predictor)
    return {calibration.gpu: calibration}


class CalibrationFolder(Mapping[str, Calibration]):
    """The calibrations of a folder, ``<gpu>.json``, each read once."""

    def __init__(self, folder: Path, predictor: KernelPredictor) -> None:
        self.folder = folder
        self.predictor = predictor
        self._read: dict[str, Calibration] = {}

    def __getitem__(self, gpu: str) -> Calibration:
        path = self.folder / f"{gpu}.json"
        if gpu not in self._read:
            if not path.is_file():
                raise KeyError(gpu)
            self._read[gpu] = _of(gpu, path, self.predictor)
        return self._read[gpu]

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("*.json")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of(gpu: str, path: Path, predictor: KernelPredictor) -> Calibration:
    calibration = _checked(path, predictor)
    if calibration.gpu != gpu:
        raise ArtifactError(f"{path} is a calibration of {calibration.gpu}: name the file after its GPU")
    return calibration


def _checked(path: Path, predictor: KernelPredictor) -> Calibration:
    calibration = Calibration.load(path)
    calibration.check_models(predictor, str(path))
    return calibration
