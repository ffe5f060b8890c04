"""Accelerators as an experiment: kernels, steps, training and serving on what is no GPU, seen and left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.evaluation import Scored, Selection, evaluate_serving, evaluate_steps, evaluate_training
from neusight.evaluation.kernels import comparable_kernels, compared_by_gpu
from neusight.executors.systolic.predictor import ArrayPredictor
from neusight.experiments.runs import QUICK_CELLS, advance_of, counted, figures, files_sha256
from neusight.experiments.runs_report import Results, Rows, ratio_panels, rerun
from neusight.lab.page import Drawing, ReportForm, listing, wrapped
from neusight.laws.fitted import shipped_arrays, shipped_microcontrollers
from neusight.learn.arrays import fit_arrays
from neusight.paths import data_dir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neusight.experiments.declare import AcceleratorsDeclaration, AcceleratorTable
    from neusight.learn import Report

SPLIT = ("table", "gpu", "quantity")
STEP, COLLECTIVES = "step", "nccl"
KINDS = ("kernels", "whole models")
_KERNELS = {
    "elementwise": "pointwise",
    "gemm": "products",
    "memory": "copies",
    COLLECTIVES: "collectives",
    "row_reduction": "norms",
}
FAMILIES = frozenset(_KERNELS.values())
QUANTITIES = {
    **_KERNELS,
    STEP: "steps",
    "tokens_per_s": "tokens/s",
    "tpot_ms": "time per output token",
    "ttft_ms": "time to first token",
}
"""Figures by the words of the report."""
_ERRORS = (("median", "{median:.1f}"), ("mean", "{mean:.1f}"), ("bias", "{bias:+.1f}"))


def run_accelerators(declared: AcceleratorsDeclaration, quick: bool, report: Report | None = None) -> dict[str, Any]:
    """Predict every row of all tables, and those of devices that are left out again.

    Returns:
        ``rows``: a figure of a row each, without what was measured; ``tables``: errors by table, device and figure,
        with percentiles of predicted over measured, and whether constants of the device are ``fitted`` to it;
        ``left_out``: the same of each fold's devices, with constants of arrays that were fitted without them;
        ``halves``: errors on the larger half of each device's kernels, fitted to the smaller one; ``cores``: of
        microcontrollers, each kind of core left out; ``constants``; ``skipped``: reasons, counted; ``sha256`` of the
        tables.
    """
    limit, advance = QUICK_CELLS if quick else None, advance_of("tables", report)
    shipped = Predictor.load()
    tables: list[Scored] = []
    skipped: list[Mapping[str, Any]] = []
    for done, table in enumerate(declared.tables, start=1):
        scored, missing = _scored(table, shipped, Selection(limit=limit))
        tables.append(scored)
        skipped += missing
        advance(done, len(declared.tables))
    left_out: list[dict[str, Any]] = []
    for fold in declared.folds:
        fitted = ArrayPredictor(fit_arrays(data_dir(), hold_out=fold.held_out))
        unseen = Predictor(shipped.kernel_predictor, executors={"systolic": fitted})
        for table, scored in zip(declared.tables, tables, strict=True):
            if scored.keys["gpu"].isin(fold.held_out).any():
                again, _ = _scored(table, unseen, Selection(gpus=fold.held_out, limit=limit))
                left_out += [{"fold": fold.name, **row} for row in _figures(again)]
    arrays, cores = shipped_arrays(), shipped_microcontrollers()
    return {
        "rows": [row for scored in tables for row in _kept(scored)],
        "tables": [
            {**row, "fitted": table.fitted and row["quantity"] != COLLECTIVES}
            for table, scored in zip(declared.tables, tables, strict=True)
            for row in _figures(scored)
        ],
        "left_out": left_out,
        "halves": [row for row in arrays.errors if row["fit"] == "larger half"],
        "cores": cores.errors,
        "constants": arrays.constants(),
        "skipped": counted(skipped),
        "sha256": files_sha256([table.file for table in declared.tables], data_dir()),
    }


def _scored(table: AcceleratorTable, predictor: Predictor, selection: Selection) -> tuple[Scored, Rows]:
    """A table's rows with the keys of ``SPLIT``, and those that were skipped."""
    path = data_dir() / table.file
    if table.evaluate == "kernels":
        frame, devices, skipped = comparable_kernels(path)
        chosen = selection.of(frame[["gpu"]].assign(row=frame.index).to_dict("records"))
        scored = compared_by_gpu(frame.loc[[row["row"] for row in chosen]], devices, predictor)
        named = scored.keys["family"].astype(str).to_numpy()
    elif table.evaluate == "serving":
        found = evaluate_serving(path, predictor, selection=selection)
        scored, skipped = Scored.of(found["rows"]), found["skipped"]
        named = scored.keys["quantity"].to_numpy()
    else:
        found = (
            evaluate_steps(path, predictor, selection)
            if table.evaluate == "steps"
            else evaluate_training(path, predictor, gpus=selection.gpus)
        )
        scored, skipped, named = Scored.of(found["rows"], "_ms"), found["skipped"], STEP
    keys = scored.keys[["gpu"]].astype(str).assign(table=path.stem, quantity=named)
    return Scored(keys, scored.predicted, scored.low, scored.high, scored.measured), skipped


