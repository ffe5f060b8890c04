"""``Plan``: how the devices of a cluster share a training step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from neusight.errors import ModelError, nearest

SHARDS = ("none", "zero1", "zero2", "zero3", "hsdp")
SCHEDULES = ("1f1b", "gpipe", "zero-bubble")
RECOMPUTES = ("none", "selective", "operators", "full")
OFFLOADS = ("none", "optimizer")
_WORDS = {"shard": SHARDS, "schedule": SCHEDULES, "recompute": RECOMPUTES, "offload": OFFLOADS}
_DEGREES = ("dp", "tp", "pp", "cp", "ep", "etp", "vp", "micro_batch", "global_batch")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Degrees of parallelism, micro-batches and what else decides how a step is spread over ``world`` devices.

    ``dp`` replicas work on sequences of their own, ``tp`` ranks share every layer, ``pp`` stages hold a part of the
    layers each, in ``vp`` pieces (interleaved where more than one), ``cp`` ranks share every sequence. Experts are
    spread over ``ep`` of the ``dp * cp * tp`` ranks of a stage and sharded over ``etp`` (0: as ``tp``).

    ``micro_batch`` and ``global_batch`` are sequences. ``shard``: what replicas keep of each other's state: ``zero1``
    optimizer states, ``zero2`` gradients as well, ``zero3`` weights as well, ``hsdp`` all three within ``shard_group``
    ranks (0: those of a node) and copies of that beyond. ``recompute`` in the backward pass, of the first
    ``recompute_layers`` layers of each stage (0: of all): ``selective`` the core of attention, ``operators`` all but
    attention and every second product, ``full`` everything.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    vp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    shard: str = "none"
    shard_group: int = 0
    recompute: str = "none"
    recompute_layers: int = 0
    overlap_gradients: bool = False
    overlap_parameters: bool = False
    overlap_tp: bool = False
    gradient_dtype: str = "float32"
    offload: str = "none"

    def __post_init__(self) -> None:
        """Raises:
        ModelError: a degree below 1, an unknown word, or batches that do not divide.
        """
        for name in _DEGREES:
            value, least = getattr(self, name), 0 if name == "etp" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ModelError(f"plan: {name} is {value!r}: give a whole number of at least {least}")
        for name, known in _WORDS.items():
            word = getattr(self, name)
            if word not in known:
                raise ModelError(f"unknown {name} '{word}'{nearest(str(word), known)}: one of {', '.join(known)}")
        if self.global_batch % (self.dp * self.micro_batch):
            each = self.dp * self.micro_batch
            fit = max(each, self.global_batch // each * each)
            raise ModelError(
                f"global batch {self.global_batch} is no multiple of dp {self.dp} x micro-batch {self.micro_batch}: "
                f"{fit} would be"
            )

    def without_effect(self, experts: bool, training: bool = True) -> tuple[str, ...]:
        """A line for each choice that changes nothing, and why.

        Args:
            experts: whether the model has any.
            training: whether there are a backward pass and gradients.
        """
        if not training:
            own = Plan()
            names = ("schedule", "shard", "recompute", "overlap_gradients")
            given = [name for name in names if getattr(self, name) != getattr(own, name)]
            return tuple(f"{name} has no effect in inference" for name in given)
        copies, stages, shared = self.dp * self.cp > 1, self.pp > 1, self.tp > 1
        needs = {
            "vp": (self.vp == 1 or stages, "chunks are interleaved between stages, and pp is 1"),
            "schedule": (self.schedule == "1f1b" or stages, "there is no pipeline: pp is 1"),
            "ep": (self.ep == 1 or experts, "the model has no experts"),
            "etp": (not self.etp or experts, "the model has no experts"),
            "shard": (self.shard == "none" or copies, "there is one replica"),
            "shard_group": (not self.shard_group or self.shard == "hsdp", "shard is not hsdp"),
            "recompute_layers": (not self.recompute_layers or self.recompute != "none", "recompute is none"),
            "sequence_parallel": (not self.sequence_parallel or shared, "tp is 1"),
            "overlap_tp": (not self.overlap_tp or shared, "tp is 1"),
            "overlap_gradients": (not self.overlap_gradients or copies, "there is one replica"),
            "overlap_parameters": (not self.overlap_parameters or copies, "there is one replica"),
        }
        return tuple(
            f"{name} {getattr(self, name)} has no effect: {why}".replace(" True", "")
            for name, (counts, why) in needs.items()
            if not counts
        )

    @property
    def world(self) -> int:
        """Devices."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def short(self) -> str:
        """In a few words: degrees above 1, how states are shared, what is computed again."""
        degrees = [f"{name}{getattr(self, name)}" for name in ("dp", "tp", "pp", "vp", "cp", "ep")]
        told = [degree for degree in degrees if not degree.endswith("p1")]
        told += [f"mb{self.micro_batch}", *(word for word in (self.shard, self.recompute) if word != "none")]
        return " ".join(told)

    @property
    def micro_batches(self) -> int:
        """Of each replica in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert."""
        return self.etp or self.tp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert."""
        return max(1, self.dp * self.cp * self.tp // (self.ep * self.expert_tp))

    @classmethod
    def of(cls, told: dict[str, Any]) -> Plan:
        """From a mapping, such as a file's.

        Raises:
            ModelError: an unknown field, or as for values.
        """
        known = [f.name for f in fields(cls)]
        for name in told:
            if name not in known:
                raise ModelError(f"unknown field '{name}' of a plan{nearest(name, known)}: one of {', '.join(known)}")
        return cls(**told)
