"""What networks are trained on where their zeros are measured: noise, small real images that scikit-learn ships, and
the text of Python's own reference.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Literal

import torch
from torch.nn import functional

Data = Literal["noise", "digits"]
WORDS = 2000
"""Of the vocabulary: the commonest, after 0 for padding and 1 for all others."""
_SHORTEST = 5


def noise(shape: tuple[int, ...]) -> torch.Tensor:
    """Noise whose amplitudes fall as 1/f, as those of natural images do (Field 1987, JOSA A 4(12)); each channel of
    mean 0 and variance 1. White noise would not excite the same units at neighbouring pixels.
    """
    height, width = shape[-2:]
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width))
    frequency[0, 0] = torch.inf
    smooth = torch.fft.irfft2(torch.fft.rfft2(torch.randn(shape)) / frequency, s=(height, width))
    return smooth / smooth.std(dim=(-2, -1), correction=0, keepdim=True).clamp(min=1e-12)


class Digits:
    """Handwritten digits, 8x8 pixels enlarged (Alpaydin and Kaynak 1998; ``sklearn.datasets.load_digits``): a batch
    drawn anew for each step, with its classes.
    """

    def __init__(self) -> None:
        self.classes: torch.Tensor | None = None

    def images(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A batch of shape (images, channels, height, width), of mean 0 and variance 1 over all digits; ``classes`` are
        theirs from then on.
        """
        known, classes = digits()
        chosen = torch.randint(len(known), (shape[0],))
        self.classes = classes[chosen]
        return enlarged(known[chosen], shape)


def enlarged(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Grey images (images, height, width) as (images, channels, height, width), all channels alike."""
    larger = functional.interpolate(images[:, None], size=shape[-2:], mode="bilinear", align_corners=False)
    return larger.expand(shape).clone()


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All of them, of shape (images, 8, 8), mean 0 and variance 1, and their classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)
    return (images - images.mean()) / images.std(), torch.tensor(found.target)


def nearest(points: torch.Tensor, count: int) -> torch.Tensor:
    """Places of the ``count`` points nearest to each, itself first, shape (points, count)."""
    return torch.cdist(points, points).topk(count, largest=False).indices


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
    """Of paragraphs that begin at the margin; what is indented is code or grammar."""
    prose = [" ".join(part.split()) for part in text.split("\n\n") if part[:1].isalpha() and "::=" not in part]
    split = (re.findall(r"[a-z_]+|[.,;:()]", s.lower()) for part in prose for s in re.split(r"(?<=[.!?]) ", part))
    return [sentence for sentence in split if len(sentence) >= _SHORTEST]
