"""Contestants that learn in each fold, without the boards that it leaves out.

Whatever is fitted for a fold lies in the user's cache, in a folder by everything that it depends on: fitted once, a
report can be written again in a minute, and experiments share what they have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from math import nan
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import Artifact, file_sha256
from neusight.lab.baselines import BASELINES, BaselinePredictor, rows_of
from neusight.laws.constants import with_values
from neusight.laws.fitted import FittedPhysics
from neusight.learn.physics.fit import FitOptions, all_parts, fit_parts, tables_read
from neusight.learn.physics.observations import ProblemPart
from neusight.learn.training import CONSTANT_ROWS, CONSTANT_STEPS, TrainOptions, train
from neusight.learn.training_data import DeviceRows, load_corpus, thinned
from neusight.measured.folder import hashes
from neusight.paths import cache_dir, checkout_dir
from neusight.workers import hired, shared

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.learn import Report

QUICK_FIT = 10, 1
"""Rows of a group and steps of a quick run's constants, which learn next to nothing."""
QUICK_PASSES = {"mlp": ("epochs", 2), "gbm": ("rounds", 20)}
DONE = "training.json"
"""Written last: a folder without it was left by an interrupted training."""
LEARNERS = (
    *("kernels", "devices", "laws", "executors/gpu", "learn/physics"),
    *(f"learn/{name}.py" for name in ("training", "training_data", "training_sets", "folds", "tile_choice", "doubts")),
    *(f"measured/{name}.py" for name in ("folder", "kernels", "table")),
)
"""Rooms and modules whose code decides what is learned."""


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """What contestants learn from.

    Attributes:
        files: tables of kernels.
        data: folder of measured rows that constants of physics are fitted to; None: the tables themselves.
        gpus: devices that may be learned from; default all that have rows.
        split: of rows to learn from, "" for all.
        models: tile models that are trained; none given: all that have rows.
        refits: whether tile models are validated with constants that are fitted again in each of their own folds.
        most_rows: of each GPU and family that baselines learn from.
        quick: learn next to nothing.
    """

    files: tuple[Path, ...]
    data: Path | None = None
    gpus: tuple[str, ...] = ()
    split: str = ""
    models: tuple[str, ...] = ()
    refits: bool = False
    most_rows: int = 1_000_000
    quick: bool = False

    def constants(self, left_out: Sequence[str], report: Report | None = None) -> FittedPhysics:
        """Constants of physics without some devices; from the cache, or fitted and put there."""
        each, steps = QUICK_FIT if self.quick else (CONSTANT_ROWS, CONSTANT_STEPS)
        data, files = (self.data, ()) if self.data else (self.files[0].parent, self.files)
        options = FitOptions(data=data, files=files, hold_out=tuple(sorted(left_out)), each=each, steps=steps)
        own = () if self.data else (self.gpus, self.split)
        request = [options.hold_out, each, steps, own, hashes(files or tables_read(data)), code_sha256()]
        path = cache_dir() / "experiments" / f"physics-{_hash(request)}.json"
        if not path.is_file():
            parts = self._own_parts(options) if self.data is None else _all_parts(replace(options, hold_out=()))
            fit_parts(parts, options, report=report).save(path)
        # Read back even when it was just fitted: the same digits in every run.
        return FittedPhysics.load(path)

    def _own_parts(self, options: FitOptions) -> list[ProblemPart]:
        corpus = load_corpus(self.files, self.gpus, options.hold_out).of_split(self.split)
        return options.reading().lanes_of(corpus)

    def rows(self, left_out: Sequence[str]) -> list[DeviceRows]:
        """What baselines learn from."""
        corpus = load_corpus(self.files, self.gpus, left_out).of_split(self.split)
        return thinned(rows_of(corpus), self.most_rows)


def _hash(request: Any) -> str:
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:24]


