"""Memory of training runs, predicted against the allocator's peak, or against whether a run fitted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from neusight.datasets.rows import read_rows, unread_columns
from neusight.datasets.runs import (
    PEAK_DEFAULTS,
    PEAK_NOTES,
    PEAK_READ,
    RUN_NOTES,
    RUN_READ,
    peak_run,
    training_run,
)
from neusight.devices import load_device
from neusight.devices.spec import DeviceSpec
from neusight.distributed.sources import memory
from neusight.engines import AttentionForm, Engine, engine_named
from neusight.errors import DataError, shown
from neusight.evaluation.training import run_of
from neusight.executors.costs import NORMAL_90
from neusight.measured.score import Row, Scored, answered, compared, renamed, some
from neusight.plans.fits import verdict
from neusight.plans.margins import SOURCES, MemoryFit, interval_bytes
from neusight.plans.megatron import FP8_RECIPES, shard_of
from neusight.plans.memory import RankMemory, memory_of
from neusight.plans.states import TrainingStep
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.table_rows import decoder_of_columns

GROUPINGS = (
    ("family",), ("gpu",), ("environment",), ("tp",), ("pp",), ("cp",), ("ep",), ("attention",), ("gpu", "family"),
)  # fmt: skip
WORST = 10
WITHIN = 10.0
"""Percent: errors whose share of rows is reported."""
_CASE = ("case", "gpu", "environment", "family", "tp", "pp", "vp", "cp", "ep")
_RUN = ("model", "framework", "gpu", "num_gpus", "tp", "pp", "vp", "dtype", "seq_len", "micro_batch", "recompute")


_FLAGS = {
    "mamba-num-heads": "mamba_heads", "mamba-head-dim": "mamba_head_dim", "mamba-state-dim": "mamba_state",
    "mamba-num-groups": "mamba_groups", "mtp-use-repeated-layer": "mtp_repeated",
}  # fmt: skip
"""Arguments that are columns of ``decoder_of_columns``."""


_GRAPHED = ("attn", "mlp")


def evaluate_memory(path: str | Path) -> dict[str, Any]:
    """Every row of a table of training runs.

    Args:
        path: parquet or CSV. With a column ``memory_peak_bytes`` (the peak of PyTorch's allocator on the last rank of
            the pipeline) rows are Megatron-LM's with its flags; else each row is a run that fitted, or ``oom``.

    Returns:
        Of peaks, ``rows``: case, gpu, environment, family, attention, tp, pp, vp, cp, ep, moment, predicted_bytes,
        low_bytes, high_bytes, measured_bytes, ape, bias, inside, parts; ``means`` by ``GROUPINGS`` and of all: count,
        mean, median, max, bias, inside (percent of rows in their 90 % interval), width, within (percent of rows within
        10 %); ``left_out``: inside and width of intervals whose spreads are fitted to rows of another family, or of
        another GPU; ``worst`` rows; ``assumed`` defaults with the number of rows. Of runs, ``rows``:
        model, framework, gpu, num_gpus, tp, pp, vp, dtype, seq_len, micro_batch, recompute, allocated_bytes,
        needed_bytes, usable_bytes, fits, ran, right, rank, parts, and predicted, low, high and measured of what the
        allocator reserved; ``means``: count and percent right, of those that ran, those that did not, and all;
        ``reserved``: errors of peaks that were reserved. Both: ``skipped`` with reasons, ``unread``: columns that
        nothing reads, with the number of rows.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = read_rows(Path(path), ("gpu", "layers", "micro_batch"), "training runs")
    peaks = any("memory_peak_bytes" in record for record in records)
    rows, skipped = answered(records, _peak_row if peaks else _verdict_row, _named)
    some(rows, path, skipped)
    if not peaks:
        unread = unread_columns(records, RUN_READ, RUN_NOTES)
        reserved = [{"by": "reserved", **Scored.of(rows, "_reserved_bytes").figures()}]
        return {"rows": rows, "means": _right(rows), "reserved": reserved, "skipped": skipped, "unread": unread}
    return {
        "rows": rows,
        "means": _means(rows),
        "left_out": [_left_out(rows, key) for key in ("family", "gpu")],
        "worst": sorted(rows, key=lambda row: -row["ape"])[:WORST],
        "assumed": _assumed(records),
        "skipped": skipped,
        "unread": unread_columns(records, PEAK_READ, PEAK_NOTES),
    }


