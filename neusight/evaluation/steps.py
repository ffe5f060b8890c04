"""Whole models as other people's benchmarks measured them, predicted against measured. All errors in percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.benchmarks import (
    BERT_MODELS,
    STEP_NOTES,
    STEP_READ,
    StepRow,
    benchmark_step,
)
from neusight.datasets.published_steps import NEURON_NOTES, NEURON_READ, TINY_NOTES, TINY_READ, measured_steps
from neusight.datasets.rows import unread_columns
from neusight.devices import DeviceSpec, load_device
from neusight.devices.slices import core_of
from neusight.engines import Libraries
from neusight.errors import DataError
from neusight.evaluation.hosts import IDLE, HostFit, TimedCall, half_of
from neusight.evaluation.versions import Version, VersionFit
from neusight.measured.score import Row, Scored, Selection, answered, compared, some
from neusight.workloads import load_workload
from neusight.workloads.dispatch import step_kinds

if TYPE_CHECKING:
    import torch

    from neusight.api import Predictor
    from neusight.estimates import Estimate

BY = ("gpu", "workload", "precision", "layout", "family")
_NAMES = ("gpu", "model", "workload", "precision")
_BASE, _LARGE = (
    {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width,
    }
    for layers, width, heads in ((12, 768, 12), (24, 1024, 16))
)  # fmt: skip
ENCODERS: dict[str, tuple[str, dict[str, int]]] = {
    "albert-base-v2": ("Albert", {**_BASE, "embedding_size": 128}),
    "bert-base-uncased": ("Bert", _BASE),
    "bert-large-uncased": ("Bert", _LARGE),
    "distilbert-base-uncased": ("DistilBert", {"n_layers": 6}),
    "google/electra-base-discriminator": ("Electra", {**_BASE, "embedding_size": 768}),
    "roberta-base": ("Roberta", {**_BASE, "vocab_size": 50265}),
    "roberta-large": ("Roberta", {**_LARGE, "vocab_size": 50265}),
    "xlm-roberta-base": ("XLMRoberta", {**_BASE, "vocab_size": 250002}),
}
"""Encoders of the hub, by the family of transformers and the sizes of their configurations."""
_LEAST_S = 1e-6
_DECIDING = 0.5
"""Share of a step from which its kernels decide what it takes (assumption)."""
_BERT_SIZES = dict(zip(BERT_MODELS, ((12, 768, 12), (24, 1024, 16)), strict=True))
"""Layers, width and heads: Devlin et al. 2019, section 3."""


def evaluate_steps(
    path: Path,
    predictor: Predictor,
    selection: Selection | None = None,
    progress: Callable[[int, int], None] | None = None,
    hosts: str = "own",
) -> dict[str, Any]:
    """Predict every step of a table and compare.

    Args:
        path: parquet or CSV with gpu, model, step_ms and the columns of its benchmark, see
            ``neusight.datasets.benchmarks``.
        predictor: whose predictions.
        selection: which rows: of some GPUs, and so many of them, drawn at random; default all.
        progress: called with (done, of) a row.
        hosts: what the host of a ``run`` takes for a step, where rows tell it, is fitted to ``own``, half of its
            models, for the other half, or to ``others``, steps of all other runs. What kernels of a version of the
            libraries take is fitted to steps on other GPUs in any case.

    Returns:
        ``rows``: gpu, model, workload, precision, layout, compile, batch, image_size, predicted_ms, low_ms, high_ms,
        measured_ms, ape, bias, inside (the 90 % interval), covered (no operator needed the fallback), family of the
        model, ``fits``: whether the step's memory does, ``failed_fits``: whether that of the next larger batch does,
        where that was tried and did not run, else None, and ``shares``: of the predicted time, by kind of kernel.
        ``means`` by ``BY``, ``by_kind``: of kernels, see ``errors_by_kind``, and ``total``. ``memory``: of both kinds
        of steps the count, and the percentage whose memory is as it was. ``assumed``: what rows do not tell.
        ``skipped``: rows that are not compared, each with its reason. ``unread``: columns that nothing reads, with the
        number of rows. Where a meter was read also predicted_j, low_j, high_j, measured_j.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = (selection or Selection()).of(measured_steps(path))

    fits = _Fits.of(records, predictor)

    def ask(record: Row) -> dict[str, Any]:
        row = benchmark_step(record)
        estimate = _estimate(row, predictor, **fits.options(row, hosts))
        return _row(row, estimate) | {"failed_fits": _failed_fits(row, predictor)}

    rows, skipped = answered(records, ask, lambda row, _: {key: row.get(key) for key in _NAMES}, progress)
    some(rows, path, skipped)
    scored = Scored.of([row | {name: str(row[name]) for name in BY} for row in rows], "_ms")
    return {
        "rows": rows,
        "means": {name: scored.summary(name) for name in BY},
        "by_kind": errors_by_kind(rows),
        "total": scored.figures(),
        "memory": memory_verdicts(rows),
        "assumed": sorted({text for row in rows for text in row["assumed"]}),
        "skipped": skipped,
        "unread": unread_columns(records, STEP_READ | TINY_READ | NEURON_READ, STEP_NOTES | TINY_NOTES | NEURON_NOTES),
    }


