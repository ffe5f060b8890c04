"""Whole models, predicted against measured, row by row. All errors in percent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.rows import unread_columns
from neusight.datasets.schema import MODEL_TABLE
from neusight.errors import DataError
from neusight.evaluation.as_measured import OPERATORS, changed_s, changes, inductor_attends
from neusight.measured.score import Scored, answered, compared, some
from neusight.requests import Plan

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.estimates import Estimate

FUSED = "fusion"
"""Option of rows that were measured with ``torch.compile``."""
_WITHOUT_TF32 = {"float32": "float32_ieee"}
"""Tables of measured models say ``tf32`` where it was on."""
_ROW = ("gpu", "model", "mode", "batch", "seq_len", "option", "dtype", "attention", "optimizer")
_READ = (*_ROW, "e2e_ms", "forward_ms", "backward_ms")
_NOTES = tuple(column.name for column in MODEL_TABLE.columns)
"""What else the table has: how a row was measured."""


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
        ``by_vendor``, and ``total``: count, mape, max_ape, covered, inside. ``adapted``: number of rows whose
        attention has the steps of the measured operators. ``skipped``: rows that are not compared, each with its
        reason. ``unread``: columns that nothing reads, with the number of rows.

    Raises:
        DataError: no such file or folder, a foreign file, or no row left.
        DeviceError: a GPU that neither the catalogue nor the data set of the file has.
    """
    records, devices = _records(Path(path), Path(configs), gpus)
    adapted: list[dict[str, float]] = []

    def ask(record: Mapping[Any, Any]) -> dict[str, Any]:
        estimate = _predicted(Path(path), record, Path(configs), devices, predictor)
        fixed_overhead_s = _as_measured(Path(path).parent, record, Path(configs), devices, predictor)
        adapted.extend([fixed_overhead_s] if fixed_overhead_s else [])
        return _row(record, estimate, fixed_overhead_s)

    rows, skipped = answered(records, ask, lambda record, _: _columns(record), progress)
    some(rows, path, skipped, f"it has none of {', '.join(gpus or ('any GPU',))}")
    return {
        "rows": rows,
        **_means(rows, devices),
        "adapted": len(adapted),
        "skipped": skipped,
        "unread": unread_columns(records, _READ, _NOTES),
    }


def _records(
    path: Path, configs: Path, gpus: Sequence[str] | None
) -> tuple[list[dict[Any, Any]], dict[str, DeviceSpec]]:
    """The rows asked for, and their devices by id."""
    from neusight.datasets import device_of, devices_beside, load_models

    if not configs.is_dir():
        raise DataError(f"{configs} is not a folder: give the one that holds <model>.json for the models of {path}")
    frame = load_models(path)
    records = frame[frame["gpu"].isin(list(gpus))].to_dict("records") if gpus else frame.to_dict("records")
    own_devices = devices_beside(path)
    return records, {gpu: device_of(gpu, own_devices) for gpu in {record["gpu"] for record in records}}


def _columns(record: Mapping[Any, Any]) -> dict[str, Any]:
    return {key: record[key] for key in _ROW}


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
        dtype=_WITHOUT_TF32.get(record["dtype"], record["dtype"]),
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
    match = re.fullmatch(r"(dp|tp|pp)(\d+)(?:_(\d+))?", option)
    if match is None:
        raise DataError(f"option '{option}' is not estimated: one of {FUSED}, dp<n>, tp<n>, pp<n>_<micro-batches>")
    kind, degree, passes = match.group(1), int(match.group(2)), int(match.group(3) or 1)
    shares = passes * (degree if kind == "dp" else 1)
    degrees: dict[str, Any] = {kind: degree}
    return Plan(**degrees, micro_batch_size=max(1, batch // shares), global_batch_size=batch)


def _engine(folder: Path, record: Mapping[Any, Any]) -> dict[str, str]:
    """How the row's model was run: as written, or compiled, which may run attention as one kernel."""
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
    from neusight.workloads import load_workload

    operators, device = folder / OPERATORS, devices[record["gpu"]]
    as_written = record["attention"] == "eager" and not record["option"]
    if not operators.is_file() or not as_written or record["dtype"] != "float32":
        return {}
    options = {key: record[key] for key in ("mode", "dtype", "optimizer", "attention")}
    length = None if record["seq_len"] is None else int(record["seq_len"])
    config = str(configs / f"{record['model']}.json")
    workload = load_workload(config, batch=int(record["batch"]), seq_len=length, allow_fallback=True, **options)
    # Launches are hidden behind the kernels before.
    return changed_s(
        changes(operators, record, workload.launches), lambda batch: predictor.kernels(batch, device).execution_s
    )


def _row(record: Mapping[Any, Any], estimate: Estimate, fixed_overhead_s: Mapping[str, float]) -> dict[str, Any]:
    added_ms = 1e3 * sum(fixed_overhead_s.values())
    low, high = (1e3 * value + added_ms for value in estimate.interval)
    figures = compared(1e3 * estimate.latency_s + added_ms, (low, high), float(record["e2e_ms"]), "_ms")
    row = {
        **_columns(record),
        **{name: figures[name] for name in ("predicted_ms", "low_ms", "high_ms", "measured_ms", "ape", "bias")},
        "covered": estimate.coverage["fallback"] == 0,
        "inside": figures["inside"],
    }
    for phase in ("forward", "backward"):
        phase_s = estimate.by_phase.get(phase, 0.0) + fixed_overhead_s.get(phase, 0.0)
        row |= _phase(phase, 1e3 * phase_s, float(record[f"{phase}_ms"]))
    return row


def _phase(phase: str, predicted: float, measured: float) -> dict[str, Any]:
    """A phase alone; nothing where it was not measured."""
    if np.isnan(measured):
        return {}
    error = {f"{phase}_ape": 100 * abs(predicted / measured - 1)}
    return {f"{phase}_predicted_ms": predicted, f"{phase}_measured_ms": measured, **error}


def _means(rows: list[dict[str, Any]], devices: Mapping[str, DeviceSpec]) -> dict[str, Any]:
    scored = Scored.of([row | {"vendor": devices[row["gpu"]].vendor} for row in rows], "_ms")
    return {
        "means": _summary(scored, "gpu", "mode", "option"),
        "by_vendor": _summary(scored, "vendor"),
        "total": _summary(scored)[0],
    }


def _summary(scored: Scored, *keys: str) -> list[dict[str, Any]]:
    """Figures of groups, and the percentage of rows that needed no fallback."""
    rows = []
    for names, part in scored.groups(*keys):
        figures = part.figures()
        covered = 100 * float(np.mean(part.keys["covered"].to_numpy(bool)))
        errors = {"mape": figures["mean"], "max_ape": figures["worst"], "bias": figures["bias"]}
        rows.append({**names, "count": figures["count"], **errors, "covered": covered, "inside": figures["inside"]})
    return rows
