"""What each stage of a pipeline works on at a time: passes that are in flight together, one a stage.

A round of the scheduler is a pass for every stage. Sequences that generate are spread over all of them. Prompts fill
one after the other up to the tokens of a pass, so that one short prompt travels alone and many keep every stage at
work. A round takes as long as one of its passes needs for all layers: while that is in one stage, the others are in the
other stages. A round that is not full of prompts has none behind it: its last pass began later by a stage for each of
those before it, and so does what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from neusight.serving.simulate import Chunks, StepTimes
from neusight.workloads.decoders.steps import Steps


def in_flight(steps: Steps, stages: int, most_tokens: int) -> Steps:
    """One of the passes that make up each round.

    Args:
        steps: rounds, columns of shape (n,).
        stages: of the pipeline.
        most_tokens: new tokens of a pass.
    """
    if stages == 1:
        return steps
    decodes, tokens = _ceil(steps.decodes, stages), steps.prompts * steps.prompt_tokens
    filled = np.clip(_ceil(tokens, np.maximum(most_tokens - decodes, 1)), 1, stages)
    prompts = _ceil(steps.prompts, filled)
    each = _ceil(_ceil(tokens, filled), np.maximum(prompts, 1))
    return replace(steps, prompts=prompts, prompt_tokens=each, decodes=decodes)


def _ceil(count: np.ndarray, parts: np.ndarray | int) -> np.ndarray:
    return -(-np.asarray(count, dtype=np.int64) // parts)


@dataclass(frozen=True)
class Pipelined:
    """Times of rounds of ``stages`` passes of up to ``most_tokens`` new tokens each, from those of single passes."""

    times: StepTimes
    stages: int
    most_tokens: int

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """As ``StepTimes``, of a round."""
        own, prompt_tokens = -(-decodes // self.stages), new_tokens - decodes
        filled = min(self.stages, max(1, -(-prompt_tokens // max(self.most_tokens - own, 1))))
        each = -(-prompt_tokens // filled)
        # Rounded up on both sides, a pass may seem to have a token more than it may.
        tokens = min(own + each, max(self.most_tokens, own))
        cached_sum = own * decode_cached_sum / decodes if decodes else 0.0
        one_s = self.times.pass_s(tokens, cut(chunks, each)[filled // 2 :: filled], own, cached_sum)
        full = new_tokens >= self.stages * self.most_tokens
        return one_s if full else one_s * (1 + (filled - 1) / self.stages)


def cut(chunks: Chunks, most: int) -> list[tuple[int, int]]:
    """Chunks that are longer than a pass in parts, each behind those before it."""
    return [(min(most, new - at), cached + at) for new, cached in chunks for at in range(0, new, most)]
