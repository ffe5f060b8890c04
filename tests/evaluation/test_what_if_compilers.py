"""Rows of compilers and libraries of inference as questions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import UnnamedModelError, pair_of


def row(name: str, **told: str) -> dict[str, Any]:
    return {
        "set": name, "metric": "time", "gpu": "a100-sxm-40gb", "model": "bert", "optimisation": "inference-compiler",
        "as_written": "FasterTransformer: FT", "told": json.dumps(told),
    }  # fmt: skip


FASTER = "fused_encoder_fastertransformer"
BERT = {"batch_size": "8", "seq_len": "128", "precision": "FP16", "before": "TF"}


def test_a_table_of_tensorflow_begins_from_xla_and_one_of_torchscript_from_operators() -> None:
    case = pair_of(row(FASTER, **BERT))
    assert case.before.request.engine.name == "tensorflow-xla"
    assert (case.before.request.batch, case.before.request.seq_len, case.before.request.dtype) == (8, 128, "float16")
    assert case.applied == ("fused-layers", "flash")
    other = pair_of(row(FASTER, **{**BERT, "before": "TorchScript"})).before.request.engine
    assert (other.launch, other.written_out) == ("eager", ("bias",))
    by_python = pair_of(row(FASTER, **{**BERT, "before": "PyTorch"})).before.request.engine
    assert other.host_s_per_operator < by_python.host_s_per_operator


def test_float32_and_long_sequences_have_no_fused_attention() -> None:
    assert pair_of(row(FASTER, **{**BERT, "precision": "FP32"})).applied == ("fused-layers",)
    assert pair_of(row(FASTER, **{**BERT, "seq_len": "512"})).applied == ("fused-layers",)


def test_effective_transformer_in_int8_drops_half_of_the_tokens() -> None:
    told = {"batch_size": "8", "seq_len": "128", "before": "TF-FP16"}
    case = pair_of({**row(FASTER, **told), "as_written": "FasterTransformer: EFF-FT-INT8-v1"})
    assert case.applied == ("fused-layers", "flash", "int8-static-wide", "padding-dropped")
    assert (case.before.request.seq_len, case.after.request.seq_len) == (128, 64)


def test_a_heading_tells_the_gpu_and_the_model() -> None:
    told = {"batch_size": "8", "before": "torch.jit.trace", "section": "Swin Performance on A10 > Swin-V1 TF32"}
    case = pair_of({**row(FASTER, **told), "model": "swin"})
    assert (case.before.gpu, case.before.model) == ("a10", "timm:swin_tiny_patch4_window7_224")
    assert str(case.before.request.precision) == "tf32"


def test_decoding_replaces_layers_and_search_and_decoder_layers_alone() -> None:
    told = {"batch_size": "8", "beam_width": "4", "precision": "FP32", "before": "TF"}
    rows = {**row(FASTER, **told), "model": "decoder", "metric": "throughput"}
    layers = pair_of({**rows, "as_written": "FasterTransformer: FT Decoder"})
    assert (layers.before.model, layers.applied) == ("translation-decoder@4", ("fused-layers",))
    assert layers.before.request.engine.name == "tensorflow"
    assert pair_of({**rows, "as_written": "FasterTransformer: FT Decoding"}).applied == ("fused-layers", "fused-search")


def test_a_slow_processor_beside_a_gpu_takes_longer_for_each_operator() -> None:
    rows = {**row(FASTER, batch_size="1", precision="FP16", before="TF"), "model": "decoder", "metric": "throughput"}
    on_t4, on_v100 = (pair_of({**rows, "gpu": gpu}).before.request.engine for gpu in ("t4", "v100-sxm2-16gb"))
    assert on_t4.host_s_per_operator / on_v100.host_s_per_operator == pytest.approx(3.6 / 1.7)


def test_longer_sequences_than_bert_has_positions_lengthen_its_table() -> None:
    rows = row("compiler_aitemplate", batch_size="1", dtype="fp16")
    models = [pair_of({**rows, "model": f"BERT Sequence length {length}"}).before.model for length in (512, 4096)]
    assert models == ["bert-base", "bert-base@max_position_embeddings=4096"]


def test_sparse_products_are_compared_with_dense_ones_of_the_same_library() -> None:
    case = pair_of({**row(FASTER, **{"<batch_size,_seq_len>": "<8, 128>"}), "as_written": "2:4 sparse GEMMs"})
    assert case.applied == ("2:4-sparsity",)
    assert {change.part for change in case.before.setting.passes} == {"layers"}


def test_two_dies_of_a_module_share_its_batch() -> None:
    rows = row("compiler_aitemplate", batch_size="64", dtype="fp16")
    rows |= {"model": "ViT vit_base_patch16_224", "gpu": "mi250", "gpu_as_written": "MI250 (2 GCDs)"}
    case = pair_of(rows)
    assert (case.before.request.batch, case.applied) == (32, ("inference-compiler", "sdpa"))
    detector = pair_of({**rows, "model": "Detectron2 Input size: 448x608", "gpu_as_written": "MI250 (1 GCD)"})
    assert (detector.before.request.extents.image_size, detector.before.request.batch) == (512, 64)


def test_what_no_source_names_is_refused_in_one_line() -> None:
    with pytest.raises(UnnamedModelError, match="dtype"):
        pair_of(row(FASTER, batch_size="8", before="TF"))
    with pytest.raises(UnnamedModelError, match="not named"):
        pair_of({**row("compiler_aitemplate", batch_size="1", dtype="fp16"), "model": "something"})
    with pytest.raises(UnnamedModelError, match="no checkpoint"):
        pair_of(row("compile_hf_vision", task="Depth", batch="1"))
    with pytest.raises(DataError, match="Inductor"):
        pair_of({**row("training_ladder_hf_issues_and_small_tables", batch="1"), "optimisation": "compile"})
