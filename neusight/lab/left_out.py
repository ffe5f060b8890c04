"""Predictors as if some boards had never been measured: what ships, with every constant fitted again without them.

A folder stands for ``tile_models`` (``paths.tile_models_from``). Tile models saw those boards in training, so nothing
that they learned counts there; constants of physics, links, arrays, microcontrollers, boards, engines and training
steps are fitted to the rows of all others. Folders lie in the user's cache, by everything that they depend on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.distributed.factors import shipped_factors
from neusight.errors import NeusightError
from neusight.executors.gpu.tile_models.artifact import MANIFEST, file_sha256
from neusight.laws.fitted import (
    shipped_arrays,
    shipped_boards,
    shipped_links,
    shipped_microcontrollers,
    shipped_physics,
)
from neusight.learn import Report
from neusight.learn.arrays import fit_arrays
from neusight.learn.boards import fitted as fitted_boards
from neusight.learn.boards import read_boards
from neusight.learn.engines import EngineFit, fit_engines
from neusight.learn.links import links_without
from neusight.learn.microcontrollers import fit_microcontrollers
from neusight.learn.physics.fit import FitOptions, all_parts, fit_parts
from neusight.learn.training import CONSTANT_ROWS, CONSTANT_STEPS
from neusight.learn.training_steps import StepObservation, factors_without, observe, read_steps
from neusight.paths import cache_dir, checkout_dir, read_json, tile_models_dir, tile_models_from

LEARNERS = ("kernels", "devices", "laws", "measured", "executors/gpu", "learn")
"""Rooms whose code decides what is learned."""
QUICK_ROWS, QUICK_STEPS = 10, 1
"""Rows of a group, and steps of the fit of physics, of a quick run."""
DIES: Mapping[str, Sequence[str]] = read_json(Path(__file__).with_name("dies.json"))
"""Boards of the catalogue by their die, of dies that have several measured boards."""


@dataclass(frozen=True)
class FitFrom:
    """A folder of measured rows, of which constants are fitted."""

    data: Path
    quick: bool = False
    report: Report | None = None


def predictor_without(
    boards: Collection[str], data: Path, names: Iterable[str] = (), *, quick: bool = False, report: Report | None = None
) -> tuple[Predictor, Path]:
    """What ships as if some boards had never been measured, and the folder that it must answer with
    (``paths.tile_models_from``); arguments as of ``constants_without``.
    """
    folder = constants_without(boards, data, names, quick=quick, report=report)
    with tile_models_from(folder):
        return Predictor.load(), folder


def constants_without(
    boards: Collection[str], data: Path, names: Iterable[str] = (), *, quick: bool = False, report: Report | None = None
) -> Path:
    """A folder as ``tile_models``, fitted without some boards: from the cache, or made and kept there.

    Args:
        boards: ids of devices.
        data: folder of measured rows.
        names: constants that are fitted again, of ``FITS``; default all.
        quick: fit physics to next to nothing.
        report: called with progress.
    """
    wanted = sorted(set(names) or FITS)
    folder = folder_without(boards, data, wanted, quick)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(mkdtemp(prefix=".building-", dir=folder.parent))
    shutil.copytree(tile_models_dir(), building, dirs_exist_ok=True)
    if "physics" in wanted:
        for manifest in building.glob(f"*/{MANIFEST}"):
            _forget(manifest, boards)
    for name in wanted:
        if report:
            report(f"{name} without {', '.join(sorted(boards)[:3])}", 0, 1, float("nan"))
        FITS[name](FitFrom(data, quick, report), building, tuple(sorted(boards)))
    with suppress(OSError):  # Another run made the same meanwhile.
        building.rename(folder)
    return folder


def folder_without(boards: Collection[str], data: Path, names: Iterable[str] = (), quick: bool = False) -> Path:
    """Where ``constants_without`` keeps its folder."""
    key = json.dumps([sorted(boards), sorted(set(names) or FITS), quick, data_sha256(data), code_sha256()])
    return cache_dir() / "left-out" / sha256(key.encode()).hexdigest()[:24]


def _forget(manifest: Path, boards: Collection[str]) -> None:
    """As ``Artifact.without``, in a file."""
    content = read_json(manifest)
    left = [gpu for gpu in content["training_gpus"] if gpu not in boards]
    bias = {name: value for name, value in content["device_bias"].items() if name.split("/")[0] not in boards}
    content |= {"training_gpus": left, "device_bias": bias, "silicon": {}, "shrinkage": 0.0}
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@lru_cache(maxsize=2)
def _physics_parts(options: FitOptions) -> list[Any]:
    return all_parts(options)


@lru_cache(maxsize=2)
def _boards(data: Path) -> Any:
    return read_boards(data, Predictor.load())


@lru_cache(maxsize=2)
def _engines(data: Path) -> EngineFit:
    return fit_engines(data, Predictor.load(), rounds=1)


@lru_cache(maxsize=2)
def _steps(data: Path) -> list[StepObservation]:
    from collections import Counter

    steps, _ = read_steps(data, Counter())
    return observe(steps, Predictor.load().timed, shipped_factors())[0]


def _fit_physics(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    each, steps = (QUICK_ROWS, QUICK_STEPS) if fit.quick else (CONSTANT_ROWS, CONSTANT_STEPS)
    options = FitOptions(data=fit.data, each=each, steps=steps)
    parts = _physics_parts(options)
    fitted = fit_parts(parts, replace(options, hold_out=tuple(boards)), report=fit.report)
    fitted.save(folder / shipped_physics().file)


def _fit_links(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    links_without(fit.data, boards, shipped_links()).save(folder / shipped_links().file)


def _fit_arrays(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    if set(boards) & set(shipped_arrays().gpus):
        fit_arrays(fit.data, hold_out=boards).save(folder / shipped_arrays().file)


def _fit_microcontrollers(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    if set(boards) & set(shipped_microcontrollers().gpus):
        fit_microcontrollers(fit.data, hold_out=boards).save(folder / shipped_microcontrollers().file)


def _fit_boards(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    if set(boards) & set(shipped_boards().gpus):
        kept = [one for one in _boards(fit.data)[0] if one.gpu not in boards]
        fitted_boards(kept).save(folder / shipped_boards().file)


def _fit_engines(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    whole = _engines(fit.data)
    if any(one.gpu in boards for one in whole.observations):
        replace(whole, engines=whole.without(boards)).save(folder / "engines.json")


def _fit_training(fit: FitFrom, folder: Path, boards: Sequence[str]) -> None:
    shipped = shipped_factors()
    if set(boards) & set(shipped.gpus):
        # How far a step may be off is known of boards left out; factors alone are fitted again.
        replace(factors_without(_steps(fit.data), boards), spread=shipped.spread).save(folder / shipped.file)


FITS: Mapping[str, Callable[[FitFrom, Path, Sequence[str]], None]] = {
    "physics": _fit_physics,
    "links": _fit_links,
    "arrays": _fit_arrays,
    "microcontrollers": _fit_microcontrollers,
    "boards": _fit_boards,
    "engines": _fit_engines,
    "training": _fit_training,
}
"""Constants that are fitted again, by name; those that the boards taught nothing stay as they are."""


def data_sha256(data: Path) -> dict[str, str]:
    """Hash of every table in a folder of measured rows."""
    return {str(file.relative_to(data)): _file_sha256(file) for file in sorted(data.rglob("*.parquet"))}


@lru_cache(maxsize=1024)
def _file_sha256(file: Path) -> str:
    return file_sha256(file)


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """A hash of the code and the contracts that decide what constants and tile models learn."""
    package = Path(__file__).resolve().parent.parent
    rooms = [*(package / room for room in LEARNERS), checkout_dir("features")]
    files = [file for room in rooms for kind in ("*.py", "*.toml") for file in sorted(room.rglob(kind))]
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


def trait_of(gpu: str, by: str) -> str:
    """What a device is left out with: its id, die, generation or vendor; "" of an unknown device.

    A die that has no list of boards is that of its devices of one generation with the same figures of an SM.
    """
    try:
        device = load_device(gpu)
    except NeusightError:
        return ""
    if by == "die":
        return next((die for die, boards in DIES.items() if device.id in boards), device.id)
    return {
        "gpu": device.id,
        "vendor": device.vendor,
        "generation": device.architecture.split()[0].lower(),
        "architecture": device.architecture,
    }[by]


def boards_of(value: str, by: str, gpus: Iterable[str]) -> tuple[str, ...]:
    """All devices that share a trait: those of a die in the catalogue, else those among ``gpus``."""
    named = DIES.get(value, ()) if by == "die" else ()
    return tuple(dict.fromkeys([*named, *(gpu for gpu in gpus if trait_of(gpu, by) == value)]))
