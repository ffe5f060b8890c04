"""Which segments each chunk of a pipeline runs, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from neusight.plans.stages import Stage
from neusight.requests import Plan


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The segments of all chunks of a pipeline in the order of the model, once for each direction, in columns.

    Attributes:
        way: direction of each; a micro-batch goes one of them.
        chunk: number of its chunk.
        piece: place in the chunk; 0 where replicas exchange nothing beside other work.
        segment: number among the program's segments.
        again: whether a layer may be computed again: all, or so many of each stage.
        stage: rank in the pipeline of each chunk, shape (chunks,).
        segments: of the program.
    """

    way: np.ndarray
    chunk: np.ndarray
    piece: np.ndarray
    segment: np.ndarray
    again: np.ndarray
    stage: np.ndarray
    segments: int

    @classmethod
    def of(cls, plan: Plan, stages: Sequence[Stage], segments: int) -> Chunks:
        """Build the chunks of a plan."""
        count, slots = plan.pp * plan.vp, []
        left = np.full((plan.directions, plan.pp), plan.recompute_layers or np.inf)
        for way, at in product(range(plan.directions), range(count)):
            stage = at % plan.pp
            before, after = [0] * (at == 0), [segments - 1] * (at == count - 1)
            layers = [1 + kind for kind in stages[stage].chunks[at // plan.pp]]
            for piece, number in enumerate((*before, *layers, *after)):
                again = 0 < number < segments - 1 and left[way, stage] > 0
                left[way, stage] -= again
                slots.append((way, way * count + at, piece if plan.dp * plan.cp > 1 else 0, number, again))
        ways, chunk, piece, segment, again = np.array(slots).T
        return cls(
            way=ways,
            chunk=chunk,
            piece=piece,
            segment=segment,
            again=again > 0,
            stage=np.arange(count * plan.directions) % plan.pp,
            segments=segments,
        )

    @property
    def pieces(self) -> int:
        """Most pieces of a chunk."""
        return int(self.piece.max()) + 1

    def table(self, values: np.ndarray, chosen: np.ndarray | None = None) -> np.ndarray:
        """Sums of the values of segments by chunk and piece, of chosen places or of all."""
        at = slice(None) if chosen is None else chosen
        sums = np.zeros((len(self.stage), self.pieces))
        np.add.at(sums, (self.chunk[at], self.piece[at]), values[self.segment[at]])
        return sums

    def sums(self, values: np.ndarray, chosen: np.ndarray | None = None) -> np.ndarray:
        """Sums of the values of segments by chunk, of chosen places or of all."""
        return self.table(values, chosen).sum(axis=1)

    def counts(self, chosen: np.ndarray) -> np.ndarray:
        """How often chosen places have each segment."""
        return np.bincount(self.segment[chosen], minlength=self.segments)
