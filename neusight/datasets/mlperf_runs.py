"""MLPerf Training results on accelerators, in the columns of ``neusight.datasets.runs``.

What submitters run is in their repositories alone; what stands in for it here is stated once, with its reason.
"""

from __future__ import annotations

from typing import Any

from neusight.datasets.rows import Row
from neusight.errors import DataError

CHIPS = {
    "tpu-v4": "tpu-v4", "tpu-trillium": "tpu-v6e", "habana gaudi2": "gaudi2", "intel gaudi2": "gaudi2",
    "amd instinct mi300x 192gb hbm3": "mi300x",
}  # fmt: skip
"""Devices by their names there."""
MODELS = {"gpt3": "gpt3-175b", "bert": "bert-large", "resnet": "resnet-50", "llama2_70b_lora": "llama-2-70b"}
LENGTHS = {"gpt3": 2048, "bert": 512, "resnet": 1, "llama2_70b_lora": 8192}
"""Tokens of a sample (MLCommons, training rules, table of benchmarks); BERT's are those of its second phase."""
UNKNOWN = "tinygrad"
"""A framework with kernels of its own."""
SLICE = 256
"""Chips of a pod of TPU v6e, whose links close."""
BOX = 8
"""Cards of a box of Gaudi 2, among which a model's tensors are shared (assumption, as Intel's recipes do)."""
PACKED = 2
"""Sequences of Wikipedia in a row of 512 tokens where they are packed (Krell et al. 2021, Efficient sequence packing
without cross-contamination, table 1), as Intel's submissions do."""
FP8_SINCE = "v3.1"
"""Round in which Intel submitted GPT-3 in FP8 (its announcement of the results)."""


def mlperf_run(row: Row) -> Row:
    """A result in the columns of ``training_run``: the rate between evaluations tells the step.

    Weights are stepped by shards, each by one replica (Xu et al. 2020, Automatic Cross-Replica Sharding of Weight
    Update: MLPerf on TPU); LAMB and LARS step as Adam and SGD with momentum do, but for norms of few bytes.

    Raises:
        DataError: a benchmark that is not estimated, or no rate.
    """
    benchmark, chip = str(row["benchmark"]), str(row["accelerator"]).lower()
    if benchmark not in MODELS or chip not in CHIPS:
        known = ", ".join(MODELS)
        raise DataError(f"benchmark {benchmark} on {row['accelerator']} is not estimated from a table: {known} are")
    if "items_per_s" not in row or "suspect" in row:
        raise DataError(f"{benchmark} without a rate: its minutes hold evaluations and the start")
    batch, chips = int(row["global_batch"]), int(row["chips"])
    if batch < chips:
        raise DataError(f"{benchmark} of {batch} samples on {chips} devices: how they share one is not told")
    if str(row.get("framework", "")).startswith(UNKNOWN):
        raise DataError(f"{benchmark} by {row['framework'].split(',')[0]}, which is not estimated")
    each = LENGTHS[benchmark] if row.get("rate_unit") == "tokens" else 1
    common = {
        "model": MODELS[benchmark],
        "source": f"{row['submitter']} {benchmark}",
        "gpu": CHIPS[chip],
        "num_gpus": chips,
        "seq_len": LENGTHS[benchmark],
        "global_batch": batch,
        "shard": "zero1",
        "step_ms": 1e3 * batch * each / float(row["items_per_s"]),
    }
    return {**common, **_plan_of(benchmark, CHIPS[chip], row, chips, batch)}


def _plan_of(benchmark: str, gpu: str, row: Row, chips: int, batch: int) -> dict[str, Any]:
    """What is shared how, by who submits what."""
    if benchmark == "gpt3" and gpu == "tpu-v6e":
        return _maxtext(chips, batch)
    if benchmark == "gpt3":
        return _deepspeed(row, chips, batch)
    if benchmark == "llama2_70b_lora":
        return {"framework": "megatron", "dp": chips, "kind": "lora", "dtype": "float8", "micro_batch": 1}
    rows = batch // PACKED if benchmark == "bert" and gpu == "gaudi2" else batch
    return {
        **({"nodes": chips // BOX, "interconnect": "3x100Gb/s roce"} if gpu == "gaudi2" else {}),
        "framework": "torch-compiled",
        "dp": chips,
        "global_batch": rows,
        "micro_batch": rows // chips,
        "recompute": "none",
        "optimizer": "sgd" if benchmark == "resnet" else "adamw",
    }


def _maxtext(chips: int, batch: int) -> dict[str, Any]:
    """States are shared in a slice, as MaxText's other runs of the model do."""
    slices = -(-chips // SLICE)
    local = batch // chips
    return {
        "framework": "maxtext",
        "nodes": slices,
        "interconnect": f"{chips // slices}x50Gb/s ethernet",
        "dp": chips,
        "local_batch": local,
        "micro_batch": local,
        "shard": f"fsdp{chips // slices}",
        "recompute": "full",
    }


def _deepspeed(row: Row, chips: int, batch: int) -> dict[str, Any]:
    """A box shares tensors; what accumulates gradients tells the replicas, the rest are stages."""
    replicas = batch // int(row["grad_accum"])
    return {
        "framework": "Megatron-DeepSpeed (Intel Gaudi)",
        "nodes": chips // BOX,
        "interconnect": "3x100Gb/s roce",
        "tp": BOX,
        "pp": chips // (BOX * replicas),
        "dp": replicas,
        "vp": 1,
        "micro_batch": 1,
        "dtype": "float8" if str(row["version"]) >= FP8_SINCE else "bfloat16",
    }
