"""``neusight train``: learn tile models from measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.options import Format, listed

if TYPE_CHECKING:
    from neusight.tile_models.training import Options

_EPOCHS = {"mlp": "epochs", "gbm": "rounds"}
"""What a backend calls its passes."""


def train(
    data: Annotated[
        Path | None,
        typer.Option(help="Kernel measurements, a folder or file; default: $NEUSIGHT_DATA/neusight-fp32/kernels."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write, one sub-folder a family.")] = Path("trained"),
    families: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="Default: all that can be trained.")] = "",
    backend: Annotated[Literal["mlp", "gbm", "linear", "roofline"], typer.Option(help="What learns.")] = "mlp",
    gpus: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Train on these; default: those of what ships.")] = "",
    hold_out: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Leave these out.")] = "",
    seed: Annotated[int, typer.Option(help="Of starts, batches and samples.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes (mlp) or trees (gbm); default: the backend's.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after an interruption, with the same options.")
    ] = False,
    form: Format = "human",
) -> None:
    """Train tile models. Every GPU is left out once, which decides when to stop and how wide the interval is.

    Examples:

    - `neusight train --out ./mine`, then `neusight predict gpt2-large --gpu l4 --tile-models ./mine`

    - `neusight train --data ./measured --backend gbm --hold-out t4 --out ./without-t4`
    """
    from neusight.cli.output import Output, line, note, tasks
    from neusight.tile_models.training import train as run

    if epochs is not None and backend not in _EPOCHS:
        raise typer.BadParameter(f"{backend} has no passes: leave it out", param_hint="--epochs")
    options = _options(data, out, families, backend, gpus, hold_out, seed, epochs, resume)
    try:
        with tasks() as report:
            trained = run(options, report)
    except KeyboardInterrupt:
        note(f"interrupted: finished folds are kept in {out}, no model is half-written; go on with --resume")
        raise typer.Exit(130) from None
    rows = [_row(out / name, artifact.manifest) for name, artifact in trained.items()]

    def human() -> None:
        for row in rows:
            line(f"{row['folder']}: {row['rows']:,} rows, {_percent(row['left_out_mape'])} on a GPU left out")

    Output(form).data(rows, rows, human)


def _options(
    data: Path | None,
    out: Path,
    families: str,
    backend: str,
    gpus: str,
    hold_out: str,
    seed: int,
    epochs: int | None,
    resume: bool,
) -> Options:
    from neusight.devices import load_device
    from neusight.paths import data_dir
    from neusight.tile_models.training import DEFAULT_GPUS, FAMILIES, Options

    left_out = {load_device(name).id for name in listed(hold_out, "--hold-out")} if hold_out else set()
    chosen = [load_device(name).id for name in listed(gpus, "--gpus")] if gpus else DEFAULT_GPUS
    return Options(
        source=data if data is not None else data_dir() / "neusight-fp32" / "kernels",
        out=out,
        families=tuple(listed(families, "--families")) if families else FAMILIES,
        backend=backend,
        gpus=tuple(gpu for gpu in chosen if gpu not in left_out),
        seed=seed,
        parameters=((_EPOCHS[backend], epochs),) if epochs is not None else (),
        resume=resume,
    )


def _row(folder: Path, manifest: Any) -> dict[str, Any]:
    folds = manifest.metrics["leave_one_gpu_out_mape"]
    errors = [error for by_op in folds.values() for error in by_op.values()]
    return {
        "name": manifest.name,
        "folder": str(folder),
        "backend": manifest.backend,
        "rows": manifest.data["rows"],
        "training_gpus": manifest.training_gpus,
        "left_out_mape": sum(errors) / len(errors) if errors else None,
    }


def _percent(value: float | None) -> str:
    return "no error measured" if value is None else f"mean error {value:.1f} %"
