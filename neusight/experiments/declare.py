"""What an experiment is: ``experiments/<id>/experiment.toml`` declares rows, what is left out, predictors and targets.

Several kinds: ``measured`` trains predictors on some GPUs and tests them on kernels and whole models of others,
``serving``, ``training``, ``programs``, ``pairs`` and
``energy`` hold served language models, steps of distributed training, exported programs, gains of optimisations and
what boards draw against what was measured, ``accelerators`` what devices do that are no GPUs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from neusight.devices import load_device
from neusight.errors import DataError, DeviceError, nearest
from neusight.lab.declare import is_moved
from neusight.lab.targets import AccuracyTarget, StrictModel
from neusight.paths import checkout_dir, data_dir

DECLARATION = "experiment.toml"
Part = Literal["kernels", "models", "operators", "few-shot", "rates"]
Kind = Literal[
    "ours", "shipped", "known", "roofline", "habitat", "li", "neusight-paper", "rule-of-thumb", "trees", "nearest"
]
LEFT_OUT = {
    "gpu": lambda device: f"without {device.id}",
    "generation": lambda device: device.architecture.split()[0].lower(),
    "vendor": lambda device: device.vendor,
}
"""What may be left out together, in turn: the name of the fold that leaves a device out. Dies are declared."""
KERNELS_ALONE = ("rule-of-thumb", "trees", "nearest")
_NEEDS: dict[str, tuple[str, ...]] = {
    "models": ("latency", "configs"),
    "operators": ("latency", "configs", "operators"),
}
_OWN = ("source", "out", "models", "gpus", "hold_out", "split", "seed", "resume", "physics")
"""Options of a training that follow from the rest of the declaration."""


class Data(StrictModel):
    """Data below ``NEUSIGHT_DATA``: one set with the parts of it that are read, relative to its folder, or several sets
    of kernels; and which rows.

    Attributes:
        families: kernel families that baselines learn from and that are tested; none given: all that have rows.
        models: tile models that are trained; none given: all that have rows.
        constants: what constants of physics are fitted to in each fold: ``own`` are the rows of the training GPUs that
            tile models learn from, too; ``all`` are all data sets but for rows of held-out GPUs.
        training_split: rows to train on, by their split; "" is all.
        tested_split: rows to test on, alike; families that have none of it are tested on all their rows.
        beside: names of further data sets with the parts of this one, of GPUs that it lacks: they are tested alike.
        sets: names of several data sets, whose kernels are told apart as families of today's language models.
        learned_rows, tested_rows: of several sets: rows of each GPU and family, and of each set, at most.
        each, steps: of several sets: rows of a group, and steps, with which constants are fitted.
    """

    name: str = ""
    beside: tuple[str, ...] = ()
    kernels: str | None = None
    latency: str | None = None
    configs: str | None = None
    published: str | None = None
    operators: str | None = None
    families: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    constants: Literal["own", "all"] = "own"
    training_split: str = ""
    tested_split: str = ""
    sets: tuple[str, ...] = ()
    learned_rows: int = Field(default=6000, ge=1)
    tested_rows: int = Field(default=20000, ge=1)
    each: int = Field(default=60, ge=1)
    steps: int = Field(default=8, ge=1)

    @property
    def folder(self) -> Path:
        """The data set's folder; DataError where ``NEUSIGHT_DATA`` is not set."""
        return data_dir() / self.name

    def path(self, part: str) -> Path:
        """Where a declared part lies."""
        return self.folder / str(getattr(self, part))

    def together(self) -> Iterator[Data]:
        """This one, then those beside it."""
        for name in (self.name, *self.beside):
            yield self.model_copy(update={"name": name, "beside": ()})


class Fold(StrictModel):
    """One round: devices that are left out together, and tested.

    Attributes:
        held_out: ids of the catalogue; of a die all of its boards, measured or not: their rates are left out as well.
        siblings: boards of a die that are also left out one at a time, while the others stay.
        group: what is left out, as results call it; default by vendor.
        die: of a sibling, all boards of its die.
    """

    name: str
    held_out: tuple[str, ...] = Field(min_length=1)
    siblings: tuple[str, ...] = ()
    group: str = ""
    die: tuple[str, ...] = ()

    def each(self) -> Iterator[Fold]:
        """The boards of each sibling's fold, one at a time."""
        for gpu in self.siblings:
            yield Fold(name=gpu, held_out=(gpu,), group="sibling", die=self.held_out)


