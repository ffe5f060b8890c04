"""What an experiment is: ``experiments/<id>/experiment.toml`` declares data, folds, predictors, parts and targets.

Five kinds: ``measured`` trains predictors on some GPUs and tests them on others, ``left-out-dies`` does so for kernels
of today, all boards of a die at a time, ``sparse`` compares a simulated machine with its dense twin, ``serving`` and
``training`` hold served language models and steps of distributed training against what was measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neusight.errors import DataError, nearest
from neusight.paths import checkout_dir, data_dir

DECLARATION = "experiment.toml"
Part = Literal["kernels", "models", "operators", "few-shot"]
Kind = Literal["ours", "shipped", "roofline", "habitat", "li", "neusight-paper"]
_NEEDS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "models": ("latency", "configs"),
    "operators": ("latency", "configs", "operators"),
    "few-shot": ("kernels",),
}
_OWN = ("source", "out", "models", "gpus", "hold_out", "split", "seed", "resume", "physics")
"""Options of a training that follow from the rest of the declaration."""


class _Closed(BaseModel):
    """Unknown keys are mistakes, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Closed):
    """A data set below ``NEUSIGHT_DATA``, the parts of it that are read, relative to its folder, and which rows.

    Attributes:
        families: kernel families that baselines learn from and that are tested; none given: all that have rows.
        models: tile models that are trained; none given: all that have rows.
        constants: what constants of physics are fitted to in each fold: ``own`` are the rows of the training GPUs that
            tile models learn from, too; ``all`` are all data sets but for rows of held-out GPUs.
        training_split: rows to train on, by their split; "" is all.
        tested_split: rows to test on, alike; families that have none of it are tested on all their rows.
    """

    name: str
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

    @property
    def folder(self) -> Path:
        """The data set's folder; DataError where ``NEUSIGHT_DATA`` is not set."""
        return data_dir() / self.name

    def path(self, part: str) -> Path:
        """Where a declared part lies."""
        return self.folder / str(getattr(self, part))


class Fold(_Closed):
    """One round: trained on every GPU of the experiment's ``gpus`` that is not held out, tested on those that are."""

    name: str
    held_out: tuple[str, ...] = Field(min_length=1)


class Contestant(_Closed):
    """A predictor that takes part: tile models trained in each fold or those that ship, or a baseline trained alike.

    The first one of an experiment is judged by the targets; its intervals and single predictions are kept.

    Attributes:
        name: stands in results; ``ours`` by custom for what this project predicts.
        title: stands in tables and figures; default the name.
        seeds: one training a seed.
        options: further options of ``neusight.learn.training.TrainOptions``, for what is trained here.
        physics: constants of ``neusight.laws.physics.Physics``, by name (``group.constant``), that differ when its tile
            models predict; they are trained as ever.
    """

    name: str
    kind: Kind = "ours"
    title: str = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    options: dict[str, Any] = {}
    physics: dict[str, float] = {}

    def label(self, seed: int) -> str:
        """What a single training is called: the name, with the seed where there are several."""
        return self.name if len(self.seeds) == 1 else f"{self.name}/{seed}"


class FewShot(_Closed):
    """How many measured kernels of a held-out GPU are made known, in turn, and how often they are drawn."""

    points: tuple[int, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = (0,)


class Targets(_Closed):
    """What was aimed at, in percent; what is not given is not judged. Held-out GPUs are those of the same vendor.

    Attributes:
        kernel_mean: mean error of each kind of kernel, averaged over held-out GPUs.
        kernel_gpu: mean error of any kind of kernel on any held-out GPU.
        model_mean, model_worst: whole models on held-out GPUs.
        all_model_mean: whole models on held-out and training GPUs.
        coverage: least and most of the rows on held-out GPUs that 90 % intervals should hold.
        few_shot: mean error of each kind of kernel after ``few_shot_points`` measured kernels of the GPU.
        baseline_points: percentage points between a baseline trained here and as published, over whole models.
    """

    kernel_mean: dict[str, float] = {}
    kernel_gpu: float | None = None
    model_mean: float | None = None
    model_worst: float | None = None
    all_model_mean: float | None = None
    coverage: tuple[float, float] | None = None
    few_shot: float | None = None
    few_shot_points: int = 100
    baseline_points: float | None = None


class Declaration(_Closed):
    """The content of ``experiment.toml``.

    Attributes:
        models_on: whose whole models are predicted: those of held-out GPUs, or of training GPUs as well.
        readme: whether README's accuracy section shows the results.
    """

    kind: Literal["measured"] = "measured"
    title: str
    question: str
    report: tuple[Part, ...] = Field(min_length=1)
    gpus: tuple[str, ...] = Field(min_length=1)
    models_on: Literal["held-out", "all"] = "held-out"
    readme: bool = False
    data: Data
    folds: tuple[Fold, ...] = Field(min_length=1)
    predictors: tuple[Contestant, ...] = Field(min_length=1)
    few_shot: FewShot | None = None
    targets: Targets = Targets()

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return self.data.name

    def training(self, fold: Fold) -> tuple[str, ...]:
        """The GPUs that a fold trains on."""
        return tuple(gpu for gpu in self.gpus if gpu not in fold.held_out)


class RandomZeros(_Closed):
    """Streams of ``length`` steps with independent or clustered zeros, for each number of PE rows."""

    length: int = Field(default=4096, ge=1)
    rows: tuple[int, ...] = (1, 4, 16)
    sparsities: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    seeds: tuple[int, ...] = (0, 1, 2)
    clusterings: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)
    clustered_sparsity: float = Field(default=0.5, ge=0, le=1)


