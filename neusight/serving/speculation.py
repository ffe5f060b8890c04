"""``Speculation``: what drafts tokens for a served model to verify, how many at a time, and how many are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from neusight.errors import LoadError, nearest, shown
from neusight.workloads.dispatch import DISPATCHES

OWN_LAYER = ("mtp", "eagle")
"""Drafts by a layer of the model's own kind behind its last, with its embedding and head: multi-token prediction
(DeepSeek-V3, arXiv 2412.19437, section 2.2), EAGLE (Li et al. 2024). The product that joins a token's embedding with
the hidden state before it is not counted."""
LOOKUP = "ngram"
"""Drafts by looking the last tokens up in the prompt, which costs the device nothing."""
MOST_TOKENS = 128
"""Drafted at a time, at most."""
_POINTWISE, _REDUCTION, _LIBRARY = (DISPATCHES[kind] for kind in ("pointwise", "reduction", "library"))
TREE_LAYER = 4 * _POINTWISE + _REDUCTION + _LIBRARY
"""Of a layer whose attention is masked by a tree in PyTorch: written out, so that it scales, masks, normalises in
float32, narrows, multiplies again and copies (EAGLE, ``modeling_llama_kv.py``; Medusa, Hydra and REST alike)."""
TREE_PASS = 9 * _POINTWISE + 3 * _REDUCTION
"""Of a pass that drafts a level: log-probabilities, the best of each branch and of all, their sums, ancestors, tokens
and rows of the mask (EAGLE, ``topK_genrate``)."""
TREE_ROUND = 20 * _POINTWISE + 10 * _REDUCTION
"""Of a pass that verifies a tree: candidates and positions gathered, branches compared with what the model says, the
longest chosen, its keys, values and hidden states moved (EAGLE, ``tree_decoding``, ``evaluate_posterior``,
``update_inference_inputs``)."""
_NEEDED = ("draft", "tokens", "acceptance")
_KEYS = (*_NEEDED, "depth")
_EXAMPLE = "draft=eagle,tokens=4,acceptance=0.7"


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """``tokens`` are drafted, then verified in one pass with the token before them: one after the other, or as a tree
    of less ``depth``, of which each pass of the draft makes a level (0: as many as tokens).

    ``draft`` is one of ``OWN_LAYER``, ``LOOKUP``, or a model's name. ``acceptance`` are probabilities that a drafted
    token is accepted where those before it were, of each position; one number holds for all.
    """

    draft: str
    tokens: int
    acceptance: tuple[float, ...]
    depth: int = 0

    def __post_init__(self) -> None:
        """Raises:
        LoadError: no draft, a number of tokens or a probability out of range, or a profile of another length.
        """
        if not self.draft:
            raise LoadError(f"speculation without a draft: give one of {', '.join((*OWN_LAYER, LOOKUP))}, or a model")
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise LoadError(f"speculation with {self.tokens} drafted tokens: give 0 to {MOST_TOKENS}")
        if not 0 <= self.depth <= self.tokens:
            raise LoadError(f"speculation of depth {self.depth} with {self.tokens} drafted tokens: give 0 to as many")
        if len(self.acceptance) not in (1, self.levels):
            count = len(self.acceptance)
            raise LoadError(f"acceptance of {count} positions for {self.levels} drafted tokens: give one, or as many")
        if wrong := [p for p in self.acceptance if not 0 <= p <= 1]:
            raise LoadError(f"acceptance {wrong[0]:g}: give a probability from 0 to 1")

    @classmethod
    def named(cls, text: str) -> Speculation:
        """Of ``draft=eagle,tokens=4,acceptance=0.7``, or a profile by position, ``acceptance=0.8/0.7/0.6/0.5``.

        Raises:
            LoadError: an unknown or missing key, one given twice, or what is no number.
        """
        given = words_by_key(text, "a speculation", _KEYS, _EXAMPLE)
        if missing := [key for key in _NEEDED if key not in given]:
            raise LoadError(
                f"speculation '{shown(text)}' lacks {' and '.join(missing)}: write it like {_EXAMPLE}, "
                f"with 0 to {MOST_TOKENS} tokens and an acceptance from 0 to 1"
            )
        try:
            tokens, depth = int(given["tokens"]), int(given.get("depth", 0))
            acceptance = tuple(map(float, given["acceptance"].split("/")))
        except ValueError:
            raise LoadError(
                f"speculation '{shown(text)}': tokens, depth and acceptance are numbers, 4, 4 and 0.7 say"
            ) from None
        return cls(draft=given["draft"], tokens=tokens, acceptance=acceptance, depth=depth)

    @property
    def levels(self) -> int:
        """Tokens on the way from the first to the last of a branch, and passes of the draft."""
        return self.depth or self.tokens

    @property
    def is_tree(self) -> bool:
        """Whether some of the tokens are alternatives to others."""
        return self.levels < self.tokens

    @property
    def queries(self) -> int:
        """Tokens of a sequence that a pass verifies."""
        return self.tokens + 1

    @property
    def gain(self) -> float:
        r"""Tokens that a pass adds to a sequence on average: those accepted, and one of the model itself.

        .. math:: 1 + \sum_{i=1}^{k} \prod_{j=1}^{i} a_j = \frac{1 - a^{k+1}}{1 - a} \text{ where all are } a

        Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023, equation 1.
        """
        each = self.acceptance * (self.levels if len(self.acceptance) == 1 else 1)
        return 1.0 + sum(accumulate(each, mul))


def words_by_key(text: str, of: str, known: Sequence[str], example: str) -> dict[str, str]:
    """Values by key of a text such as ``example``.

    Raises:
        LoadError: an unknown key, or one given twice.
    """
    pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
    given = {key.strip(): value.strip() for key, value in pairs}
    if unknown := [key for key in given if key not in known]:
        hint = nearest(unknown[0], known)
        raise LoadError(f"unknown key '{shown(unknown[0])}' of {of}{hint}: {', '.join(known)}")
    if len(given) < len(pairs):
        raise LoadError(f"{of} '{shown(text)}' has a key twice: write it like {example}")
    return given
