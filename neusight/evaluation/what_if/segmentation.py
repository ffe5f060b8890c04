"""The ladder of segment-anything-fast: the image encoder of SAM, which takes most of an image's time."""

from __future__ import annotations

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.what_if.questions import StepQuestion

_WRITTEN_OUT = {"SAM vit_b": "timm:samvit_base_patch16", "SAM vit_h": "timm:samvit_huge_patch16"}
"""Encoders as ``segment_anything`` runs them: probabilities in the model's own dtype."""
_FUSED = {"SAM vit_b": "facebook/sam-vit-base", "SAM vit_h": "facebook/sam-vit-huge"}
"""The same with attention of four extents, which a fused kernel takes with the bias of positions."""

_UPON_ALL = {"int8 dynamic": "int8dq", "2:4 sparsity": "2:4-sparsity"}
"""Rungs upon compiled, fused attention."""


@reads("ladder_segment_anything_fast")
def of_segment_anything(record: Row, stated: dict[str, str]) -> Pair:
    """Each rung upon those before it."""
    how = str(record["as_written"])
    if how.startswith("fp32 -> bf16"):
        return Pair.of(record, _step(record, stated, _WRITTEN_OUT, "float32"), ["bf16"])
    if how.startswith("torch.compile"):
        return Pair.of(record, _step(record, stated, _WRITTEN_OUT, "bfloat16"), ["compile"])
    if how.startswith("sdpa"):
        return Pair.of(record, _step(record, stated, _FUSED, "bfloat16", launch="compiled"), ["sdpa"])
    for begins, name in _UPON_ALL.items():
        if how.startswith(begins):
            before = _step(record, stated, _FUSED, "bfloat16", launch="compiled", attention="sdpa")
            return Pair.of(record, before, [name])
    raise DataError(f"'{how}' has no transform here")


def _step(
    record: Row, stated: dict[str, str], encoders: dict[str, str], dtype: str, attention: str = "eager", **options: str
) -> StepQuestion:
    name = str(record["model"])
    if name not in encoders:
        raise UnnamedModelError(f"no encoder is known of '{name}'")
    batch = whole(stated["batch"], "batch")
    return step_question(encoders[name], gpu_of(record), batch=batch, dtype=dtype, attention=attention, **options)
