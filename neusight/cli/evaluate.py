"""``neusight evaluate``: predicted against measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from neusight.cli.options import Format, TileModels, listed

app = typer.Typer(no_args_is_help=True, help="Compare predictions with measurements; all errors in percent.")


@app.command()
def kernels(
    path: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="Kernel measurements; a folder of them, too.")],
    split: Annotated[str | None, typer.Option(help="Keep rows of this split: train or test. Default: all.")] = None,
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Compare single kernels, by GPU, operator and dtype.

    Example: `neusight evaluate kernels $NEUSIGHT_DATA/neusight-fp32/kernels/gemm.parquet --split test`
    """
    from neusight.api import Predictor
    from neusight.cli.output import Output, progress
    from neusight.evaluation import evaluate_kernels

    predictor = Predictor.load(tile_models)
    with progress("predicting") as advance:
        found = evaluate_kernels(path, predictor, split, advance)
    counts: Counter[str] = Counter()
    for row in found["skipped"]:
        counts[row["reason"]] += row["count"]
    _note_skipped(counts)
    Output(form).data(found, found["rows"], lambda: _show_kernels(found))


@app.command()
def models(
    path: Annotated[Path, typer.Argument(metavar="LATENCY.parquet", help="Whole-model measurements.")],
    configs: Annotated[Path, typer.Option(metavar="DIR", help="Folder with <model>.json for every model.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", metavar="ID[,ID…]", help="Keep rows of these. Default: all.")] = "",
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Compare whole models on single GPUs, row by row, with means by GPU and mode.

    Example: `neusight evaluate models latency.parquet --configs ./configs --format json`
    """
    from neusight.api import Predictor
    from neusight.cli.output import Output, progress
    from neusight.evaluation import evaluate_models

    predictor = Predictor.load(tile_models)
    with progress("predicting") as advance:
        found = evaluate_models(path, configs, predictor, listed(gpu, "--gpu") if gpu else None, advance)
    _note_skipped(Counter(row["reason"] for row in found["skipped"]))
    rows = [_flat(row) for row in found["rows"]]
    Output(form).data(found, rows, lambda: _show_models(found))


def _note_skipped(counts: Counter[str]) -> None:
    from neusight.cli.output import note

    for reason, count in counts.items():
        note(f"warning: {count:,} row{'s' if count > 1 else ''} skipped: {reason}")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Every row with the same columns: measurements without phases leave those empty."""
    low, high = row["interval_ms"]
    phases = {f"{phase}_{what}": None for phase in ("forward", "backward") for what in _PHASE_COLUMNS}
    rest = {key: value for key, value in row.items() if key != "interval_ms"}
    return {**phases, **rest, "low_ms": low, "high_ms": high}


_PHASE_COLUMNS = ("predicted_ms", "measured_ms", "ape")


def _show_kernels(found: dict[str, Any]) -> None:
    from neusight.cli.output import Column, line, table

    line("Errors in percent. bound: of the bound alone; inside: rows within the 90 % interval.")
    dtypes = len({row["dtype"] for row in found["rows"]}) > 1
    names = ("gpu", "op", "dtype") if dtypes else ("gpu", "op")
    numbers = ("rows", "mean", "median", "bias", "bound", "inside")
    total = {"gpu": "all", "op": "", "dtype": "", **found["total"]}
    table(
        [*(Column(name) for name in names), *(Column(name, right=True) for name in numbers)],
        ((*(row[name] for name in names), *_kernel_cells(row)) for row in (*found["rows"], total)),
    )


def _kernel_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = (f"{row[key]:{sign}.1f}" for key, sign in (("mape", ""), ("median_ape", ""), ("bias", "+")))
    return f"{row['count']:,}", *errors, f"{row['roofline_mape']:.1f}", f"{row['inside']:.0f}"


def _show_models(found: dict[str, Any]) -> None:
    from neusight.cli.output import Column, line, table

    figures = ("batch x seq", "predicted", "measured", "error")
    columns = [Column("gpu"), Column("model"), Column("mode"), *(Column(name, right=True) for name in figures)]
    table(columns, (_model_cells(row) for row in found["rows"]))
    line()
    line("Errors in percent. covered: rows without fallback; inside: rows within the 90 % interval.")
    numbers = ("rows", "mean", "worst", "bias", "covered", "inside")
    columns = [Column("gpu"), Column("mode"), *(Column(name, right=True) for name in numbers)]
    by_vendor = [{"gpu": row["vendor"], "mode": "", **row} for row in found["by_vendor"]]
    shown = (*found["means"], *by_vendor, {"gpu": "all", "mode": "", **found["total"]})
    table(columns, ((r["gpu"], r["mode"], *_mean_cells(r)) for r in shown))


def _model_cells(row: dict[str, Any]) -> tuple[str, ...]:
    from neusight.units import milliseconds

    figures = (milliseconds(row[f"{what}_ms"] / 1e3) for what in ("predicted", "measured"))
    mode = {"inference": "infer", "training": "train"}[row["mode"]]
    return row["gpu"], row["model"], mode, f"{row['batch']} x {row['seq_len']}", *figures, f"{row['bias']:+.1f} %"


def _mean_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = (f"{row['mape']:.1f}", f"{row['max_ape']:.1f}", f"{row['bias']:+.1f}")
    return str(row["count"]), *errors, f"{row['covered']:.0f}", f"{row['inside']:.0f}"