def _estimate(row: StepRow, predictor: Predictor, **options: Any) -> Estimate:
    device: DeviceSpec | str = row.gpu
    model: Any = row.model
    inputs = None
    if row.model in BERT_MODELS:
        model, inputs = question_answering(row)
    if row.worker == "core":
        device, (model, inputs) = core_of(load_device(row.gpu)), encoder(row)
    return predictor.estimate(model, device, inputs=inputs, allow_fallback=True, **{**row.options, **options})


def _group(row: StepRow) -> tuple[str, ...]:
    """Steps whose host takes alike: of one run, GPU and mode."""
    return str(row.run), row.gpu, str(row.options["mode"])


def _version(row: StepRow) -> Version:
    return row.version, str(row.options["dtype"]), str(row.options["mode"])


@dataclass(frozen=True, kw_only=True)
class _Fits:
    """Conditions of steps that other steps tell."""

    hosts: HostFit
    versions: VersionFit
    usual: Callable[[str], Libraries | None]

    @classmethod
    def of(cls, records: Sequence[Row], predictor: Predictor) -> _Fits:
        """By all rows; those without an answer are named where they are compared."""
        steps: list[tuple[StepRow, float]] = []

        def kernels_of(record: Row) -> None:
            row = benchmark_step(record)
            if row.run is not None or row.version in shared:
                steps.append((row, _estimate(row, predictor, host=IDLE).latency_s))

        shared = _shared_versions(records)
        answered(records, kernels_of, lambda row, _: {})
        versions = VersionFit(errors=_version_errors(steps))
        calls: dict[tuple[tuple[str, ...], int], list[TimedCall]] = {}
        for row, kernels_s in steps:
            if row.run is not None:
                kinds = step_kinds(load_workload(row.model, allow_fallback=True, **row.options))
                kernels_s *= versions.libraries(_version(row), row.gpu).factor
                call = TimedCall(_waited_s(row), kernels_s, kinds)
                calls.setdefault((_group(row), half_of(row.model)), []).append(call)
        return cls(hosts=HostFit(calls=calls), versions=versions, usual=predictor.libraries_on)

    def options(self, row: StepRow, hosts: str) -> dict[str, Any]:
        """Those of a row's estimate: no host where steps follow each other, no libraries where nobody knows them."""
        host = self.hosts.host(_group(row), half_of(row.model), hosts)
        known = None if row.run is None else replace(host, copied_bytes=row.copied_bytes)
        libraries = self.versions.libraries(_version(row), row.gpu) if row.version else None
        untold = self.usual(row.gpu) if row.version and not self.versions.tells(_version(row), row.gpu) else None
        return {"host": known, "libraries": untold or libraries}


def _shared_versions(records: Sequence[Row]) -> set[str]:
    """Versions that steps on several boards tell of."""
    boards: dict[str, set[str]] = {}

    def count(record: Row) -> None:
        row = benchmark_step(record)
        boards.setdefault(row.version, set()).add(row.gpu)

    answered(records, count, lambda row, _: {})
    return {version for version, some in boards.items() if version and len(some) > 1}


def _waited_s(row: StepRow) -> float:
    """Time of a step without what it copies from its host [s]."""
    return max(1e-3 * row.measured_ms - replace(IDLE, copied_bytes=row.copied_bytes).before_s, _LEAST_S)


def _version_errors(steps: Sequence[tuple[StepRow, float]]) -> dict[tuple[Version, str], list[float]]:
    """Of steps that kernels decide, not the host."""
    errors: dict[tuple[Version, str], list[float]] = {}
    for row, kernels_s in steps:
        if row.version and kernels_s > _DECIDING * _waited_s(row):
            errors.setdefault((_version(row), row.gpu), []).append(float(np.log(_waited_s(row) / kernels_s)))
    return errors


