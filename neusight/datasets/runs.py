"""Tables of training runs made canonical: steps on many GPUs, and peaks of memory of Megatron-LM.

Sources write the same thing in several ways; what each word means, and what stands in for a word that is missing,
stands here, once. Whoever compares reads the rows that come out of here. A row whose answer would be wrong without a
column that nothing reads is refused.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from neusight.datasets.rows import Row, flag, integer, number, positive
from neusight.errors import DataError, shown

Assumed = tuple[str, str, str]
"""What a row does not tell, the value that is taken, and why."""
_SHARDS = {"none": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3", "hsdp": "hsdp"}
_DTYPES = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "amp_bf16": "bfloat16", "float8": "bfloat16", "nvfp4": "bfloat16",
    "float16": "float16", "fp16 mixed": "float16", "float32": "float32",
}  # fmt: skip
_SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "dualpipe")
_WHOLE, _ADAPTERS = ("pretrain", "sft", "finetune"), ("lora", "qlora", "dora")
"""Kinds of training that update all weights, and those that update adapters."""
_RECIPES = {
    "": "fp8", "fp8": "fp8_current", "delayed": "fp8", "ds": "fp8", "current": "fp8_current", "cs": "fp8_current",
    "tensorwise": "fp8_current", "rowwise": "fp8_row", "blockwise": "fp8_block", "sc": "fp8_block", "mx": "mxfp8",
    "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip
"""Of products alone; what stands around them stays in bfloat16. Megatron-Bridge's FP8 is current scaling (its
performance guide), runs that tell nothing are of the years of delayed scaling; CS, DS and MX stand behind "FP8-"."""
TRACED = ("torch-compiled", "torch-neuronx")
"""Engines of models that are traced, not described by their sizes."""
RUN_NEEDED = ("model", "gpu", "seq_len")
_MODEL_COLUMNS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "vocab_padded", "activation", "experts",
    "top_k", "moe_ffn", "shared_expert_ffn", "first_dense_layers", "moe_layer_every", "max_position", "normalization",
    "bias", "tied_embeddings", "position_embedding", "qk_layernorm", "mla", "q_lora_rank", "kv_lora_rank",
    "qk_head_dim", "qk_rope_dim", "v_head_dim", "attention_type",
)  # fmt: skip
"""Sizes of a model, for ``neusight.workloads.decoders.table_rows``."""
RUN_READ = frozenset((
    *RUN_NEEDED, *_MODEL_COLUMNS, "source", "num_gpus", "nodes", "interconnect", "framework", "attention",
    "attention_kernel", "notes", "dtype", "fp8_recipe", "lora_rank", "schedule", "dp", "tp", "pp", "cp", "ep", "etp",
    "vp", "micro_batch", "local_batch", "global_batch", "shard", "recompute", "sequence_parallel",
    "overlap_grad_reduce", "async_tp", "compile", "kind", "cpu_offload", "optimizer", "step_ms", "oom",
    "peak_memory_bytes", "memory_is",
))  # fmt: skip
RUN_NOTES = frozenset((
    "moe_routing", "params", "tokens_per_s_per_gpu", "published", "published_tflops", "commit",
))  # fmt: skip
"""What rows also say: figures of the same run, where they come from, and what follows from other columns. Routing is
balanced wherever it is stated, as all runs are estimated: a capacity then drops no token."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A training run in canonical words, and ``assumed``: what its row leaves out, with the reason for each default.

    ``engine`` is a name of ``neusight.engines``; ``products`` the recipe of large products where they run in fewer
    bits; ``adapters`` has the fields of ``decoders.recipes.Adapters``; ``network`` in the words of
    ``neusight.devices.cluster_of``, "" where none is stated; ``plan`` has the fields of ``neusight.requests.Plan``;
    ``columns`` the row itself, with the sizes of its model.
    """

    source: str
    model: str
    gpu: str
    num_gpus: int
    per_node: int
    network: str
    engine: str
    plan: Row
    seq_len: int
    dtype: str
    products: str
    optimizer: str
    adapters: Row
    step_ms: float | None
    oom: bool
    columns: Row
    assumed: tuple[Assumed, ...]


def training_run(row: Row) -> RunRow:
    """A row of ``training-throughput`` or ``training-runs``, or of a table with such columns.

    Raises:
        DataError: what makes a run is missing, words that are not known, or something that is not estimated.
    """
    for name in RUN_NEEDED:
        if name not in row:
            raise DataError(f"a training run without {name}: give that column")
    _refuse_runs(row)
    degrees = [integer(row, degree, 1) for degree in ("dp", "tp", "pp", "cp")]
    num_gpus = integer(row, "num_gpus", math.prod(degrees))
    per_node = max(1, num_gpus // max(1, integer(row, "nodes", 1)))
    dtype, framework = str(row.get("dtype", "bfloat16")), _framework(row)
    if dtype not in _DTYPES:
        raise DataError(f"unknown dtype '{dtype}' of a run: one of {', '.join(_DTYPES)}")
    plan, assumed = _plan(row, framework, num_gpus)
    return RunRow(
        source=str(row.get("source", "")).split("@")[0].strip(),
        model=str(row["model"]),
        gpu=str(row["gpu"]),
        num_gpus=num_gpus,
        per_node=per_node,
        network=_network(str(row.get("interconnect", "")), per_node),
        engine=framework,
        plan=plan,
        seq_len=integer(row, "seq_len"),
        dtype=_DTYPES[dtype],
        products=_recipe(row, dtype),
        optimizer="sgd" if str(row.get("optimizer", "adam")).lower() == "sgd" else "adam",
        adapters=_adapters(row, assumed),
        step_ms=positive(row, "step_ms", 1e12) if "step_ms" in row else None,
        oom=flag(row, "oom"),
        columns=row,
        assumed=tuple(assumed),
    )


def _recipe(row: Row, dtype: str) -> str:
    """In which way large products run in fewer bits than the rest, "" where they do not."""
    if dtype not in ("float8", "nvfp4"):
        return ""
    stated = str(row.get("fp8_recipe") or (dtype if dtype == "nvfp4" else "")).lower()
    word = stated.removeprefix("fp8-").split(",")[0].strip()
    if word not in _RECIPES:
        raise DataError(f"unknown fp8_recipe '{shown(stated)}' of a run: one of {', '.join(filter(None, _RECIPES))}")
    return _RECIPES[word]


def _adapters(row: Row, assumed: list[Assumed]) -> dict[str, Any]:
    """What is trained beside frozen weights, as ``Adapters`` has it; nothing where all weights are."""
    kind = str(row.get("kind", "pretrain")).lower()
    if kind in _WHOLE:
        return {}
    if "lora_rank" not in row:
        assumed.append(("adapters", "rank 16 of qkv", "Megatron-Bridge's performance recipes adapt linear_qkv alone"))
    return {"rank": integer(row, "lora_rank", 16), "method": kind, "targets": ("qkv",)}


def _refuse_runs(row: Row) -> None:
    """Raises what would make the answer another one."""
    if (kind := str(row.get("kind", "pretrain")).lower()) not in (*_WHOLE, *_ADAPTERS):
        raise DataError(f"kind '{kind}' of training is not estimated: one of {', '.join((*_WHOLE, *_ADAPTERS))}")
    if not (optimizer := str(row.get("optimizer", "adam"))).lower().startswith(("adam", "sgd")):
        raise DataError(f"optimizer '{optimizer}' of a run is not estimated from a table: adam, adamw and sgd are")
    if flag(row, "cpu_offload"):
        raise DataError("a run that offloads to the host (cpu_offload) is not estimated from a table")
    if flag(row, "async_tp") and "torchtitan" not in str(row.get("framework", "")).lower():
        raise DataError("async_tp of another framework than torchtitan is not estimated: leave it empty")


def _framework(row: Row) -> str:
    """Which framework a source names, in the words of ``neusight.engines``."""
    name = str(row.get("framework", "")).lower()
    if (release := re.match(r"megatron-bridge, (\d+)", name)) and int(release[1]) >= 26:
        return "megatron-flex"
    if name in ("maxtext", "neuron", "neuron-eager", "neuron-nemo", *TRACED):
        return name
    if "nemo" in name or "transformer engine" in name:
        return "megatron-te"
    if "megatron" in name:
        attention = str(row.get("attention_kernel") or row.get("attention") or "")
        return "megatron-local" if "unfused" in attention or re.search(r"20(19|2[0-2])", name) else "megatron-te"
    if "torchtitan" in name:
        return "torchtitan-compiled" if flag(row, "compile") else "torchtitan"
    if "llm-foundry" in name or "composer" in name:
        return "composer"
    sharded = any(word in name for word in ("fsdp", "deepspeed", "accelerate", "lightning", "ddp"))
    return "fsdp" if sharded else "megatron-te"


def _plan(row: Row, framework: str, num_gpus: int) -> tuple[dict[str, Any], list[Assumed]]:
    """Fields of the plan of a run, and what of it was assumed."""
    assumed: list[Assumed] = []

    def default(what: str, value: Any, why: str) -> Any:
        assumed.append((what, str(value), why))
        return value

    tp, pp, cp = (integer(row, name, 1) for name in ("tp", "pp", "cp"))
    dp = integer(row, "dp", num_gpus // max(1, tp * pp * cp))
    local = integer(row, "local_batch", integer(row, "micro_batch", 1))
    micro = integer(row, "micro_batch", local)
    if framework.startswith("torchtitan") and pp > 1 and "micro_batch" not in row:
        micro = default("micro_batch", 1, "torchtitan's pipelines take sequences one by one unless told otherwise")
    shard, shard_group = _shard(str(row.get("shard", "none")))
    if shard == "zero3" and pp > 1:
        shard = default("shard", "zero1", "FSDP under a pipeline keeps what it gathered, and reduces once a step")
    recompute, layers, sequence = _recompute(row)
    if framework.startswith(("megatron-te", "megatron-flex", "torchtitan")) and tp > 1:
        sequence = default("sequence_parallel", True, "recipes of NeMo and torchtitan set it wherever tp is above 1")
    overlap = framework != "megatron-local"
    if "overlap_grad_reduce" in row:
        overlap = flag(row, "overlap_grad_reduce")
    elif dp > 1:
        default("overlap of gradients", overlap, "frameworks since 2023 reduce them beside the backward pass")
    if "recompute" not in row and framework == "maxtext":
        recompute = default("recompute", "full", "MaxText's base.yml; layers' inputs on the host if it only fits so")
    elif "recompute" not in row:
        default("recompute", "none", "not stated; or the fewest layers of a stage with which the run fits")
    schedule, vp = _schedule(row, pp)
    if framework in ("megatron-te", "megatron-flex") and pp > 1 and "vp" not in row:
        vp = default("vp", integer(row, "layers") // pp, "recipes of NeMo interleave, a layer a chunk")
    plan = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": integer(row, "ep", 1), "etp": integer(row, "etp", 0), "vp": vp,
        "micro_batch_size": micro, "global_batch_size": integer(row, "global_batch", local * dp), "schedule": schedule,
        "sequence_parallel": sequence, "shard": shard, "shard_group": shard_group,
        "recompute": recompute, "recompute_layers": layers,
        "overlap_grad_reduce": overlap, "overlap_param_gather": overlap and shard != "none",
        "overlap_tp": tp > 1 and flag(row, "async_tp"),
        "gradient_dtype": _gradients(row, framework),
    }  # fmt: skip
    return plan, assumed


def _schedule(row: Row, pp: int) -> tuple[str, int]:
    """(order of passes, chunks of a stage); interleaved ones have two unless stated, as torchtitan has it.

    Raises:
        DataError: an unknown word.
    """
    words = str(row.get("schedule", "1f1b")).lower().replace(" ", "").replace("_", "-")
    chunks = integer(row, "vp", 2 if words.startswith("interleaved") and pp > 1 else 1)
    name = words.removeprefix("interleaved").strip("-") or "1f1b"
    if name not in _SCHEDULES:
        raise DataError(f"unknown schedule '{shown(words)}' of a run: one of {', '.join(_SCHEDULES)}, or interleaved")
    return name, chunks


def _shard(words: str) -> tuple[str, int]:
    """What replicas share of their states, and in groups of how many (0: as a plan has it): ``fsdp64`` is all of them
    within 64 GPUs.
    """
    if grouped := re.fullmatch(r"fsdp(\d+)", words):
        return "hsdp", int(grouped[1])
    if words not in _SHARDS:
        known = ", ".join(_SHARDS)
        raise DataError(f"unknown shard '{words}' of a run: one of {known}, or fsdp and the size of its groups")
    return _SHARDS[words], 0


def _gradients(row: Row, framework: str) -> str:
    """In which dtype gradients are reduced. FSDP's mixed precision "PURE" of Composer and bfSixteen of fms-fsdp reduce
    in bfloat16, "DEFAULT" and torchtitan's policy in float32, as Megatron does; NeMo's recipes for performance set
    ``grad_reduce_in_fp32 = False``.
    """
    if "nemo" in str(row.get("framework", "")).lower():
        return "bfloat16"
    pure = "mode pure" in str(row.get("notes", "")).lower() or "fms-fsdp" in str(row.get("framework", ""))
    return "bfloat16" if framework in ("fsdp", "composer") and pure else "float32"


def _recompute(row: Row) -> tuple[str, int, bool]:
    """(what is recomputed, layers of it, whether the source says sequence parallel there)."""
    words = str(row.get("recompute", "none")).lower()
    sequence = "sequence parallel" in words or flag(row, "sequence_parallel")
    if words.startswith("every second"):
        return "full", max(1, integer(row, "layers") // (2 * integer(row, "pp", 1))), sequence
    if "per op" in words:
        return "operators", 0, sequence
    for word in ("full", "selective", "none"):
        if words.startswith(word):
            return word, 0, sequence
    raise DataError(f"unknown recompute '{words}' of a run: one of full, selective, none, every second layer")


def _network(words: str, per_node: int) -> str:
    """Words for ``cluster_of`` from those such as "1600 Gbps RoCE per node" or "8x200Gb/s HDR IB per node"."""
    rate = re.search(r"(?:(\d+)\s*x\s*)?(\d+)\s*(?:gbps|gb/s)", words.lower())
    if not rate:
        return ""
    # A node's rate is that of its adapters together, one a device unless it tells how many or that each has it.
    count = int(rate[1] or per_node)
    own = rate[1] or re.search(r"(?:a|per) gpu", words.lower())
    each = float(rate[2]) if own else float(rate[2]) / count
    kind = next((kind for kind in ("roce", "efa", "ethernet") if kind in words.lower()), "infiniband")
    return f"{count} x {each:g}Gb/s {kind}"


PEAK_NEEDED = (
    "gpu", "layers", "hidden", "heads", "head_dim", "ffn", "vocab_padded", "seq_len", "micro_batch", "global_batch",
)  # fmt: skip
"""Columns without which a row is no run; others take Megatron-LM's defaults."""
PEAK_DEFAULTS: dict[str, Any] = {
    "family": "gpt", "tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "dp": 1, "sequence_parallel": False,
    "distributed_optimizer": False, "optimizer_instances": 1, "overlap_grad_reduce": False,
    "overlap_param_gather": False, "grad_reduce_in_bf16": False, "dtype": "bfloat16",
    "transformer_impl": "transformer_engine", "attention_backend": "auto", "attention_dropout": 0.1,
    "hidden_dropout": 0.1, "deterministic": False, "activation": "gelu", "normalization": "LayerNorm", "bias": True,
    "qk_layernorm": False, "tied_embeddings": True, "position_embedding": "learned_absolute", "recompute": "none",
    "optimizer": "adam", "top_k": 2, "moe_grouped_gemm": False, "softmax_in_fp32": False,
}  # fmt: skip
"""What a cell means that is not filled in (megatron/training/arguments.py)."""
_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_rope_dim", "v_head_dim")
_PEAK_REFUSED = (
    "fp4", "cpu_offload", "precision_aware_optimizer", "capacity_factor",
)  # fmt: skip
"""Columns whose run holds something else in memory, and that nothing reads."""
PEAK_READ = frozenset((
    *PEAK_NEEDED, *PEAK_DEFAULTS, *_PEAK_REFUSED, "case", "environment", "memory_peak_bytes", "kv_heads",
    "max_position", "experts", "shared_expert_ffn", "etp", "other_args", "recompute_method",
    "recompute_layers", "decoder_layers", "decoder_seq_len", "layer_pattern", "moe_layer_freq", "mla", *_RANKS,
    "mtp_layers", "recompute_modules", "pp_layout", "fsdp", "cuda_graph", "fp8", "fp8_recipe", "fp8_param_gather",
))  # fmt: skip
PEAK_NOTES = frozenset((
    "cluster", "test_type", "step_ms", "step_ms_p10", "step_ms_p90", "steps_sampled", "step_steady",
    "memory_allocated_bytes", "nodes", "num_gpus", "num_gpus_from", "image", "source", "golden_commit", "golden_date",
    "config_commit", "first_loss", "newest", "moe_ffn", "gradient_accumulation_fusion", "moe_dispatcher",
    "tp_comm_overlap",
))  # fmt: skip
"""What rows also say: other measurements of the run, where it comes from, what flags repeat, and what changes the time
of a step but not its memory."""


