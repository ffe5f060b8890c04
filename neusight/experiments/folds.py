"""The folds of an experiment made ready: everything trained without the held-out GPUs, one entrant a training.

Tile models that experiments train lie in the user's cache, in a folder by everything that they depend on: trained once,
a report can be written again in a minute, and experiments share what they have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from neusight.datasets.load import load_kernels, parquet_files
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.baselines import rows_of
from neusight.experiments.constants import Constants
from neusight.experiments.entrants import BaselineEntrant, Entrant, TileModelEntrant, fitted_baseline, with_shrinkage
from neusight.experiments.kernels import Tested, tested_rows
from neusight.laws.constants import with_values
from neusight.learn.training import TrainOptions, train
from neusight.learn.training_data import DeviceRows, load_corpus
from neusight.measured.folder import kernel_files, kernel_rows
from neusight.paths import cache_dir, checkout_dir, data_dir
from neusight.workers import hired, shared

if TYPE_CHECKING:
    import pandas as pd

    from neusight.experiments.declare import Contestant, Declaration, Fold
    from neusight.laws.fitted import FittedPhysics
    from neusight.learn import Report

QUICK_ROWS = 60
"""Rows of each GPU, operator and split that a quick run keeps."""
QUICK_PASSES = {"mlp": ("epochs", 2), "gbm": ("rounds", 20)}
TILE_MODELS, TRAINED = ("ours", "shipped", "known"), ("ours", "known")
"""Kinds of contestants that are this project's, and those of them that are trained here."""
DONE = "training.json"
"""Written last: a folder without it was left by an interrupted training."""
LEARNERS = ("kernels", "devices", "laws", "datasets", "executors/gpu", "learn")
"""Rooms whose code decides what is learned."""


class Job(Protocol):
    """A training that writes tile models into ``out``, a folder of the cache."""

    @property
    def out(self) -> Path:
        """Named by everything that the training depends on."""

    def run(self, report: Report | None) -> None:
        """Train."""


class Learning(Protocol):
    """What the folds of an experiment learn from and are tested on. A GPU and kind of kernel that has fewer than
    ``least_rows`` is left out.
    """

    @property
    def least_rows(self) -> int:
        """See above."""

    @property
    def folds(self) -> Sequence[Fold]:
        """Rounds, in their order."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs that may be trained on."""

    def job(self, fold: Fold, contestant: Contestant, seed: int, report: Report | None) -> Job:
        """What to train for a fold; what it stands on is fitted first."""

    def rows(self, fold: Fold) -> list[DeviceRows]:
        """What a fold's baselines learn from."""

    def tested(self, fold: Fold) -> Iterator[Tested]:
        """The measured rows of every GPU that a fold holds out."""


@dataclass(frozen=True)
class Round:
    """A fold with its entrants. ``groups``: held-out GPU to what results call it: ``other_vendor`` where none of the
    training GPUs is of its vendor, else the fold's own name for what it leaves out.
    """

    fold: Fold
    training: tuple[str, ...]
    groups: Mapping[str, str]
    entrants: tuple[Entrant, ...]


@contextmanager
def kernels_of(declared: Declaration, quick: bool) -> Iterator[Path]:
    """Folder with the kernels to train and test on; of a quick run, a sample that is the same every time."""
    source = declared.data.path("kernels")
    if not quick:
        yield source
        return
    import pandas as pd

    with TemporaryDirectory(prefix="neusight-") as scratch:
        for file in parquet_files(source):
            rows = pd.read_parquet(file).sample(frac=1.0, random_state=0)
            keys = [key for key in ("gpu", "op", "split") if key in rows]
            kept = rows.groupby(keys).head(QUICK_ROWS).sort_index()
            kept.to_parquet(Path(scratch) / file.name)
        yield Path(scratch)


@dataclass(frozen=True)
class TrainingJob:
    """Tile models of one data set."""

    options: TrainOptions

    @property
    def out(self) -> Path:
        """See ``Job``."""
        return self.options.out

    def run(self, report: Report | None) -> None:
        """See ``Job``."""
        train(self.options, report)


