"""Measured cells as what this program serves: a deployment with its options, a load, and the model as it was run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.datasets.cells import ServingCell
from neusight.engines import server_named
from neusight.engines.server import era_of
from neusight.errors import ModelError
from neusight.serving import Closed, Lengths, Load, Offline, Open, Setup, Static, Trace
from neusight.serving.load import longest_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder, known_decoders
from neusight.workloads.decoders.layers import Layer, SelfAttention
from neusight.workloads.decoders.quantisation import SCHEMES, Quantisation

MOST_REQUESTS = 8000
"""Of a simulated run: ramps at both ends weigh little by then."""
UNBUILT = (0, 19)
"""Version of TensorRT-LLM from which its published figures are of models that run as they are."""
_VERSION = re.compile(r"(\d+)\.(\d+)")
LARGEST_PASS = 65536
"""New tokens that one pass is built for, at most: activations of more do not fit beside the largest models that ran."""
LONG_ANSWERS = 4000
"""Tokens of an answer beyond which four waves of requests are simulated instead of ten."""


@dataclass(frozen=True, kw_only=True)
class ServingCase:
    """A measured cell, and what it is predicted as."""

    cell: ServingCell
    setup: Setup
    load: Load

    @classmethod
    def of(cls, cell: ServingCell) -> ServingCase:
        """Raises:
        ModelError: an unknown engine. LoadError: a load that makes no sense.
        """
        names = ("engine", "engine_version", "kv_dtype", "speculate", "graphs", "tp", "pp", "ep", "dp", "replicas")
        load = _load(cell)
        setup = Setup(**{name: getattr(cell, name) for name in names}, **_limits(cell, load))
        return cls(cell=cell, setup=setup, load=load)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """What cases whose passes take the same times have in common."""
        return self.cell.gpu, self.cell.model, self.cell.weights, self.setup.priced

    def decoder(self, decoder: Decoder) -> Decoder:
        """A decoder as the cell's engine ran it, see ``served_as`` and ``built_by``; what ran beyond the context of its
        configuration had a longer one.
        """
        built = built_by(served_as(decoder, self.cell.model, self.cell.weights), self.setup)
        return replace(built, max_len=max(built.max_len, longest_of(self.load))) if built.max_len else built


def _limits(cell: ServingCell, load: Load) -> dict[str, Any]:
    """As stated; a static batch runs as one, and the sessions of older engines and of one-batch runs take its prompts
    in one pass.
    """
    seqs, tokens = cell.max_num_seqs, cell.max_num_batched_tokens
    if cell.mode == "static":
        requests = load.requests()
        seqs = seqs or max(len(requests), server_named(cell.engine, cell.engine_version).serving.max_num_seqs)
        sessions = era_of(cell.engine, cell.engine_version).name == "tensorrt-llm before 0.12"
        if tokens is None and (cell.one_batch or sessions):
            tokens = min(max(int(requests.prompt_tokens.sum()), len(requests)), LARGEST_PASS)
    return {
        "gpu_memory_utilization": cell.memory_share,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "prefix_cached_tokens": cell.cached_tokens,
    }


def _load(cell: ServingCell) -> Load:
    isl, osl = _lengths(cell.isl, cell.isl_cv), _lengths(cell.osl, cell.osl_cv)
    if cell.mode == "static":
        return _batch(cell)
    if cell.mode == "closed":
        clients = int(cell.concurrency or 0)
        waves = 4 if cell.osl > LONG_ANSWERS else 10
        number = max(min(waves * clients, 2000), 3 * clients)
        return Closed(concurrency=clients, num_prompts=number, isl=isl, osl=osl)
    if cell.stage_s:
        return _staged(cell)
    if cell.mode == "offline" or math.isinf(cell.rates[0]):
        return Offline(num_prompts=min(cell.requests, MOST_REQUESTS), isl=isl, osl=osl)
    return Open(request_rate=cell.rates[0], num_prompts=cell.requests, isl=isl, osl=osl, arrivals=cell.arrivals)


def _lengths(mean: float, cv: float) -> int | Lengths:
    return Lengths(mean=mean, shape="lognormal", cv=cv) if cv else round(mean)


def _batch(cell: ServingCell) -> Load:
    if cell.prompts:
        outputs = np.full(len(cell.prompts), int(cell.osl))
        return Trace(arrival_s=np.zeros(len(outputs)), prompt_tokens=np.array(cell.prompts), output_tokens=outputs)
    return Static(batch=int(cell.concurrency or 0), isl=round(cell.isl), osl=round(cell.osl))


def _staged(cell: ServingCell) -> Trace:
    """Stages one after the other, in each requests at equal intervals: the generator's arrivals are constant."""
    begins = np.arange(len(cell.rates)) * cell.stage_s
    stages = zip(begins, cell.rates, strict=True)
    arrival_s = np.concatenate([begin + np.arange(int(rate * cell.stage_s)) / rate for begin, rate in stages])
    prompts, outputs = (np.full(len(arrival_s), round(mean)) for mean in (cell.isl, cell.osl))
    return Trace(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def served_as(decoder: Decoder, model: str, weights: str) -> Decoder:
    """A decoder in the dtype and scheme of a cell: what its configuration says wins, then what that of the model of
    this name says, then the usual scheme of who publishes such weights.

    Raises:
        ModelError: weights in a dtype that no scheme has.
    """
    if weights in ("", "auto", "float16", "bfloat16", "float32"):
        return replace(decoder, dtype=weights if weights.endswith("16") else decoder.dtype)
    if decoder.quantisation:
        return decoder
    if model in known_decoders() and (known := known_decoder(model).quantisation):
        return replace(decoder, quantisation=known)
    return replace(decoder, quantisation=scheme_of(model, weights))


def built_by(decoder: Decoder, setup: Setup) -> Decoder:
    """A decoder as an engine runs it: what TensorRT-LLM builds attends to all tokens, whatever window the model has.

    Its ``max_attention_window_size`` defaults to the longest sequence, which disables windows (Useful Runtime Options:
    Maximum Attention Window Size); from 0.19 on nothing is built, the model runs as it is (performance overview).
    """
    version = _VERSION.match(setup.engine_version)
    if setup.engine != "tensorrt-llm" or version is None or (int(version[1]), int(version[2])) >= UNBUILT:
        return decoder
    return replace(decoder, layers=tuple((_without_window(layer), count) for layer, count in decoder.layers))


def _without_window(layer: Layer) -> Layer:
    part = layer.attention
    return (
        replace(layer, attention=replace(part, window=0)) if isinstance(part, SelfAttention) and part.window else layer
    )


def scheme_of(model: str, weights: str) -> Quantisation:
    """The usual scheme of weights in a dtype: blocks of Qwen, GLM and DeepSeek, rows where scales are dynamic and of
    Meta's, tensors of the others; experts alone of gpt-oss.

    Raises:
        ModelError: weights in a dtype that no scheme has.
    """
    if weights == "fp8+fp4":
        return replace(SCHEMES["fp8_block"], expert_weights="mxfp4")
    if weights == "fp8":
        published = model.upper().endswith(("-FP8", "-FP8-DYNAMIC"))
        blocks = published and any(family in model for family in ("Qwen3", "GLM-", "DeepSeek"))
        rows = published and model.startswith(("RedHatAI/", "meta-llama/"))
        return SCHEMES["fp8_block" if blocks and not model.startswith("nvidia/") else "fp8_row" if rows else "fp8"]
    if weights == "mxfp4" and "gpt-oss" in model:
        return replace(SCHEMES["mxfp4"], kinds=frozenset({"experts"}))
    names = {"int8": "w8a16", "int4": "w4a16", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
    if weights not in names:
        raise ModelError(f"weights in '{weights}': one of float16, bfloat16, fp8, fp8+fp4, {', '.join(names)}")
    return SCHEMES[names[weights]]
