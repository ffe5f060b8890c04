"""What an experiment is: ``experiments/<id>/experiment.toml`` declares measured rows, what is left out, who predicts,
by what errors are grouped, and targets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from neusight.errors import DataError, nearest
from neusight.lab.lessons import Lessons
from neusight.lab.targets import AccuracyTarget, StrictModel, Where, is_wanted
from neusight.paths import checkout_dir

if TYPE_CHECKING:
    import pandas as pd

DECLARATION = "experiment.toml"
OURS = "ours"
NOTHING = "nothing"
"""In the column ``left_out`` of rows that what ships predicts."""


class RowsTable(StrictModel):
    """Measured rows.

    Attributes:
        files: patterns below ``NEUSIGHT_DATA``, or in the experiment's folder.
        name: the value of the column ``set``; default the file's name.
        where: which rows.
        quantities: measured columns that are compared; default all.
        each, by: at most so many rows, drawn at random, of each group by some columns.
        suspect: also rows that are doubted.
    """

    files: tuple[str, ...] = Field(min_length=1)
    name: str = ""
    where: Where = Field(default_factory=dict)
    quantities: tuple[str, ...] = ()
    each: int | None = Field(default=None, ge=1)
    by: tuple[str, ...] = ()
    suspect: bool = False


class Fold(StrictModel):
    """Devices that are left out together; ``siblings`` are also left out one at a time, while the others stay.

    Attributes:
        held_out: ids of the catalogue; default all boards of the die that is called so, measured or not.
        group: the column ``group`` of their rows; default the name of what is left out.
    """

    name: str
    held_out: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    group: str = ""

    def rounds(self) -> Iterator[Fold]:
        """This one, then each sibling by itself."""
        yield self
        for gpu in self.siblings:
            yield Fold(name=gpu, held_out=(gpu,), group="sibling")


class LeftOut(StrictModel):
    """What is left out in turn: rows of a fold are predicted as if its boards had never been measured.

    Attributes:
        name: in the column ``left_out``; default ``by``.
        by: columns or traits of devices, each value of which is a fold; or declare ``folds``.
        among: values that are folds; default all that rows have.
        where: rows that are predicted.
        constants: that are fitted again, see ``left_out.NAMES``; default all.
    """

    name: str = ""
    by: Literal["", "gpu", "die", "architecture", "generation", "vendor", "host"] = ""
    among: tuple[str, ...] = ()
    folds: tuple[Fold, ...] = ()
    where: Where = Field(default_factory=dict)
    constants: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_folds(self) -> LeftOut:
        if bool(self.by) == bool(self.folds):
            raise ValueError("give either by or folds")
        return self

    @property
    def label(self) -> str:
        """In the column ``left_out``."""
        return self.name or self.by or "folds"


class PublishedError(StrictModel):
    """An error in percent that somebody publishes: the ``median`` or ``mean`` of some rows."""

    where: Where
    median: float | None = None
    mean: float | None = None


class Contestant(StrictModel):
    """Who predicts. The first one is ours; its intervals count.

    Attributes:
        kind: ``shipped`` predicts with what ships, ``peer`` are predictions in ``files`` of rows by source, table, row
            and quantity, ``column`` those in columns of the rows that begin with ``options.column`` or are called so,
            ``published`` are errors of rows that somebody names; others are trained in each fold.
        title: in tables and figures.
    """

    name: str
    kind: str = "shipped"
    title: str = ""
    files: tuple[str, ...] = ()
    figures: tuple[PublishedError, ...] = ()
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    physics: dict[str, float] = Field(default_factory=dict)
    shrinkage: float | None = Field(default=None, ge=0, le=1)


class Pairs(StrictModel):
    """Rows that differ in one ``column`` alone are compared with the first of its values, as ratios.

    Attributes:
        ignore: columns that may differ as well.
        also: further columns in which they agree.
    """

    column: str
    ignore: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


class ErrorGroup(StrictModel):
    """A table of errors: of the rows that share values of ``by``.

    Attributes:
        name: of the table, which targets and figures name.
        title, text: above it in the report.
        where: which rows.
        pairs: rows are ratios of pairs.
        beside: values of columns of other lines of the same measured rows, whose errors stand beside, with ``prefix``.
        least: fewer answered rows make no group.
        average: columns over which the groups are averaged.
        across: of ``by`` whose values are columns of the table, filled with ``figure``: one of errors, ``factor`` (the
            geometric mean of predicted over measured) or the mean of a column.
        detail: the group is drawn only, and not in summary.json.
        accuracy: figures of docs/accuracy.md; none: the table is not shown there.
    """

    name: str
    by: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    where: Where = Field(default_factory=dict)
    pairs: Pairs | None = None
    beside: Where = Field(default_factory=dict)
    prefix: str = "known"
    least: int = 1
    average: tuple[str, ...] = ()
    across: str = ""
    figure: str = ""
    detail: bool = False
    accuracy: tuple[str, ...] = ()


class Reason(StrictModel):
    """What is thought of rows when they are far off."""

    where: Where
    reason: str


class DeclaredFigure(StrictModel):
    """A figure: ``file``.png, of which group, with its caption.

    Attributes:
        kind: ``spread`` (predicted over measured of each group: median and 80 % of the rows), ``bars`` (of ``figure``),
            ``scatter`` (predicted against measured), ``calibration`` (rows within scaled intervals), ``curve`` (of
            ``figure`` along the column ``x``).
        group: name of the table; of scatter and calibration its rows.
        panel, lines: columns: a panel for each value, a line or colour for each.
        label: of the axis of ``figure``; default that of an error.
    """

    file: str
    kind: Literal["spread", "bars", "scatter", "calibration", "curve"]
    group: str
    caption: str
    panel: str = ""
    lines: tuple[str, ...] = ()
    figure: str = "mean"
    label: str = ""
    x: str = ""


class RandomZeros(StrictModel):
    """Streams of ``length`` steps with independent or clustered zeros, for each number of PE rows."""

    length: int = Field(default=4096, ge=1)
    rows: tuple[int, ...] = (1, 4, 16)
    sparsities: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    seeds: tuple[int, ...] = (0, 1, 2)
    clusterings: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)
    clustered_sparsity: float = Field(default=0.5, ge=0, le=1)


class SimulatedNetwork(StrictModel):
    """A network in training: ``model`` as ``neusight predict`` takes it, ``profile`` its zeros after ``updates``, a
    file in the experiment's folder that the command ``measured`` wrote.

    Attributes:
        course: profiles after fewer updates, by their number.
        others: profiles of the same network measured otherwise, by what was different.
        in_mean: whether it counts in the mean of networks.
    """

    name: str
    model: str
    batch: int = Field(default=4, ge=1)
    profile: str
    updates: int = Field(default=3, ge=0)
    measured: str
    course: dict[int, str] = Field(default_factory=dict)
    others: dict[str, str] = Field(default_factory=dict)
    in_mean: bool = True


class Simulation(StrictModel):
    """Rows that the simulator makes in place of measured ones; ``uniform`` are shares of zeros that all layers are
    given, ``designs`` values of a figure of the machine, one figure changed at a time.
    """

    random: RandomZeros = RandomZeros()
    networks: tuple[SimulatedNetwork, ...] = Field(min_length=1)
    uniform: tuple[float, ...] = ()
    designs: dict[Literal["rows", "depth", "lanes"], tuple[int, ...]] = Field(default_factory=dict)


class Declaration(StrictModel):
    """The content of ``experiment.toml``; ``notes`` are items on how it is done."""

    title: str
    question: str
    notes: tuple[str, ...] = ()
    tables: tuple[RowsTable, ...] = ()
    simulation: Simulation | None = None
    lessons: Lessons | None = None
    left_out: tuple[LeftOut, ...] = ()
    contestants: tuple[Contestant, ...] = (Contestant(name=OURS),)
    groups: tuple[ErrorGroup, ...] = Field(min_length=1)
    reasons: tuple[Reason, ...] = ()
    targets: tuple[AccuracyTarget, ...] = ()
    figures: tuple[DeclaredFigure, ...] = ()

    @model_validator(mode="after")
    def _names_groups(self) -> Declaration:
        if not self.tables and self.simulation is None:
            raise ValueError("give tables")
        names = {group.name for group in self.groups} | {"published"}
        for used in (*(target.table for target in self.targets), *(figure.group for figure in self.figures)):
            if used not in names:
                raise ValueError(f"no group is called '{used}'{nearest(used, names)}")
        return self

    @property
    def subject(self) -> str:
        """Where the rows come from, for the list of experiments."""
        folders = dict.fromkeys(name.partition("/")[0] for table in self.tables for name in table.files)
        return ", ".join(folders) or "simulator"


@dataclass(frozen=True)
class Experiment:
    """``id`` is the folder's name."""

    id: str
    folder: Path
    declared: Declaration


