"""Distributed training steps, predicted against measured, row by row. All errors in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.mlperf_runs import CHIPS
from neusight.datasets.published_runs import canonical_run
from neusight.datasets.rows import read_rows, unread_columns
from neusight.datasets.runs import RUN_NEEDED, RUN_NOTES, RUN_READ, TRACED, RunRow, training_run
from neusight.devices import cluster_of, load_cluster, load_device
from neusight.devices.cluster import Cluster
from neusight.devices.slices import cores_of
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.sources import memory
from neusight.distributed.training_run import TrainingRun
from neusight.engines import engine_named
from neusight.learn.training_steps import MeasuredStep
from neusight.measured.score import Row, Scored, Selection, answered, compared, some
from neusight.plans.fits import verdict
from neusight.requests import Plan
from neusight.steps.answers import traced_training
from neusight.workloads.decoders.recipes import Adapters
from neusight.workloads.decoders.table_rows import decoder_of_columns

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.distributed.factors import Factors

BY = ("source", "gpu", "model", "dtype", "num_gpus")
WHAT = "training runs"
USUAL_CLUSTERS = {"a100-sxm-80gb": "dgx-a100", "a100-sxm-40gb": "dgx-a100", "h100-sxm-80gb": "dgx-h100"}
"""Whose network a cluster has of which nobody tells it: that of NVIDIA's machines with the same GPU."""


def evaluate_training(
    path: Path,
    predictor: Predictor,
    progress: Callable[[int, int], None] | None = None,
    *,
    factors: Factors | None = None,
    gpus: Collection[str] = (),
) -> dict[str, Any]:
    """Predict every training step of a table and compare.

    Args:
        path: parquet or CSV with model, gpu, num_gpus, seq_len, the model's sizes, and what is known of a plan; see
            ``neusight.datasets.runs`` for defaults.
        predictor: whose predictions.
        progress: called with (done, of) a row.
        factors: what kernels take in steps; default those that ship.
        gpus: keep rows of these; default all.

    Returns:
        ``rows``: source, model, gpu, num_gpus, nodes, dtype, plan, predicted_ms, low_ms, high_ms, measured_ms, ape,
        bias, inside (the 90 % interval), peak_memory_bytes, fits, oom. ``means`` by ``BY`` and in ``total``: count,
        mean, median, worst, bias, inside. ``memory``: how many that ran are predicted to fit, and of those that ran
        out of memory not to. ``assumed``: defaults taken, each with its reason and the number of rows. ``skipped``:
        rows that are not compared, each with its reason. ``unread``: columns that nothing reads, with the number of
        rows.

    Raises:
        DataError: no such file, a foreign file, or no row left.
    """
    records = Selection(gpus=tuple(gpus)).of(_records(path))
    assumed: Counter[tuple[str, str, str]] = Counter()

    def ask(record: Row) -> dict[str, Any]:
        row = training_run(canonical_run(record))
        answer = _row(row, predictor.training(run_of(row), factors))
        assumed.update(row.assumed)
        return answer

    rows, skipped = answered(records, ask, _named, progress)
    some(rows, path, skipped)
    scored = Scored.of(rows, "_ms")
    return {
        "rows": rows,
        "means": {name: scored.summary(name) for name in BY},
        "total": scored.figures(),
        "memory": _memory(rows),
        "assumed": [{"what": w, "value": v, "why": y, "rows": n} for (w, v, y), n in assumed.most_common()],
        "skipped": skipped,
        "unread": [] if "accelerator" in records[0] else unread_columns(records, RUN_READ, RUN_NOTES),
    }


def measured_steps(tables: Iterable[Path]) -> tuple[list[MeasuredStep], list[dict[str, Any]]]:
    """Steps of tables that were measured, as what was run; and the rows that are not estimated, with their reasons.

    Raises:
        DataError: a table is missing, or another kind of table.
    """
    records = [record for table in tables for record in _records(table)]

    def ask(record: Row) -> MeasuredStep | None:
        row = training_run(canonical_run(record))
        if row.step_ms is None:
            return None
        return MeasuredStep(source=row.source, seconds=row.step_ms / 1e3, run=run_of(row))

    steps, skipped = answered(records, ask, _named)
    return [step for step in steps if step is not None], skipped


def _records(path: Path) -> list[dict[str, Any]]:
    """Rows of a table in columns of ours; see ``canonical_run``."""
    rows = read_rows(path, (), WHAT)
    if "accelerator" in rows[0]:
        chips = (str(row["accelerator"]) for row in rows)
        ids = [CHIPS.get(chip.lower(), chip) for chip in chips]
        return [{"model": row.get("benchmark"), **row, "gpu": gpu} for row, gpu in zip(rows, ids, strict=True)]
    return read_rows(path, RUN_NEEDED, WHAT)


