"""Arguments of Megatron-LM (``megatron/training/arguments.py``) as fields of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neusight.errors import ModelError, shown
from neusight.requests import CP_COMMS

_NUMBERS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "num-virtual-stages-per-pipeline-rank": "vp",
    "micro-batch-size": "micro_batch_size",
    "global-batch-size": "global_batch_size",
    "seq-length": "seq_len",
}
_FLAGS: dict[str, tuple[str, Any]] = {
    "sequence-parallel": ("sequence_parallel", True),
    "use-distributed-optimizer": ("shard", "zero1"),
    "use-torch-fsdp2": ("shard", "zero3"),
    "use-megatron-fsdp": ("shard", "zero3"),
    "use-custom-fsdp": ("shard", "zero3"),
    "overlap-grad-reduce": ("overlap_grad_reduce", True),
    "overlap-param-gather": ("overlap_param_gather", True),
    "tp-comm-overlap": ("overlap_tp", True),
    "overlap-moe-expert-parallel-comm": ("overlap_experts", True),
    "recompute-activations": ("recompute", "selective"),
    "optimizer-cpu-offload": ("offload", "optimizer"),
    "grad-reduce-in-bf16": ("gradient_dtype", "bfloat16"),
    "accumulate-allreduce-grads-in-fp32": ("gradient_dtype", "float32"),
    "bf16": ("dtype", "bfloat16"),
    "fp16": ("dtype", "float16"),
}
STRATEGIES = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
"""Of Megatron-FSDP, as ``Plan.shard``."""
_WORDS: dict[str, tuple[str, dict[str, str]]] = {
    "recompute-granularity": ("recompute", {"selective": "selective", "full": "full"}),
    "moe-token-dispatcher-type": ("engine", {"alltoall": "megatron-te", "flex": "megatron-flex"}),
    "optimizer": ("optimizer", {"adam": "adam", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}),
    "transformer-impl": ("engine", {"local": "megatron-local", "transformer_engine": "megatron-te"}),
    "data-parallel-sharding-strategy": ("shard", STRATEGIES),
}
FP8_RECIPES = {"delayed": "fp8", "tensorwise": "fp8_current", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
"""Of ``--fp8-recipe``, beside ``--fp8-format``; ``--fp4-format`` has one, NVFP4."""
_LISTS = ("recompute-modules", "hierarchical-context-parallel-sizes", "cp-comm-type")
_UNSET = {"sequence_parallel": False, "shard": "none", "overlap_grad_reduce": False, "overlap_param_gather": False,
          "overlap_tp": False}  # fmt: skip
"""What Megatron-LM does where an argument is left out, whatever recipes do."""
_ELSEWHERE = (
    *("recompute-method", "recompute-num-layers", "num-layers-per-virtual-pipeline-stage", "num-layers"),
    *(
        "cp-comm-type",
        "hierarchical-context-parallel-sizes",
        "recompute-modules",
        "fp8-hybrid",
        "fp8-format",
        "fp8-recipe",
        "fp4-format",
        "fp4-recipe",
    ),
)
_MATTERS = ("parallel", "pipeline", "recompute", "batch", "fp8", "fp4", "overlap", "offload", "fsdp", "shard")
"""In the names of arguments that change a step's time or memory."""


def megatron_values(words: Sequence[str], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, arguments that matter and have no place there).

    Args:
        words: of a command line; what stands before the first argument does not count.
        depth: layers of the model, unless ``--num-layers`` tells.

    Raises:
        ModelError: a number or word that an argument does not take.
    """
    given = _arguments(words)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _NUMBERS:
            values[_NUMBERS[name]] = _number(name, value)
        elif name in _FLAGS:
            field, meant = _FLAGS[name]
            values[field] = meant
        elif name in _WORDS:
            field, meanings = _WORDS[name]
            if value not in meanings:
                raise ModelError(f"--{name} {shown(value)}: one of {', '.join(meanings)} is read")
            values[field] = meanings[value]
    # Products in few bits come with --bf16.
    values |= {"dtype": recipe} if (recipe := _recipe(given)) else {}
    if not values:
        return {}, []
    values |= _context(given, values.get("cp", 1))
    values |= _chunks(given, values.get("pp", 1), depth) | _layers(given, values) | _modules(given, values)
    known = (*_NUMBERS, *_FLAGS, *_WORDS, *_ELSEWHERE)
    unread = [f"--{name}" for name in given if name not in known and any(part in name for part in _MATTERS)]
    return {**_UNSET, **values}, unread


def _arguments(words: Sequence[str]) -> dict[str, str]:
    """``--name value``, ``--name=value`` and ``--name`` alone."""
    values: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("_", "-")
            values[name] = value
        elif name and (not values[name] or name in _LISTS):
            values[name] = f"{values[name]} {word}".strip()
    return values


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 12:
        raise ModelError(f"--{name} {shown(value)}: give a whole number")
    return int(value)


def _recipe(given: dict[str, str]) -> str:
    """Of products in few bits, "" where they are not.

    Raises:
        ModelError: a recipe that is not read.
    """
    if "fp4-format" in given:
        return "nvfp4"
    if "fp8-format" not in given and "fp8-hybrid" not in given:
        return ""
    word = given.get("fp8-recipe", "delayed")
    if word not in FP8_RECIPES:
        raise ModelError(f"--fp8-recipe {shown(word)}: one of {', '.join(FP8_RECIPES)} is read")
    return FP8_RECIPES[word]


def _context(given: dict[str, str], cp: int) -> dict[str, Any]:
    """How ranks share sequences: of ``a2a+p2p``, as many exchange heads as the first hierarchical size says.

    Raises:
        ModelError: a word that is not read, or one for each layer.
    """
    word = given.get("cp-comm-type", "")
    sizes = given.get("hierarchical-context-parallel-sizes", "").split()
    if word not in ("", *CP_COMMS, "a2a", "a2a+p2p"):
        raise ModelError(f"--cp-comm-type {shown(word)}: one of p2p, all_gather, a2a, a2a+p2p is read, for all layers")
    if word == "a2a+p2p" and not sizes:
        raise ModelError("--cp-comm-type a2a+p2p: give --hierarchical-context-parallel-sizes")
    if word in CP_COMMS:
        return {"cp_comm": word}
    by = {"a2a": cp, "a2a+p2p": _number("hierarchical-context-parallel-sizes", (sizes or ["0"])[0])}
    return {"ulysses": by[word]} if word else {}


def _chunks(given: dict[str, str], pp: int, depth: int) -> dict[str, int]:
    """Chunks of a rank from the layers of each."""
    name = "num-layers-per-virtual-pipeline-stage"
    if name not in given:
        return {}
    layers = _number("num-layers", given["num-layers"]) if "num-layers" in given else depth
    each = _number(name, given[name])
    if not each or not layers or layers % (pp * each):
        raise ModelError(f"--{name} {each}: {layers} layers in {pp} stages cannot be cut so")
    return {"vp": layers // (pp * each)}


def _modules(given: dict[str, str], values: dict[str, Any]) -> dict[str, str]:
    """Modules that selective recomputation is of, where they are named."""
    words = given.get("recompute-modules", "").strip("[]").replace(",", " ").split()
    return {"recompute": "+".join(words)} if words and values.get("recompute") == "selective" else {}


def _layers(given: dict[str, str], values: dict[str, Any]) -> dict[str, int]:
    """Layers of a stage that are computed again: method ``block`` counts them, ``uniform`` takes all."""
    if values.get("recompute") != "full" or given.get("recompute-method") != "block":
        return {}
    return {"recompute_layers": _number("recompute-num-layers", given.get("recompute-num-layers", ""))}
