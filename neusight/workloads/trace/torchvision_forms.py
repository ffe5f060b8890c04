"""What torchvision's models run on a GPU, where its builds for the CPU run something else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torchvision_forms() -> Iterator[None]:
    """What torchvision runs on a GPU: its own kernels, and one suppression for all classes together.

    Where values decide how many boxes there are, a loop over classes would be one over as many as there are boxes.
    """
    boxes = sys.modules.get("torchvision.ops.boxes")
    align = sys.modules.get("torchvision.ops.roi_align")
    if boxes is None or align is None:
        yield
        return
    together = getattr(boxes, "_batched_nms_coordinate_trick", None)
    forms = [
        (boxes, "_assert_has_ops", lambda: None),
        (align, "_assert_has_ops", lambda: None),
        (align, "_has_ops", lambda: True),
        (boxes, "_batched_nms_vanilla", together),
    ]
    present = [(module, name, form) for module, name, form in forms if form is not None and hasattr(module, name)]
    before = [(module, name, getattr(module, name)) for module, name, _ in present]
    try:
        for module, name, form in present:
            setattr(module, name, form)
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
