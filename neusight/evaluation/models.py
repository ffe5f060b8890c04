"""Whole models, predicted against measured, row by row. All errors in percent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, NeusightError
from neusight.plans.plan import Plan

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.estimates import Estimate

FUSED = "fusion"
"""Option of rows that were measured with ``torch.compile``."""
_ASKED = ("gpu", "model", "mode", "batch", "seq_len", "option", "dtype", "attention", "optimizer")


def evaluate_models(
    path: Path,
    configs: Path,
    predictor: Predictor,
    gpus: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Predict every whole-model measurement and compare.

    A training row is forward to the logits, backward from the gradient of the loss, and the step of the optimizer
    where it names one; the loss itself is left out. Devices come from the data set of the file where it has them.
    Where a table of measured operators lies beside it, steps of attention are those that were measured.

    Args:
        path: parquet with gpu, model, mode, batch, seq_len, option, e2e_ms; attention and optimizer where it has them.
        configs: folder with ``<model>.json`` for the models named there.
        predictor: whose predictions.
        gpus: keep rows of these; default all.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: gpu, model, mode, batch, seq_len, option, dtype, attention, optimizer, predicted_ms, low_ms, high_ms,
        measured_ms, ape, and forward and backward alike where they were measured; ``covered`` says that no kernel
        needed the fallback, ``inside`` that the interval holds the measurement. ``means`` by gpu, mode and option,
        ``by_vendor``, and ``total``: count, mape, max_ape, covered, inside. ``skipped``: rows that are not compared,
        each with its reason.

    Raises:
        DataError: no such file or folder, a foreign file, or no row left.
        DeviceError: a GPU that neither the catalogue nor the data set of the file has.
    """
    records, devices = _records(Path(path), Path(configs), gpus)
    rows, skipped = [], []
    for done, record in enumerate(records, start=1):
        try:
            estimate = _predicted(Path(path), record, Path(configs), devices, predictor)
            added_s = _as_measured(Path(path).parent, record, Path(configs), devices, predictor)
            rows.append(_compared(record, estimate, added_s))
        except NeusightError as error:
            skipped.append({**_asked(record), "reason": str(error)})
        if progress:
            progress(done, len(records))
    if not rows:
        why = skipped[0]["reason"] if skipped else f"it has none of {', '.join(gpus or ('any GPU',))}"
        raise DataError(f"no row of {path} can be compared: {why}")
    return {"rows": rows, **_means(rows, devices), "skipped": skipped}


def _records(
    path: Path, configs: Path, gpus: Sequence[str] | None
) -> tuple[list[dict[Any, Any]], dict[str, DeviceSpec]]:
    """The rows asked for, and their devices by id."""
    from neusight.datasets import device_of, devices_beside, load_models

    if not configs.is_dir():
        raise DataError(f"{configs} is not a folder: give the one that holds <model>.json for the models of {path}")
    frame = load_models(path)
    records = frame[frame["gpu"].isin(list(gpus))].to_dict("records") if gpus else frame.to_dict("records")
    beside = devices_beside(path)
    return records, {gpu: device_of(gpu, beside) for gpu in {record["gpu"] for record in records}}


def _asked(record: Mapping[Any, Any]) -> dict[str, Any]:
    return {key: record[key] for key in _ASKED}


def _predicted(
    path: Path, record: Mapping[Any, Any], configs: Path, devices: Mapping[str, DeviceSpec], predictor: Predictor
) -> Estimate:
    """Raises what says why the row cannot be compared."""
    config = configs / f"{record['model']}.json"
    if not config.is_file():
        raise DataError(f"no {config.name} among the configurations")
    return predictor.estimate(
        config,
        devices[record["gpu"]],
        mode=record["mode"],
        batch=int(record["batch"]),
        seq_len=None if record["seq_len"] is None else int(record["seq_len"]),
        dtype=record["dtype"],
        allow_fallback=True,
        **_run(path.parent, record),
    )


def _run(folder: Path, record: Mapping[Any, Any]) -> dict[str, Any]:
    """How the row's model was run: by itself, compiled, or on several GPUs.

    On several GPUs a whole step of Megatron-LM was measured, whose optimizer is Apex's fused Adam.
    """
    option = record["option"]
    if option in ("", FUSED):
        return {"optimizer": record["optimizer"], **_engine(folder, record)}
    fused = {"optimizer": "adam", "fused_optimizer": True} if record["mode"] == "training" else {}
    return {"attention": record["attention"], "plan": plan_named(option, int(record["batch"])), **fused}


