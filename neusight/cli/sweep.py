"""``neusight sweep``: models × GPUs × batches, one row a step."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from neusight.cli.options import Attention, Calibrations, Format, Gpus, Optimizer, Sparsity, TileModels, listed, numbers


def sweep(
    models: Annotated[str, typer.Argument(metavar="MODEL[,MODEL…]", help="Models, as for `neusight predict`.")],
    gpu: Gpus,
    batches: Annotated[str, typer.Option("--batch", "-b", metavar="N[,N…]", help="Samples a step.")] = "1",
    modes: Annotated[str, typer.Option("--mode", metavar="MODE[,MODE]", help="inference, training.")] = "inference",
    seq_lens: Annotated[
        str, typer.Option("--seq-len", "-s", metavar="N[,N…]", help="Tokens a sample; default: the model's own.")
    ] = "",
    dtypes: Annotated[str, typer.Option("--dtype", metavar="DTYPE[,DTYPE…]")] = "float32",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    sparsity: Sparsity = "",
    form: Format = "human",
) -> None:
    """Predict every combination of models, GPUs and batches: latency, throughput, memory, cost.

    Steps that do not fit are marked; those that cannot be estimated keep their reason.

    Examples:

    - `neusight sweep gpt2-large,gpt2-xl --gpu l4,a100-pcie-80gb --mode training --batch 1,2,4,8`

    - `neusight sweep bert-large --gpu t4,l4 --batch 1,8,32 --seq-len 128,512 --format csv > plan.csv`
    """
    from neusight.api import as_device
    from neusight.cli.loading import loaded, note_corrections
    from neusight.cli.output import Output, progress

    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        found = predictor.sweep(
            listed(models, "MODEL"),
            listed(gpu, "--gpu"),
            numbers(batches, "--batch"),
            listed(modes, "--mode"),
            numbers(seq_lens, "--seq-len") if seq_lens else [None],
            listed(dtypes, "--dtype"),
            optimizer,
            attention,
            progress=advance,
            sparsity=sparsity or None,
        )
    rows: list[dict[str, Any]] = found.astype(object).where(found.notna(), None).to_dict("records")
    note_corrections(predictor, (as_device(row["gpu"]).id for row in rows if not row["error"]))
    Output(form).data(rows, rows, lambda: _show(rows))


def _show(rows: list[dict[str, Any]]) -> None:
    from neusight.cli.output import Column, bar, table

    best = max((row["samples_per_s"] or 0.0 for row in rows), default=0.0) or 1.0
    same = {key for key in ("mode", "seq_len", "dtype") if len({row[key] for row in rows}) == 1}
    keys = [key for key in ("model", "gpu", "mode", "batch", "seq_len", "dtype") if key not in same]
    columns = [Column(key, right=key in ("batch", "seq_len")) for key in keys]
    columns += [Column("latency", right=True), Column("samples/s", right=True), Column(""), Column("memory", wrap=True)]
    shown = (
        (*(str(row[key] if row[key] is not None else "-") for key in keys), *_figures(row, best, bar)) for row in rows
    )
    table(columns, shown)


def _figures(row: dict[str, Any], best: float, bar: Any) -> tuple[str, ...]:
    from neusight.units import milliseconds

    if row["error"]:
        return "-", "-", "", row["error"]
    memory = f"{row['memory_gib']:.1f} GiB" + ("" if row["fits"] else " NO FIT")
    share = row["samples_per_s"] / best if row["fits"] else 0.0
    return milliseconds(row["latency_ms"] / 1e3), f"{row['samples_per_s']:.3g}", bar(share, 8), memory