def _figures(scored: Scored) -> list[dict[str, Any]]:
    return [names | figures(part) for names, part in scored.groups(*SPLIT)]


def _kept(scored: Scored) -> Iterator[dict[str, Any]]:
    """What a row says without what was measured."""
    columns = zip(scored.keys.to_dict("records"), scored.bias, scored.inside, strict=True)
    return ({**names, "error": float(error), "inside": bool(inside)} for names, error, inside in columns)


def setup(results: Results) -> list[str]:
    """How accelerators were compared, an item each."""
    count = sum(row["count"] for row in results["tables"])
    return [
        f"Figures: {count:,}, each predicted from what its table states; skipped: "
        f"{sum(row['count'] for row in results['skipped'])}.",
        f"{len(results['constants'])} constants of systolic arrays are fitted to kernels of TPU v4 and v6e, those of "
        "microcontrollers to MLPerf Tiny. Nothing is fitted to Trainium, to Gaudi, or to any training run or served "
        "model on arrays: their engines are described by their documentation, in which was looked up what these tables "
        "pointed at.",
        "Where a TPU is left out, the constants are fitted to the other one alone (`neusight fit arrays`).",
        rerun(results),
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    named = (("table", "{table}"), ("device", "{gpu}"), ("figure", "{quantity}"))
    counts, inside = ("rows", "{count:,}"), ("inside", "{inside:.0f}")
    halves = (("device", "{gpu}"), ("figure", "{family}"), ("rows", "{rows:,}"), *_ERRORS[:2])
    cores = (("core", "{core}"), ("model", "{model}"), ("rows", "{rows}"), ("law", "{law:.1f}"), ("line", "{line:.1f}"))
    constants = (("constant", "{name}"), ("value", "{value:.3g}"), ("prior", "{prior:.3g}"), ("kept", "{kept:.2f}"))
    return {
        "tables": [
            "## Errors by table, device and figure",
            listing(_named(results["tables"]), (*named, counts, *_ERRORS, inside), words=3),
        ],
        "left out": [
            "## Each TPU left out of the fit",
            listing(_named(results["left_out"]), (*named, counts, *_ERRORS, inside), words=3),
            wrapped("Fitted to the smaller half of each device's kernels by extent, and judged on the larger one:"),
            listing(({**row, "family": QUANTITIES[row["family"]]} for row in results["halves"]), halves, words=2),
        ],
        "cores": [
            "## Microcontrollers: each kind of core left out",
            wrapped(
                "Mean errors in percent of inferences by libraries that the other core was measured with, beside a "
                "line through the multiply-adds (MicroNets)."
            ),
            listing(results["cores"], cores, words=2),
        ],
        "constants": ["## Constants", listing(results["constants"], (*constants, ("why", "{why}")))],
    }


def ratios(results: Results) -> Figure:
    """Predicted over measured, a line a table, device and figure."""
    line, shown = "{gpu}, {quantity} ({table})", "predicted over measured"
    groups = [{**row, "panel": shown, "line": line.format_map(row)} for row in _named(results["tables"])]
    return ratio_panels(groups, ("panel", (shown,)), "line", _kind, KINDS)


def _kind(row: Results) -> str:
    return KINDS[row["quantity"] not in FAMILIES]


def accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: errors by table and device, and left out where there is such a fold."""
    alone = {tuple(row[name] for name in SPLIT): row["mean"] for row in results["left_out"]}
    rows = [{**row, "alone": alone.get(tuple(row[name] for name in SPLIT))} for row in results["tables"]]
    columns = (("table", "{table}"), ("device", "{gpu}"), ("figure", "{quantity}"), ("rows", "{count:,}"))
    shown = (*columns, *_ERRORS[:2], ("left out", "{alone:.1f}"), ("inside", "{inside:.0f}"))
    return [
        listing(_named(rows), shown, words=3),
        "Errors in percent; left out: the mean without the device in the fit.",
    ]


def _named(rows: Rows) -> list[dict[str, Any]]:
    return [{**row, "quantity": QUANTITIES[row["quantity"]]} for row in rows]


ACCELERATORS = ReportForm(
    setup=setup,
    sections=sections,
    accuracy=accuracy,
    figures={
        "accelerators.png": Drawing(
            ratios,
            "Predicted over measured by table and device: the median, and 80 % of the rows.",
            "tables",
            "tables",
        )
    },
)
