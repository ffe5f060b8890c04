"""``neusight train``: learn tile models from measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.options import Format, listed

if TYPE_CHECKING:
    from neusight.learn.training import Options

_EPOCHS = {"mlp": "epochs", "gbm": "rounds"}
"""What a backend calls its passes."""


def train(
    data: Annotated[
        Path | None,
        typer.Option(help="Kernel measurements, a folder or file; default: $NEUSIGHT_DATA/neusight-fp32/kernels."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write, one sub-folder a family.")] = Path("trained"),
    families: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="Default: all that have rows.")] = "",
    backend: Annotated[Literal["mlp", "gbm", "linear", "roofline"], typer.Option(help="What learns.")] = "mlp",
    gpus: Annotated[str, typer.Option(metavar="ID[,ID…]", help="Train on these; default: all in --data.")] = "",
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
    """Train tile models. Every GPU is left out once, which decides when to stop and how wide the interval is; data of
    one GPU alone train a model whose error on others is not known.

    Examples:

    - `neusight train --out ./mine`, then `neusight predict gpt2-large --gpu l4 --tile-models ./mine`

    - `neusight train --data ./collected --out ./mine`: what `neusight collect` measured, every family and dtype

    - `neusight train --data ./measured --backend gbm --hold-out t4 --out ./without-t4`
    """
    from neusight.cli.output import Output, line, note, tasks
    from neusight.learn.training import train as run

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
            line(f"{row['folder']}: {row['rows']:,} rows, {_left_out(row['left_out_mape'])}")

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
    from neusight.datasets import device_of, devices_beside
    from neusight.learn.training import Options
    from neusight.paths import data_dir

    source = data if data is not None else data_dir() / "neusight-fp32" / "kernels"
    brought = devices_beside(source)

    def ids(text: str, option: str) -> tuple[str, ...]:
        return tuple(device_of(name, brought).id for name in listed(text, option)) if text else ()

    return Options(
        source=source,
        out=out,
        families=tuple(listed(families, "--families")) if families else (),
        backend=backend,
        gpus=ids(gpus, "--gpus"),
        hold_out=ids(hold_out, "--hold-out"),
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


def _left_out(error: float | None) -> str:
    return "no GPU to leave out" if error is None else f"mean error {error:.1f} % on a GPU left out"