class Contestant(StrictModel):
    """A predictor that takes part: tile models trained in each fold or those that ship, or a baseline trained alike.

    The first one of an experiment is judged by the targets; its intervals and single predictions are kept.

    Attributes:
        name: stands in results; ``ours`` by custom for what this project predicts.
        kind: ``known`` are tile models that the held-out GPUs taught, too, which no prediction of an unknown GPU will
            beat by much.
        title: stands in tables and figures; default the name.
        seeds: one training a seed.
        options: further options of ``neusight.learn.training.TrainOptions``, for what is trained here.
        physics: constants of ``neusight.laws.physics.Physics``, by name (``group.constant``), that differ when its tile
            models predict; they are trained as ever.
        shrinkage: share of what was learned that counts, on every device: 0 is physics alone; default what folds bear.
    """

    name: str
    kind: Kind = "ours"
    title: str = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    physics: dict[str, float] = Field(default_factory=dict)
    shrinkage: float | None = Field(default=None, ge=0, le=1)

    def label(self, seed: int) -> str:
        """What a single training is called: the name, with the seed where there are several."""
        return self.name if len(self.seeds) == 1 else f"{self.name}/{seed}"


class FewShot(StrictModel):
    """How many measured kernels of a held-out GPU are made known, in turn, and how often they are drawn."""

    points: tuple[int, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = (0,)


class Declared(StrictModel):
    """What every experiment declares: its title and question, what is left out and tested, targets, and whether
    docs/accuracy.md shows the results.
    """

    title: str
    question: str
    readme: bool = False
    folds: tuple[Fold, ...] = ()
    targets: tuple[AccuracyTarget, ...] = ()


class Declaration(Declared):
    """The content of ``experiment.toml``.

    Attributes:
        gpus: that are trained on where they are not held out; of several data sets default all that have rows.
        leave_out: without ``folds``: one of ``LEFT_OUT``, by which ``gpus`` are held out in turn.
        models_on: whose whole models are predicted: those of held-out GPUs, or of training GPUs as well.
    """

    kind: Literal["measured"] = "measured"
    report: tuple[Part, ...] = Field(min_length=1)
    gpus: tuple[str, ...] = ()
    leave_out: Literal["", "gpu", "generation", "vendor"] = ""
    models_on: Literal["held-out", "all"] = "held-out"
    data: Data
    folds: tuple[Fold, ...] = Field(min_length=1)
    predictors: tuple[Contestant, ...] = Field(min_length=1)
    few_shot: FewShot | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_folds(cls, content: Any) -> Any:
        """Folds of what is left out in turn."""
        if not isinstance(content, dict) or content.get("leave_out") not in LEFT_OUT or content.get("folds"):
            return content
        by_name: dict[str, list[str]] = {}
        for gpu in content.get("gpus", ()):
            by_name.setdefault(LEFT_OUT[content["leave_out"]](load_device(gpu)), []).append(gpu)
        return content | {"folds": [{"name": name, "held_out": gpus} for name, gpus in by_name.items()]}

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return self.data.name or ", ".join(self.data.sets)

    @property
    def rounds(self) -> tuple[Fold, ...]:
        """All folds: those that are declared, then siblings one at a time."""
        return (*self.folds, *(one for fold in self.folds for one in fold.each()))

    def training(self, fold: Fold) -> tuple[str, ...]:
        """The GPUs that a fold trains on."""
        return tuple(gpu for gpu in self.gpus if gpu not in fold.held_out)


class Reason(StrictModel):
    """What is thought of ``cells``, a pattern of their names as of files in a shell, when they are far off."""

    cells: str
    reason: str


class PublishedMedian(StrictModel):
    """The median error in percent that a predictor's authors publish of a quantity of runs, and which cells those are:
    a pattern.
    """

    peer: str
    cells: str
    quantity: str
    median: float


class ServingDeclaration(Declared):
    """The content of ``experiment.toml`` of kind ``serving``.

    Attributes:
        tables: of cells, files below ``NEUSIGHT_DATA``, each beside its ``models.json``.
        peers: what others predict for cells, a file below ``NEUSIGHT_DATA``.
        published: errors of others on runs whose predictions they do not publish.
    """

    kind: Literal["serving"]
    tables: tuple[str, ...]
    peers: str = ""
    published: tuple[PublishedMedian, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("cells", *(("peers",) if self.peers else ()), *(("folds",) if self.folds else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(table.split("/")[0] for table in self.tables)


class PeerError(StrictModel):
    """The error in percent that a predictor's authors publish for a step: of a model, with a way of recomputing."""

    peer: str
    model: str
    recompute: str
    error: float


class TrainingDeclaration(Declared):
    """The content of ``experiment.toml`` of kind ``training``: of the folds' boards nothing is fitted to the steps, and
    then nothing at all.

    Attributes:
        tables: of steps, files below ``NEUSIGHT_DATA``; ``memory``: of peaks of ranks.
        peers: errors that others publish for the same steps.
    """

    kind: Literal["training"]
    tables: tuple[str, ...]
    memory: str = ""
    peers: tuple[PeerError, ...] = ()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("steps", *(("folds",) if self.folds else ()), *(("memory",) if self.memory else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(table.split("/")[0] for table in self.tables)


class ProgramsDeclaration(Declared):
    """The content of ``experiment.toml`` of kind ``programs``: hosts are fitted to half of their programs, then left
    out; then the folds' boards are.

    Attributes:
        timings: of programs, a file below ``NEUSIGHT_DATA``, with the programs in ``problems`` beside it.
    """

    kind: Literal["programs"]
    timings: str

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("programs", "gains", *(("folds",) if self.folds else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return self.timings.split("/")[0]


class PairsDeclaration(Declared):
    """The content of ``experiment.toml`` of kind ``pairs``.

    Attributes:
        tables: of measured gains, files of the folder of measured rows.
        published: effects that papers state, a table beside the declaration.
    """

    kind: Literal["pairs"]
    tables: tuple[str, ...] = Field(min_length=1)
    published: str = ""

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("pairs", *(("published",) if self.published else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(dict.fromkeys(table.split("/")[0] for table in self.tables))


class AcceleratorTable(StrictModel):
    """A file below ``NEUSIGHT_DATA``, which command of ``neusight evaluate`` reads it, and whether constants are fitted
    to its rows.
    """

    evaluate: Literal["kernels", "steps", "training", "serving"]
    file: str
    fitted: bool = False


class AcceleratorsDeclaration(Declared):
    """The content of ``experiment.toml`` of kind ``accelerators``: constants of arrays are fitted again without the
    devices of each fold.
    """

    kind: Literal["accelerators"]
    tables: tuple[AcceleratorTable, ...] = Field(min_length=1)
    report: tuple[str, ...] = ("tables", "left out", "cores")
    subject: str = "accelerators"


AnyDeclaration = (
    Declaration
    | ServingDeclaration
    | TrainingDeclaration
    | ProgramsDeclaration
    | PairsDeclaration
    | AcceleratorsDeclaration
)
KINDS: dict[str, type[AnyDeclaration]] = {
    "serving": ServingDeclaration,
    "training": TrainingDeclaration,
    "programs": ProgramsDeclaration,
    "pairs": PairsDeclaration,
    "accelerators": AcceleratorsDeclaration,
}
"""Declarations of other kinds than ``measured``."""


@dataclass(frozen=True)
class Experiment:
    """A declaration with its id and its folder, where the results go."""

    id: str
    folder: Path
    declared: AnyDeclaration


def list_experiments(root: Path | None = None) -> list[Experiment]:
    """All experiments below ``root``, default the checkout's ``experiments/``, in order of id."""
    return [_load(path) for path in _declared(root)]


def _declared(root: Path | None) -> list[Path]:
    """Declarations that are not of the lab."""
    paths = sorted((root or checkout_dir("experiments")).glob(f"*/{DECLARATION}"))
    return [path for path in paths if not is_moved(path.read_text(encoding="utf-8"))]


def find_experiment(name: str, root: Path | None = None) -> Experiment:
    """The experiment of that id.

    Raises:
        DataError: there is none, or its declaration is malformed.
    """
    known = {path.parent.name: path for path in _declared(root)}
    if name not in known:
        hint = nearest(name, known) or f": one of {', '.join(known) or 'none, nothing is declared'}"
        raise DataError(f"no experiment {shortened(name)}{hint}")
    return _load(known[name])


def _load(path: Path) -> Experiment:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not TOML: {error}") from None
    kind = KINDS.get(content.get("kind", ""), Declaration)
    try:
        declared = kind(**content)
    except ValidationError as error:
        raise DataError(f"{path}: {_first(error, kind)}") from None
    except DeviceError as error:
        raise DataError(f"{path}: {error}") from None
    if isinstance(declared, Declaration) and (mistake := next(_mistakes(declared), "")):
        raise DataError(f"{path}: {mistake}")
    return Experiment(path.parent.name, path.parent, declared)


def _first(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake as one line, with the nearest keys for an unknown one."""
    mistake = error.errors()[0]
    place = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "missing":
        return f"{place} is missing: add it"
    if mistake["type"] != "extra_forbidden":
        return f"{place} = {shortened(mistake['input'])}: {mistake['msg'].lower()}"
    known = _keys(mistake["loc"][:-1], model)
    key = str(mistake["loc"][-1])
    return f"unknown key '{place}'{nearest(key, known) or ': use one of ' + ', '.join(known)}"


def _keys(place: tuple[Any, ...], root: type[BaseModel]) -> list[str]:
    """Keys of the table at a place: of a list of tables, those of its entries."""
    model: Any = root
    for part in place:
        if isinstance(part, str):
            kind = model.model_fields[part].annotation
            model = next((a for a in get_args(kind) if isinstance(a, type) and issubclass(a, BaseModel)), kind)
    return list(model.model_fields)


def _mistakes(declared: Declaration) -> Iterator[str]:
    """What is wrong with a declaration as a whole, a line each."""
    if "operators" in declared.report and "models" not in declared.report:
        yield "report 'operators' needs report 'models', whose errors it explains: add it"
    yield from _missing_data(declared)
    if "few-shot" in declared.report and declared.few_shot is None:
        yield "report 'few-shot' needs few_shot.points: add it or drop the part"
    for fold in declared.folds:
        if not declared.data.sets and not declared.training(fold):
            yield f"fold '{fold.name}' holds out every GPU: leave one of {', '.join(declared.gpus)} to train on"
    for what, names in (("fold", declared.folds), ("predictor", declared.predictors)):
        listed = [entry.name for entry in names]
        for name in {name for name in listed if listed.count(name) > 1}:
            yield f"two of {what}s are called '{name}': name them apart"
    for contestant in declared.predictors:
        yield from _wrong_keys(contestant)
        if contestant.kind in KERNELS_ALONE and "models" in declared.report:
            yield f"predictor '{contestant.name}' of kind '{contestant.kind}' predicts no models: drop it or 'models'"


def _missing_data(declared: Declaration) -> Iterator[str]:
    """Parts of the report that the data cannot fill."""
    data = declared.data
    if bool(data.name) == bool(data.sets):
        yield "data needs either a name or sets: give one of them"
    for part in declared.report:
        if data.sets and part not in ("kernels", "rates"):
            yield f"report '{part}' needs data.name, one set: drop the part"
        needed = _NEEDS.get(part, () if data.sets else ("kernels",))
        for name in (name for name in needed if getattr(data, name) is None):
            yield f"report '{part}' needs data.{name}: add it or drop the part"


def _wrong_keys(contestant: Contestant) -> Iterator[str]:
    """Options and physics that a predictor's kind has not, or that nobody has."""
    from neusight.laws.constants import values
    from neusight.laws.physics import PRIOR
    from neusight.learn.training import TrainOptions

    options = [field.name for field in fields(TrainOptions) if field.name not in _OWN]
    physics = list(values(PRIOR))
    for what, keys, kinds, known in (
        ("options", contestant.options, ("ours", "known"), options),
        ("physics", contestant.physics, ("ours", "shipped", "known"), physics),
    ):
        for key in keys:
            if contestant.kind not in kinds:
                yield f"predictor '{contestant.name}' of kind '{contestant.kind}' has no {what}: drop '{key}'"
            elif key not in known:
                hint = nearest(key, known) or ": use one of " + ", ".join(known)
                yield f"unknown key '{what}.{key}' of predictor '{contestant.name}'{hint}"
