"""Tables of measured serving made canonical: what was deployed, how it was started and loaded, and what was read.

Sources leave out what they take for granted. What stands in for it is in ``DEFAULTS``, ``PROMPTS``, ``STAGES`` and
``NUMBERS``, each with its reason; ``ServingCell.assumed`` names those that a cell took. Whoever compares reads what
comes out of here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neusight.datasets.rows import Row
from neusight.errors import DataError, shown

QUANTITIES = ("prefill_ms", "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s")
MODES = ("static", "closed", "rate", "offline")
CELL_NEEDED = ("gpu", "model")
CELL_READ = frozenset((
    *QUANTITIES, *(name.replace("_ms", "_p50_ms") for name in QUANTITIES if name.endswith("_ms")),
    *CELL_NEEDED, "cell", "n_gpus", "replicas", "tp", "pp", "ep", "dp", "engine", "engine_version", "weight_dtype",
    "kv_dtype", "mode", "concurrency", "request_rate", "isl", "osl", "prompt_lens", "workload", "max_num_seqs",
    "max_num_batched_tokens", "cuda_graph", "prefix_caching", "spec_decode", "power_w", "fault",
))  # fmt: skip
CELL_NOTES = frozenset((
    *(f"{quantity}_{percentile}_ms" for quantity in ("ttft", "tpot", "e2e") for percentile in ("p90", "p99")),
    "statistic", "total_tokens_per_s", "requests_per_s", "avg_batch", "joule_per_token", "repeats", "repeat_spread",
    "source", "commit", "bound",
))  # fmt: skip
"""What cells also say: other figures of the same run, and where they come from."""
MOST = 10**6
"""Of tokens, clients, requests a second: what is larger is no measurement."""

DEFAULTS: dict[str, tuple[Any, str]] = {
    "engine": ("vllm", "the engine of most published runs"),
    "engine_version": ("", "the newest"),
    "engine_version of deplodock": ("0.12", "'latest' between November 2025 and January 2026"),
    "acceptance": (
        0.55,
        "which share of drafts is accepted is not stated; of LLaMA-68M for LLaMA-7B at a temperature of 1 it "
        "was 52 to 57 % (SpecInfer, Miao et al. 2024, table 1, first guess)",
    ),
    "engine_version of argonne": ("0.5", "LLM-Inference-Bench ran vLLM in mid-2024 and does not say which"),
    "ep": (1, "engines split experts over tensor parallelism unless set otherwise"),
    "attention data parallelism of trtllm-docs": (
        True,
        "its overview from 1.0 on: enable_attention_dp for these mixtures, --ep not told and taken as all GPUs",
    ),
    "kv_dtype": ("", "engines keep the cache in the model's own dtype unless set otherwise"),
    "weight_dtype": ("", "as the model's configuration has it"),
    "arrivals": ("poisson", "the usual generators draw exponential intervals"),
    "number of requests": (1000, "the usual default of serving benchmarks"),
    "number of requests of trtllm-docs": (500, "its overview: online serving was measured with 500 requests"),
    "memory share of trtllm-docs": (0.95, "its overview: KV cache percentage of most runs of full load"),
    "spread of answers": (0.5, "coefficient of variation of answers whose mean alone is stated (assumption)"),
    "spread of ShareGPT": (1.0, "202 and 214 tokens are means of conversations that vary as much (assumption)"),
    "cached prompts": (
        100,
        "tokens of the system prompt that requests of a BLIS workload share; what a user writes, and by what a "
        "conversation has grown, is new each time (assumption: its generator's usual length)",
    ),
    "stage": (150.0, "seconds of each stage, of 600: how queues grow shows, and a cell takes less than a second"),
}
"""What an empty cell takes, and why."""
ATTENTION_DP = ("gpt-oss", "DeepSeek-R1", "Qwen3-235B", "Qwen3-30B", "Llama-4-Maverick")
"""Models that TensorRT-LLM's overview runs with attention data parallelism, by parts of their names (perf-overview,
"Running the Benchmark", ``llm_options.yml``)."""
SHAREGPT = (202, 214)
"""Mean lengths of the prompts and answers of ShareGPT in the overview of TensorRT-LLM 0.14."""
PROMPTS: dict[str, int] = {
    "lm-arena-chat": 200, "gpqa": 250, "image-chat": 1200, "video-chat": 3000, "sourcegraph-fim": 400,
}  # fmt: skip
"""Tokens of a prompt of the workloads of ml-energy, which states those of answers alone. Assumptions: a message of a
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
    (1024, 1024): 3000, (8192, 1024): 1500, (1024, 8192): 1500, (32768, 1024): 1000, (1024, 32768): 1000,
    (1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip
"""Requests of a run of trtllm-bench by lengths (TensorRT-LLM, performance overview, "Preparing a Dataset")."""


@dataclass(frozen=True, kw_only=True)
class ServingCell:
    """A measured deployment under a load, in canonical words.

    ``mode`` is one of ``MODES``: a static batch, clients that wait for answers, requests that arrive by themselves, or
    all at once. ``weights`` are in this dtype, "" as the model's configuration has it. ``isl`` and ``osl`` are mean
    tokens of prompts and answers, ``isl_cv`` and ``osl_cv`` their coefficients of variation; ``prompts`` the lengths of
    a batch's prompts where they differ. ``rates`` [requests/s] follow each other, each for ``stage_s``; one without
    ``stage_s`` lasts for ``requests`` and may be infinite. ``one_batch`` runs take their prompts in one pass, those
    without ``graphs`` launch kernel by kernel.

    ``measured`` are figures by ``QUANTITIES``, means but for ``medians``; ``power_w`` is that of all its GPUs together.
    ``steady``: they are of a steady state, rates without ramps and times of a token over all tokens.
    """

    name: str
    source: str
    gpu: str
    model: str
    weights: str
    engine: str
    engine_version: str
    kv_dtype: str
    tp: int
    pp: int
    ep: int
    dp: int
    replicas: int
    n_gpus: int
    one_batch: bool
    speculate: str
    graphs: bool
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    cached_tokens: int
    memory_share: float | None
    mode: str
    concurrency: float | None
    isl: float
    osl: float
    isl_cv: float
    osl_cv: float
    prompts: tuple[int, ...]
    rates: tuple[float, ...]
    stage_s: float
    requests: int
    arrivals: str
    measured: dict[str, float]
    medians: frozenset[str]
    steady: bool
    power_w: float | None
    fault: str
    assumed: tuple[str, ...]

    @property
    def median(self) -> bool:
        """Whether its time of a token is the median over all times between tokens: of a steady state, or of one batch,
        whose sequences go together.
        """
        return (self.steady or self.mode == "static") and "tpot_ms" in self.medians


def source_of(name: str) -> str:
    """Who measured a cell, from the first part of its name."""
    first = name.split("/")[0]
    return "trtllm-docs" if first.startswith("trtllm") else first


def default_of(name: str) -> tuple[Any, str]:
    """The value of one of ``ServingCell.assumed``, and why."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    return PROMPTS[name.removeprefix("isl of ")], "tokens of a prompt of this workload (assumption)"


def serving_cell(row: Row, number: int) -> ServingCell:
    """A row of a table of cells, the ``number``-th.

    Raises:
        DataError: it leaves out what has no default, or states what nobody can run.
    """
    reader = _Reader(row, number)
    mode = reader.mode
    deployed, load = _deployed(reader, mode), _load(reader, mode)
    measured, medians = _measured(reader, mode)
    return ServingCell(
        name=reader.name,
        source=reader.source,
        gpu=reader.text("gpu"),
        model=reader.text("model"),
        weights=reader.text("weight_dtype", DEFAULTS["weight_dtype"][0]),
        mode=mode,
        concurrency=reader.number("concurrency"),
        **deployed,
        **load,
        measured=measured,
        medians=medians,
        steady=reader.source == "mlenergy",
        power_w=reader.number("power_w"),
        fault=reader.text("fault", "") or ("accepted drafts are not told" if deployed["speculate"] else ""),
        assumed=tuple(reader.assumed),
    )


class _Reader:
    """A row, and which defaults were taken for it."""

    def __init__(self, row: Row, number: int) -> None:
        self.row = row
        self.assumed: dict[str, None] = {}
        self.name = self.text("cell", f"row {number}")
        self.source, self.workload = source_of(self.name), self.text("workload", "")

    def text(self, column: str, default: str | None = None) -> str:
        value = self.row.get(column, default)
        if value is None:
            raise DataError(f"{self.name}: {column} is missing")
        return str(value).strip()

    def number(self, column: str) -> float | None:
        value = self.row.get(column)
        try:
            return None if value is None or value != value else float(value)
        except (TypeError, ValueError):
            raise DataError(f"{column} '{shown(value)}' is no number") from None

    def count(self, column: str) -> int | None:
        """How many there are, at least one."""
        value = self.number(column)
        if value is not None and not 1 <= value <= MOST:
            raise DataError(f"{column} = {value:g}: 1 to {MOST:,}")
        return None if value is None else int(value)

    def needed(self, column: str) -> int:
        value = self.count(column)
        if value is None:
            raise DataError(f"{column} is missing")
        return value

    def assume(self, name: str) -> Any:
        """A default, noted."""
        self.assumed[name] = None
        return default_of(name)[0]

    @property
    def mode(self) -> str:
        stated = self.text("mode", "")
        if not stated:
            return "closed" if "concurrency" in self.row else "rate" if "request_rate" in self.row else "offline"
        if stated not in MODES:
            raise DataError(f"mode '{stated}': one of {', '.join(MODES)}")
        return stated

    @property
    def isl(self) -> float:
        if self.count("isl"):
            return float(self.row["isl"])
        if self.workload not in PROMPTS:
            raise DataError("isl is missing")
        return float(self.assume(f"isl of {self.workload}"))

    @property
    def osl(self) -> float:
        return float(self.row["osl"]) if self.needed("osl") else 0.0


def _deployed(reader: _Reader, mode: str) -> dict[str, Any]:
    """Fields of ``ServingCell`` that say what runs, and how it was started."""
    engine = reader.text("engine", "") or reader.assume("engine")
    version = _version(reader, engine)
    kv_dtype = reader.text("kv_dtype", "").replace("auto", "") or reader.assume("kv_dtype")
    full = reader.source == "trtllm-docs" and mode == "offline"
    shares = reader.workload in STAGES and reader.number("prefix_caching") != 0
    return {
        **{"engine": engine.split(" (")[0], "engine_version": version, "kv_dtype": kv_dtype},
        **_degrees(reader, mode, newest=full and not version.startswith("0.")),
        "one_batch": "one-batch" in engine,
        "speculate": _speculation(reader),
        "graphs": reader.number("cuda_graph") != 0,
        **{name: reader.count(name) for name in ("max_num_seqs", "max_num_batched_tokens")},
        "cached_tokens": reader.assume("cached prompts") if shares else 0,
        "memory_share": reader.assume("memory share of trtllm-docs") if full else None,
    }


def _degrees(reader: _Reader, mode: str, newest: bool) -> dict[str, int]:
    """In which ways devices share a model; ``newest``: as TensorRT-LLM's overview from 1.0 on runs it."""
    pp, dp, replicas = (reader.count(name) or 1 for name in ("pp", "dp", "replicas"))
    tp = reader.count("tp") or (reader.count("n_gpus") or pp * dp * replicas) // (pp * dp * replicas)
    n_gpus = reader.count("n_gpus") or tp * pp * dp * replicas
    if mode == "closed":  # Where clients are fewer than replicas, the others have nothing to do.
        replicas = min(replicas, reader.needed("concurrency"))
    ep = reader.count("ep")
    if ep is None and newest and any(name in reader.text("model") for name in ATTENTION_DP):
        reader.assume("attention data parallelism of trtllm-docs")
        tp, dp, ep = 1, tp * dp, tp * dp
    ep = ep or reader.assume("ep")
    return {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "replicas": replicas, "n_gpus": n_gpus}


def _speculation(reader: _Reader) -> str:
    """As ``Speculation.named`` has it, of a draft and how many tokens it makes, ``llama-68m x3``; "" for none."""
    stated = reader.text("spec_decode", "")
    draft, _, tokens = stated.rpartition(" x")
    if stated and not (draft and tokens.isdigit()):
        raise DataError(f"spec_decode '{shown(stated)}': write the draft and its tokens like JackFram/llama-68m x3")
    return f"draft={draft},tokens={tokens},acceptance={reader.assume('acceptance')}" if stated else ""


def _version(reader: _Reader, engine: str) -> str:
    version = reader.text("engine_version", "")
    if not version and reader.source == "argonne" and engine == "vllm":
        return str(reader.assume("engine_version of argonne"))
    if version == "latest" and reader.source == "deplodock":
        return str(reader.assume("engine_version of deplodock"))
    return version if version[:1].isdigit() else str(reader.assume("engine_version"))


def _load(reader: _Reader, mode: str) -> dict[str, Any]:
    """Fields of ``ServingCell`` that say which requests came."""
    fields: dict[str, Any] = {
        "isl": reader.isl, "osl": reader.osl, "isl_cv": 0.0, "osl_cv": 0.0, "prompts": (), "rates": (), "stage_s": 0.0,
        "requests": 0, "arrivals": "",
    }  # fmt: skip
    if mode == "static":
        fields["prompts"] = _prompts(reader)
        if not fields["prompts"]:
            reader.needed("concurrency")
    elif mode == "closed":
        reader.needed("concurrency")
        fields["osl_cv"] = reader.assume("spread of answers") if reader.workload in PROMPTS else 0.0
    elif mode == "offline":
        lengths = (round(fields["isl"]), round(fields["osl"]))
        fields["requests"] = NUMBERS.get(lengths) or reader.assume("number of requests")
    else:
        fields |= _arriving(reader, (round(fields["isl"]), round(fields["osl"])))
    return fields


def _arriving(reader: _Reader, lengths: tuple[int, int]) -> dict[str, Any]:
    rate = reader.number("request_rate")
    if rate is not None and not 0 < rate <= MOST and rate != math.inf:
        raise DataError(f"request_rate = {rate:g}: more than 0, up to {MOST:,}")
    if stages := STAGES.get(reader.workload):
        return {"rates": stages if rate is None else (rate,), "stage_s": reader.assume("stage")}
    if rate is None:
        raise DataError("request_rate is missing")
    docs = reader.source == "trtllm-docs"
    fields: dict[str, Any] = {"rates": (rate,)}
    fields["requests"] = reader.assume("number of requests of trtllm-docs" if docs else "number of requests")
    if docs and lengths == SHAREGPT:
        fields["isl_cv"] = fields["osl_cv"] = reader.assume("spread of ShareGPT")
    if not math.isinf(rate):
        fields["arrivals"] = reader.assume("arrivals")
    return fields


def _prompts(reader: _Reader) -> tuple[int, ...]:
    """Of a batch whose prompts are listed one by one."""
    text = reader.text("prompt_lens", "")
    try:
        return tuple(int(length) for length in text.split())
    except ValueError:
        raise DataError(f"prompt_lens '{shown(text)}': numbers of tokens") from None


def _measured(reader: _Reader, mode: str) -> tuple[dict[str, float], frozenset[str]]:
    """Figures by quantity, and which are medians because there is no mean.

    Of a static batch the prefill is the first token, and the rate is the batch's tokens over its time: what says the
    same twice counts once.
    """
    means = {quantity: reader.number(quantity) for quantity in QUANTITIES}
    middle = {q: reader.number(q.replace("_ms", "_p50_ms")) for q in QUANTITIES if q.endswith("_ms")}
    medians = frozenset(q for q, value in middle.items() if value is not None and means[q] is None)
    stated = {q: middle[q] if q in medians else value for q, value in means.items()}
    figures = {quantity: value for quantity, value in stated.items() if value is not None}
    for first, same in (("prefill_ms", "ttft_ms"), ("e2e_ms", "tokens_per_s")):
        if mode == "static" and first in figures:
            figures.pop(same, None)
    if not figures:
        raise DataError(f"nothing that is compared was measured: {', '.join(QUANTITIES)}")
    if wrong := [quantity for quantity, value in figures.items() if not 0 < value < math.inf]:
        raise DataError(f"{wrong[0]} = {figures[wrong[0]]:g} is no measurement")
    return figures, medians
