"""Language models as they were served, predicted against measured, cell by cell. All errors in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, NeusightError, nearest, shown
from neusight.paths import read_json
from neusight.serving import Deployment, ServingEstimate, serve
from neusight.serving.cells import DEFAULTS, PROMPTS, Question, built_by, question_of, served_as, source_of
from neusight.serving.deployment import share_prices
from neusight.serving.load import longest_of
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec

MODELS = "models.json"
FULL = 0.97
"""Share of the KV cache beyond which there is no room for another request."""
GROUPINGS = (("source",), ("mode",), ("gpu",), ("engine",), ("quantity",), ("source", "quantity"))


Prepare = Callable[[Deployment], Deployment]


@dataclass(frozen=True, kw_only=True)
class Picked:
    """Which rows of a table are asked: of one source, of some GPUs, and of those ``limit`` that a seed draws; default
    all.
    """

    source: str = ""
    gpus: tuple[str, ...] = ()
    limit: int | None = None
    seed: int = 0


def evaluate_serving(
    path: Path,
    predictor: Predictor,
    models: Path | None = None,
    picked: Picked | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    prepare: Prepare | None = None,
) -> dict[str, Any]:
    """Predict every cell of measured serving and compare.

    Args:
        path: parquet of cells with gpu, model and what they measured; whatever else is empty or missing takes the
            defaults of ``neusight.serving.cells``.
        predictor: whose predictions.
        models: file with configurations by the model's name; default ``models.json`` beside the cells where there is
            one. Other models are those that the program knows.
        picked: which rows.
        progress: called with (done, of) a cell.
        prepare: called with each deployment, gives the one that is loaded: with other constants of its engine, say.

    Returns:
        ``rows``, one a cell and quantity (prefill_ms, ttft_ms, tpot_ms, e2e_ms, tokens_per_s): cell, source, gpu,
        n_gpus, engine, model, mode, concurrency, isl, osl, quantity, predicted, low, high, measured, ape, bias, inside
        (the 90 % interval), fault, limited_by. ``means`` and ``means_all``: of rows without fault, and of all, by
        ``by``: count, mean, median, bias, inside. ``assumed``: defaults taken, each with its reason and the number of
        cells. ``skipped``: cells that are not compared, each with its reason.

    Raises:
        DataError: no such file, a foreign file, an unknown source, or no cell left.
    """
    questions, skipped = _questions(_records(Path(path), picked or Picked()))
    decoders = _Decoders(_models_file(Path(path), models))
    devices = _Devices(Path(path))
    rows: list[dict[str, Any]] = []
    done, of = len(skipped), len(questions) + len(skipped)
    for group in _grouped(questions):
        for question, found in _answers(group, predictor, decoders, devices, prepare):
            if isinstance(found, ServingEstimate):
                rows += compared(question, found)
            else:
                skipped.append({"cell": question.cell, "reason": str(found)})
            done += 1
            if progress:
                progress(done, of)
    if not rows:
        raise DataError(f"no cell of {path} can be compared: {skipped[0]['reason']}")
    clean = [row for row in rows if not row["fault"]]
    return {
        "rows": rows,
        "means": means(clean),
        "means_all": means(rows),
        "assumed": _assumed(questions),
        "skipped": skipped,
    }


def deployed_cells(
    path: Path, predictor: Predictor, models: Path | None = None, picked: Picked | None = None
) -> Iterator[list[tuple[Question, Deployment]]]:
    """Every cell that can be asked with what it deploys, those of the same kernels together.

    Raises:
        DataError: no such file, or a foreign file.
    """
    questions, _ = _questions(_records(Path(path), picked or Picked()))
    decoders, devices = _Decoders(_models_file(Path(path), models)), _Devices(Path(path))
    for group in _grouped(questions):
        found = zip(group, _deployments(group, predictor, decoders, devices), strict=True)
        yield [(question, deployment) for question, deployment in found if isinstance(deployment, Deployment)]


def _records(path: Path, picked: Picked) -> list[dict[str, Any]]:
    from neusight.datasets.schema import read_parquet

    table = read_parquet(path)
    if missing := [name for name in ("gpu", "model") if name not in table.column_names]:
        raise DataError(f"{path} has no column {' and '.join(missing)}: it is no table of serving cells")
    records: list[dict[str, Any]] = table.to_pylist()
    if picked.source:
        sources = sorted({source_of(str(record.get("cell", ""))) for record in records})
        if picked.source not in sources:
            raise DataError(
                f"no cell of source '{picked.source}'{nearest(picked.source, sources)}: {', '.join(sources)}"
            )
        records = [record for record in records if source_of(str(record.get("cell", ""))) == picked.source]
    if picked.gpus:
        records = [record for record in records if record["gpu"] in picked.gpus]
    if picked.limit is not None and picked.limit < len(records):
        chosen = np.random.default_rng(picked.seed).choice(len(records), picked.limit, replace=False)
        records = [records[at] for at in sorted(chosen)]
    return records


def _questions(records: Sequence[Mapping[str, Any]]) -> tuple[list[Question], list[dict[str, str]]]:
    questions, skipped = [], []
    for number, record in enumerate(records, start=1):
        try:
            questions.append(question_of(record, number))
        except NeusightError as error:
            skipped.append({"cell": str(record.get("cell") or f"row {number}"), "reason": str(error)})
    return questions, skipped


def _grouped(questions: Sequence[Question]) -> list[list[Question]]:
    groups: dict[Any, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.kernels, []).append(question)
    return list(groups.values())


def _models_file(path: Path, models: Path | None) -> dict[str, Any]:
    file = models or path.parent / MODELS
    if models is None and not file.is_file():
        return {}
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file} holds no configurations by name of models")
    return content


class _Decoders:
    """Models as cells serve them: of the file, else known ones."""

    def __init__(self, configs: Mapping[str, Any]) -> None:
        self.configs = configs

    def of(self, question: Question) -> Decoder:
        model = question.model
        config = self.configs.get(model)
        if config is not None and not isinstance(config, Mapping):
            raise DataError(f"no configuration of '{model}' but {shown(config)}: give that of a config.json")
        plain = known_decoder(model) if config is None else decoder_of(config, model)
        return built_by(served_as(plain, model, question.weights), question.setup)


class _Devices:
    """Of the data set of the cells, else of the catalogue."""

    def __init__(self, path: Path) -> None:
        from neusight.datasets import devices_beside

        self.beside = devices_beside(path)

    def of(self, gpu: str) -> DeviceSpec:
        from neusight.datasets import device_of

        return device_of(gpu, self.beside)


def _answers(
    group: Sequence[Question],
    predictor: Predictor,
    decoders: _Decoders,
    devices: _Devices,
    prepare: Prepare | None = None,
) -> list[tuple[Question, ServingEstimate | NeusightError]]:
    """Estimates of questions about the same kernels, or why there is none."""
    found = _deployments(group, predictor, decoders, devices)
    return [(question, _asked(question, deployment)) for question, deployment in zip(group, found, strict=True)]


def _deployments(
    group: Sequence[Question], predictor: Predictor, decoders: _Decoders, devices: _Devices
) -> list[Deployment | NeusightError]:
    """Of questions about the same kernels, whose passes are priced once for all; or why there is none."""
    first = group[0]
    try:
        decoder, device = decoders.of(first), devices.of(first.gpu)
    except NeusightError as error:
        return [error] * len(group)
    found = [_deployed(question, predictor, decoder, device) for question in group]
    able = [deployment for deployment in found if isinstance(deployment, Deployment)]
    shared = iter(share_prices(able) if able else ())
    return [next(shared) if isinstance(deployment, Deployment) else deployment for deployment in found]


def _deployed(
    question: Question, predictor: Predictor, decoder: Decoder, device: DeviceSpec
) -> Deployment | NeusightError:
    try:
        longest = longest_of(question.load)
        setup = {f.name: getattr(question.setup, f.name) for f in fields(question.setup)}
        deployment = predictor.deployment(decoder, device, longest, question.options, **setup)
        _ = deployment.limits
    except NeusightError as error:
        return error
    return deployment


def _asked(question: Question, deployment: Deployment | NeusightError) -> ServingEstimate | NeusightError:
    try:
        return deployment if isinstance(deployment, NeusightError) else serve(deployment, question.load)
    except NeusightError as error:
        return error


def compared(question: Question, estimate: ServingEstimate) -> list[dict[str, Any]]:
    """A row for each figure that a cell measured."""
    told = {name: getattr(question, name) for name in ("cell", "source", "gpu", "n_gpus")}
    told |= {"engine": question.setup.engine}
    told |= {name: getattr(question, name) for name in ("model", "mode", "concurrency", "isl", "osl")}
    rows = []
    for quantity, measured in question.measured.items():
        predicted, low, high = figure_of(question, estimate, quantity)
        error = 100 * (predicted / measured - 1)
        rows.append(
            told
            | {"quantity": quantity, "predicted": predicted, "low": low, "high": high, "measured": measured}
            | {"ape": abs(error), "bias": error, "inside": low <= measured <= high, "fault": question.fault}
            | {"limited_by": limited_by(estimate, quantity)}
        )
    return rows


def limited_by(estimate: ServingEstimate, quantity: str) -> str:
    """What a figure hangs on, in words: a queue or a cache that is full, and the largest part of its passes."""
    first = estimate.prefill if quantity in ("prefill_ms", "ttft_ms") else estimate.decode
    limiter = first or estimate.prefill or estimate.decode
    full = "a queue that grows" if estimate.diverges else "a full KV cache" if estimate.kv_use > FULL else ""
    part = f"{limiter.part} {100 * limiter.share:.0f} %, {limiter.resource}" if limiter else ""
    return "; ".join(said for said in (full, part) if said)


def figure_of(question: Question, estimate: ServingEstimate, quantity: str) -> tuple[float, float, float]:
    """A quantity of an estimate as the cell measured it, and its interval, in the quantity's unit.

    A static batch is done when its slowest sequence is.
    """
    if quantity == "tokens_per_s":
        rate = estimate.steady_output_tokens_per_s if question.steady else estimate.output_tokens_per_s
        return rate.mean, rate.low, rate.high
    times = {"prefill_ms": estimate.ttft_s, "ttft_ms": estimate.ttft_s, "e2e_ms": estimate.e2e_s}
    found = times.get(quantity, estimate.itl_s if question.median else estimate.tpot_s)
    slowest = question.mode == "static" and quantity != "tpot_ms"
    value = (found.p99 if slowest else found.p50 if quantity in question.medians else None) or found.mean
    scale = 1e3 * value / found.mean
    return 1e3 * value, scale * found.low, scale * found.high


def means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Errors by each of ``GROUPINGS`` and in all."""
    found = [{"by": "all", **_mean(rows)}] if rows else []
    for keys in GROUPINGS:
        groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
        for names in sorted(groups):
            found.append({"by": " ".join(keys), **dict(zip(keys, names, strict=True)), **_mean(groups[names])})
    return found


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    apes = [row["ape"] for row in rows]
    return {
        "count": len(rows),
        "mean": float(np.mean(apes)),
        "median": float(np.median(apes)),
        "bias": float(np.mean([row["bias"] for row in rows])),
        "inside": 100 * float(np.mean([row["inside"] for row in rows])),
    }


def _assumed(questions: Sequence[Question]) -> list[dict[str, Any]]:
    counts = Counter(what for question in questions for what in question.assumed)
    return [{"what": what, **_reason(what), "count": count} for what, count in sorted(counts.items())]


def _reason(what: str) -> dict[str, Any]:
    if what in DEFAULTS:
        value, reason = DEFAULTS[what]
        return {"value": value, "reason": reason}
    return {
        "value": PROMPTS[what.removeprefix("isl of ")],
        "reason": "tokens of a prompt of this workload (assumption)",
    }
