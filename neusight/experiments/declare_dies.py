"""The declaration of experiments of kind ``left-out-dies``: kernels of today, boards of one die left out together."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Die(_Closed):
    """A chip and the boards that it is on, by their ids in the catalogue: all of them are left out together.

    ``siblings`` are boards that are left out one at a time while the others stay.
    """

    name: str
    boards: tuple[str, ...] = Field(min_length=1)
    siblings: tuple[str, ...] = ()


class Training(_Closed):
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
    training: Training = Training()
    targets: DiesTargets = DiesTargets()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        return ("dies", "siblings", "rates") if self.rates else ("dies", "siblings")

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return ", ".join(self.data)
