"""The declaration of experiments of kind ``training``: steps of distributed training, and memory of their ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from neusight.experiments.declare_serving import LeftOut


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
