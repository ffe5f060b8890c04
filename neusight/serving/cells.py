"""Cells of measured serving as questions: what was deployed, with which options, under which load, and what was read.

What a cell leaves empty takes a default that is stated, with its reason, in ``DEFAULTS``, ``PROMPTS``, ``STAGES`` and
``NUMBERS``; ``Question.assumed`` names those that it took.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.engines import server_named
from neusight.engines.server import era_of
from neusight.errors import DataError, ModelError, shown
from neusight.serving import Closed, EngineOptions, Lengths, Load, Offline, Open, Setup, Static, Trace
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder, known_decoders
from neusight.workloads.decoders.layers import Layer, SelfAttention
from neusight.workloads.decoders.quantisation import SCHEMES, Quantisation

QUANTITIES = ("prefill_ms", "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s")
MODES = ("static", "closed", "rate", "offline")

DEFAULTS: dict[str, tuple[Any, str]] = {
    "engine": ("vllm", "the engine of most published runs"),
    "engine_version": ("", "the newest"),
    "engine_version of deplodock": ("0.12", "'latest' between November 2025 and January 2026"),
    "engine_version of argonne": ("0.5", "LLM-Inference-Bench ran vLLM in mid-2024 and does not tell which"),
    "ep": (1, "engines split experts over tensor parallelism unless told otherwise"),
    "kv_dtype": ("", "engines keep the cache in the model's own dtype unless told otherwise"),
    "weight_dtype": ("", "as the model's configuration has it"),
    "arrivals": ("poisson", "the usual generators draw exponential intervals"),
    "number of requests": (1000, "the usual default of serving benchmarks"),
    "number of requests of trtllm-docs": (500, "its overview: online serving was measured with 500 requests"),
    "memory share of trtllm-docs": (0.95, "its overview: KV cache percentage of most runs of full load"),
    "spread of answers": (0.5, "coefficient of variation of answers whose mean alone is told (assumption)"),
    "spread of ShareGPT": (1.0, "202 and 214 tokens are means of conversations that vary as much (assumption)"),
    "cached prompts": (
        100,
        "tokens of the system prompt that requests of a BLIS workload share; what a user asks, and what a conversation "
        "has grown by, is new each time (assumption: its generator's usual length)",
    ),
    "stage": (150.0, "seconds of each stage, of 600: how queues grow shows, and a cell takes less than a second"),
}
"""What an empty cell takes, and why."""
SHAREGPT = (202, 214)
"""Mean lengths of the prompts and answers of ShareGPT in the overview of TensorRT-LLM 0.14."""
PROMPTS: dict[str, int] = {
    "lm-arena-chat": 200, "gpqa": 250, "image-chat": 1200, "video-chat": 3000, "sourcegraph-fim": 400,
}  # fmt: skip
"""Tokens of a prompt of the workloads of ml-energy, which tells those of answers alone. Assumptions: a message of a
chat; a question of GPQA with its choices; an image, or frames of a video, in patches of these models; code around a
hole."""
STAGES: dict[str, tuple[float, ...]] = {
    "general": (8.0, 20.0), "codegen": (5.0, 10.0), "roleplay": (6.0,), "reasoning": (4.0,),
    "general-lite": (2.5, 6.0), "reasoning-lite": (1.0,),
}  # fmt: skip
"""Requests a second of each stage of 600 s of the BLIS workloads (inference-sim/sim-to-real-accuracy-validation, design
document of 2026-03-04); those of ``-lite`` are in the rows of stages."""
NUMBERS: dict[tuple[int, int], int] = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000,
    (1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip
"""Requests of a run of trtllm-bench by lengths (TensorRT-LLM, performance overview, "Preparing a Dataset")."""
MOST_REQUESTS = 8000
"""Of a simulated run: ramps at both ends weigh little by then."""
MOST = 10**6
"""Of tokens, clients, requests a second: what is larger is no measurement."""
UNBUILT = (0, 19)
"""Version of TensorRT-LLM from which its published figures are of models that run as they are."""
_VERSION = re.compile(r"(\d+)\.(\d+)")
LARGEST_PASS = 65536
"""New tokens that one pass is built for, at most: activations of more do not fit beside the largest models that ran."""
LONG_ANSWERS = 4000
"""Tokens of an answer beyond which four waves of requests are simulated instead of ten."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A cell as it is asked: what is deployed, on what, how it is started and loaded.

    ``measured`` are its figures by ``QUANTITIES``, means but for ``medians``; ``power_w`` is that of all its GPUs
    together. ``steady``: they are of a steady state, rates without ramps and times of a token over all tokens.
    ``assumed`` names what it does not tell.
    """

    cell: str
    source: str
    gpu: str
    model: str
    mode: str
    weights: str
    setup: Setup
    options: EngineOptions
    load: Load
    n_gpus: int
    concurrency: float | None
    isl: float
    osl: float
    measured: dict[str, float]
    medians: frozenset[str]
    steady: bool
    fault: str
    assumed: tuple[str, ...]
    power_w: float | None = None

    @property
    def kernels(self) -> tuple[Any, ...]:
        """What questions whose passes take the same times have in common."""
        return self.gpu, self.model, self.weights, replace(self.setup, replicas=1)

    @property
    def median(self) -> bool:
        """Whether its time of a token is the median over all times between tokens."""
        return self.steady and "tpot_ms" in self.medians


def source_of(cell: str) -> str:
    """Who measured a cell, from the first part of its name."""
    first = cell.split("/")[0]
    return "trtllm-docs" if first.startswith("trtllm") else first


def question_of(record: Mapping[str, Any], number: int) -> Question:
    """A row of a table of cells as a question.

    Raises:
        DataError: it does not tell what has no default, or tells what nobody can ask.
    """
    cell = _Cell(record, number)
    setup, load = _setup(cell), _load(cell)
    measured, medians = _measured(cell)
    devices = setup.tp * setup.pp * setup.dp * setup.replicas
    return Question(
        cell=cell.name,
        source=cell.source,
        gpu=cell.text("gpu"),
        model=cell.text("model"),
        mode=cell.mode,
        weights=cell.text("weight_dtype", DEFAULTS["weight_dtype"][0]),
        setup=setup,
        options=_options(cell, setup, load),
        load=load,
        n_gpus=cell.degree("n_gpus", devices),
        concurrency=cell.number_of("concurrency"),
        isl=cell.isl,
        osl=cell.osl,
        measured=measured,
        medians=medians,
        steady=cell.source == "mlenergy",
        fault=cell.text("fault", ""),
        assumed=tuple(cell.assumed),
        power_w=cell.number_of("power_w"),
    )


class _Cell:
    """A row, and which defaults were taken of it."""

    def __init__(self, record: Mapping[str, Any], number: int) -> None:
        self.record = record
        self.assumed: dict[str, None] = {}
        self.name = self.text("cell", f"row {number}")
        self.source = source_of(self.name)

    def text(self, column: str, default: str | None = None) -> str:
        value = self.record.get(column)
        if value is None or value != value or str(value).strip() == "":
            if default is None:
                raise DataError(f"{self.name}: {column} is not told")
            return default
        return str(value).strip()

    def number_of(self, column: str) -> float | None:
        value = self.record.get(column)
        if value is None or value != value:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise DataError(f"{column} '{shown(value)}' is no number") from None

    def count(self, column: str) -> int | None:
        """How many there are, at least one."""
        found = self.number_of(column)
        if found is not None and not 1 <= found <= MOST:
            raise DataError(f"{column} = {found:g}: 1 to {MOST:,}")
        return None if found is None else int(found)

    def degree(self, column: str, default: int = 1) -> int:
        return self.count(column) or default

    def needed(self, column: str) -> int:
        found = self.count(column)
        if found is None:
            raise DataError(f"{column} is not told")
        return found

    def assume(self, what: str) -> Any:
        """A default, and that it was taken."""
        self.assumed[what] = None
        return DEFAULTS[what][0]

    @property
    def mode(self) -> str:
        stated = self.text("mode", "")
        if not stated:
            told = (self.number_of("concurrency"), self.number_of("request_rate"))
            return "closed" if told[0] is not None else "rate" if told[1] is not None else "offline"
        if stated not in MODES:
            raise DataError(f"mode '{stated}': one of {', '.join(MODES)}")
        return stated

    @property
    def prompts(self) -> list[int]:
        """Of a batch whose prompts are told one by one."""
        try:
            return [int(length) for length in self.text("prompt_lens", "").split()]
        except ValueError:
            raise DataError(f"prompt_lens '{shown(self.text('prompt_lens'))}': numbers of tokens") from None

    @property
    def isl(self) -> float:
        if self.count("isl"):
            return float(self.record["isl"])
        workload = self.text("workload", "")
        if workload not in PROMPTS:
            raise DataError("isl is not told")
        self.assumed[f"isl of {workload}"] = None
        return float(PROMPTS[workload])

    @property
    def rate(self) -> float | None:
        """Requests a second, infinite where all come at once."""
        found = self.number_of("request_rate")
        if found is not None and not 0 < found <= MOST and found != math.inf:
            raise DataError(f"request_rate = {found:g}: more than 0, up to {MOST:,}")
        return found

    @property
    def osl(self) -> float:
        return float(self.record["osl"]) if self.needed("osl") else 0.0


def _setup(cell: _Cell) -> Setup:
    engine = cell.text("engine", "") or cell.assume("engine")
    version = cell.text("engine_version", "")
    if not version and cell.source == "argonne" and engine == "vllm":
        version = cell.assume("engine_version of argonne")
    elif version == "latest" and cell.source == "deplodock":
        version = cell.assume("engine_version of deplodock")
    elif not version[:1].isdigit():
        version = cell.assume("engine_version")
    kv = cell.text("kv_dtype", "").replace("auto", "") or cell.assume("kv_dtype")
    pp, dp, replicas = (cell.degree(name) for name in ("pp", "dp", "replicas"))
    ep = cell.degree("ep", 0) or cell.assume("ep")
    tp = cell.degree("tp", cell.degree("n_gpus", pp * dp * replicas) // (pp * dp * replicas))
    if cell.mode == "closed":  # Where clients are fewer than replicas, the others have nothing to do.
        replicas = min(replicas, cell.needed("concurrency"))
    return Setup(
        engine=engine.split(" (")[0], engine_version=version, kv_dtype=kv, tp=tp, pp=pp, ep=ep, dp=dp, replicas=replicas
    )


def _options(cell: _Cell, setup: Setup, load: Load) -> EngineOptions:
    """As told; a static batch runs as one, and the sessions of older engines and of one-batch runs take its prompts in
    one pass.
    """
    seqs, tokens = cell.count("max_num_seqs"), cell.count("max_num_batched_tokens")
    if cell.mode == "static":
        requests = load.requests()
        seqs = seqs or max(len(requests), server_named(setup.engine, setup.engine_version).serving.max_num_seqs)
        if tokens is None and _in_one_pass(cell, setup):
            tokens = min(max(int(requests.prompt_tokens.sum()), len(requests)), LARGEST_PASS)
    cached = cell.assume("cached prompts") if cell.text("workload", "") in STAGES else 0
    full = cell.source == "trtllm-docs" and cell.mode == "offline"
    return EngineOptions(
        memory_share=cell.assume("memory share of trtllm-docs") if full else None,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        prefix_cached_tokens=cached,
    )


def _in_one_pass(cell: _Cell, setup: Setup) -> bool:
    one_batch = "one-batch" in cell.text("engine", "")
    return one_batch or era_of(setup.engine, setup.engine_version) == "tensorrt-llm before 0.12"


def _load(cell: _Cell) -> Load:
    return {"static": _static, "closed": _closed, "rate": _rate, "offline": _offline}[cell.mode](cell)


def _static(cell: _Cell) -> Load:
    if prompts := cell.prompts:
        n = len(prompts)
        return Trace(arrival_s=np.zeros(n), prompt_tokens=np.array(prompts), output_tokens=np.full(n, int(cell.osl)))
    return Static(batch=cell.needed("concurrency"), isl=round(cell.isl), osl=round(cell.osl))


def _closed(cell: _Cell) -> Load:
    clients = cell.needed("concurrency")
    waves = 4 if cell.osl > LONG_ANSWERS else 10
    number = max(min(waves * clients, 2000), 3 * clients)
    isl, osl = round(cell.isl), cell.osl
    if cell.text("workload", "") not in PROMPTS:
        return Closed(concurrency=clients, number=number, isl=isl, osl=round(osl))
    spread = Lengths(mean=osl, shape="lognormal", cv=cell.assume("spread of answers"))
    return Closed(concurrency=clients, number=number, isl=isl, osl=spread)


def _rate(cell: _Cell) -> Load:
    isl, osl, rate = round(cell.isl), round(cell.osl), cell.rate
    stages = STAGES.get(cell.text("workload", ""))
    if stages:
        return _staged((rate,) if rate is not None else stages, isl, osl, cell.assume("stage"))
    if rate is None:
        raise DataError("request_rate is not told")
    docs = cell.source == "trtllm-docs"
    number = cell.assume("number of requests of trtllm-docs" if docs else "number of requests")
    prompts, answers = _varied(cell, isl, osl) if docs and (isl, osl) == SHAREGPT else (isl, osl)
    if math.isinf(rate):
        return Offline(number=number, isl=prompts, osl=answers)
    return Open(rate_per_s=rate, number=number, isl=prompts, osl=answers, arrivals=cell.assume("arrivals"))


def _varied(cell: _Cell, isl: int, osl: int) -> tuple[Lengths, Lengths]:
    cv = cell.assume("spread of ShareGPT")
    return Lengths(mean=isl, shape="lognormal", cv=cv), Lengths(mean=osl, shape="lognormal", cv=cv)


def _staged(rates: tuple[float, ...], isl: int, osl: int, stage_s: float) -> Trace:
    """Stages one after the other, in each requests at equal intervals: the generator's arrivals are constant."""
    begins = np.arange(len(rates)) * stage_s
    times = [begin + np.arange(int(rate * stage_s)) / rate for begin, rate in zip(begins, rates, strict=True)]
    arrival_s = np.concatenate(times)
    n = len(arrival_s)
    return Trace(arrival_s=arrival_s, prompt_tokens=np.full(n, isl), output_tokens=np.full(n, osl))


