"""``Engined``: the engine that serves a language model, its precision, its limits, and how devices share the model."""

from __future__ import annotations

from neusight.engines import SERVERS
from neusight.questions.field import number, required, switch, text, whole
from neusight.questions.parts import ENGINE, MODEL, PLAN, RECORDED, Configured, OnNodes, WithExperts
from neusight.questions.unset import usual
from neusight.quick_dataclasses import dataclass

ROUTERS = ("round-robin", "least-loaded", "prefix-aware")
MOST_TOKENS = 1 << 24
"""Tokens of a sequence: more are a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Engined(Configured, WithExperts, OnNodes):
    """The engine that serves, its precision, its limits, and how devices share the model."""

    model: str = required(
        "A name of `neusight models list --decoders`, a hub id, a config.json, or the folder that has it.",
        MODEL, listable=True, objects=True, complete="decoders",
    )  # fmt: skip
    dtype: str = text(
        "Precision of weights: bf16, fp16, fp32, or a scheme: fp8 (fp8_static, fp8_row, fp8_block), w8a16, w4a16 (awq, "
        "gptq), mxfp4, nvfp4, llama.cpp's (q4_k_m, …), exl2_4.5. Default: the configuration's, else bf16.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    kv_dtype: str = text(
        "Precision of the KV cache, such as fp8, int8, int4 or q8_0. Default: that of activations.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    engine: str = text(
        f"Software that serves: {', '.join(SERVERS)}.", ENGINE, "vllm", choices=SERVERS, listable=True, metavar="NAME",
        meanings=dict.fromkeys(("trtllm", "trt-llm", "tensorrt_llm"), "tensorrt-llm")
        | {"hf": "transformers", "exllama": "exllamav2", "mlc": "mlc-llm", "turbomind": "lmdeploy"},
    )  # fmt: skip
    engine_version: str = text(
        "Version of the engine, such as 0.15.1. Default: the mean over versions that people run.",
        ENGINE, listable=True, if_unset=usual("engine_version"),
    )  # fmt: skip
    attention_backend: str = text(
        "Kernels of attention that the engine chooses, such as flashinfer or fa3.",
        RECORDED, estimated=False,
    )  # fmt: skip
    replicas: int = whole(
        "Data parallel across replicas: copies of all that, which share the load.", PLAN, 1, high=10**6, listable=True
    )
    max_num_seqs: int | None = whole(
        "Most sequences in one pass. Default: the engine's.", ENGINE, high=1 << 16, listable=True
    )
    max_num_batched_tokens: int | None = whole(
        "Most new tokens of one pass. Default: the engine's.", ENGINE, high=1 << 20, listable=True
    )
    max_model_len: int | None = whole(
        "Tokens of the longest sequence, prompt and answer.", ENGINE, high=MOST_TOKENS, former=("max_len",)
    )
    gpu_memory_utilization: float | None = number(
        "Share of the device's memory for the engine. Default: the engine's.",
        ENGINE, low=1e-3, high=1.0, former=("memory_fraction", "memory_share"),
    )  # fmt: skip
    chunked_prefill: bool = switch("Prompts may be cut where a pass is full.", ENGINE, True)
    graphs: bool = switch("Passes are launched as CUDA graphs; --no-graphs is vLLM's enforce-eager.", ENGINE, True)
    overlap: bool | None = switch(
        "The host prepares a pass while the one before it runs; --no-overlap is vLLM's no-async-scheduling. Default: "
        "the engine's, by version.",
        ENGINE, None,
    )  # fmt: skip
    aiter: bool | None = switch("AMD's AITER runs (VLLM_ROCM_USE_AITER=1). Default: off, less certainly.", ENGINE, None)
    scheduler_recv_interval: int | None = whole(
        "Passes that only generate between two looks of SGLang's scheduler at new requests.", ENGINE, high=1 << 16
    )
    batch_wait_timeout_iters: int | None = whole(
        "Passes that prompts wait under TensorRT-LLM, while others generate, for as many as fill a pass; with dp for a "
        "prompt in each group (attention_dp_config.timeout_iters). Default: none.",
        ENGINE, low=0, high=1 << 16,
    )  # fmt: skip
    prefix_cached_tokens: int = whole(
        "Tokens that all prompts begin with and the cache holds.",
        ENGINE, 0, low=0, high=MOST_TOKENS, former=("prefix_cached",),
    )  # fmt: skip
    prefix_hit: float = number("Share of each prompt that is found in the cache.", ENGINE, 0.0, low=0.0, high=1.0)
    host_cache: float | None = number(
        "Host memory of a replica that keeps sessions of a trace.",
        ENGINE, unit="bytes", low=0.0, high=1e18, metavar="SIZE", former=("host_cache_bytes",),
    )  # fmt: skip
    speculate: str = text(
        "Speculative decoding: the draft (a model, eagle, mtp or ngram), its tokens and their acceptance, or A/A/… by "
        "position.",
        ENGINE, metavar="draft=D,tokens=N,acceptance=A[,depth=N]",
    )  # fmt: skip
    lora_adapters: str = text("LoRA adapters that may run together. Default rank: 16.", ENGINE, metavar="N[,rank=R]")
    moe_routing: str = text(
        "Distribution of tokens over experts: balanced, uniform or power_law_A. Default: the usual one.",
        ENGINE, metavar="WORD",
    )  # fmt: skip
    redundant_experts: int = whole("Copies of the experts with most tokens, over all --ep.", ENGINE, 0, 0, 4096)
    prefill: str = text(
        "Separate devices for prompts (disaggregated prefill); the others generate.", PLAN, metavar="gpu=h100,tp=4,…"
    )
    kv_link: str = text("Link for the transfer of the KV cache: a network ('8 x 400Gb/s'), nvlink or none.", PLAN)
    kv_overlap: bool = switch("The cache of a layer travels while the next layers are computed.", PLAN)
    router: str = text("How replicas get their requests.", PLAN, "round-robin", choices=ROUTERS)
    admitted: int | None = whole("Requests at a replica, beyond which others wait at the router.", PLAN, high=1 << 20)
    num_scheduler_steps: int | None = whole(
        "Passes between two turns of vLLM 0.6's scheduler.", RECORDED, high=1024, estimated=False
    )