class SimulatedNetwork(_Closed):
    """A network in training: ``model`` as ``neusight predict`` takes it, ``profile`` its zeros, a file in the
    experiment's folder that the command ``measured`` wrote.
    """

    name: str
    model: str
    batch: int = Field(default=4, ge=1)
    profile: str
    measured: str


class Designs(_Closed):
    """Machines with one figure changed at a time."""

    rows: tuple[int, ...] = ()
    depth: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()


class SparseTargets(_Closed):
    """What the literature reports, and by how many percent the tile model may miss the simulator in any product."""

    speedup: float
    compute_energy: float
    energy: float
    layer_error: float


class SparseDeclaration(_Closed):
    """The content of ``experiment.toml`` of kind ``sparse``."""

    kind: Literal["sparse"]
    title: str
    question: str
    readme: bool = False
    random: RandomZeros = RandomZeros()
    networks: tuple[SimulatedNetwork, ...] = Field(min_length=1)
    designs: Designs = Designs()
    targets: SparseTargets

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("random zeros", "networks", "designs")

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return "simulator"


class LeftOut(_Closed):
    """A die: boards by their ids in the catalogue, all of which are left out together."""

    name: str
    boards: tuple[str, ...] = Field(min_length=1)


class Die(LeftOut):
    """A die with ``siblings``: boards that are also left out one at a time while the others stay."""

    siblings: tuple[str, ...] = ()


class Learning(_Closed):
    """How a fold learns: ``rows`` of each GPU and family to train on, ``each`` rows of a group and ``steps`` to fit
    constants with, ``backend`` and ``parameters`` of tile models.
    """

    rows: int = Field(default=6000, ge=1)
    each: int = Field(default=40, ge=1)
    steps: int = Field(default=4, ge=1)
    backend: str = "mlp"
    parameters: dict[str, Any] = {}


class Aim(_Closed):
    """Largest mean error of a family of kernels in percent: over the boards of a die that was left out, over siblings,
    and of dies that differ.
    """

    family: str
    die: float
    sibling: float | None = None
    dies: dict[str, float] = {}


class DiesTargets(_Closed):
    """What was aimed at, in percent; ``coverage`` is of 90 % intervals in each family, ``rates`` by kind of product."""

    families: tuple[Aim, ...] = ()
    coverage: tuple[float, float] | None = None
    rates: dict[str, float] = {}


class DiesDeclaration(_Closed):
    """The content of ``experiment.toml`` of kind ``left-out-dies``.

    Attributes:
        data: names of data sets that kernels are read from, below ``NEUSIGHT_DATA``; constants are fitted to all sets.
        rows: that are tested, at most, of each data set, GPU and family, drawn from the sample that is learned from: up
            to 2,500 of each GPU, table, dtype, engine and kernel.
        rates: whether rates of products on GPUs without kernels are predicted, one architecture left out at a time.
    """

    kind: Literal["left-out-dies"]
    title: str
    question: str
    readme: bool = False
    data: tuple[str, ...] = Field(min_length=1)
    rows: int = Field(default=20000, ge=1)
    dies: tuple[Die, ...] = Field(min_length=2)
    rates: bool = True
    training: Learning = Learning()
    targets: DiesTargets = DiesTargets()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("dies", "siblings", "rates") if self.rates else ("dies", "siblings")

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(self.data)


class ServingTargets(_Closed):
    """What was aimed at.

    Attributes:
        median: largest median error of a quantity, in percent, over cells without fault.
        coverage: percent of measurements of each source within 90 % intervals.
        left_out: times the median error with a die in the fit that it may be without.
        better_than_peers: whether no other predictor's mean error may be below this one's, by quantity.
    """

    median: dict[str, float] = {}
    coverage: tuple[float, float] | None = None
    left_out: float | None = None
    better_than_peers: bool = False


class Reason(_Closed):
    """What is thought of ``cells``, a pattern of their names as of files in a shell, when they are far off."""

    cells: str
    reason: str


