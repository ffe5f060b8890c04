"""Training steps that designs are judged by, each on a number of devices that share it in the best way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt

from neusight.devices.cluster import cluster_of
from neusight.devices.spec import DeviceSpec
from neusight.distributed.space import Space
from neusight.questions import Training

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.distributed.training_run import TrainingRun


class DesignTraining(BaseModel):
    """A training step: a model, its batch, the number of devices, and the plans that may share it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    seq_len: PositiveInt | None = None
    global_batch_size: PositiveInt = Field(validation_alias=AliasChoices("global_batch_size", "global_batch"))
    per_node: PositiveInt = 8
    nodes: PositiveInt = 1
    network: str = ""
    engine: str = "megatron-te"
    dtype: str = ""
    optimizer: str = "adam"
    schedules: tuple[str, ...] = ("1f1b",)
    shards: tuple[str, ...] = ("zero1",)
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    longest_micro_batch: PositiveInt = 16
    most_cp: PositiveInt = 1
    most_vp: PositiveInt = 1

    @property
    def name(self) -> str:
        """Name of the step in tables."""
        tokens = f" x {self.seq_len}" if self.seq_len else ""
        return f"{self.model}, {self.global_batch_size}{tokens} on {self.per_node * self.nodes}"

    @property
    def space(self) -> Space:
        """Space of the plans."""
        return Space(
            schedules=self.schedules,
            shards=self.shards,
            recomputes=self.recomputes,
            longest_micro_batch=self.longest_micro_batch,
            most_cp=self.most_cp,
            most_vp=self.most_vp,
        )

    def run(self, predictor: Predictor, device: DeviceSpec) -> TrainingRun:
        """The step on some devices, its plan open but for the batch.

        Raises:
            ModelError: an unknown model, engine or word. DeviceError: devices without links, or without the dtype.
        """
        cluster = cluster_of(device, self.per_node, self.nodes, self.network)
        names = ("model", "global_batch_size", "seq_len", "dtype", "optimizer", "engine")
        return Training.named({"cluster": cluster, **{name: getattr(self, name) for name in names}}).unplanned()
