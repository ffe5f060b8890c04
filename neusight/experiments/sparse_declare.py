"""What a simulated experiment is: random zeros, networks with measured ones, and designs of the machine to compare."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Closed(BaseModel):
    """Unknown keys are mistakes, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RandomZeros(_Closed):
    """Streams of ``length`` steps with independent or clustered zeros, for each number of PE rows."""

    length: int = Field(default=4096, ge=1)
    rows: tuple[int, ...] = (1, 4, 16)
    sparsities: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    seeds: tuple[int, ...] = (0, 1, 2)
    clusterings: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)
    clustered_sparsity: float = Field(default=0.5, ge=0, le=1)


class Network(_Closed):
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
    networks: tuple[Network, ...] = Field(min_length=1)
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
