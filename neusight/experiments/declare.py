"""What an experiment is: ``experiments/<id>/experiment.toml`` declares data, split, tile models, steps and targets."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neusight.errors import DataError, nearest
from neusight.paths import checkout_dir, data_dir

DECLARATION = "experiment.toml"
Step = Literal["kernels", "models", "operators"]
_NEEDS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "models": ("latency", "configs", "published"),
    "operators": ("latency", "configs", "operators"),
}


class _Closed(BaseModel):
    """Unknown keys are mistakes, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Closed):
    """A data set below ``NEUSIGHT_DATA`` and the parts of it that the steps read, relative to its folder."""

    name: str
    kernels: str | None = None
    latency: str | None = None
    configs: str | None = None
    published: str | None = None
    operators: str | None = None

    @property
    def folder(self) -> Path:
        """The data set's folder; DataError where ``NEUSIGHT_DATA`` is not set."""
        return data_dir() / self.name

    def path(self, part: str) -> Path:
        """Where a declared part lies."""
        return self.folder / str(getattr(self, part))


class Split(_Closed):
    """Which GPUs the tile models learned from, and which they are judged on."""

    training: tuple[str, ...] = Field(min_length=1)
    held_out: tuple[str, ...] = Field(min_length=1)
    other_vendor: tuple[str, ...] = ()


class TileModels(_Closed):
    """The tile models that ship, or with ``train`` one new set a seed."""

    train: bool = False
    backend: Literal["mlp", "gbm", "linear", "roofline"] = "mlp"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)


class Targets(_Closed):
    """What was aimed at: errors of whole models in percent, and kernel error over the roofline's."""

    model_mean_percent: float = Field(gt=0)
    model_worst_percent: float = Field(gt=0)
    kernel_share_of_roofline: float = Field(gt=0)


class Declaration(_Closed):
    """The content of ``experiment.toml``; ``readme`` says that README's accuracy table shows its results."""

    title: str
    question: str
    steps: tuple[Step, ...] = Field(min_length=1)
    readme: bool = False
    data: Data
    split: Split
    tile_models: TileModels = TileModels()
    targets: Targets


@dataclass(frozen=True)
class Experiment:
    """A declaration with its id and its folder, where the results go."""

    id: str
    folder: Path
    declared: Declaration


def list_experiments(root: Path | None = None) -> list[Experiment]:
    """All experiments below ``root``, default the checkout's ``experiments/``, in order of id."""
    found = sorted((root or checkout_dir("experiments")).glob(f"*/{DECLARATION}"))
    return [_load(path) for path in found]


def find_experiment(name: str, root: Path | None = None) -> Experiment:
    """The experiment of that id.

    Raises:
        DataError: there is none, or its declaration is malformed.
    """
    root = root or checkout_dir("experiments")
    path = root / name / DECLARATION
    if not path.is_file():
        known = sorted(p.parent.name for p in root.glob(f"*/{DECLARATION}"))
        hint = nearest(name, known) or f": one of {', '.join(known) or 'none, outside a checkout'}"
        raise DataError(f"no experiment '{name}'{hint}")
    return _load(path)


def _load(path: Path) -> Experiment:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: not TOML: {error}") from None
    try:
        declared = Declaration(**content)
    except ValidationError as error:
        raise DataError(f"{path}: {_first(error)}") from None
    _check(path, declared)
    return Experiment(path.parent.name, path.parent, declared)


def _first(error: ValidationError) -> str:
    """The first mistake as one line, with the nearest keys for an unknown one."""
    found = error.errors()[0]
    place = ".".join(str(part) for part in found["loc"])
    if found["type"] == "missing":
        return f"{place} is missing: add it"
    if found["type"] != "extra_forbidden":
        return f"{place} = {found['input']!r}: {found['msg'].lower()}"
    known = _keys(found["loc"][:-1])
    key = str(found["loc"][-1])
    return f"unknown key '{place}'{nearest(key, known) or ': use one of ' + ', '.join(known)}"


def _keys(place: tuple[Any, ...]) -> list[str]:
    model: Any = Declaration
    for part in place:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _check(path: Path, declared: Declaration) -> None:
    split = declared.split
    if both := set(split.training) & {*split.held_out, *split.other_vendor}:
        raise DataError(f"{path}: {', '.join(sorted(both))} both trained on and held out: choose one")
    for step in declared.steps:
        if missing := [part for part in _NEEDS[step] if getattr(declared.data, part) is None]:
            raise DataError(f"{path}: step '{step}' needs data.{missing[0]}: add it or drop the step")
