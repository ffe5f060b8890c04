"""Speculative decoding in eager PyTorch (Spec-Bench, Xia et al. 2024): one sequence, a program of transformers for each
method, and how many tokens it has accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.evaluation.what_if.generation import decoder_of_words
from neusight.measured.score import Row
from neusight.serving.load import Static
from neusight.serving.setup import Setup
from neusight.serving.speculation import LOOKUP, Speculation
from neusight.what_if.catalogue.deployments import speculated
from neusight.what_if.questions import DeploymentQuestion

ACCEPTED, PREFIX = "mean_accepted_tokens_(all_tasks)", "speculative decoding: "
PROMPT_TOKENS, NEW_TOKENS = 256, 256
"""Of a question and its answer: those of Spec-Bench's tasks are some hundred long."""


@dataclass(frozen=True)
class Drafting:
    """How a method drafts: by whom, to which ``depth``, and how many ``tokens`` the model verifies at once."""

    draft: str
    depth: int
    tokens: int


DRAFTINGS = {
    "EAGLE": Drafting("eagle", 5, 26),
    "EAGLE2": Drafting("eagle", 6, 60),
    "EAGLE3": Drafting("eagle", 7, 60),
    "SAMDEAGLE2": Drafting("eagle", 6, 60),
    "Hydra": Drafting("eagle", 4, 64),
    "Medusa": Drafting(LOOKUP, 4, 64),
    "REST": Drafting(LOOKUP, 15, 65),
    "Recycling": Drafting(LOOKUP, 6, 81),
    "Lookahead": Drafting(LOOKUP, 4, 57),
    "PLD": Drafting(LOOKUP, 10, 11),
    "SpS": Drafting("JackFram/llama-68m", 5, 6),
}
"""As their programs start: depth and nodes of the trees of EAGLE (Li et al. 2024, 2025), Hydra's and Medusa's four
heads and 63 nodes (Ankner et al. 2024, Cai et al. 2024), 64 of REST, 15 deep (He et al. 2024), 80 of Token Recycling,
six deep (Luo et al. 2024), 14 n-grams of four tokens (Fu et al. 2024), ten of the prompt (Saxena 2023), five of a model
with two layers (Leviathan et al. 2023, transformers' assisted generation)."""


@reads("speculative_decoding_specbench")
def drafted(record: Row, stated: dict[str, str]) -> Pair:
    """A method with the tokens that it had accepted, over all tasks."""
    method = str(record["as_written"]).removeprefix(PREFIX)
    if method not in DRAFTINGS:
        raise DataError(f"how {method} drafts is not known: {', '.join(DRAFTINGS)} are")
    if ACCEPTED not in stated:
        raise UnnamedModelError("accepted tokens are not told")
    batch = whole(stated.get("batch", "1"), "batch")
    before = DeploymentQuestion(
        model=decoder_of_words(str(record["model"]), dtype="float16"),
        gpu=gpu_of(record),
        load=Static(batch=batch, isl=PROMPT_TOKENS, osl=NEW_TOKENS),
        setup=Setup(engine="transformers"),
    )
    how = DRAFTINGS[method]
    acceptance = accepted_each(float(stated[ACCEPTED]), how.depth)
    words = f"draft={how.draft},tokens={how.tokens - 1},depth={how.depth},acceptance={acceptance:.6f}"
    return Pair(before=before, after=speculated(before, words), applied=("speculative-decoding",), metric="tpot")


def accepted_each(tokens: float, depth: int) -> float:
    """Probability that a token is accepted behind those before it, where a pass adds so many ``tokens``.

    Raises:
        DataError: more than a branch of this depth has, or fewer than one.
    """
    if not 1.0 <= tokens <= depth + 1:
        raise DataError(f"{tokens:g} tokens of each pass that verifies branches of {depth}")
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        gain = Speculation(draft=LOOKUP, tokens=depth, acceptance=(middle,)).gain
        low, high = (middle, high) if gain < tokens else (low, middle)
    return low
