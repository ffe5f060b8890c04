"""``Pipeline``: what of a plan decides in which order a training step runs, whatever its parts take."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.errors import ModelError, nearest
from neusight.requests import Plan

GATHERS = ("none", "each", "step", "after")
REDUCES = ("none", "each", "last", "after")
SENDS = ("exposed", "overlapped")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A training step of ``pp`` ranks with ``vp`` chunks of layers each, over ``micro_batches``.

    Chunk ``c`` of rank ``r`` is stage ``c pp + r`` of the model. Replicas of a rank do what it does.

    Attributes:
        schedule: as for ``plans.order.order_of``.
        pieces: in which each stage's weights are gathered and their gradients reduced: units, or buckets.
        sends: ``exposed`` sends stand in the way of the sender's kernels, ``overlapped`` ones run beside them.
        gathers: of weights. ``each`` pass gathers its pieces, one ahead (ZeRO-3, FSDP: Zhao et al. 2023, section
            3.3.2); the first forward pass of a ``step`` finds them being gathered since its beginning (ZeRO-1 as
            Megatron-LM overlaps it); or ``after`` the optimizer, in the way.
        reduces: of gradients. After a piece in ``each`` backward pass, in that of the ``last`` micro-batch alone, both
            beside other kernels, or ``after`` all passes, in the way.
        offload: gradients are copied to the host, whose optimizer returns weights.

    Raises:
        ModelError: an unknown word or a number below 1.
    """

    schedule: str = "1f1b"
    pp: int = 1
    vp: int = 1
    micro_batches: int = 1
    pieces: int = 1
    sends: str = "exposed"
    gathers: str = "none"
    reduces: str = "none"
    offload: bool = False

    def __post_init__(self) -> None:
        for name, known in (("sends", SENDS), ("gathers", GATHERS), ("reduces", REDUCES)):
            word = getattr(self, name)
            if word not in known:
                raise ModelError(f"unknown {name} '{word}'{nearest(word, known)}: one of {', '.join(known)}")
        if self.pieces < 1:
            raise ModelError(f"pieces {self.pieces} of a stage: give a whole number of at least 1")

    @property
    def stages(self) -> int:
        """Pieces that the model is cut into."""
        return self.pp * self.vp

    @property
    def splits_weights(self) -> bool:
        """Whether gradients of weights are a pass of their own."""
        return self.schedule == "zero-bubble"

    @classmethod
    def of(cls, plan: Plan, pieces: int = 1) -> Pipeline:
        """The order that a plan's step runs in.

        Sends are overlapped where ranks have several chunks, as in Megatron-LM, which blocks on them otherwise.
        """
        replicas = plan.dp * plan.cp > 1
        return cls(
            schedule=plan.schedule,
            pp=plan.pp,
            vp=plan.vp,
            micro_batches=plan.micro_batches,
            pieces=pieces,
            sends="overlapped" if plan.vp > 1 else "exposed",
            gathers=_gathers(plan) if replicas else "none",
            reduces=_reduces(plan) if replicas else "none",
            offload=plan.offload == "optimizer",
        )


def _gathers(plan: Plan) -> str:
    if plan.shard in ("zero3", "hsdp"):
        return "each"
    if plan.shard == "none":
        return "none"
    return "step" if plan.overlap_parameters else "after"


def _reduces(plan: Plan) -> str:
    if plan.shard in ("zero2", "zero3", "hsdp"):
        return "each"
    return "last" if plan.overlap_gradients else "after"
