"""What makes inputs, by their names: those of all sorts of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neusight.workloads.inputs import images, others, series, sounds, text
from neusight.workloads.inputs.layouts import MAKERS, Ways
from neusight.workloads.inputs.sizes import Sizes


def makers() -> Mapping[str, Callable[[Sizes], Ways]]:
    """By the name of the input; each module has entered its own."""
    assert images and others and series and sounds and text
    return MAKERS
