"""Which source a text such as ``timm:resnet50`` names."""

from __future__ import annotations

from neusight.workloads.sources.described import Described
from neusight.workloads.sources.image_models import image_model


def described(text: str) -> Described | None:
    """The model that ``library:name`` stands for; None where it names no library.

    Raises:
        ModelError: the rest of the text cannot be read.
    """
    return image_model(text)
