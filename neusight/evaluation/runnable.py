"""Whether a library's default configuration makes a model that any input runs through.

Each question is put to a part that works alike whatever the input holds, so that a no is the configuration's own: no
image or text that a person could give would pass it.
"""

from __future__ import annotations

from typing import Any

_POSITIONS = ((3, 1, 2), (4, 1, 2), (1, 2))
"""Shapes in which places of two tokens come: in time, height and width, with text beside them, or in a line."""


def runnable(model: Any) -> bool:
    """Whether a model of transformers, on whatever device, could run with some input.

    False where rotary frequencies do not divide into the sections that the configuration names, where a router is not
    told how many experts to choose, or where a detector looks for objects on no level of features.
    """
    sectioned = [part for part in model.modules() if getattr(part, "mrope_section", None)]
    unsettled = [part for part in model.modules() if getattr(part, "top_k", 0) is None and hasattr(part, "weight")]
    seeing = getattr(model.config, "num_feature_levels", None) != 0
    return seeing and all(map(_rotates, sectioned)) and all(map(_routes, unsettled))


def _rotates(part: Any) -> bool:
    """Whether a rotary embedding with sections gives angles for two tokens: their shapes follow from it alone."""
    import torch

    try:
        embedding = type(part)(part.config)
    except TypeError:
        return True
    return any(_runs(embedding, torch.zeros(1, 2, 1), torch.zeros(shape, dtype=torch.long)) for shape in _POSITIONS)


def _routes(router: Any) -> bool:
    """Whether a router without a number of experts to choose takes two tokens: how many they are changes nothing."""
    import torch

    width = router.weight.shape[-1]
    return any(_runs(router, torch.empty(*batch, 2, width, device=router.weight.device)) for batch in ((), (1,)))


def _runs(module: Any, *inputs: Any) -> bool:
    try:
        module(*inputs)
    except Exception:
        return False
    return True
