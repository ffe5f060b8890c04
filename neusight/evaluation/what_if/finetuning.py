"""Fine-tuning on one GPU: ladders of torchtune and of torchao's optimizers, tables of LitGPT, methods of PEFT."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neusight.devices import cluster_of
from neusight.distributed.training_run import TrainingRun, usual_run
from neusight.engines import ENGINES, Engine
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, whole
from neusight.measured.score import Row
from neusight.what_if import applied
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.recipes import Adapters

MODELS: dict[str, str | dict[str, Any]] = {
    "llama-3.2-3b": "llama-3.2-3b", "llama-3.2-1b": "llama-3.2-1b", "llama-3.1-8b": "llama-3.1-8b",
    "llama-3-8b": "llama-3-8b", "llama-2-7b": "llama-2-7b", "llama-2-13b": "llama-2-13b",
    "tinyllama-1.1b": {
        "model_type": "llama", "num_hidden_layers": 22, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "phi-1.5-1.3b": {
        "model_type": "phi", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32,
        "intermediate_size": 8192, "vocab_size": 51200, "max_position_embeddings": 2048, "partial_rotary_factor": 0.5,
    },
    "stablelm-alpha-3b": {
        "model_type": "gpt_neox", "num_hidden_layers": 16, "hidden_size": 4096, "num_attention_heads": 32,
        "intermediate_size": 16384, "vocab_size": 50688, "max_position_embeddings": 4096,
    },
}  # fmt: skip
"""By the names that tables have; sizes of those that the catalogue lacks (jzhang38/TinyLlama, microsoft/phi-1_5,
stabilityai/stablelm-base-alpha-3b)."""
MEAN_LENGTH = {"alpaca": 110, "metamath": 230}
"""Tokens of a sample with its prompt, on average."""
LONGEST = {"alpaca": 1024, "metamath": 768}
"""Tokens of the longest batch, which decides over memory: samples of Alpaca reach 1,037 of LitGPT's tokens (its
resource tables), and PEFT's comparison cuts them at 768 (``default_training_params.json``, ``max_seq_length``)."""
TUNE = replace(ENGINES["torch-eager"], foreach_optimizer=False)
"""torchtune's and LitGPT's recipes, which set ``fused=True``; torchtune compiles layers and loss."""


def decoder_named(name: str) -> Decoder:
    """A decoder by its name in a table.

    Raises:
        UnnamedModelError: none is known.
    """
    plain = re.sub(r"[ -]+", "-", name.rpartition("/")[2].lower()).replace("llama2", "llama-2").replace("-b", "b")
    if plain not in MODELS:
        raise UnnamedModelError(f"no decoder is known as '{name}'")
    known = MODELS[plain]
    return known_decoder(known) if isinstance(known, str) else decoder_of(known, plain)


def run_on_one(record: Row, engine: Engine, **words: Any) -> TrainingRun:
    """A step on one device, or on the replicas of a row, in one micro-batch a replica."""
    devices = max(1, int(record.get("n_gpus") or 1))
    cluster = cluster_of(gpu_of(record), devices)
    words["global_batch_size"] = words["micro_batch_size"] * devices
    run = usual_run(decoder_named(str(record["model"])), cluster, {"optimizer": "adamw", **words}, engine.name)
    return replace(run, engine=engine)


def of_torchtune(record: Row, stated: dict[str, str]) -> Pair:
    """The ladder of full fine-tuning, one rung upon the other; LoRA against its end, and QLoRA against LoRA."""
    words = str(record["as_written"]).lower()
    batch, length = whole(stated.get("batch", "1"), "batch"), whole(stated.get("seq", "4096").split()[0], "length")
    run = run_on_one(record, TUNE, micro_batch_size=batch, seq_len=length)
    if "packed" in words:
        apart = LONGEST if record["metric"] == "memory" else MEAN_LENGTH
        return Pair.between(record, replace(run, seq_len=apart["alpaca"]), run, ["packing"])
    name = next((name for start, name in RUNGS.items() if start in words), "")
    if name in ("lora", "qlora"):
        return _low_rank(record, run, name, deep="cumulative_on" in stated)
    rungs = list(RUNGS.values())[2:]
    if name not in rungs:
        raise DataError(f"'{words}' of fine-tuning is not known: one of {', '.join(RUNGS)}")
    before = rungs[: rungs.index(name)] if "cumulative_on" in stated else []
    return Pair.of(record, _climbed(run, before), [name])


def of_optimizers(record: Row, stated: dict[str, str]) -> Pair:
    """torchao's optimizers with few bits in torchtune's recipe, with checkpoints as that has them."""
    words = str(record["as_written"]).lower()
    name = "adam-4bit" if "4-bit" in words else "adam-8bit"
    run = run_on_one(record, TUNE, micro_batch_size=whole(stated.get("batch", "1"), "batch"), seq_len=2048)
    return Pair.of(record, applied(run, ["checkpointing"])[-1], [name])


def _climbed(run: TrainingRun, names: Sequence[str]) -> TrainingRun:
    """After some rungs. Layers and the loss are compiled by themselves, so that logits come out in float32, whose
    gradient has as much and becomes one of 16 bits (torchtune, ``compile_model``, ``TransformerDecoder.unembed``).
    """
    last = applied(run, names)[-1] if names else run
    return replace(last, engine=replace(last.engine, logit_bytes=10.0)) if "compile" in names else last