def question_answering(row: StepRow) -> tuple[Callable[[], torch.nn.Module], dict[str, Any]]:
    """A function that builds BERT with the head for SQuAD, start and end of the answer (Devlin et al. 2019, 4.2), and
    its inputs.
    """
    from neusight.workloads.tensors import TensorSpec

    layers, width, heads = _BERT_SIZES[row.model]

    def build() -> torch.nn.Module:
        from transformers import BertConfig, BertForQuestionAnswering

        config = BertConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
        )
        config._attn_implementation = "eager"
        return BertForQuestionAnswering(config)

    build.__name__ = row.model
    shape = int(row.options["batch"]), int(row.seq_len or 0)
    names = ("input_ids", "token_type_ids", "start_positions", "end_positions")
    shapes = (shape, shape, shape[:1], shape[:1])
    tokens = {name: TensorSpec(each, "int64") for name, each in zip(names, shapes, strict=True)}
    return build, tokens | {"attention_mask": TensorSpec((shape[0], 1, 1, shape[1]), "float32")}


def encoder(row: StepRow) -> tuple[Callable[[], torch.nn.Module], dict[str, Any]]:
    """A function that builds an encoder of ``ENCODERS`` with a head that classifies sequences, and its inputs.

    Raises:
        DataError: another model.
    """
    from neusight.workloads.tensors import TensorSpec

    if row.model not in ENCODERS:
        raise DataError(f"{row.model} is not estimated: {', '.join(ENCODERS)} are")
    family, sizes = ENCODERS[row.model]

    def build() -> torch.nn.Module:
        import transformers

        config = getattr(transformers, f"{family}Config")(**sizes)
        config._attn_implementation = "eager"
        return getattr(transformers, f"{family}ForSequenceClassification")(config)

    build.__name__ = row.model
    shape = int(row.options["batch"]), int(row.seq_len or 0)
    return build, {name: TensorSpec(shape, "int64") for name in ("input_ids", "attention_mask")}


def _failed_fits(row: StepRow, predictor: Predictor) -> bool | None:
    """Whether the batch that did not run would have fitted; None where there is none."""
    return None if row.batch_failed is None else _estimate(row, predictor, batch=row.batch_failed).memory.fits


def memory_verdicts(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Steps that ran and fit, and batches that did not run and do not: their count, and the percentage."""
    ran = [row["fits"] for row in rows]
    failed = [not row["failed_fits"] for row in rows if row["failed_fits"] is not None]
    named = {"ran_fits": ran, "failed_does_not_fit": failed}
    return {name: {"count": len(right), "right": 100 * float(np.mean(right))} for name, right in named.items() if right}


def _row(row: StepRow, estimate: Estimate) -> dict[str, Any]:
    low_s, high_s = estimate.interval
    return {
        **row.columns,
        **compared(1e3 * estimate.latency_s, (1e3 * low_s, 1e3 * high_s), row.measured_ms, "_ms"),
        **_energies(row, estimate),
        "covered": not estimate.uncovered,
        "fits": estimate.memory.fits,
        "family": str(row.columns["model"]).split("_")[0].rstrip("0123456789"),
        "shares": _shares(estimate),
        "assumed": row.assumed,
    }


def _energies(row: StepRow, estimate: Estimate) -> dict[str, Any]:
    """Of the board, beside the meter where one was read."""
    energy = estimate.board_energy
    if row.energy_j is None or energy is None:
        return {}
    figures = compared(energy.expected_j, (energy.low_j, energy.high_j), row.energy_j, "_j")
    return {name: figures[name] for name in ("predicted_j", "low_j", "high_j", "measured_j")}


def _shares(estimate: Estimate) -> dict[str, float]:
    """Of the predicted time, by what runs: convolutions by kind, other kernels by family."""
    total_s: dict[str, float] = {}
    for row in estimate.by_kernel:
        kind = _kind(row.kernel, row.family)
        total_s[kind] = total_s.get(kind, 0.0) + row.total_s
    whole = sum(total_s.values())
    return {kind: value / whole for kind, value in sorted(total_s.items())}


def _kind(described: str, family: str) -> str:
    if family != "conv2d":
        return family or "wait"
    if " groups " in described:
        return "grouped convolution"
    return "1x1 convolution" if ", 1x1" in described else "convolution"


def errors_by_kind(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each kind of kernel the mean bias of rows, weighted by its share of their time [%], and that share [%].

    What a kind is blamed for is what rows that it takes most of are wrong by; kinds that always occur together share
    the blame.
    """
    kinds = sorted({kind for row in rows for kind, share in row["shares"].items() if share})
    bias = np.array([row["bias"] for row in rows])
    blamed = []
    for kind in kinds:
        share = np.array([row["shares"].get(kind, 0.0) for row in rows])
        blamed.append(
            {"kind": kind, "share": 100 * float(share.mean()), "bias": float(np.average(bias, weights=share))}
        )
    return sorted(blamed, key=lambda row: -row["share"])
