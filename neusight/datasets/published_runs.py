"""Training runs as MaxText, AWS Neuron and Intel Gaudi publish them, in the columns of ``neusight.datasets.runs``."""

from __future__ import annotations

import re
from math import ceil, floor, log2
from typing import Any

from neusight.datasets.mlperf_runs import mlperf_run
from neusight.datasets.rows import Row
from neusight.errors import DataError

NEURON_CORES, NEURON_FLOPS_PER_S = 2, 190e12
"""Of a Trainium chip, whose cores plans count."""
COPIED = {"bert-large": "bert-large", "vit-base": "vit-base"}
"""Models of runs without degrees, by parts of their names; BERT's phases have sequences of 128 and 512 tokens (Devlin
et al. 2019, appendix A.2)."""
FLASH = (2, 19)
"""Release of Neuron from which its libraries for training have flash attention."""
NEURON_SCRIPTS: dict[str, dict[str, Any]] = {
    "gpt3-23b": {"hidden": 8192, "layers": 28, "heads": 64, "ffn": 32768, "vocab": 50257, "recompute": "selective"},
    "gpt3-46b": {"hidden": 8192, "layers": 56, "heads": 64, "ffn": 32768, "vocab": 50257, "recompute": "full"},
    "gpt3-175b": {"recompute": "selective"},
}
"""Of neuronx-nemo-megatron (``gpt_23b.sh``, ``gpt_46b.sh``, ``gpt_175b.sh``); its Llamas recompute all (
``test_llama.sh``)."""
DCN_GBITS_PER_S = 50
"""Of each chip between slices: 6.25 GB/s (How to Scale Your Model, TPUs)."""
_SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab")
COPY_BYTES, GAUDI_GB, BOX = 6.0, 96.0, 8
"""Of a parameter and its gradient in float32; memory of a Gaudi 2; cards of a box."""
CAUSAL = 0.5
"""Of the attention that MaxText counts (``calculate_tflops_training_per_device``)."""


def canonical_run(row: Row) -> Row:
    """A row in the columns of ``training_run``; one that has them stays as it is.

    Raises:
        DataError: nothing tells what a chip holds or how long a step takes.
    """
    if "accelerator" not in row:
        return row
    if "benchmark" in row:
        return mlperf_run(row)
    if "cards" in row:
        return _gaudi(row)
    return _neuron(row) if "instance" in row else _maxtext(row)


def _maxtext(row: Row) -> Row:
    """A slice is what ICI joins: replicas share states within it, and copies of slices meet over the network."""
    chips, slices = int(row["chips"]), int(row.get("slices", 1))
    if "per_chip_batch" not in row or "seq" not in row:
        raise DataError("a run without per_chip_batch or seq: give those columns")
    if row.get("fsdp") == "custom":
        raise DataError("a mesh of its own is not told: give fsdp and tp")
    sizes = {name: row[name] for name in _SIZES if name in row}
    local = float(row["per_chip_batch"])
    return {
        **{name: int(size) for name, size in sizes.items()},
        **({"activation": "swiglu" if row.get("gated_mlp") else "gelu", "normalization": "RMSNorm"} if sizes else {}),
        "model": row["model"],
        "source": str(row.get("source", "")),
        "gpu": row["accelerator"],
        "framework": "maxtext",
        "num_gpus": chips,
        "nodes": slices,
        **({"interconnect": f"{chips // slices}x{DCN_GBITS_PER_S}Gb/s ethernet"} if slices > 1 else {}),
        "seq_len": round(float(row["seq"]) / 128) * 128,
        "dp": chips,
        "local_batch": int(local),
        "micro_batch": int(local),
        "shard": f"fsdp{chips // slices}" if slices > 1 else "zero3",
        **({"recompute": str(row["remat"])} if "remat" in row else {}),
        "dtype": "float8" if str(row.get("precision", "")) == "fp8" else "bfloat16",
        **({"step_ms": 1e3 * float(row["step_s"])} if "step_s" in row else {"step_ms": _step_ms(row)}),
    }


def _step_ms(row: Row) -> float:
    """From the rate that MaxText states, by its own count of operations: recomputation is none of them."""
    sizes = (*_SIZES, "tflops_per_chip")
    if missing := [name for name in sizes if name not in row]:
        raise DataError(f"a run without step_s or {missing[0]}, by which its rate would tell it: give either")
    hidden, layers, heads, groups, width, ffn, vocab, tflops = (float(row[name]) for name in sizes)
    tokens, seq = float(row["per_chip_batch"]) * float(row["seq"]), float(row["seq"])
    matrices = 3.0 if row.get("gated_mlp") else 2.0
    layer = hidden * (matrices * ffn + (heads + 2.0 * groups) * width + heads * width)
    weights = 2.0 * tokens * (layers * layer + hidden * vocab)
    attention = CAUSAL * 4.0 * tokens * seq * heads * width * layers
    return 3.0 * (weights + attention) / (tflops * 1e12) * 1e3