def peak_run(row: Row) -> dict[str, Any]:
    """A row of Megatron-LM with its defaults filled in, and in ``flags`` what stands in ``other_args``.

    Raises:
        DataError: cells that are needed are empty or no numbers, flags that cannot be read, or something in it that
            nothing reads and that changes what is kept in memory.
    """
    if missing := [name for name in PEAK_NEEDED if name not in row]:
        raise DataError(f"no {' and '.join(missing)}: a run without it is not estimated")
    if foreign := [name for name in PEAK_NEEDED[1:] if not isinstance(row[name], int)]:
        raise DataError(f"{' and '.join(foreign)} must be whole numbers: correct those cells")
    for name in _PEAK_REFUSED:
        if row.get(name, 0) not in (0, False, "", "none"):
            raise DataError(f"{name} = {shown(row[name])} is not read from a table: its memory would be another one")
    layers = integer(row, "recompute_layers", 0) if row.get("recompute_method") == "block" else 0
    given = {name: value for name, value in row.items() if name in PEAK_READ}
    filled = {name: _like(row, name, usual) for name, usual in PEAK_DEFAULTS.items()}
    return given | filled | {"flags": _flags(row), "recompute_layers": layers}


def _like(row: Row, name: str, usual: Any) -> Any:
    """A cell as what its default is: yes or no, a whole number, a number or a word."""
    if isinstance(usual, bool):
        return flag(row, name, usual)
    if isinstance(usual, int):
        return integer(row, name, usual)
    return number(row, name, usual) if isinstance(usual, float) else str(row.get(name, usual))


def _flags(row: Row) -> dict[str, Any]:
    """What stands in ``other_args``: a JSON of all flags."""
    try:
        flags = json.loads(row.get("other_args") or "{}")
    except (TypeError, ValueError):
        flags = None
    if not isinstance(flags, dict):
        raise DataError('other_args is no JSON of flags: write them as {"flag": value}')
    return flags