def _offline(cell: _Cell) -> Load:
    isl, osl = round(cell.isl), round(cell.osl)
    number = NUMBERS.get((isl, osl)) or cell.assume("number of requests")
    return Offline(number=min(number, MOST_REQUESTS), isl=isl, osl=osl)


def _measured(cell: _Cell) -> tuple[dict[str, float], frozenset[str]]:
    """Figures by quantity, and which are medians because there is no mean.

    Of a static batch the prefill is the first token, and the rate is the batch's tokens over its time: what says the
    same twice counts once.
    """
    means = {quantity: cell.number_of(quantity) for quantity in QUANTITIES}
    middle = {q: cell.number_of(q.replace("_ms", "_p50_ms")) for q in QUANTITIES if q.endswith("_ms")}
    medians = frozenset(q for q, value in middle.items() if value is not None and means[q] is None)
    told = {q: middle[q] if q in medians else value for q, value in means.items()}
    found = {quantity: value for quantity, value in told.items() if value is not None}
    for first, same in (("prefill_ms", "ttft_ms"), ("e2e_ms", "tokens_per_s")):
        if cell.mode == "static" and first in found:
            found.pop(same, None)
    if not found:
        raise DataError(f"nothing that is compared was measured: {', '.join(QUANTITIES)}")
    if wrong := [quantity for quantity, value in found.items() if not 0 < value < math.inf]:
        raise DataError(f"{wrong[0]} = {found[wrong[0]]:g} is no measurement")
    return found, medians


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
    found = _VERSION.match(setup.engine_version)
    if setup.engine != "tensorrt-llm" or found is None or (int(found[1]), int(found[2])) >= UNBUILT:
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
