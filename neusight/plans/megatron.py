"""Arguments of Megatron-LM (``megatron/training/arguments.py``) as fields of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.engines.launch_flags import Flags, flags_of
from neusight.errors import ModelError, shown
from neusight.kernels.precision import dtype_named
from neusight.requests import CP_COMMS

FP8_RECIPES = {"delayed": "fp8", "tensorwise": "fp8_current", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
"""Recipes by word of ``--fp8-recipe``, with ``--fp8-format``; ``--fp4-format`` has one, NVFP4."""
_MATTERS = (
    *("parallel", "pipeline", "recompute", "batch", "fp8", "fp4", "overlap", "offload", "fsdp", "shard"),
    *("dtype", "precision", "cuda-graph"),
)
"""Parts of the names of arguments that change a step's time or memory."""
_MOMENTS = ("exp-avg-dtype", "exp-avg-sq-dtype")
_USUAL = {"exp-avg-dtype": "fp32", "exp-avg-sq-dtype": "fp32", "main-params-dtype": "fp32", "cuda-graph-impl": "none"}
"""Default words of such arguments."""


def megatron_values(given: Mapping[str, str], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """(fields of a plan and of its run, arguments that matter and have no place there).

    Args:
        given: words of arguments by their names, "" of switches.
        depth: layers of the model, unless ``--num-layers`` gives them.

    Raises:
        ModelError: a number or word that an argument does not take.
    """
    flags = flags_of("megatron")
    values = {flags.names[name][0]: _value(flags, name, word) for name, word in given.items() if name in flags.names}
    # Products in few bits come with --bf16.
    values |= {"dtype": recipe} if (recipe := _recipe(given)) else {}
    if not values:
        return {}, []
    values |= _context(given, values.get("cp", 1))
    values |= _chunks(given, values.get("pp", 1), depth) | _layers(given, values) | _modules(given, values)
    moments = {given.get(name, "fp32") for name in _MOMENTS}
    values |= {"moment_dtype": dtype_named(moments.pop())} if len(moments) == 1 and _MOMENTS[0] in given else {}
    handled = {*_MOMENTS} if "moment_dtype" in values else set()
    matters = [n for n, word in given.items() if any(part in n for part in _MATTERS) and word != _USUAL.get(n)]
    return {**flags.unset, **values}, [f"--{name}" for name in matters if not (name in handled or flags.is_known(name))]


def _value(flags: Flags, name: str, word: str) -> Any:
    switched, words = flags.names[name][1], flags.values.get(name)
    if switched is not None:
        return switched
    if words is None:
        return _number(name, word)
    if word not in words:
        raise ModelError(f"--{name} {shown(word)}: one of {', '.join(words)} is read")
    return words[word]


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 12:
        raise ModelError(f"--{name} {shown(value)}: give a whole number")
    return int(value)


def _recipe(given: Mapping[str, str]) -> str:
    """Recipe of products in few bits, "" without one.

    Raises:
        ModelError: a recipe that is not read.
    """
    if "fp4-format" in given:
        return "nvfp4"
    if "fp8-format" not in given:
        return ""
    word = given.get("fp8-recipe", "delayed")
    if word not in FP8_RECIPES:
        raise ModelError(f"--fp8-recipe {shown(word)}: one of {', '.join(FP8_RECIPES)} is read")
    return FP8_RECIPES[word]


def _context(given: Mapping[str, str], cp: int) -> dict[str, Any]:
    """Fields of context parallelism: for ``a2a+p2p``, the first hierarchical size is the number of ranks that exchange
    heads.

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


def _chunks(given: Mapping[str, str], pp: int, depth: int) -> dict[str, int]:
    """Chunks of a rank from the layers of each."""
    name = "num-layers-per-virtual-pipeline-stage"
    if name not in given:
        return {}
    layers = _number("num-layers", given["num-layers"]) if "num-layers" in given else depth
    per_chunk = _number(name, given[name])
    if not per_chunk or not layers or layers % (pp * per_chunk):
        raise ModelError(f"--{name} {per_chunk}: {layers} layers in {pp} stages cannot be cut so")
    return {"vp": layers // (pp * per_chunk)}


def _modules(given: Mapping[str, str], values: dict[str, Any]) -> dict[str, str]:
    """Modules that selective recomputation runs again, where they are named."""
    words = given.get("recompute-modules", "").strip("[]").replace(",", " ").split()
    return {"recompute": "+".join(words)} if words and values.get("recompute") == "selective" else {}


def _layers(given: Mapping[str, str], values: dict[str, Any]) -> dict[str, int]:
    """Layers of a stage that are computed again: method ``block`` counts them, ``uniform`` takes all."""
    if values.get("recompute") != "full" or given.get("recompute-method") != "block":
        return {}
    return {"recompute_layers": _number("recompute-num-layers", given.get("recompute-num-layers", ""))}