def _neuron(row: Row) -> Row:
    """Degrees count cores, and copies are what is left of them: where a plan is a smaller run's, MFU tells the chips.

    Raises:
        DataError: no degrees of tensors, or a length that nothing tells.
    """
    name = re.sub(r"\s*pre-training$", "", str(row["model"])).lower().replace("llama2", "llama-2")
    degrees = {degree.lower(): int(size) for degree, size in re.findall(r"(TP|PP)=(\d+)", str(row["plan"]))}
    if "tp" not in degrees:
        return _neuron_copies(row)
    cores, shared = NEURON_CORES * int(row["chips"]), degrees["tp"] * degrees.get("pp", 1)
    batch, script = int(row["global_batch"]), NEURON_SCRIPTS.get(name, {})
    rate = float(row["sequences_per_s"])
    return {
        "model": name,
        **{size: value for size, value in script.items() if size in _SIZES},
        "source": str(row.get("source", "")),
        "gpu": row["accelerator"],
        "framework": _neuron_engine(name, str(row.get("neuron", ""))),
        "num_gpus": int(row["chips"]),
        "nodes": int(row["nodes"]),
        "interconnect": "8x100Gb/s efa",
        "seq_len": int(row["seq"]) if "seq" in row else _told_length(row, name),
        **degrees,
        "dp": cores // shared,
        "micro_batch": int(row["micro_batch"]),
        "global_batch": batch,
        "shard": "zero1",
        "sequence_parallel": True,
        "recompute": script.get("recompute", "full" if degrees.get("pp", 1) > 1 and "seq" not in row else "selective"),
        "step_ms": 1e3 * batch / rate,
    }


def _neuron_copies(row: Row) -> Row:
    """Runs whose cores each hold a copy of a model that is no decoder; LAMB steps as Adam does, but for norms.

    Raises:
        DataError: a model that is not known by its name, or one in float32, whose products are rounded as the compiler
            was told.
    """
    words = str(row["model"]).lower()
    name = next((known for said, known in COPIED.items() if said in words), None)
    if name is None:
        raise DataError(f"model '{row['model']}' is not known: {', '.join(COPIED)} are")
    if str(row["dtype"]) == "FP32":
        raise DataError(f"{row['model']} in FP32: in which format its products run is not told")
    length = 512 if "ph2" in words else 128 if "bert" in words else 1
    return {
        "model": name,
        "source": str(row.get("source", "")),
        "gpu": row["accelerator"],
        "framework": "torch-neuronx",
        "num_gpus": int(row["chips"]),
        "nodes": int(row["nodes"]),
        "interconnect": "8x100Gb/s efa",
        "seq_len": int(row.get("seq", length)),
        "dp": NEURON_CORES * int(row["chips"]),
        "micro_batch": int(row["micro_batch"]),
        "global_batch": int(row["global_batch"]),
        "recompute": "none",
        "dtype": "amp_bf16" if str(row["dtype"]).endswith("/AMP") else "bfloat16",
        "step_ms": 1e3 * int(row["global_batch"]) / float(row["sequences_per_s"]),
    }


def _neuron_engine(model: str, version: str) -> str:
    if _number(version) >= FLASH:
        return "neuron"
    return "neuron-nemo" if model in NEURON_SCRIPTS else "neuron-eager"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) or FLASH


def _told_length(row: Row, name: str) -> int:
    """Tokens of a sequence by the utilisation that a row states of six operations a token and parameter: the next power
    of two below.
    """
    size = re.search(r"(\d+(?:\.\d+)?)b\b", name)
    if "mfu" not in row or size is None:
        raise DataError(f"a run of {name} without seq, or mfu and a size that would tell it: give the column")
    done = 1e-2 * float(row["mfu"]) * int(row["chips"]) * NEURON_FLOPS_PER_S
    tokens = done / (6.0 * float(size[1]) * 1e9 * float(row["sequences_per_s"]))
    return int(2 ** floor(log2(tokens)))


def _untold_split(model: str, cards: int) -> dict[str, int]:
    """Degrees of a run that tells none: the fewest cards that hold a copy of weights and gradients in half of their
    memory share a model, a box of them by tensors (assumption, as Intel's recipes of Megatron-DeepSpeed do).
    """
    size = re.search(r"(\d+(?:\.\d+)?)b\b", model.lower())
    if size is None:
        raise DataError(f"model '{model}' tells no size: name it with one, as llama-2-7b")
    sharing = 2 ** max(0, ceil(log2(float(size[1]) * COPY_BYTES / (GAUDI_GB / 2.0))))
    tp = min(sharing, BOX)
    return {"tp": tp, "pp": sharing // tp, "dp": cards // sharing, "vp": 1}


def _gaudi(row: Row) -> Row:
    cards, batch, seq = int(row["cards"]), int(row["global_batch"]), int(row["seq"])
    return {
        "model": row["model"],
        "source": str(row.get("engine", "")),
        "gpu": row["accelerator"],
        "framework": str(row.get("engine", "")),
        "num_gpus": cards,
        "nodes": max(1, cards // 8),
        "interconnect": "3x100Gb/s roce",
        "seq_len": seq,
        **_untold_split(str(row["model"]), cards),
        "micro_batch": 1,
        "global_batch": batch,
        "shard": "zero1",
        "dtype": "float8" if row.get("precision") == "fp8" else "bfloat16",
        "step_ms": 1e3 * batch * seq / float(row["tokens_per_s"]),
    }
