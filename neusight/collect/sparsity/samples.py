"""What networks are trained on where their zeros are measured: noise, or small real images that scikit-learn ships."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch.nn import functional

Data = Literal["noise", "digits"]


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
        known, classes = _digits()
        chosen = torch.randint(len(known), (shape[0],))
        self.classes = classes[chosen]
        enlarged = functional.interpolate(known[chosen, None], size=shape[-2:], mode="bilinear", align_corners=False)
        return enlarged.expand(shape).clone()


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)
    return (images - images.mean()) / images.std(), torch.tensor(found.target)