def plan_named(option: str, batch: int) -> Plan:
    """The plan that ``dp4``, ``tp4`` or ``pp4_1`` names: degree, and after it the number of micro-batches.

    Args:
        option: of a row.
        batch: samples of all GPUs together.

    Raises:
        DataError: another option. ModelError: replicas or micro-batches do not divide the batch.
    """
    found = re.fullmatch(r"(dp|tp|pp)(\d+)(?:_(\d+))?", option)
    if found is None:
        raise DataError(f"option '{option}' is not estimated: one of {FUSED}, dp<n>, tp<n>, pp<n>_<micro-batches>")
    kind, degree, passes = found.group(1), int(found.group(2)), int(found.group(3) or 1)
    shares = passes * (degree if kind == "dp" else 1)
    return Plan.of({kind: degree, "micro_batch": max(1, batch // shares), "global_batch": batch})


def _engine(folder: Path, record: Mapping[Any, Any]) -> dict[str, str]:
    """How the row's model was run: as written, or compiled, which may run attention as one kernel."""
    from neusight.evaluation.as_measured import OPERATORS, inductor_attends

    if record["option"] != FUSED:
        return {"attention": record["attention"]}
    fused = record["attention"] == "eager" and inductor_attends(folder / OPERATORS, record)
    return {"attention": "sdpa" if fused else record["attention"], "launch": "compiled"}


def _as_measured(
    folder: Path,
    record: Mapping[Any, Any],
    configs: Path,
    devices: Mapping[str, DeviceSpec],
    predictor: Predictor,
) -> dict[str, float]:
    """Seconds by phase of steps that the measured model took otherwise, see ``neusight.evaluation.as_measured``."""
    from neusight.evaluation.as_measured import OPERATORS, changed_s, changes
    from neusight.workloads import load_workload

    operators, device = folder / OPERATORS, devices[record["gpu"]]
    as_written = record["attention"] == "eager" and not record["option"]
    if not operators.is_file() or not as_written or record["dtype"] != "float32":
        return {}
    asked = {key: record[key] for key in ("mode", "dtype", "optimizer", "attention")}
    length = None if record["seq_len"] is None else int(record["seq_len"])
    config = str(configs / f"{record['model']}.json")
    workload = load_workload(config, batch=int(record["batch"]), seq_len=length, allow_fallback=True, **asked)
    found = changes(operators, record, workload.launches)
    # Launches are hidden behind the kernels before.
    return changed_s(found, lambda batch: predictor.kernels(batch, device).execution_s)


def _compared(record: Mapping[Any, Any], estimate: Estimate, added_s: Mapping[str, float]) -> dict[str, Any]:
    added_ms = 1e3 * sum(added_s.values())
    low, high = (1e3 * value + added_ms for value in estimate.interval)
    measured, predicted = float(record["e2e_ms"]), 1e3 * estimate.latency_s + added_ms
    row = {
        **_asked(record),
        "predicted_ms": predicted,
        "low_ms": low,
        "high_ms": high,
        "measured_ms": measured,
        "ape": _ape(predicted, measured),
        "bias": 100 * (predicted / measured - 1),
        "covered": estimate.coverage["fallback"] == 0,
        "inside": low <= measured <= high,
    }
    for phase in ("forward", "backward"):
        phase_s = estimate.by_phase.get(phase, 0.0) + added_s.get(phase, 0.0)
        row |= _phase(phase, 1e3 * phase_s, float(record[f"{phase}_ms"]))
    return row


def _phase(phase: str, predicted: float, measured: float) -> dict[str, Any]:
    """A phase alone; nothing where it was not measured."""
    if np.isnan(measured):
        return {}
    error = {f"{phase}_ape": _ape(predicted, measured)}
    return {f"{phase}_predicted_ms": predicted, f"{phase}_measured_ms": measured, **error}


def _ape(predicted: float, measured: float) -> float:
    return 100 * abs(predicted / measured - 1)


def _means(rows: list[dict[str, Any]], devices: Mapping[str, DeviceSpec]) -> dict[str, Any]:
    told = [{**row, "vendor": devices[row["gpu"]].vendor} for row in rows]
    return {
        "means": _means_by(told, ("gpu", "mode", "option")),
        "by_vendor": _means_by(told, ("vendor",)),
        "total": _mean(rows),
    }


def _means_by(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [{**dict(zip(keys, names, strict=True)), **_mean(groups[names])} for names in sorted(groups)]


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    apes = [row["ape"] for row in rows]
    return {
        "count": len(rows),
        "mape": float(np.mean(apes)),
        "max_ape": max(apes),
        "bias": float(np.mean([row["bias"] for row in rows])),
        "covered": 100 * float(np.mean([row["covered"] for row in rows])),
        "inside": 100 * float(np.mean([row["inside"] for row in rows])),
    }
