"""The declaration of experiments of kind ``serving``: language models as they are served, cell by cell."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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


class LeftOut(_Closed):
    """Boards of a die whose kernels, collectives and cells nothing was fitted to, and the GPUs of cells among them."""

    name: str
    boards: tuple[str, ...]


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
    targets: ServingTargets = ServingTargets()

    @property
    def report(self) -> tuple[str, ...]:
        """Parts, for the list of experiments."""
        told = ("cells", *(("peers",) if self.peers else ()), *(("dies",) if self.dies else ()))
        return told

    @property
    def subject(self) -> str:
        """Where the figures come from, for the list of experiments."""
        return self.data
