"""Training on clusters: FP8 in NeMo's recipes; ladders of compilation, FP8 and parallelism of torchtitan."""

from __future__ import annotations

import re
from typing import Any

from neusight.datasets.runs import training_run
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DataError
from neusight.evaluation.training import run_of
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, reads, whole
from neusight.measured.score import Row

_LLAMA_3 = {"activation": "swiglu", "normalization": "RMSNorm", "kv_heads": 8, "vocab": 128256}
LARGE_MODELS: dict[str, dict[str, Any]] = {
    "gpt3-175b": {"layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152, "vocab": 51200},
    "nemotron4-340b": {
        "layers": 96, "hidden": 18432, "heads": 96, "kv_heads": 8, "ffn": 73728, "vocab": 256000,
        "activation": "squared_relu",
    },
    "grok1-314b": {
        "layers": 64, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 32768, "vocab": 131072,
        "activation": "geglu", "experts": 8, "top_k": 2, "moe_ffn": 32768,
    },
    "llama-3-8b": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, **_LLAMA_3},
    "llama-3-70b": {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, **_LLAMA_3},
    "llama-3-405b": {"layers": 126, "hidden": 16384, "heads": 128, "ffn": 53248, **_LLAMA_3},
}  # fmt: skip
"""Sizes of models by their names (Brown et al. 2020; arXiv:2406.11704; xai-org/grok-1; arXiv:2407.21783)."""
USUAL_LENGTH = 8192
"""Tokens of a sequence in torchtitan's benchmarks of Llama 3 where a table leaves them out."""
LADDER = {
    "torch.compile": "compile",
    "async tensor parallelism": "async-tp",
    "interleaved 1f1b": "interleaving",
    "tensorwise": "fp8-tensorwise",
    "rowwise": "fp8-rowwise",
}
"""Names of optimisations by what stands in the words for them."""


@reads("fp8_training_dgxc")
def of_recipes(record: Row, stated: dict[str, str]) -> Pair:
    """NeMo's recipes of DGX Cloud, BF16 against FP8 with delayed scaling, a node of eight H100."""
    words = ("seq", "global_batch", "micro", "tp", "pp", "cp", "vp")
    given = {name: whole(stated[name], name) for name in words if re.fullmatch(r"\d+", stated.get(name, ""))}
    gpus = whole(stated["gpus"], "gpus")
    columns = {
        **sizes_of(str(record["model"])),
        **{name: given[name] for name in given.keys() - {"seq", "micro"}},
        "seq_len": given["seq"],
        "micro_batch": given.get("micro", 1),
        "framework": "NeMo",
        "shard": "zero1",
    }
    if "experts" in columns:
        # Experts are shared out among the replicas and context-parallel ranks of a stage, as far as they go.
        columns["ep"] = min(columns["experts"], gpus // (columns["tp"] * columns["pp"]))
    return Pair.of(record, _run(record, columns, gpus), ["fp8"])


def of_torchtitan(record: Row, stated: dict[str, str]) -> Pair:
    """torchtitan's tables, and torchao's of it: FSDP2, with tensor parallelism and pipelines as a row has them."""
    name = optimisation(str(record["as_written"]))
    plan = stated.get("plan", "")
    degrees = {kind: int(found[1]) for kind in ("TP", "PP") if (found := re.search(rf"{kind} (\d+)", plan))}
    tp, pp = degrees.get("TP", 1), degrees.get("PP", 1)
    gpus = int(record["n_gpus"])
    before = stated.get("cumulative_on", "") + stated.get("dtype", "") + plan
    compiles = (name != "compile" and "cumulative_on" not in stated) or "compile" in before
    columns = {
        **sizes_of(str(record["model"])),
        "seq_len": whole(stated.get("seq", str(USUAL_LENGTH)), "length"),
        "tp": tp,
        "pp": pp,
        "local_batch": whole(stated.get("local_batch", stated.get("batch", "1")), "batch"),
        "framework": "torchtitan",
        "compile": compiles,
        "shard": "zero3" if gpus > tp * pp else "none",
        "recompute": _recomputed(stated),
        **({"dtype": "float8", "fp8_recipe": recipe} if (recipe := _recipe(before)) else {}),
    }
    return Pair.of(record, _run(record, columns, gpus), [name])


def optimisation(words: str) -> str:
    """The name of what words such as "fp8 training float8 rowwise" mean.

    Raises:
        DataError: nothing that is known.
    """
    for part, name in LADDER.items():
        if part in words.lower():
            return name
    raise DataError(f"'{words}' of a training run is not known: one of {', '.join(LADDER)}")


def sizes_of(name: str) -> dict[str, Any]:
    """Columns with the sizes of a model.

    Raises:
        UnnamedModelError: none has the name.
    """
    plain = name.rpartition("/")[2].lower().replace("llama-3.1-", "llama-3-")
    if plain not in LARGE_MODELS:
        raise UnnamedModelError(f"no sizes of '{name}' are known: one of {', '.join(LARGE_MODELS)}")
    return {"model": plain, **LARGE_MODELS[plain]}


def _recipe(words: str) -> str:
    if "float8" not in words and "tensorwise" not in words:
        return ""
    return "rowwise" if "rowwise" in words else "tensorwise"


def _recomputed(stated: dict[str, str]) -> str:
    """torchtitan's selective mode is by operators unless told otherwise."""
    words = stated.get("ac", stated.get("framework", "none"))
    return "full" if words == "full" else "per op" if re.search(r"per-op|selective", words) else "none"


def _run(record: Row, columns: dict[str, Any], gpus: int) -> TrainingRun:
    row = {**columns, "gpu": gpu_of(record), "num_gpus": gpus, "nodes": max(1, gpus // 8)}
    return run_of(training_run(row))
