"""What ``neusight training`` was asked, as points: clusters and plans, each with its answer or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import typer

from neusight.cli.options import listed, named_gpu, numbers
from neusight.cli.points import Point
from neusight.errors import NeusightError

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import Cluster
    from neusight.distributed.answer import TrainingEstimate
    from neusight.plans.read import Told
    from neusight.workloads.decoders.decoder import Decoder

NUMBERS = ("nodes", "tp", "pp", "cp", "ep", "vp", "micro_batch", "global_batch", "seq_len")
WORDS = ("dtype", "framework", "schedule", "shard", "recompute")
MOST_POINTS = 10_000
"""Of a sweep: what is larger is a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a step runs, as it was typed: a cluster by name, or a device with how many share a node and a network."""

    cluster: str
    gpu: str
    per_node: int
    network: str
    overrides: Sequence[str]

    def __post_init__(self) -> None:
        if bool(self.cluster) == bool(self.gpu):
            raise typer.BadParameter(
                "give one of both: a name of `neusight clusters list`, or a GPU with --per-node",
                param_hint="--cluster, --gpu",
            )
        if self.cluster and (self.per_node or self.network):
            raise typer.BadParameter("has its own: change it by --set per_node=4", param_hint="--cluster")

    def of(self, nodes: int) -> Cluster:
        """So many nodes of it; 0: as its file says, else one.

        Raises:
            DeviceError: an unknown device or cluster, or one that cannot be.
        """
        from neusight.devices import cluster_of, load_cluster

        if self.cluster:
            return load_cluster(self.cluster, nodes, self.overrides)
        return cluster_of(named_gpu(self.gpu), self.per_node or 8, nodes or 1, self.network, self.overrides)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Steps of a model: ``axes`` are values to combine, by name; ``told`` what all have in common."""

    predictor: Predictor
    decoder: Decoder
    place: Place
    axes: Mapping[str, Sequence[Any]]
    told: Mapping[str, Any]

    @property
    def many(self) -> bool:
        """Whether several were asked for."""
        return any(len(values) > 1 for values in self.axes.values())

    def points(self) -> Iterator[Point[TrainingEstimate]]:
        """Every combination.

        Raises:
            NeusightError: what is wrong, where one point was asked for; else it stands in the point.
        """
        for values in product(*self.axes.values()):
            asked = dict(zip(self.axes, values, strict=True))
            try:
                yield Point(asked=asked, estimate=self._estimate({**self.told, **asked}))
            except NeusightError as error:
                if not self.many:
                    raise
                yield Point(asked=asked, error=str(error))

    def _estimate(self, told: dict[str, Any]) -> TrainingEstimate:
        from neusight.distributed.usual import usual_run

        cluster = self.place.of(told.pop("nodes", 0))
        framework = told.pop("framework", "megatron-te")
        return self.predictor.training(usual_run(self.decoder, cluster, told, framework))


def axes_of(typed: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """Lists as typed, by name of ``NUMBERS`` and ``WORDS``; those left out are not there.

    Raises:
        BadParameter: no list, no number, or too many combinations.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, text in typed.items():
        if text:
            option = f"--{name.replace('_', '-')}"
            found[name] = numbers(text, option) if name in NUMBERS else listed(text, option)
    count = 1
    for values in found.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise typer.BadParameter(f"{count:,} combinations are too many: leave values out, or ask `neusight plan`")
    return found


def file_told(source: str, depth: int) -> Told:
    """What ``--plan`` says; options that it cannot take in are named on stderr."""
    from neusight.cli.output import note
    from neusight.plans.read import read_plan

    told = read_plan(source, depth)
    if told.unread:
        note(f"warning: not read, though they matter: {', '.join(told.unread)}")
    return told
