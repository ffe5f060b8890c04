"""Slices of an A100 under MIG against all of them (MIGPerf, Zhang et al. 2023): encoders of sentences, fine-tuning."""

from __future__ import annotations

import re

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.what_if import applied

ENCODERS = {
    "bert-base-multilingual-cased": "bert-base",
    "bert-base": "bert-base",
    "distiluse-base-multilingual-cased-v1": "distilbert-base-uncased",
    "distil_v1": "distilbert-base-uncased",
    "distil_v2": "distilbert-base-uncased",
    "mpnet": "microsoft/mpnet-base",
    "MiniLM": "microsoft/MiniLM-L12-H384-uncased",
    "moco finetune": "torchvision:resnet50",
    "vit finetune": "timm:vit_base_patch16_224",
}
"""Models of the same layers; a vocabulary of another size is read in part alone."""
USUAL_BATCH, USUAL_LENGTH = 32, 64
"""Where a figure leaves one of them out (MIGPerf's client: batch 32, sequences of 64 tokens)."""


@reads("mig_slices_a100")
def of_slices(record: Row, stated: dict[str, str]) -> Pair:
    """Models of transformers in TF32, as PyTorch of 2022 ran float32."""
    model = ENCODERS.get(str(record["model"]))
    if model is None:
        raise UnnamedModelError(f"no model is known as '{record['model']}'")
    slices = re.match(r"(\d)g\.", stated.get("slice", ""))
    if slices is None:
        raise DataError(f"no slice is told: {stated.get('slice', '')!r}")
    encoder = ":" not in model
    whole_board = step_question(
        model,
        gpu_of(record),
        mode=str(record["mode"]),
        batch=whole(stated.get("batch", str(USUAL_BATCH)).rstrip("?"), "batch"),
        seq_len=whole(stated.get("seq", str(USUAL_LENGTH)), "length") if encoder else None,
        dtype="tf32",
        attention="eager" if encoder else None,
    )
    (before,) = applied(whole_board, ["mig-7g"])
    name = f"mig-{slices[1]}g"
    (after,) = applied(whole_board, [name])
    return Pair.between(record, before, after, [name])
