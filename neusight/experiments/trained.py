"""Tile models that experiments train: a folder each in the user's cache, by everything that they depend on.

Trained once, a report can be written again in a minute, and experiments share what they have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from hashlib import sha256
from math import nan
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from neusight.datasets.load import parquet_files
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.learn.training import Options, train
from neusight.paths import cache_dir, checkout_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import Contestant, Declaration, Fold
    from neusight.learn.training import Report

DONE = "training.json"
"""Written last: a folder without it was left by an interrupted training."""
LEARNERS = ("devices", "datasets", "laws", "tiling", "features", "tile_models", "kernels.py", "op_costs.py")
"""Rooms whose code decides what is learned."""


def options_of(declared: Declaration, fold: Fold, contestant: Contestant, seed: int, source: Path) -> Options:
    """What to train for a fold; ``out`` is the folder in the cache.

    Args:
        declared: the experiment.
        fold: whose GPUs are held out.
        contestant: with further options.
        seed: of the training.
        source: folder with the kernels.
    """
    further = dict(contestant.options)
    further["parameters"] = tuple(sorted(further.get("parameters", {}).items()))
    options = Options(
        source=source,
        out=Path(),
        families=declared.data.families,
        gpus=declared.training(fold),
        split=declared.data.training_split,
        seed=seed,
        resume=True,
        **further,
    )
    return replace(options, out=cache_dir() / "experiments" / _key(options))


def train_all(wanted: Iterable[Options], jobs: int = 1, report: Report | None = None) -> None:
    """Train what the cache lacks, ``jobs`` at a time; an interrupted training goes on where it was."""
    missing = list({options.out: options for options in wanted if not (options.out / DONE).is_file()}.values())
    if jobs == 1 or len(missing) < 2:
        for options in missing:
            _train(options, report)
        return
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done, future in enumerate(as_completed([pool.submit(_train, options) for options in missing]), start=1):
            future.result()
            if report:
                report("trainings", done, len(missing), nan)


def training_seconds(folders: Iterable[Path]) -> float:
    """How long the trainings of these folders took, when they were done."""
    return sum(json.loads((folder / DONE).read_text(encoding="utf-8"))["seconds"] for folder in folders)


def _train(options: Options, report: Report | None = None) -> None:
    began = monotonic()
    train(options, _named(options, report))
    (options.out / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")


def _named(options: Options, report: Report | None) -> Report | None:
    """Progress that tells one fold's training from another's."""
    if report is None:
        return None
    gpus = f"{options.backend} on {len(options.gpus)} GPUs, {options.out.name[:6]}"
    return lambda task, done, of, error: report(f"{gpus}: {task}", done, of, error)


def _key(options: Options) -> str:
    """A hash of the options, the data and the code."""
    asked = {name: value for name, value in asdict(options).items() if name not in ("source", "out", "resume")}
    data = [[file.name, file_sha256(file)] for file in parquet_files(options.source)]
    return sha256(json.dumps([asked, data, code_sha256()], sort_keys=True).encode()).hexdigest()[:24]


def code_sha256() -> str:
    """A hash of the code and the contracts that decide what tile models learn."""
    package = Path(__file__).resolve().parent.parent
    files = [file for room in LEARNERS for file in _sources(package / room)]
    return _hash([*files, *sorted(checkout_dir("features").glob("*.toml"))])


def _sources(room: Path) -> Sequence[Path]:
    return [room] if room.is_file() else sorted(f for kind in ("*.py", "*.toml") for f in room.rglob(kind))


def _hash(files: Iterable[Path]) -> str:
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