def _low_rank(record: Row, run: TrainingRun, name: str, *, deep: bool) -> Pair:
    """Of rank 8 of queries, values and the output, which ``deep`` in the ladder has activations on the host as well;
    full fine-tuning has moments in 8 bits, stepped in the backward pass (torchtune's recipes).
    """
    usual = ["compile", "chunked-loss", "checkpointing", *(["activation-offload"] if deep else [])]
    targets = ("query", "value", "output")
    low, narrow = (
        replace(_climbed(run, usual), adapters=Adapters(rank=8, method=method, targets=targets))
        for method in ("lora", "qlora")
    )
    if name == "qlora":
        return Pair.between(record, low, narrow, [name])
    if not deep:
        raise DataError("moments that are paged to the host are not built")
    full = _climbed(run, [*usual, "optimizer-in-backward", "adam-8bit"])
    return Pair.between(record, full, low, [name])


def of_litgpt(record: Row, stated: dict[str, str]) -> Pair:
    """LoRA of rank 8 of queries and values on Alpaca, or ten keys and values of each layer (Zhang et al. 2023,
    LLaMA-Adapter), which are next to nothing; frozen weights in NF4 or in 16 bits; Thunder's compilers.
    """
    if "micro_batch" in stated:
        return _compiled(record, stated)
    ways: dict[str, tuple[str, ...]] = {"finetune_lora": ("query", "value"), "finetune_adapter": ()}
    if (way := stated.get("method", "")) not in ways:
        raise DataError(f"LitGPT's {way} is no way of training that is built: one of {', '.join(ways)}")
    lengths = LONGEST if record["metric"] == "memory" else MEAN_LENGTH
    run = run_on_one(
        record, ENGINES["torch-eager"], micro_batch=whole(stated["batch"], "batch"), seq_len=lengths["alpaca"]
    )
    wide, narrow = (
        replace(run, adapters=Adapters(rank=8, method=method, targets=ways[way])) for method in ("lora", "qlora")
    )
    return Pair.between(record, wide, narrow, ["qlora"])


def _compiled(record: Row, stated: dict[str, str]) -> Pair:
    """Pretraining, plain against torch.compile; nvFuser's kernels fuse the same chains."""
    sharding = {"ZeRO-3": "zero3", "replicated": "none", "single": "none"}[stated["strategy"]]
    micro, length = whole(stated["micro_batch"], "batch"), whole(stated["seq"], "length")
    run = run_on_one(record, TUNE, micro_batch_size=micro, seq_len=length, shard=sharding)
    return Pair.of(record, run, ["compile"])


def of_peft(record: Row, stated: dict[str, str]) -> Pair:
    """Methods of PEFT against full fine-tuning on MetaMathQA: time by the mean sample, memory by the longest."""
    words = stated["peft"].lower()
    method, _, variant = words.partition("/")
    method = "dora" if "dora" in variant else method
    lengths = LONGEST if record["metric"] == "memory" else MEAN_LENGTH
    batch = whole(stated["batch"], "batch")
    full = run_on_one(record, ENGINES["torch-eager"], micro_batch_size=batch, seq_len=lengths["metamath"])
    found = re.search(r"(?:rank|tokens)-?(\d+)", variant)
    low = trained_by(full, method, int(found[1]) if found else 0, mlp="mlp" in variant)
    return Pair.between(record, full, low, [low.adapters.method])


def trained_by(run: TrainingRun, method: str, rank: int, *, mlp: bool = False) -> TrainingRun:
    """The run with a method of PEFT, beside queries and values unless it is another's habit.

    Raises:
        DataError: a method whose kernels are not built.
    """
    if method in PROMPTS:
        adapters, own = Adapters(rank=rank or PROMPTS[method], method="prompt"), method not in IN_ATTENTION
        return replace(run, adapters=adapters, seq_len=run.seq_len + own * adapters.rank)
    kind = next((kind for kind, names in KINDS.items() if method in names), "")
    if not kind:
        raise DataError(f"kernels of PEFT's {method} are not built: one of {', '.join(sum(KINDS.values(), ()))}")
    usual = ("key", "value", "down") if method == "ia3" else ("query", "value")
    targets: tuple[str, ...] = ("feed_forward",) if mlp else usual
    if method in NOWHERE:
        targets = ()
    return replace(run, adapters=Adapters(rank=rank or USUAL_RANK.get(method, 32), method=kind, targets=targets))


RUNGS = {
    "qlora (from": "qlora", "lora (from": "lora", "torch.compile": "compile", "chunked": "chunked-loss",
    "activation checkpointing": "checkpointing", "fused into backward": "optimizer-in-backward",
    "activation offload": "activation-offload", "8-bit": "adam-8bit",
}  # fmt: skip
"""Optimisations by words for them: of adapters, then those of torchtune's ladder from the first rung on."""
PROMPTS = {"prompt_tuning": 200, "prefixtuning": 200, "ptuning": 20, "adaptionprompt": 10}
"""Tokens that the comparison's configurations of each method train."""
IN_ATTENTION = ("prefixtuning", "adaptionprompt")
"""Methods whose tokens are keys and values of layers alone."""
NOWHERE = ("ln_tuning", "beft", "trainable_tokens")
"""Methods that train values which are there already: weights of norms, biases, rows of the embedding."""
KINDS = {
    "lora": (
        "lora", "adalora", "delora", "vera", "pvera", "tinylora", "unilora", "vblora", "miss", "c3a", "gralora", "deft",
        "lily", "oft", "glora", "psoft",
    ),
    "dora": ("dora",),
    "loha": ("loha", "lokr", "hira", "shira", "fourierft", "waveft", "randlora", "peanut"),
    "ia3": ("ia3", "road", *NOWHERE),
}  # fmt: skip
"""Methods by what runs of them: two narrow products, or one by small blocks; a matrix made whole of
factors, frequencies or a few of its values, and its product; results scaled."""
USUAL_RANK = {"vera": 256, "pvera": 256}
"""Where a configuration's name leaves it out; 32 in others."""
