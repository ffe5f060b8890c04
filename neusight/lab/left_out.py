"""Predictors as if some boards had never been measured: what ships, with every constant fitted again without them.

A folder stands for ``tile_models`` (``paths.tile_models_from``). Tile models saw those boards in training, so nothing
that they learned counts there; constants of physics, links, arrays, microcontrollers, boards, engines and training
steps are fitted to the rows of all others. Each fit is kept in the user's cache by everything that it depends on: an
edit of code that a fit cannot reach leaves it as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from neusight.devices import list_devices, load_device
from neusight.errors import NeusightError
from neusight.executors.gpu.tile_models.artifact import MANIFEST, file_sha256, load_manifest
from neusight.lab.cache import code_sha256, kept, key_of
from neusight.learn import Report
from neusight.learn.evidence import Evidence, FitOptions
from neusight.learn.fits import FITS
from neusight.learn.training import CONSTANT_ROWS, CONSTANT_STEPS
from neusight.paths import cache_dir, read_json, tile_models_dir

QUICK_ROWS, QUICK_STEPS = 10, 1
"""Rows of a group, and steps of the fit of physics, of a quick run."""
NAMES = ("physics", "links", "arrays", "microcontrollers", "boards", "engines", "training")
"""Constants that are fitted again, of ``learn.fits.FITS``."""


def constants_without(
    boards: Collection[str], data: Path, names: Iterable[str] = (), *, quick: bool = False, report: Report | None = None
) -> Path:
    """A folder as ``tile_models`` that stands for what ships (``paths.tile_models_from``), fitted without some boards:
    from the cache, or made and kept there.

    Args:
        boards: ids of devices, or names of sources.
        data: folder of measured rows.
        names: constants that are fitted again, of ``NAMES``; default all.
        quick: fit physics to next to nothing.
        report: called with progress.
    """
    fits = _fits_without(boards, data, names, quick)
    return kept(_folder_of(fits), partial(_fill, fit_options(data, quick), fits, tuple(sorted(boards)), report))


def fit_options(data: Path, quick: bool) -> FitOptions:
    """How constants are fitted again: with fewer rows and steps than those that ship."""
    each, steps = (QUICK_ROWS, QUICK_STEPS) if quick else (CONSTANT_ROWS, CONSTANT_STEPS)
    return FitOptions(data=data, each=each, steps=steps, again=True)


def is_fitted_without(boards: Collection[str], data: Path, names: Iterable[str] = ()) -> bool:
    """Whether the cache has all that ``constants_without`` would fit."""
    return all(folder.is_dir() for folder in _fits_without(boards, data, names).values())


def _fits_without(
    boards: Collection[str], data: Path, names: Iterable[str] = (), quick: bool = False
) -> dict[str, Path]:
    """Folders of the cache for constants, by their name, each with the file that a fit without some boards leaves."""
    shipped = _sha256(tile_models_dir(), "*.*")
    options = fit_options(data, quick)
    request = [sorted(boards), options.each, options.steps, data_sha256(data), shipped, file_sha256(Path(__file__))]
    keys = {name: key_of([name, request, code_sha256(*modules_of(name))]) for name in sorted(set(names) or NAMES)}
    return {name: cache_dir() / "left-out" / f"{name}-{key}" for name, key in keys.items()}


def modules_of(name: str) -> tuple[str, ...]:
    """Modules whose functions fit constants; what these import is found from there."""
    return tuple(sorted({function.__module__ for function in FITS[name].functions}))


def _folder_of(fits: Mapping[str, Path]) -> Path:
    return cache_dir() / "left-out" / key_of([folder.name for folder in fits.values()])


def _fill(
    options: FitOptions, fits: Mapping[str, Path], boards: Collection[str], report: Report | None, folder: Path
) -> None:
    """Copy what ships, and put the constants without some boards in their places."""
    shutil.copytree(tile_models_dir(), folder, dirs_exist_ok=True)
    if "physics" in fits:
        for manifest in folder.glob(f"*/{MANIFEST}"):
            load_manifest(manifest.parent).without(boards).write(manifest)
    for name, fit in fits.items():
        if report and not fit.is_dir():
            report(f"{name} without {', '.join(sorted(boards)[:3])}", 0, 1, float("nan"))
        fitted = kept(fit, partial(_fit_again, name, options, boards))
        shutil.copytree(fitted, folder, dirs_exist_ok=True)


@lru_cache(maxsize=8)
def _evidence(name: str, options: FitOptions) -> Evidence[Any]:
    return FITS[name].read(options, None)


def _fit_again(name: str, options: FitOptions, boards: Collection[str], folder: Path) -> None:
    """Put constants that are fitted without boards into a folder, none where the boards taught them nothing."""
    file = f"{name}.json"
    shipped = read_json(tile_models_dir() / file)
    fits = shipped.get("engines", {"": shipped}).values()
    if any({*fit["gpus"], *fit.get("sources", ())}.intersection(boards) for fit in fits):
        FITS[name].without(_evidence(name, options), boards, options, shipped).save(folder / file)


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