def list_experiments(root: Path | None = None) -> list[Experiment]:
    """All that are declared below ``root`` (default: the checkout's folder), by id."""
    return [load_experiment(folder) for folder in _declared(root).values()]


def _declared(root: Path | None) -> dict[str, Path]:
    """Folders of declarations by their name."""
    files = sorted((root or checkout_dir("experiments")).glob(f"*/{DECLARATION}"))
    return {file.parent.name: file.parent for file in files}


def find_experiment(name: str, root: Path | None = None) -> Experiment:
    """One by its id.

    Raises:
        DataError: no such experiment, or a malformed declaration.
    """
    known = _declared(root)
    if name not in known:
        hint = nearest(name, known) or f": one of {', '.join(known) or 'none, nothing is declared'}"
        raise DataError(f"no experiment '{name[:40]}'{hint}")
    return load_experiment(known[name])


def declared_in(results: Mapping[str, Any]) -> Declaration:
    """What the experiment of some results declared.

    Raises:
        DataError: results of an earlier form.
    """
    try:
        return Declaration.model_validate(results["declared"])
    except ValidationError:
        name = results["experiment"]
        raise DataError(f"results of '{name}' are of an earlier form: run `neusight experiments run {name}`") from None


def load_experiment(folder: Path) -> Experiment:
    """The experiment of a folder.

    Raises:
        DataError: its declaration is malformed: which key, and what is wrong with it.
    """
    file = folder / DECLARATION
    try:
        declared = Declaration.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "declaration"
        raise DataError(f"{file}: {where}: {first['msg']}") from None
    return Experiment(folder.name, folder, declared)


def fitting(frame: pd.DataFrame, where: Mapping[str, Any]) -> np.ndarray:
    """Rows that have such values, as a mask; a column that is not there is empty."""
    kept = np.ones(len(frame), dtype=bool)
    for name, wanted in where.items():
        if name not in frame:
            kept &= is_wanted("", wanted)
            continue
        codes, values = frame[name].factorize(use_na_sentinel=False)
        kept &= np.array([is_wanted(value, wanted) for value in values], dtype=bool)[codes]
    return kept