def fitted_spreads(rows: Sequence[Row]) -> dict[str, float]:
    """``KEPT`` and ``LIBRARIES`` of ``neusight.plans.margins``, to rows of ``evaluate_memory``: their ratio by maximum
    likelihood of normal errors, their size such that 90 % of errors lie in their interval.
    """
    errors, terms = _errors_bytes(rows), _sources_bytes(rows)

    def spreads(kept: float, libraries: float) -> np.ndarray:
        return _spreads_bytes(terms, {"kept": kept, "libraries": libraries})

    def surprise(shares: tuple[float, float]) -> float:
        return float((np.log(spreads(*shares)) + (errors / spreads(*shares)) ** 2 / 2).sum())

    kept, libraries = min(product(np.geomspace(0.005, 0.1, 60), np.geomspace(0.02, 0.5, 60)), key=surprise)
    size = np.quantile(np.abs(errors) / spreads(kept, libraries), 0.9) / NORMAL_90
    return {"kept": float(kept * size), "libraries": float(libraries * size)}


def _errors_bytes(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row["measured_bytes"] - row["predicted_bytes"] for row in rows], dtype=float)


def _sources_bytes(rows: Sequence[Row]) -> np.ndarray:
    """What peaks have of each of ``SOURCES``, shape (rows, sources)."""
    named = [names for _, names in SOURCES.values()]
    return np.array([[sum(row["parts"].get(name, 0.0) for name in names) for names in named] for row in rows])


def _spreads_bytes(terms: np.ndarray, fitted: dict[str, float]) -> np.ndarray:
    """Standard deviations of peaks of such terms, with some shares in the place of those that ship."""
    shares = np.array([fitted.get(source, share) for source, (share, _) in SOURCES.items()])
    return np.sqrt(((terms * shares) ** 2).sum(axis=1))


def _left_out(rows: Sequence[Row], key: str) -> dict[str, Any]:
    """How many peaks lie in intervals whose spreads were fitted to rows with other values of a key."""
    inside, widths = [], []
    for value in sorted({row[key] for row in rows}):
        own, others = [row for row in rows if row[key] == value], [row for row in rows if row[key] != value]
        if others:
            margins = NORMAL_90 * _spreads_bytes(_sources_bytes(own), fitted_spreads(others))
            inside += [*(np.abs(_errors_bytes(own)) <= margins)]
            widths += [*(200.0 * margins / np.array([row["predicted_bytes"] for row in own]))]
    if not inside:
        return {"left_out": key, "count": 0}
    shares = {"inside": 100 * float(np.mean(inside)), "width": float(np.median(widths))}
    return {"left_out": key, "count": len(inside), **shares}


def _named(record: Row, _number: int) -> dict[str, str]:
    return {"case": str(record.get("case") or record.get("model"))}


def _last(record: Row, **habits: Any) -> RankMemory:
    """The rank that was measured."""
    run = MegatronRun(peak_run(record))
    training = replace(run.training, engine=replace(run.engine, **habits))
    return memory_of(run.decoder, run.plan, training, run.device)[-1]


def _peak_row(record: Row) -> dict[str, Any]:
    measured = record.get("memory_peak_bytes")
    if not measured:
        raise DataError("no memory_peak_bytes: nothing was measured")
    run, rank = MegatronRun(peak_run(record)), _last(record)
    low, high = (end * rank.allocated / rank.total for end in rank.interval)
    figures = compared(rank.allocated, (low, high), measured, "_bytes")
    return {name: run.row.get(name) for name in _CASE} | {
        "attention": run.engine.attention,
        "moment": rank.moment,
        **{column: round(value) if column.endswith("_bytes") else value for column, value in figures.items()},
        "parts": {name: round(value) for name, value in rank.parts.items()},
    }


def _verdict_row(record: Row) -> dict[str, Any]:
    run = run_of(training_run(record))
    ranks, device = memory(run), run.cluster.device
    judged, ran = verdict(ranks, device), not record.get("oom")
    rank = max(ranks, key=lambda each: each.total)
    return {name: record.get(name) for name in _RUN} | {
        "allocated_bytes": round(rank.total),
        "needed_bytes": round(judged.needed_bytes),
        "usable_bytes": round(judged.usable_bytes),
        "fits": judged.fits,
        "ran": ran,
        "right": judged.fits == ran,
        "rank": rank.rank,
        "parts": {name: round(value) for name, value in rank.parts.items()},
        **_reserved_peak(judged, record),
    }


