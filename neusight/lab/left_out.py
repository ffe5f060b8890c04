"""Predictors as if some boards had never been measured: what ships, with every constant fitted again without them.

A folder stands for ``tile_models`` (``paths.tile_models_from``). Tile models saw those boards in training, so nothing
that they learned counts there; constants of physics, links, arrays, microcontrollers, boards, engines and training
steps are fitted to the rows of all others. Each fit is kept in the user's cache by everything that it depends on: an
edit of code that a fit cannot reach leaves it as it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from neusight.api import Predictor
from neusight.devices import list_devices, load_device
from neusight.distributed.factors import shipped_factors
from neusight.errors import NeusightError
from neusight.executors.gpu.tile_models.artifact import MANIFEST, file_sha256
from neusight.lab.cache import code_sha256, kept, key_of
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
from neusight.paths import cache_dir, read_json, tile_models_dir, tile_models_from

QUICK_ROWS, QUICK_STEPS = 10, 1
"""Rows of a group, and steps of the fit of physics, of a quick run."""


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
    fits = _fits_without(boards, data, names, quick)
    return kept(_folder_of(fits), partial(_fill, FitFrom(data, quick, report), fits, tuple(sorted(boards))))


def is_fitted_without(boards: Collection[str], data: Path) -> bool:
    """Whether the cache has all that ``constants_without`` would fit."""
    return all(folder.is_dir() for folder in _fits_without(boards, data).values())


def _fits_without(
    boards: Collection[str], data: Path, names: Iterable[str] = (), quick: bool = False
) -> dict[str, Path]:
    """Folders of the cache for constants, by their name, each with the file that a fit without some boards leaves."""
    shipped = _sha256(tile_models_dir(), "*.*")
    request = [sorted(boards), quick, data_sha256(data), shipped, file_sha256(Path(__file__))]
    keys = {name: key_of([name, request, code_sha256(*FITS[name].modules)]) for name in sorted(set(names) or FITS)}
    return {name: cache_dir() / "left-out" / f"{name}-{key}" for name, key in keys.items()}


def _folder_of(fits: Mapping[str, Path]) -> Path:
    return cache_dir() / "left-out" / key_of([folder.name for folder in fits.values()])


def _fill(source: FitFrom, fits: Mapping[str, Path], boards: Sequence[str], folder: Path) -> None:
    """Copy what ships, and put the constants without some boards in their places."""
    shutil.copytree(tile_models_dir(), folder, dirs_exist_ok=True)
    if "physics" in fits:
        for manifest in folder.glob(f"*/{MANIFEST}"):
            _forget(manifest, boards)
    for name, fit in fits.items():
        if source.report and not fit.is_dir():
            source.report(f"{name} without {', '.join(boards[:3])}", 0, 1, float("nan"))
        fitted = kept(fit, partial(FITS[name].fit, source, boards))
        shutil.copytree(fitted, folder, dirs_exist_ok=True)


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


def _fit_physics(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    each, steps = (QUICK_ROWS, QUICK_STEPS) if fit.quick else (CONSTANT_ROWS, CONSTANT_STEPS)
    options = FitOptions(data=fit.data, each=each, steps=steps)
    parts = _physics_parts(options)
    fitted = fit_parts(parts, replace(options, hold_out=tuple(boards)), report=fit.report)
    fitted.save(folder / shipped_physics().file)


def _fit_links(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    links_without(fit.data, boards, shipped_links()).save(folder / shipped_links().file)


def _fit_arrays(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    if set(boards) & set(shipped_arrays().gpus):
        fit_arrays(fit.data, hold_out=boards).save(folder / shipped_arrays().file)


def _fit_microcontrollers(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    if set(boards) & set(shipped_microcontrollers().gpus):
        fit_microcontrollers(fit.data, hold_out=boards).save(folder / shipped_microcontrollers().file)


def _fit_boards(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    if set(boards) & set(shipped_boards().gpus):
        kept = [one for one in _boards(fit.data)[0] if one.gpu not in boards]
        fitted_boards(kept).save(folder / shipped_boards().file)


def _fit_engines(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    whole = _engines(fit.data)
    if any(one.gpu in boards for one in whole.observations):
        replace(whole, engines=whole.without(boards)).save(folder / "engines.json")


def _fit_training(fit: FitFrom, boards: Sequence[str], folder: Path) -> None:
    shipped = shipped_factors()
    if set(boards) & set(shipped.gpus):
        # How far a step may be off is known of boards left out; factors alone are fitted again.
        replace(factors_without(_steps(fit.data), boards), spread=shipped.spread).save(folder / shipped.file)


@dataclass(frozen=True)
class Refit:
    """A fit that puts a file into a folder, none where the boards taught it nothing, and the modules it stands on."""

    fit: Callable[[FitFrom, Sequence[str], Path], None]
    modules: Sequence[str]


FITS: Mapping[str, Refit] = {
    "physics": Refit(_fit_physics, ("neusight.learn.physics.fit", "neusight.learn.training")),
    "links": Refit(_fit_links, ("neusight.learn.links",)),
    "arrays": Refit(_fit_arrays, ("neusight.learn.arrays",)),
    "microcontrollers": Refit(_fit_microcontrollers, ("neusight.learn.microcontrollers",)),
    "boards": Refit(_fit_boards, ("neusight.learn.boards", "neusight.api")),
    "engines": Refit(_fit_engines, ("neusight.learn.engines", "neusight.api")),
    "training": Refit(_fit_training, ("neusight.learn.training_steps", "neusight.api")),
}
"""Constants that are fitted again, by name."""


def data_sha256(data: Path) -> dict[str, str]:
    """Hash of every table in a folder of measured rows."""
    return _sha256(data, "*.parquet")


@lru_cache(maxsize=2)
def _sha256(folder: Path, pattern: str) -> dict[str, str]:
    return {str(file.relative_to(folder)): file_sha256(file) for file in sorted(folder.rglob(pattern))}


def trait_of(gpu: str, by: str) -> str:
    """What a device is left out with: its id, die, architecture, generation or vendor; "" of an unknown device.

    A device whose chip the catalogue does not name is the only one of its die.
    """
    try:
        device = load_device(gpu)
    except NeusightError:
        return ""
    return {
        "gpu": device.id,
        "die": device.die or device.id,
        "vendor": device.vendor,
        "generation": device.architecture.split()[0].lower(),
        "architecture": device.architecture,
    }[by]


def boards_of(value: str, by: str, gpus: Iterable[str]) -> tuple[str, ...]:
    """All devices that share a trait: those of a die in the catalogue, else those among ``gpus``."""
    named = [device.id for device in list_devices() if by == "die" and device.die == value]
    return tuple(dict.fromkeys([*named, *(gpu for gpu in gpus if trait_of(gpu, by) == value)]))
