"""Attention of models of transformers: eager against ``scaled_dot_product_attention`` and FlashAttention 2."""

from __future__ import annotations

from neusight.evaluation.scored import Row
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.what_if.questions import StepQuestion


@reads("attention_sdpa_fa2_hf")
def of_transformers(record: Row, stated: dict[str, str]) -> Pair:
    """Models by their names on the hub, forward or with a backward pass."""
    if stated["dtype"] == "?":
        raise UnnamedModelError("the dtype is not told")
    before = StepQuestion.of(
        model_named(str(record["model"])),
        gpu_of(record),
        mode=str(record["mode"]),
        batch=whole(stated["batch"], "batch"),
        seq_len=whole(stated["seq"], "length") if "seq" in stated else None,
        dtype=stated["dtype"],
        attention="eager",
    )
    return Pair.of(record, before, ["sdpa"])


def model_named(name: str) -> str:
    """The model of the catalogue that a name on the hub stands for."""
    return name
