"""``Speculation``: what drafts tokens for a served model to verify, how many at a time, and how many are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from neusight.errors import LoadError, nearest, shown

OWN_LAYER = ("mtp", "eagle")
"""Drafts by a layer of the model's own kind behind its last, with its embedding and head: multi-token prediction
(DeepSeek-V3, arXiv 2412.19437, section 2.2), EAGLE (Li et al. 2024). The product that joins a token's embedding with
the hidden state before it is not counted."""
LOOKUP = "ngram"
"""Drafts by looking the last tokens up in the prompt, which costs the device nothing."""
MOST_TOKENS = 64
"""Drafted at a time, at most."""
_KEYS = ("draft", "tokens", "acceptance")


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """``tokens`` are drafted one after the other, then verified in one pass with the token before them.

    ``draft`` is one of ``OWN_LAYER``, ``LOOKUP``, or a model's name. ``acceptance`` are probabilities that a drafted
    token is accepted where those before it were, of each position; one number holds for all.
    """

    draft: str
    tokens: int
    acceptance: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises:
        LoadError: no draft, a number of tokens or a probability out of range, or a profile of another length.
        """
        if not self.draft:
            raise LoadError(f"speculation without a draft: give one of {', '.join((*OWN_LAYER, LOOKUP))}, or a model")
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise LoadError(f"speculation with {self.tokens} drafted tokens: give 0 to {MOST_TOKENS}")
        if len(self.acceptance) not in (1, self.tokens):
            count = len(self.acceptance)
            raise LoadError(f"acceptance of {count} positions for {self.tokens} drafted tokens: give one, or as many")
        if wrong := [p for p in self.acceptance if not 0 <= p <= 1]:
            raise LoadError(f"acceptance {wrong[0]:g}: give a probability from 0 to 1")

    @classmethod
    def named(cls, text: str) -> Speculation:
        """Of ``draft=eagle,tokens=4,acceptance=0.7``, or a profile by position, ``acceptance=0.8/0.7/0.6/0.5``.

        Raises:
            LoadError: an unknown or missing key, one given twice, or what is no number.
        """
        pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
        given = {key.strip(): value.strip() for key, value in pairs}
        for key in given:
            if key not in _KEYS:
                raise LoadError(f"unknown key '{shown(key)}' of a speculation{nearest(key, _KEYS)}: {', '.join(_KEYS)}")
        missing = [key for key in _KEYS if key not in given]
        if missing or len(given) < len(pairs):
            fault = f"lacks {' and '.join(missing)}" if missing else "has a key twice"
            raise LoadError(
                f"speculation '{shown(text)}' {fault}: write it like draft=eagle,tokens=4,acceptance=0.7, with 0 to "
                f"{MOST_TOKENS} tokens and an acceptance from 0 to 1"
            )
        try:
            tokens, acceptance = int(given["tokens"]), tuple(map(float, given["acceptance"].split("/")))
        except ValueError:
            raise LoadError(f"speculation '{shown(text)}': tokens and acceptance are numbers, 4 and 0.7 say") from None
        return cls(draft=given["draft"], tokens=tokens, acceptance=acceptance)

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
        each = self.acceptance * (self.tokens if len(self.acceptance) == 1 else 1)
        return 1.0 + sum(accumulate(each, mul))