def run_of(row: RunRow) -> TrainingRun:
    """What a row ran, as a question.

    Where it does not tell what was computed again, that is the fewest layers of a stage with which the run fits; or
    all of them, with their inputs on the host if it only fits so: it ran.

    Raises:
        NeusightError: an unknown GPU, a model that its columns do not describe, a plan that does not fit.
    """
    engine = engine_named(row.engine)
    if row.engine in TRACED:
        return _traced(row)
    cluster = cores_of(_cluster(row)) if engine.ranks == "core" else _cluster(row)
    run = TrainingRun(
        decoder=decoder_of_columns(row.columns),
        cluster=cluster,
        plan=Plan(**row.plan),
        seq_len=row.seq_len,
        engine=engine,
        dtype=row.dtype,
        products=row.products,
        optimizer=row.optimizer,
        adapters=Adapters(**row.adapters),
    )
    unknown = any(what == "recompute" for what, _, _ in row.assumed)
    return _fitting(run) if unknown else run


def _traced(row: RunRow) -> TrainingRun:
    """Of a model that is no decoder: its own passes, as the compiler of its devices runs them."""
    stated = str(row.columns.get("dtype", row.dtype))
    dtype = stated if stated.startswith("amp") else row.dtype
    options = {**row.plan, "dtype": dtype, "optimizer": row.optimizer}
    sizes = {"seq_len": row.seq_len} if row.seq_len > 1 else {}
    return traced_training(row.model, _cluster(row), options | sizes, row.engine)


def _fitting(run: TrainingRun) -> TrainingRun:
    """The first of what needs ever less memory that fits; the run as it is where nothing does."""
    for candidate in _saving(run):
        if verdict(memory(candidate), run.cluster.device).fits:
            return candidate
    return run


def _saving(run: TrainingRun) -> Iterator[TrainingRun]:
    """The run, and with more and more layers of each stage computed again; where all are, with their inputs on the
    host.
    """
    yield run
    if run.plan.recompute == "full":
        yield replace(run, engine=replace(run.engine, offloads_activations=True))
        return
    for layers in range(1, run.decoder.depth // run.plan.pp + 1):
        yield replace(run, plan=replace(run.plan, recompute="full", recompute_layers=layers))


def _cluster(row: RunRow) -> Cluster:
    nodes = -(-row.num_gpus // row.per_node)
    if not row.network and row.gpu in USUAL_CLUSTERS and nodes > 1:
        usual = load_cluster(USUAL_CLUSTERS[row.gpu])
        return usual.model_copy(update={"device": load_device(row.gpu), "per_node": row.per_node, "nodes": nodes})
    return cluster_of(row.gpu, row.per_node, nodes, row.network if nodes > 1 else "")


def _named(record: Row, number: int) -> dict[str, Any]:
    gpus = f"{record.get('num_gpus', '?')} x {record.get('gpu', '?')}"
    return {"row": f"{record.get('model', 'row')} on {gpus} (row {number})"}


def _row(row: RunRow, estimate: TrainingEstimate) -> dict[str, Any]:
    plan, interval = estimate.plan, (1e3 * estimate.interval[0], 1e3 * estimate.interval[1])
    return {
        "source": row.source,
        "model": row.model,
        "gpu": row.gpu,
        "num_gpus": row.num_gpus,
        "nodes": estimate.cluster.nodes,
        "dtype": row.products or row.dtype,
        "engine": row.engine,
        "software": str(row.columns.get("framework") or ""),
        "plan": plan.short,
        "global_batch": plan.global_batch_size,
        "seq_len": row.seq_len,
        "micro_batch": plan.micro_batch_size,
        **compared(1e3 * estimate.latency_s, interval, row.step_ms, "_ms"),
        "mfu": 100.0 * estimate.mfu,
        "bubble": 100.0 * estimate.bubble,
        "exposed_ms": 1e3 * estimate.exposed_s,
        "peak_memory_bytes": estimate.peak_bytes,
        "fits": estimate.fits,
        "oom": row.oom,
    }


def _memory(rows: Collection[Row]) -> dict[str, int]:
    ran, failed = ([row for row in rows if bool(row["oom"]) is oom] for oom in (False, True))
    return {
        "ran": len(ran),
        "ran_and_fits": sum(row["fits"] for row in ran),
        "out_of_memory": len(failed),
        "out_of_memory_and_does_not_fit": sum(not row["fits"] for row in failed),
    }
