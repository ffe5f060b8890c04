"""``Serving``: a language model that an engine serves under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from neusight.engines import engine_names
from neusight.questions.field import FieldError, number, required, switch, text, whole
from neusight.questions.parts import ENGINE, LOAD, MODEL, PLAN, RECORDED, OnCluster, WithExperts
from neusight.questions.unset import usual
from neusight.quick_dataclasses import dataclass

SERVERS = engine_names(serves=True)
SHAPES, ARRIVALS, ROUTERS = ("lognormal", "uniform", "exponential"), ("poisson", "uniform", "gamma"), (
    "round-robin", "least-loaded", "prefix-aware",
)  # fmt: skip
MOST_REQUESTS = 100_000
"""Clients, or requests of a batch: more are a slip of the keyboard."""
MOST_TOKENS = 1 << 24
LEAST_SHARE = 1e-3
"""Share of the memory: less holds no engine."""
LOADS = ("batch", "concurrency", "request_rate", "trace", "num_prompts")
"""Fields of which one gives the load; ``num_prompts`` counts the requests of a rate or of clients too."""


@dataclass(frozen=True, kw_only=True)
class Engined(WithExperts):
    """The engine that serves, its precision, its limits, and how devices share the model."""

    dtype: str = text(
        "Precision of weights: bf16, fp16, or a scheme: fp8, fp8_row, fp8_block, w8a16, w4a16 (awq), mxfp4, nvfp4. "
        "Default: that of the model's configuration, else bf16.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    kv_dtype: str = text(
        "Precision of the KV cache, such as fp8. Default: that of activations.",
        ENGINE, metavar="NAME", listable=True, if_unset=usual("kv_dtype"),
    )  # fmt: skip
    engine: str = text(
        f"Software that serves: {', '.join(SERVERS)}.", ENGINE, "vllm", choices=SERVERS, listable=True, metavar="NAME",
        meanings={
            "trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm", "hf": "transformers",
        },
    )  # fmt: skip
    engine_version: str = text(
        "Version of the engine, such as 0.15.1. Default: the newest that is known.",
        ENGINE, listable=True, if_unset=usual("engine_version"),
    )  # fmt: skip
    attention_backend: str = text(
        "Kernels of attention that the engine chooses, such as flashinfer, fa3 or trtllm_mla.",
        RECORDED, if_unset=usual("attention_backend"),
    )  # fmt: skip
    replicas: int = whole(
        "Data parallel across replicas: copies of all that, which share the load.", PLAN, 1, high=10**6, listable=True
    )
    max_num_seqs: int | None = whole(
        "Most sequences in one pass.",
        ENGINE, high=1 << 16, listable=True,
    )  # fmt: skip
    max_num_batched_tokens: int | None = whole(
        "Most new tokens of one pass.",
        ENGINE, high=1 << 20, listable=True,
    )  # fmt: skip
    max_model_len: int | None = whole(
        "Tokens of the longest sequence, prompt and answer.",
        ENGINE, high=MOST_TOKENS, former=("max_len",),
    )  # fmt: skip
    gpu_memory_utilization: float | None = number(
        "Share of the device's memory for the engine. Default: the engine's.",
        ENGINE, low=LEAST_SHARE, high=1.0, former=("memory_fraction", "memory_share"),
    )  # fmt: skip
    chunked_prefill: bool = switch("Prompts may be cut where a pass is full.", ENGINE, True)
    graphs: bool = switch("Passes are launched as CUDA graphs; --no-graphs is vLLM's --enforce-eager.", ENGINE, True)
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
    num_scheduler_steps: int | None = whole("Passes between two turns of vLLM 0.6's scheduler.", RECORDED, high=1024)
    scheduler_recv_interval: int | None = whole(
        "Passes between two looks of SGLang's scheduler at new requests.", RECORDED, high=1024,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Loaded(OnCluster):
    """The load of a served model."""

    isl: int | None = whole(
        "Input sequence length: tokens of a prompt.", LOAD, high=MOST_TOKENS, listable=True, if_unset=usual("isl")
    )
    osl: int | None = whole(
        "Output sequence length: tokens of an answer.", LOAD, high=MOST_TOKENS, listable=True, if_unset=usual("osl")
    )
    isl_cv: float = number("Draw prompts of many lengths: standard deviation over mean.", LOAD, 0.0, low=0.0, high=10.0)
    osl_cv: float = number("Draw answers of many lengths: standard deviation over mean.", LOAD, 0.0, low=0.0, high=10.0)
    isl_shape: str = text("Distribution of prompts' lengths.", LOAD, "lognormal", choices=SHAPES)
    osl_shape: str = text("Distribution of answers' lengths.", LOAD, "lognormal", choices=SHAPES)
    images: str = text(
        "Images of each prompt, whose tokens are among --isl. Default size: 1024x1024.", LOAD, metavar="N[,size=WxH]"
    )
    batch: int | None = whole("Requests of one static batch.", LOAD, high=MOST_REQUESTS, short="-b", listable=True)
    concurrency: int | None = whole(
        "Clients, each of which sends its next request when the last is answered.",
        LOAD, high=MOST_REQUESTS, listable=True,
    )  # fmt: skip
    request_rate: float | None = number(
        "Requests that arrive each second, whether or not the engine keeps up.",
        LOAD, low=1e-6, high=1e6, listable=True, former=("rate",),
    )  # fmt: skip
    arrivals: str = text("Intervals between arrivals.", LOAD, "poisson", choices=ARRIVALS, if_unset=usual("arrivals"))
    trace: str = text("File of arrivals and lengths: .csv, .jsonl or .parquet.", LOAD, metavar="FILE")
    num_prompts: int | None = whole(
        "Requests of a rate or of clients; without another load, all of them wait at the start (offline).",
        LOAD, high=10**6, former=("requests",),
    )  # fmt: skip
    warmup_requests: int | None = whole("Requests that are sent before those that count.", RECORDED, low=0)


@dataclass(frozen=True, kw_only=True)
class Serving(Engined, Loaded):
    """A deployment and its load."""

    KIND: ClassVar[str] = "serving"

    HELP: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "dp": "Data parallel: groups of devices whose attention serves separate sequences. Default: 1.",
            "ep": "Expert parallel: devices over which whole experts are spread.",
            "per_node": "Devices of a node. Default: the usual number of that device.",
        }
    )

    model: str = required(
        "A name of `neusight models list --decoders`, a hub id, a config.json, or the folder that has it.",
        MODEL, listable=True, objects=True,
    )  # fmt: skip
    config: str = text("Configuration of the model as JSON, in place of the one that its name has.", MODEL)

    @property
    def load(self) -> str:
        """Name of the field that gives the load.

        Raises:
            FieldError: no load, or several.
        """
        given = [name for name in LOADS if getattr(self, name)]
        kinds = [name for name in given if name != "num_prompts"] or given
        if not kinds:
            raise FieldError("load", f"is missing: give one of {', '.join(LOADS)}")
        if len(kinds) > 1 or (given[-1] == "num_prompts" and kinds[0] in ("batch", "trace")):
            raise FieldError("load", f"is given by {' and '.join(given)}: give one of them")
        return kinds[0]

    def without_effect(self) -> Iterator[str]:
        """Lines for words that change nothing."""
        for name in ("attention_backend", "num_scheduler_steps", "scheduler_recv_interval", "warmup_requests"):
            if getattr(self, name) not in (None, ""):
                yield f"{name} has no effect: estimates do not know it yet"
