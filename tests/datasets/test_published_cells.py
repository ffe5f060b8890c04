"""Served models of AWS Neuron, Intel and TPU recipes, in the columns of a cell, and their errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neusight.datasets.cells import serving_cell
from neusight.datasets.published_cells import canonical_cell
from neusight.engines import server_named
from neusight.engines.server import VLLM, Server
from neusight.evaluation import evaluate_serving
from neusight.kernels.work import work_of
from neusight.measured.score import Scored
from neusight.requests import Plan
from neusight.serving.passes import ReplicaTimes, group_of
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.layers import SelfAttention
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Steps, bucket_of
from neusight.workloads.program import Part

NEURON: dict[str, Any] = {
    "accelerator": "trainium1", "model": "Llama-2-13b", "tp_cores": 32, "batch": 8, "isl": 4096, "osl": 4096,
    "dtype": "FP16", "weights": "bf16", "engine": "Transformers NeuronX", "output_tokens_per_s": 371.7,
    "ttft_p50_ms": 6668.7, "tpot_p50_ms": 19.86,
}  # fmt: skip


def test_a_batch_of_neuron() -> None:
    cell = serving_cell(canonical_cell(NEURON), 1)
    assert (cell.engine, cell.tp, cell.mode, cell.concurrency) == ("transformers-neuronx", 32, "static", 8)
    assert (cell.weights, cell.medians) == ("bfloat16", {"ttft_ms", "tpot_ms"})
    assert cell.measured["tpot_ms"] == 19.86
    assert cell.median
    assert serving_cell(canonical_cell(NEURON | {"neuron": "2.18.0"}), 1).engine_version == "2.18.0"


def test_prompts_before_flash_attention_write_their_scores() -> None:
    def attention(version: str) -> dict[str, Part]:
        decoder, engine = known_decoder("llama-2-7b"), server_named("transformers-neuronx", version)
        precision = ServingPrecision(dtype="bfloat16", kv_cache="bfloat16")
        steps = Steps.of(prompts=[2], prompt_tokens=[256], decodes=[4], decode_cached=[127])
        parts = step_program(decoder, steps, precision, Plan(tp=32), engine).layers[0].parts
        return {part.batch.family: part for part in parts if group_of(part) in ("context", "decode")}

    before, since = attention("2.18.1"), attention("2.19")
    assert set(before) == {"gemm", "row_reduction", "attention"}
    # A head a core of each of 2 sequences, whole rows of scores whatever is masked.
    assert work_of(before["gemm"].batch).flops.tolist() == [2 * 2 * 256 * 256 * 128]
    assert (before["row_reduction"].batch["rows"], before["row_reduction"].batch["cols"]) == (2 * 256, 256)
    assert set(since) == {"attention"}
    assert {group_of(part) for part in before.values()} == {"context", "decode"}


def test_clients_of_a_tpu_and_a_batch_of_gaudi() -> None:
    common = {"model": "llama-2-7b", "isl": 128, "osl": 128, "output_tokens_per_s": 1e4}
    tpu = {**common, "accelerator": "tpu-v6e", "chips": 8, "engine": "vllm-tpu", "precision": "bf16"}
    clients = serving_cell(canonical_cell({**tpu, "concurrency": 64.0, "tpot_ms": 25.4}), 1)
    assert (clients.mode, clients.concurrency, clients.tp, clients.engine) == ("closed", 64, 8, "vllm")
    words = "optimum-habana, hpu graphs, static batch"
    card = {**common, "accelerator": "gaudi2", "cards": 2, "batch": 1230, "precision": "fp8", "engine": words}
    batch = serving_cell(canonical_cell(card), 1)
    assert (batch.mode, batch.weights, batch.kv_dtype, batch.tp) == ("static", "fp8", "fp8", 2)


def test_programs_of_fixed_shapes_take_powers_of_two() -> None:
    assert bucket_of(np.array([0, 1, 128, 129, 4096, 4097])).tolist() == [0, 128, 128, 256, 4096, 8192]
    steps = Steps.of(prompts=1, prompt_tokens=100, decodes=4, decode_cached=[255, 256]).bucketed
    assert steps.prompt_tokens.tolist() == [128, 128]
    assert (steps.decode_cached + steps.decode_tokens).tolist() == [256, 512]

    class Told:
        def pass_s(self, new_tokens: int, chunks: Any, decodes: int, decode_cached_sum: float) -> float:
            assert (new_tokens, chunks, decodes, decode_cached_sum) == (130, [(128, 0)], 2, 2 * 511)
            return 1.0

    times = ReplicaTimes(tables=Told(), buckets=True, server=Server(scheduler=VLLM, graph_tokens=512), launched_s=[])
    assert times.pass_s(102, [(100, 0)], 2, 2 * 300.0) == 1.0


def test_heads_that_ranks_cannot_share_are_padded() -> None:
    def heads(name: str, ranks: int) -> tuple[int, int]:
        part = known_decoder(name).shared_among(ranks).layers[0][0].attention
        assert isinstance(part, SelfAttention)
        return part.heads, part.kv_heads

    assert heads("llama-2-13b", 32) == (64, 64)
    assert heads("llama-2-70b", 32) == (64, 8)


@pytest.mark.parametrize(
    ("table", "quantity", "limit"),
    [
        ("decoder_neuron", "tpot_ms", 15.0),
        ("inference_tpu", "tpot_ms", 15.0),
        ("inference_tpu", "ttft_ms", 20.0),
        ("inference_gaudi", "tokens_per_s", 25.0),
    ],
)
def test_published_cells_are_met(table: str, quantity: str, limit: float) -> None:
    path = Path(os.environ.get("NEUSIGHT_DATA", "")) / "accelerators" / f"{table}.parquet"
    if not path.is_file():
        pytest.skip("the measured data are not here")
    from neusight.api import Predictor

    rows = [row for row in evaluate_serving(path, Predictor.load())["rows"] if row["quantity"] == quantity]
    figures = Scored.of(rows).figures()
    assert figures["mean"] <= limit
    assert figures["inside"] >= 85.0
