"""Attention of models of transformers: eager against ``scaled_dot_product_attention`` and FlashAttention 2."""

from __future__ import annotations

from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question

_IN_TIMM = {"google/vit-hybrid-base-bit-384": "timm:vit_base_r50_s16_384"}
"""Models that transformers no longer has, by the same in timm."""


@reads("attention_sdpa_fa2_hf")
def of_transformers(record: Row, stated: dict[str, str]) -> Pair:
    """Models by their names on the hub, forward or with a backward pass."""
    if stated["dtype"] == "?":
        raise UnnamedModelError("the dtype is not told")
    before = step_question(
        _IN_TIMM.get(name := str(record["model"]), name),
        gpu_of(record),
        mode=str(record["mode"]),
        batch=whole(stated["batch"], "batch"),
        seq_len=whole(stated["seq"], "length") if "seq" in stated else None,
        dtype=stated["dtype"],
        attention="eager",
    )
    return Pair.of(record, before, ["sdpa"])