def _reserved_peak(judged: MemoryFit, record: Row) -> dict[str, Any]:
    """What the allocator reserves at most, without the context, beside what a run tells of it.

    Raises:
        DataError: the peak is of something else.
    """
    measured, kind = record.get("peak_memory_bytes"), str(record.get("memory_is", ""))
    if measured is not None and "reserved" not in kind:
        raise DataError(f"memory_is = {shown(kind)}: of peaks of runs, what is reserved is compared")
    terms = {name: size for name, size in judged.terms.items() if name != "context"}
    return compared(sum(terms.values()), interval_bytes(terms), measured, "_reserved_bytes")


def _right(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups = {"ran": [r for r in rows if r["ran"]], "out of memory": [r for r in rows if not r["ran"]], "all": [*rows]}
    return [
        {"by": name, "count": len(of), "right": 100 * float(np.mean([row["right"] for row in of]))}
        for name, of in groups.items()
        if of
    ]


def _means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of all rows, and by each of ``GROUPINGS``."""
    scored = Scored.of(rows, "_bytes")
    groups = [(" ".join(keys) or "all", *group) for keys in ((), *GROUPINGS) for group in scored.groups(*keys)]
    means = []
    for by, names, part in groups:
        within = 100 * float((np.abs(part.bias) <= WITHIN).mean())
        means.append({"by": by, **names, **renamed([part.figures()], {"worst": "max"})[0], "within": within})
    return means


def _assumed(records: Sequence[Row]) -> list[dict[str, Any]]:
    counts = Counter(name for record in records for name in PEAK_DEFAULTS if name not in record)
    return [{"what": name, "value": PEAK_DEFAULTS[name], "count": count} for name, count in sorted(counts.items())]


class MegatronRun:
    """Which model, plan and habits the columns and flags of a run of Megatron-LM stand for.

    Args:
        row: of ``peak_run``.
    """

    def __init__(self, row: Row) -> None:
        self.row, self.flags = row, row["flags"]
        self.device: DeviceSpec = load_device(row["gpu"])

    @property
    def decoder(self) -> Decoder:
        """The model; experts are as wide as dense layers where no flag says otherwise.

        BERT ends in a dense layer with a norm, a bias of the vocabulary, a pooler and a binary head.
        """
        row, hidden, bert = dict(self.row), self.row["hidden"], self.row["family"] == "bert"
        row["moe_ffn"] = int(self.flags.get("moe-ffn-hidden-size") or row["ffn"])
        row |= {column: self.flags[name] for name, column in _FLAGS.items() if name in self.flags}
        decoder = decoder_of_columns({**row, "model": row.get("case") or row["family"]})
        extra = 2 * (hidden * hidden + hidden) + 2 * hidden + 2 * hidden + 2
        return replace(decoder, head_bias=True, extra=extra) if bert else decoder

    @property
    def plan(self) -> Plan:
        """The distributed optimizer is ZeRO 1; its instances share among a part of the replicas each."""
        row, instances = self.row, self.row["optimizer_instances"]
        half = "bfloat16" if row["grad_reduce_in_bf16"] else "float32"
        return Plan(
            **{name: row[name] for name in ("dp", "tp", "pp", "cp", "ep")},
            vp=max(1, len(self._layout) // row["pp"]) if self._layout else row["vp"],
            etp=(row.get("etp") or 0) if row.get("experts") else 0,
            micro_batch_size=row["micro_batch"],
            global_batch_size=row["global_batch"],
            sequence_parallel=row["sequence_parallel"],
            shard=self._shard,
            shard_group=row["dp"] * row["cp"] // instances if instances > 1 else 0,
            recompute="+".join(str(row.get("recompute_modules", "")).strip("[]").split()) or row["recompute"],
            recompute_layers=row["recompute_layers"],
            overlap_grad_reduce=row["overlap_grad_reduce"],
            overlap_param_gather=row["overlap_param_gather"],
            gradient_dtype="float16" if row["dtype"] == "float16" else half,
        )

    @property
    def _graphs(self) -> str:
        """What Transformer Engine captures: by default whole layers (``--cuda-graph-scope``)."""
        if "cuda_graph" not in self.row:
            return ""
        named = self.flags.get("cuda-graph-modules") or self.flags.get("cuda-graph-scope") or " ".join(_GRAPHED)
        return str(named).strip("[]").replace(",", " ")

    @property
    def _shard(self) -> str:
        if strategy := str(self.row.get("fsdp", "")):
            return shard_of(strategy)
        return "zero1" if self.row["distributed_optimizer"] else "none"

    @property
    def training(self) -> TrainingStep:
        """The step."""
        return TrainingStep(
            seq_len=self.row.get("decoder_seq_len", self.row["seq_len"]),
            source_len=self.row["seq_len"] if "decoder_seq_len" in self.row else 0,
            dtype=self.row["dtype"],
            graphed=tuple(word for word in _GRAPHED if word in str(self._graphs).split()),
            products=FP8_RECIPES[self.row.get("fp8_recipe", "delayed")] if "fp8" in self.row else "",
            optimizer=self.row["optimizer"],
            engine=self.engine,
            chunk_layers=self._chunk_layers(),
            chunk_group=int(self.flags.get("microbatch-group-size-per-virtual-pipeline-stage", 0)),
        )

    @property
    def engine(self) -> Engine:
        """Query-key scaling implies softmax in float32, whose result stays in it where no kernel fuses it."""
        fused = self.row["transformer_impl"] == "transformer_engine" and self.flags.get("spec") != "local"
        wide = self.row["softmax_in_fp32"] or "apply-query-key-layer-scaling" in self.flags
        deferred = "defer-embedding-wgrad-compute" in self.flags
        return replace(
            engine_named("megatron-te"),
            vocabulary_multiple=1,
            attention=self._attention(fused),
            attention_dropout=self.row["attention_dropout"] > 0,
            hidden_dropout=self.row["hidden_dropout"] > 0,
            probability_bytes=4 if wide and "no-masked-softmax-fusion" in self.flags else 2,
            dense_mask=True,
            logit_bytes=10.0 if "cross-entropy-loss-fusion" in self.flags else 6.0,
            deferred_heads=int(self.flags.get("wgrad-deferral-limit", 0)) if deferred else 0,
            deterministic=self.row["deterministic"],
            transformer_engine=fused,
            wide_weights=not self.row.get("fp8_param_gather"),
            grouped_experts=self.row["moe_grouped_gemm"],
            score_buffer=not fused,
        )

    def _attention(self, fused: bool) -> AttentionForm:
        """``auto``: Transformer Engine takes cuDNN's from Hopper on, FlashAttention before
        (transformer_engine/pytorch/attention/dot_product_attention/utils.py, ``get_attention_backend``).
        """
        backend = self.row["attention_backend"]
        if not fused or backend in ("unfused", "local"):
            return "eager"
        if backend == "flash":
            return "flash"
        return "cudnn" if self.device.facts.reads_shared_memory else "flash"

    @property
    def _layout(self) -> tuple[int, ...]:
        """Layers of each chunk of the pipeline, where its cuts are written among the layers."""
        chunks = str(self.row.get("layer_pattern", "")).partition("/")[0].split("|")
        if "pp_layout" in self.row:
            written = str(self.row["pp_layout"]).replace("\\", "")
            repeated = re.sub(r"(?:\(([^()]*)\)|(\w))\*(\d+)", lambda m: (m[1] or m[2]) * int(m[3]), written)
            return tuple(chunk.count("t") for chunk in repeated.split("|"))
        return tuple(map(len, chunks)) if len(chunks) > 1 else ()

    def _chunk_layers(self) -> tuple[int, ...]:
        """Uneven pipelines: fewer layers at both ends, or one less where embedding and loss count as a layer each."""
        pp, chunks, layers = self.row["pp"], self.row["pp"] * self.row["vp"], self.row["layers"]
        if self._layout:
            return self._layout
        first, last = (self.flags.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
        if first and last and pp > 2:
            return (int(first), *((layers - int(first) - int(last)) // (pp - 2),) * (pp - 2), int(last))
        if layers % chunks and (layers + 2) % chunks == 0:
            each = (layers + 2) // chunks
            return (each - 1, *(each,) * (chunks - 2), each - 1)
        return ()