class ServingDeclaration(_Closed):
    """The content of ``experiment.toml`` of kind ``serving``.

    Attributes:
        data: name of the data set below ``NEUSIGHT_DATA``; ``cells``, ``models`` and ``peers`` are files in it.
        limit: cells that are compared, at most; default all.
        dies: that are left out, one after the other.
    """

    kind: Literal["serving"]
    title: str
    question: str
    readme: bool = False
    data: str
    cells: str
    models: str
    peers: str = ""
    limit: int | None = None
    dies: tuple[LeftOut, ...] = ()
    reasons: tuple[Reason, ...] = ()
    targets: ServingTargets = ServingTargets()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("cells", *(("peers",) if self.peers else ()), *(("dies",) if self.dies else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return self.data


class TrainingTargets(_Closed):
    """What was aimed at, in percent.

    Attributes:
        mean: largest mean error of steps on eight GPUs and more.
        source: largest mean error of any source.
        efficiency: points by which the efficiency of scaling may be off.
        coverage: of measurements within 90 % intervals.
    """

    mean: float | None = None
    source: float | None = None
    efficiency: float | None = None
    coverage: tuple[float, float] | None = None


class PeerError(_Closed):
    """The error in percent that a predictor's authors publish for a step: of a model, with a way of recomputing."""

    peer: str
    model: str
    recompute: str
    error: float


class TrainingDeclaration(_Closed):
    """The content of ``experiment.toml`` of kind ``training``.

    Attributes:
        tables: of steps, files below ``NEUSIGHT_DATA``; ``memory``: of peaks of ranks.
        left_out: boards whose steps nothing is fitted to, and then nothing at all, one die after the other.
        peers: errors that others publish for the same steps.
    """

    kind: Literal["training"]
    title: str
    question: str
    readme: bool = False
    tables: tuple[str, ...]
    memory: str = ""
    left_out: tuple[LeftOut, ...] = ()
    peers: tuple[PeerError, ...] = ()
    targets: TrainingTargets = TrainingTargets()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("steps", *(("left out",) if self.left_out else ()), *(("memory",) if self.memory else ()))

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(table.split("/")[0] for table in self.tables)


AnyDeclaration = Declaration | SparseDeclaration | DiesDeclaration | ServingDeclaration | TrainingDeclaration
KINDS: dict[str, type[AnyDeclaration]] = {
    "sparse": SparseDeclaration,
    "left-out-dies": DiesDeclaration,
    "serving": ServingDeclaration,
    "training": TrainingDeclaration,
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
    paths = sorted((root or checkout_dir("experiments")).glob(f"*/{DECLARATION}"))
    return [_load(path) for path in paths]


def find_experiment(name: str, root: Path | None = None) -> Experiment:
    """The experiment of that id.

    Raises:
        DataError: there is none, or its declaration is malformed.
    """
    root = root or checkout_dir("experiments")
    known = {path.parent.name: path for path in sorted(root.glob(f"*/{DECLARATION}"))}
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
    for part in declared.report:
        for needed in _NEEDS[part]:
            if getattr(declared.data, needed) is None:
                yield f"report '{part}' needs data.{needed}: add it or drop the part"
    if "few-shot" in declared.report and declared.few_shot is None:
        yield "report 'few-shot' needs few_shot.points: add it or drop the part"
    for fold in declared.folds:
        if not declared.training(fold):
            yield f"fold '{fold.name}' holds out every GPU: leave one of {', '.join(declared.gpus)} to train on"
    for what, names in (("fold", declared.folds), ("predictor", declared.predictors)):
        listed = [entry.name for entry in names]
        for name in {name for name in listed if listed.count(name) > 1}:
            yield f"two of {what}s are called '{name}': name them apart"
    for contestant in declared.predictors:
        yield from _wrong_keys(contestant)


def _wrong_keys(contestant: Contestant) -> Iterator[str]:
    """Options and physics that a predictor's kind has not, or that nobody has."""
    from neusight.laws.constants import values
    from neusight.laws.physics import PRIOR
    from neusight.learn.training import TrainOptions

    options = [field.name for field in fields(TrainOptions) if field.name not in _OWN]
    physics = list(values(PRIOR))
    for what, keys, kinds, known in (
        ("options", contestant.options, ("ours",), options),
        ("physics", contestant.physics, ("ours", "shipped"), physics),
    ):
        for key in keys:
            if contestant.kind not in kinds:
                yield f"predictor '{contestant.name}' of kind '{contestant.kind}' has no {what}: drop '{key}'"
            elif key not in known:
                hint = nearest(key, known) or ": use one of " + ", ".join(known)
                yield f"unknown key '{what}.{key}' of predictor '{contestant.name}'{hint}"
