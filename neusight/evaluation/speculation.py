"""Speculative decoding in eager PyTorch: what a method gains, given how many tokens it has accepted, against what was
measured (Spec-Bench, Xia et al. 2024: one sequence, a program of transformers for each method).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.rows import Row, read_rows
from neusight.errors import DataError
from neusight.evaluation.scored import Progress, Scored, compared
from neusight.executors.costs import NORMAL_90
from neusight.workloads.decoders.known import known_decoder

if TYPE_CHECKING:
    from neusight.api import Predictor

NEEDED = ("optimisation", "as_written", "model", "gpu", "gain", "told")
SPECULATIVE, PREFIX = "speculative-decoding", "speculative decoding: "
ACCEPTED, EVERY_TASK = "mean_accepted_tokens_(all_tasks)", "Overall"
SHAPES = {"Vicuna-7B-v1.3": "llama-2-7b", "Vicuna-13B-v1.3": "llama-2-13b"}
"""Models of the catalogue with the same layers."""


@dataclass(frozen=True)
class Drafting:
    """How a method drafts: ``passes`` of so many ``layers``, one after the other, then ``tokens`` that the model
    verifies at once, in a ``tree`` or in a row.
    """

    layers: int
    passes: int
    tokens: int
    tree: bool = True


DRAFTINGS = {
    "EAGLE": Drafting(1, 5, 26),
    "EAGLE2": Drafting(1, 6, 60),
    "EAGLE3": Drafting(1, 7, 60),
    "SAMDEAGLE2": Drafting(1, 6, 60),
    "Hydra": Drafting(1, 4, 64),
    "Medusa": Drafting(0, 0, 64),
    "REST": Drafting(0, 0, 65),
    "Recycling": Drafting(0, 0, 81),
    "Lookahead": Drafting(0, 0, 57),
    "PLD": Drafting(0, 0, 11, tree=False),
    "SpS": Drafting(2, 5, 6, tree=False),
}
"""As their programs start: depth and nodes of the trees of EAGLE (Li et al. 2024, 2025), Hydra's and Medusa's four
heads and 63 nodes (Ankner et al. 2024, Cai et al. 2024), 64 of REST (He et al. 2024), 80 of Token Recycling (Luo et al.
2024), 14 n-grams of four tokens (Fu et al. 2024), ten of the prompt (Saxena 2023), five of a model with two layers
(Leviathan et al. 2023, transformers' assisted generation)."""


@dataclass(frozen=True)
class HostWork:
    """What a program's own host adds, as shares of a pass of the model: to each round, to one whose drafts are a tree,
    and to each pass of the draft; ``spread`` is the standard deviation of the logarithm of what they leave.
    """

    round: float
    tree: float
    draft: float
    spread: float

    @classmethod
    def fitted(cls, pairs: Sequence[_Pair]) -> HostWork:
        """To gains over all tasks, for which accepted tokens are stated, and the spread to those of each task."""
        from scipy.optimize import least_squares

        known = [pair for pair in pairs if pair.task == EVERY_TASK]

        def leaves(shares: np.ndarray, of: Sequence[_Pair]) -> np.ndarray:
            host = cls(round=shares[0], tree=shares[1], draft=shares[2], spread=0.0)
            return np.array([np.log(pair.gain_with(host) / pair.gain) for pair in of])

        fit = least_squares(leaves, np.full(3, 0.05), args=(known,), bounds=(0.0, 1.0), loss="soft_l1")
        by_round, by_tree, by_draft = fit.x.tolist()
        return cls(round=by_round, tree=by_tree, draft=by_draft, spread=float(np.std(leaves(fit.x, pairs))))


@dataclass(frozen=True)
class _Pair:
    """A measured gain, with times of passes [s]: of one token, of a verification, of a layer."""

    method: str
    model: str
    gpu: str
    task: str
    accepted: float
    gain: float
    one_s: float
    verified_s: float
    layer_s: float

    def gain_with(self, host: HostWork) -> float:
        """Times as many tokens a second: those of a round over its passes, and over what the host adds."""
        drafting = DRAFTINGS[self.method]
        own = host.round + host.tree * drafting.tree + host.draft * drafting.passes
        round_s = self.verified_s + drafting.passes * drafting.layers * self.layer_s + own * self.one_s
        return self.accepted * self.one_s / round_s


def evaluate_speculation(path: Path, predictor: Predictor, progress: Progress | None = None) -> dict[str, Any]:
    """Predict each gain with the host's work fitted to other methods.

    Args:
        path: parquet of pairs of measurements before and after an optimisation.
        predictor: whose passes.
        progress: called with (done, of) a method.

    Returns:
        ``rows``: method, model, gpu, task, accepted, predicted, low, high, measured, ape, bias, inside. ``means`` by
        method, gpu, model and task; ``total``; ``overall`` of rows over all tasks, which accepted tokens are stated of;
        ``skipped``: rows without accepted tokens, or of an unknown method or model.

    Raises:
        DataError: no such file, a foreign one, or no row of a known method.
    """
    skipped: list[dict[str, Any]] = []
    pairs = list(_pairs(read_rows(Path(path), NEEDED, "pairs of measurements"), predictor, skipped))
    methods = list(dict.fromkeys(pair.method for pair in pairs))
    if len(methods) < 2:
        raise DataError(f"{path} has no gains of two methods that are known: {', '.join(DRAFTINGS)}")
    rows = []
    for done, method in enumerate(methods, start=1):
        host = HostWork.fitted([pair for pair in pairs if pair.method != method])
        rows += [_compared(pair, host) for pair in pairs if pair.method == method]
        if progress:
            progress(done, len(methods))
    scored = Scored.of(rows)
    return {
        "rows": rows,
        "means": {by: scored.summary(by) for by in ("method", "gpu", "model", "task")},
        "total": scored.figures(),
        "overall": scored.where(task=EVERY_TASK).figures(),
        "skipped": skipped,
    }


def _compared(pair: _Pair, host: HostWork) -> dict[str, Any]:
    names = {name: getattr(pair, name) for name in ("method", "model", "gpu", "task", "accepted")}
    gain, factor = pair.gain_with(host), float(np.exp(NORMAL_90 * host.spread))
    return names | compared(gain, (gain / factor, gain * factor), pair.gain)


def _pairs(records: Sequence[Row], predictor: Predictor, skipped: list[dict[str, Any]]) -> Iterator[_Pair]:
    seconds: dict[tuple[str, str, int], float] = {}

    def pass_s(model: str, gpu: str, tokens: int) -> float:
        if (key := (model, gpu, tokens)) not in seconds:
            estimate = predictor.estimate(model, gpu, batch=1, seq_len=tokens, dtype="fp16")
            seconds[key] = estimate.latency_s
        return seconds[key]

    for record in records:
        if record["optimisation"] != SPECULATIVE:
            continue
        method, model = str(record["as_written"]).removeprefix(PREFIX), str(record["model"])
        stated: dict[str, str] = json.loads(record["told"])
        if reason := _unable(method, model, stated):
            skipped.append({"reason": reason})
            continue
        shape, gpu = SHAPES[model], str(record["gpu"])
        one_s = pass_s(shape, gpu, 1)
        yield _Pair(
            method=method, model=model, gpu=gpu, task=stated["task"], accepted=float(stated[ACCEPTED]),
            gain=float(record["gain"]), one_s=one_s, verified_s=pass_s(shape, gpu, DRAFTINGS[method].tokens),
            layer_s=one_s / known_decoder(shape).depth,
        )  # fmt: skip


def _unable(method: str, model: str, stated: dict[str, str]) -> str:
    if ACCEPTED not in stated:
        return "accepted tokens are not stated"
    return "" if method in DRAFTINGS and model in SHAPES else "a method or model that is not known"
