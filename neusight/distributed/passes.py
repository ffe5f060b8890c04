"""Seconds of the passes of a program's segments: kernels, collectives in their way, and what is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neusight.distributed.priced import PartTimes
from neusight.engines import Engine
from neusight.transforms.recompute import recomputed
from neusight.workloads.dispatch import CHECKPOINT, trained_dispatches
from neusight.workloads.program import PHASES, Phase, Program, Segment


@dataclass(frozen=True, kw_only=True)
class RankPasses:
    """Parts that run in the passes of a micro-batch, with their times.

    Attributes:
        times: kernels and collectives.
        segments: embedding, kinds of layers, head.
        segment: number of the segment of each part, shape (n,).
        again: whether the backward pass runs each part once more, shape (n,).
    """

    times: PartTimes
    segments: Sequence[Segment]
    segment: np.ndarray
    again: np.ndarray

    @classmethod
    def of(cls, program: Program, times: PartTimes, recompute: str, engine: Engine) -> RankPasses:
        """Build the passes of a program; ``times`` are those of its parts, in their order."""
        return cls(
            times=times,
            segments=program.segments,
            segment=segment_numbers(program),
            again=recomputed_parts(program, recompute, engine),
        )

    def sum_s(self, chosen: np.ndarray) -> np.ndarray:
        """Seconds of the chosen parts of each segment, shape (segments,)."""
        return np.bincount(self.segment[chosen], self.times.total_s[chosen], len(self.segments)).astype(float)

    def kernels_of(self, phase: str) -> np.ndarray:
        """Whether each part is a kernel of a pass."""
        return np.asarray(self.times.is_kernel & (self.times.phase == phase))

    @cached_property
    def kernels_s(self) -> np.ndarray:
        """Kernels of all passes of each segment [s]: where stages begin does not depend on links."""
        return self.sum_s(self.times.is_kernel)

    @cached_property
    def recompute_s(self) -> np.ndarray:
        """Seconds that the backward pass of each segment computes again."""
        return self.sum_s(self.again)

    @cached_property
    def seconds(self) -> dict[Phase, np.ndarray]:
        """Each pass of each segment [s]: its kernels, collectives in their way, and of overlapped ones what kernels do
        not hide.
        """
        return {phase: self._pass_s(phase) for phase in PHASES}

    def _pass_s(self, phase: Phase) -> np.ndarray:
        exchanged = (self.times.phase == phase) & ~self.times.is_kernel
        in_the_way = self.sum_s(exchanged & ~self.times.overlapped)
        return np.asarray(in_the_way + np.maximum(self.sum_s(self.kernels_of(phase)), self._overlapped_s(phase)))

    def hides_kernels(self, phase: Phase) -> np.ndarray:
        """Whether what is overlapped takes longer than the kernels of a pass of each segment."""
        return np.asarray(self._overlapped_s(phase) > self.sum_s(self.kernels_of(phase)))

    def _overlapped_s(self, phase: Phase) -> np.ndarray:
        return self.sum_s((self.times.phase == phase) & ~self.times.is_kernel & self.times.overlapped)

    def hidden_experts_s(self, share: float) -> dict[Phase, np.ndarray]:
        """What exchanges of tokens in each pass run beside the kernels of another micro-batch's other pass [s], less by
        what kernels are slowed while they do (DeepSeek-AI 2024, sections 3.2.1 and 3.2.2).

        Args:
            share: of a device's multiprocessors, which run collectives.
        """
        tokens = self.times.group == "ep"
        exchanges = {phase: self.sum_s(tokens & (self.times.phase == phase)) for phase in PHASES}
        total = np.asarray(sum(exchanges.values()))
        beside = np.minimum(total, (1.0 - share) * self.kernels_s) * (1.0 - share)
        hidden = np.divide(beside, total, out=np.zeros_like(total), where=total > 0.0)
        return {phase: hidden * each for phase, each in exchanges.items()}

    def dispatched(self, phase: str, engine: Engine) -> np.ndarray:
        """Dispatches of the host in a pass of each segment, or for what it computes again, ``recompute``.

        Args:
            phase: of the passes.
            engine: that launches them.
        """
        again = phase == "recompute"
        mine = np.flatnonzero(self.again if again else self.times.phase == phase)
        dispatches = [trained_dispatches(part, engine) for part in self.times.parts[mine]]
        by_part = np.bincount(self.segment[mine], self.times.runs[mine] * dispatches, len(self.segments))
        by_part = by_part + (CHECKPOINT * (by_part > 0.0) if again else 0.0)
        known: list[dict[str, float]] = [{**dict(segment.dispatches)} for segment in self.segments]
        traced = np.array([each.get("forward" if again else phase, 0.0) for each in known])
        # Of a trace, what is computed again is as many dispatches as it takes of the time.
        share = self.recompute_s / np.maximum(self.seconds["forward"], 1e-15) if again else 1.0
        return np.where([bool(each) for each in known], share * traced, by_part)


def segment_numbers(program: Program) -> np.ndarray:
    """Number of the segment of each of a program's parts."""
    return np.repeat(np.arange(len(program.segments)), [len(segment.parts) for segment in program.segments])


def recomputed_parts(program: Program, how: str, engine: Engine) -> np.ndarray:
    """Whether each of a program's parts runs once more in the backward pass."""
    again = ({id(part) for part in recomputed(segment, how, engine)} for segment in program.segments)
    pairs = zip(program.segments, again, strict=True)
    return np.array([id(part) in chosen for segment, chosen in pairs for part in segment.parts], dtype=bool)