@lru_cache(maxsize=1)
def _all_parts(options: FitOptions) -> list[ProblemPart]:
    return all_parts(options)


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """A hash of the code and the contracts that decide what is learned."""
    package = Path(__file__).resolve().parent.parent
    places = [*(package / place for place in LEARNERS), checkout_dir("features")]
    files = [
        file
        for place in places
        for file in ([place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.toml")]))
    ]
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Learner:
    """A contestant that is fitted in each fold.

    Attributes:
        kind: tile models ``trained`` without what a fold leaves out, or with it (``known``), which no prediction of an
            unknown device will beat by much; or a name of ``BASELINES``.
        seed: of its training.
        options: further options of ``TrainOptions``.
        physics: constants by name (``group.constant``) that differ when its tile models predict.
        shrinkage: share of what was learned that counts, on every device; default what folds bear.
    """

    kind: Literal["trained", "known"] | str = "trained"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    physics: Mapping[str, float] = field(default_factory=dict)
    shrinkage: float | None = None

    def training(self, lessons: Lessons, left_out: Sequence[str], report: Report | None = None) -> TrainOptions:
        """What to train, into a folder of the cache; the constants that it stands on are fitted first."""
        unknown = tuple(left_out) if self.kind == "trained" else ()
        backend = self.options.get("backend", TrainOptions.backend)
        parameters = dict(self.options.get("parameters", {}))
        if lessons.quick and backend in QUICK_PASSES:
            parameters |= [QUICK_PASSES[backend]]
        options = TrainOptions(
            files=lessons.files,
            out=Path(),
            models=lessons.models,
            gpus=tuple(dict.fromkeys((*lessons.gpus, *left_out))) if lessons.gpus else (),
            hold_out=unknown,
            split=lessons.split,
            seed=self.seed,
            resume=True,
            physics=lessons.constants(unknown, report),
            refit_to=lessons.data if lessons.refits else None,
            **{**self.options, "parameters": tuple(sorted(parameters.items()))},
        )
        skipped = ("files", "out", "resume", "refit_to")
        request = {name: value for name, value in asdict(options).items() if name not in skipped}
        key = _hash([request, lessons.refits, hashes(lessons.files), code_sha256()])
        return replace(options, out=cache_dir() / "experiments" / key)

    def predictor(
        self, lessons: Lessons, left_out: Sequence[str], report: Report | None = None
    ) -> Predictor | BaselinePredictor:
        """Fitted without what a fold leaves out; from the cache where it was trained before."""
        from neusight.api import Predictor

        if self.kind in BASELINES:
            return BaselinePredictor(BASELINES[self.kind](self.seed).fit(lessons.rows(left_out)))
        options = self.training(lessons, left_out, report)
        train_all([options], report=report)
        kernels = KernelPredictor.load(options.out)
        if self.physics:
            kernels = replace(kernels, physics=with_values(kernels.physics, self.physics))
        if self.shrinkage is not None:
            kernels = with_shrinkage(kernels, self.shrinkage)
        return Predictor(kernels, options.out)


def with_shrinkage(predictor: KernelPredictor, shrinkage: float) -> KernelPredictor:
    """The same with a share of what was learned, on every device."""

    def shrunk(artifact: Artifact) -> Artifact:
        return replace(artifact, manifest=replace(artifact.manifest, silicon={}, shrinkage=shrinkage))

    return replace(predictor, artifacts={name: shrunk(a) for name, a in predictor.artifacts.items()})


def train_all(wanted: Iterable[TrainOptions], jobs: int = 1, report: Report | None = None, ray: str = "") -> None:
    """Train what the cache lacks, ``jobs`` at a time, here or on a Ray cluster; an interrupted training goes on where
    it was.
    """
    missing = list({options.out: options for options in wanted if not (options.out / DONE).is_file()}.values())
    if (jobs == 1 and not ray) or len(missing) < 2:
        for options in missing:
            _train(options, report)
        return
    with hired(min(jobs, len(missing)), ray) as workers:
        trained = shared(workers, _trained, missing, report and (lambda done, of: report("trainings", done, of, nan)))
    for options, files in zip(missing, trained, strict=True):
        # Another host has a folder of its own.
        if not (options.out / DONE).is_file():
            _keep(options.out, files)


def _trained(options: TrainOptions) -> dict[str, bytes]:
    """The files that a training left, by their path in its folder, that of its end last."""
    _train(options)
    files = sorted((path for path in options.out.rglob("*") if path.is_file()), key=lambda path: path.name == DONE)
    return {path.relative_to(options.out).as_posix(): path.read_bytes() for path in files}


def _keep(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _train(options: TrainOptions, report: Report | None = None) -> None:
    began, name = monotonic(), options.out.name[:6]

    def named(task: str, done: int, of: int, error: float) -> None:
        """Progress that tells one fold's training from another's."""
        if report:
            report(f"{name}: {task}", done, of, error)

    train(options, named if report else None)
    (options.out / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")


def training_seconds(folders: Iterable[Path]) -> float:
    """How long the trainings of these folders took, when they were done."""
    return sum(json.loads((folder / DONE).read_text(encoding="utf-8"))["seconds"] for folder in folders)
