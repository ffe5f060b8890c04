"""Small models of every kind in the catalogue, and what a trace records of them before it looks for layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from neusight.kernels import Kernel
from neusight.requests import Request
from neusight.workloads import Node, Workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace import layers
from neusight.workloads.trace.memory import Allocation
from neusight.workloads.trace.recorder import RawNode
from neusight.workloads.trace.tracing import trace
from neusight.workloads.workload import Reference

BATCH, LENGTH, HIDDEN, HEADS, VOCABULARY, POSITIONS = 2, 32, 64, 4, 500, 128
EXPERTS, CAPACITY = 4, 8
NARROW = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
TEXT = {"vocab_size": 99, "use_cache": False}
T5 = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, **TEXT}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {
        "n_layer": 4, "n_embd": HIDDEN, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": POSITIONS,
        "use_cache": False,
    }),
    "bert": ("BertConfig", "BertForPreTraining", NARROW | {"intermediate_size": 64, "vocab_size": 99}),
    "opt": ("OPTConfig", "OPTForCausalLM", NARROW | TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", NARROW | TEXT | {"intermediate_size": 64, "num_key_value_heads": 2}),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5 | {"num_layers": 5}),
    "switch": ("SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration", T5 | {
        "num_layers": 2, "num_sparse_encoder_layers": 1, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1,
        "num_experts": EXPERTS, "expert_capacity": CAPACITY,
    }),
    "vit": ("ViTConfig", "ViTForImageClassification", NARROW | {
        "intermediate_size": 64, "image_size": 32, "patch_size": 8,
    }),
    "resnet": ("ResNetConfig", "ResNetForImageClassification", {
        "embedding_size": 4, "hidden_sizes": [8, 16, 32, 64], "depths": [3, 4, 6, 3],
    }),
}  # fmt: skip
FUSED = ("bert", "opt", "llama", "t5", "vit")
LAYERS = {"gpt2": "n_layer", "t5": "num_layers"}


@dataclass(frozen=True)
class Recording:
    """Operators and storages as they were recorded, and the workload that was made of them."""

    nodes: Sequence[RawNode]
    allocations: Sequence[Allocation]
    workload: Workload


def recorded(build: Any, inputs: Any, request: Request, **how: Any) -> Recording:
    with patch.object(layers, "fold_layers", wraps=layers.fold_layers) as seen:
        workload = trace(build, inputs, request, **how)
    return Recording(*seen.call_args.args[:2], workload)


def builder(name: str, attention: str = "eager", **changes: Any) -> Callable[[], Any]:
    import transformers

    config, model, fields = MODELS[name]
    made = getattr(transformers, config)(**fields | changes)
    implementation = {} if name == "resnet" else {"attn_implementation": "sdpa" if attention != "eager" else "eager"}
    return lambda: getattr(transformers, model)._from_config(made, **implementation)


def inputs_of(name: str, batch: int = BATCH, seq_len: int = LENGTH) -> dict[str, TensorSpec]:
    if name in ("vit", "resnet"):
        return {"pixel_values": TensorSpec((batch, 3, 32, 32))}
    names = ("input_ids", "decoder_input_ids") if name in ("t5", "switch") else ("input_ids",)
    return {name: TensorSpec((batch, seq_len), "int64") for name in names}


@cache
def recording(
    name: str,
    layers: int = 0,
    *,
    batch: int = BATCH,
    seq_len: int = LENGTH,
    form: str = "foreach",
    time_loss: bool = True,
    **options: Any,
) -> Recording:
    """A step of a small model in eager float32; ``options`` are those of ``Request.of``."""
    depth = {LAYERS[name]: layers} if layers else {}
    options = {"dtype": "float32", "attention": "eager"} | options
    request = Request.of(name, batch=batch, seq_len=None if name in ("vit", "resnet") else seq_len, **options)
    build = builder(name, request.attention, **depth)
    return recorded(build, inputs_of(name, batch, seq_len), request, optimizer_form=form, time_loss=time_loss)


def traced(name: str, layers: int = 0, **options: Any) -> Workload:
    return recording(name, layers, **options).workload


def kernels(workload: Workload, *phases: str, layer: str = "") -> list[Kernel]:
    """Kernels of the given phases (all unless any is given) in the order of execution."""
    steps = ((node, node.layer.name(copy)) for node, copy in workload.expanded())
    return [k for n, where in steps if (not phases or n.phase in phases) and layer in where for k in n.kernels]


def ops(workload: Workload, *phases: str) -> set[str]:
    return {k.op for k in kernels(workload, *phases)}


def storages(workload: Workload, node: Node, copy: int, of: Sequence[Reference]) -> Iterator[tuple[int, int]]:
    """The storages behind what one copy of a node reads or writes, each as a tensor and which of its copies."""
    for reference in of:
        at = reference.at(copy, node.copies)
        copies = range(workload.tensors[at.tensor].copies) if at.first < 0 else (at.first,)
        yield from ((at.tensor, number) for number in copies)
