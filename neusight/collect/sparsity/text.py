"""Text to learn from that every interpreter ships: Python's own reference."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

WORDS = 2000
"""Size of the vocabulary: the commonest words, after 0 for padding and 1 for all others."""
SHORTEST = 5
"""Words of a sentence, at least."""


@cache
def documentation() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Prose of Python's reference, which the interpreter ships (``pydoc_data.topics``, of its version): topics of two
    sentences or more, of at least five words each, as numbers of words.
    """
    from pydoc_data.topics import topics

    texts = [_sentences(text) for _, text in sorted(topics.items())]
    counted = Counter(word for sentences in texts for sentence in sentences for word in sentence)
    commonest = sorted(counted, key=lambda word: (-counted[word], word))[: WORDS - 2]
    numbers = {word: number for number, word in enumerate(commonest, start=2)}
    return tuple(
        tuple(tuple(numbers.get(word, 1) for word in sentence) for sentence in sentences)
        for sentences in texts
        if len(sentences) > 1
    )


def _sentences(text: str) -> list[list[str]]:
    """Sentences of paragraphs that begin at the margin; indented ones are code or grammar."""
    prose = [" ".join(part.split()) for part in text.split("\n\n") if part[:1].isalpha() and "::=" not in part]
    split = (re.findall(r"[a-z_]+|[.,;:()]", s.lower()) for part in prose for s in re.split(r"(?<=[.!?]) ", part))
    return [sentence for sentence in split if len(sentence) >= SHORTEST]