@dataclass(frozen=True)
class OneSet:
    """Kernels of one data set; ``source`` is their folder; ``quick`` trains next to nothing."""

    declared: Declaration
    source: Path
    quick: bool = False
    least_rows = 1

    @property
    def folds(self) -> Sequence[Fold]:
        """See ``Learning``."""
        return self.declared.rounds

    @property
    def gpus(self) -> tuple[str, ...]:
        """See ``Learning``."""
        return self.declared.gpus

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All rows that may be tested."""
        import pandas as pd

        data = self.declared.data
        sources = [self.source, *(one.path("kernels") for one in data.together() if one.name != data.name)]
        frames = [load_kernels(source, data.families or None) for source in sources]
        return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]

    @cached_property
    def measured(self) -> pd.DataFrame:
        """Measured rows that may be tested."""
        import pandas as pd

        return pd.concat(map(kernel_rows, measured_tables(self.declared.data.name)), ignore_index=True)

    @cached_property
    def constants(self) -> Constants:
        """Fits of constants, to rows of all data sets or of this one."""
        data = self.declared.data
        if data.constants == "all":
            return Constants(data.folder.parent, code_sha256(), self.quick)
        return Constants(self.source, code_sha256(), self.quick, data.training_split)

    def job(self, fold: Fold, contestant: Contestant, seed: int, report: Report | None) -> TrainingJob:
        """See ``Learning``."""
        left_out = fold.held_out if contestant.kind == "ours" else ()
        gpus = tuple(gpu for gpu in dict.fromkeys((*self.gpus, *fold.held_out)) if gpu not in left_out)
        data = self.declared.data
        options = TrainOptions(
            files=measured_tables(data.name),
            out=Path(),
            models=data.models,
            gpus=gpus,
            split=data.training_split,
            seed=seed,
            resume=True,
            physics=self._physics(gpus, left_out, report),
            **trained_with(contestant.options, self.quick),
        )
        return TrainingJob(replace(options, out=cache_dir() / "experiments" / _key(options)))

    def _physics(self, gpus: Sequence[str], left_out: Sequence[str], report: Report | None) -> FittedPhysics:
        if self.declared.data.constants == "all":
            return self.constants.without(left_out, report)
        return self.constants.of(gpus, report)

    def rows(self, fold: Fold) -> list[DeviceRows]:
        """See ``Learning``."""
        data = self.declared.data
        corpus = load_corpus(measured_tables(data.name), self.declared.training(fold)).of_split(data.training_split)
        return [r for r in rows_of(corpus) if not data.families or r.batch.family in data.families]

    def tested(self, fold: Fold) -> Iterator[Tested]:
        """See ``Learning``."""
        data = self.declared.data
        for gpu in fold.held_out:
            yield tested_rows(self.frame, gpu, data.tested_split, data.families)


def measured_tables(source: str) -> tuple[Path, ...]:
    """Measured rows of kernels of a data set."""
    return tuple(file for file in kernel_files(data_dir()) if file.stem.rpartition("-")[0] == source)


def trained_with(options: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    """Options of a contestant as those of a training; of a quick run with hardly a pass over the rows."""
    backend, parameters = options.get("backend", TrainOptions.backend), dict(options.get("parameters", {}))
    if quick and backend in QUICK_PASSES:
        parameters |= [QUICK_PASSES[backend]]
    return {**options, "parameters": tuple(sorted(parameters.items()))}


def rounds_of(
    learning: Learning, declared: Declaration, jobs: int = 1, report: Report | None = None, ray: str = ""
) -> tuple[list[Round], float]:
    """Train what has to be trained, ``jobs`` at a time, here or on a Ray cluster, and take every fold's predictors.

    Returns:
        The rounds, and the seconds that their trainings took, when they were done.

    Raises:
        DataError: data are missing, or tile models that ship learned from a held-out GPU.
    """
    began = monotonic()
    wanted = {
        (fold.name, contestant.label(seed)): learning.job(fold, contestant, seed, report)
        for fold in learning.folds
        for contestant in declared.predictors
        for seed in contestant.seeds
        if contestant.kind in TRAINED
    }
    fitting = monotonic() - began
    train_all(wanted.values(), jobs, report, ray)
    began = monotonic()
    rounds = []
    for fold in learning.folds:
        folders = {label: job.out for (name, label), job in wanted.items() if name == fold.name}
        rounds.append(_round(learning, declared, fold, folders, report))
    return rounds, fitting + training_seconds({job.out for job in wanted.values()}) + monotonic() - began


def _round(
    learning: Learning, declared: Declaration, fold: Fold, folders: Mapping[str, Path], report: Report | None
) -> Round:
    training = tuple(gpu for gpu in learning.gpus if gpu not in fold.held_out)
    vendors, held = {load_device(gpu).vendor for gpu in training}, fold.group or "held_out"
    groups = {gpu: held if load_device(gpu).vendor in vendors else "other_vendor" for gpu in fold.held_out}
    rows, entrants = lru_cache(maxsize=1)(lambda: learning.rows(fold)), []
    for contestant in declared.predictors:
        for seed in contestant.seeds:
            label = contestant.label(seed)
            if contestant.kind in TILE_MODELS:
                entrants.append(_tile_models(fold, contestant, seed, folders.get(label)))
                continue
            baseline = fitted_baseline(contestant.kind, seed, rows)
            entrants.append(BaselineEntrant(contestant.name, seed, label, baseline, training))
            if report:
                report(f"{fold.name}: {label}", 1, 1, nan)
    return Round(fold, training, groups, tuple(entrants))


def _tile_models(fold: Fold, contestant: Contestant, seed: int, folder: Path | None) -> Entrant:
    """Those of a folder, or those that ship.

    Raises:
        DataError: they learned from a GPU that the fold holds out.
    """
    from neusight.api import Predictor

    predictor, label = Predictor.load(folder), contestant.label(seed)
    kernels = predictor.kernel_predictor
    if contestant.physics:
        kernels = replace(kernels, physics=with_values(kernels.physics, contestant.physics))
    if contestant.shrinkage is not None:
        kernels = with_shrinkage(kernels, contestant.shrinkage)
    if kernels is not predictor.kernel_predictor:
        predictor = Predictor(kernels)
    entrant = TileModelEntrant(contestant.name, seed, label, predictor)
    seen = set(entrant.provenance()["training_gpus"]) & set(fold.held_out)
    if seen and contestant.kind != "known":
        raise DataError(
            f"the tile models of '{label}' learned from {', '.join(sorted(seen))}, which fold '{fold.name}' holds out: "
            'declare kind = "ours", which trains in each fold'
        )
    return entrant


def train_all(wanted: Iterable[Job], jobs: int = 1, report: Report | None = None, ray: str = "") -> None:
    """Train what the cache lacks, ``jobs`` at a time; an interrupted training goes on where it was.

    Raises:
        DeviceError: no such cluster.
    """
    missing = list({job.out: job for job in wanted if not (job.out / DONE).is_file()}.values())
    if (jobs == 1 and not ray) or len(missing) < 2:
        for job in missing:
            _train(job, report)
        return
    with hired(min(jobs, len(missing)), ray) as workers:
        trained = shared(workers, _trained, missing, report and (lambda done, of: report("trainings", done, of, nan)))
    for job, files in zip(missing, trained, strict=True):
        # Another host has a folder of its own.
        if not (job.out / DONE).is_file():
            _keep(job.out, files)


def _trained(job: Job) -> dict[str, bytes]:
    """The files that a training left, by their path in its folder, that of its end last."""
    _train(job)
    files = sorted((path for path in job.out.rglob("*") if path.is_file()), key=lambda path: path.name == DONE)
    return {path.relative_to(job.out).as_posix(): path.read_bytes() for path in files}


def _keep(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def training_seconds(folders: Iterable[Path]) -> float:
    """How long the trainings of these folders took, when they were done."""
    return sum(json.loads((folder / DONE).read_text(encoding="utf-8"))["seconds"] for folder in folders)


def _train(job: Job, report: Report | None = None) -> None:
    began, name = monotonic(), job.out.name[:6]

    def named(task: str, done: int, of: int, error: float) -> None:
        """Progress that tells one fold's training from another's."""
        if report:
            report(f"{name}: {task}", done, of, error)

    job.run(named if report else None)
    (job.out / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")


def _key(options: TrainOptions) -> str:
    """A hash of the options, the data and the code."""
    request = {name: value for name, value in asdict(options).items() if name not in ("files", "out", "resume")}
    data = [[file.name, file_sha256(file)] for file in options.files]
    return sha256(json.dumps([request, data, code_sha256()], sort_keys=True).encode()).hexdigest()[:24]


def code_sha256() -> str:
    """A hash of the code and the contracts that decide what tile models learn."""
    package = Path(__file__).resolve().parent.parent
    rooms = [*(package / room for room in LEARNERS), checkout_dir("features")]
    files = [file for room in rooms for kind in ("*.py", "*.toml") for file in sorted(room.rglob(kind))]
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
