"""``neusight collect models``: measure whole models on the device at hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neusight.cli.options import Attention, Format, Optimizer, listed, numbers

if TYPE_CHECKING:
    from neusight.collect.steps import ModelTask


def models(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data set; an interrupted one is gone on with.")
    ],
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Where models run.")] = "cuda",
    names: Annotated[
        str,
        typer.Option(
            "--models",
            metavar="MODEL[,MODEL…]",
            help="Of `neusight workloads list`, or config.json files; default: seven usual ones.",
        ),
    ] = "",
    modes: Annotated[str, typer.Option(metavar="MODE[,MODE]", help="inference, training.")] = "inference,training",
    dtypes: Annotated[
        str, typer.Option(metavar="DTYPE[,DTYPE…]", help="float32, tf32, bfloat16, float16.")
    ] = "float32,bfloat16",
    batches: Annotated[str, typer.Option(metavar="N[,N…]", help="Samples a step.")] = "1,4",
    seq_lens: Annotated[str, typer.Option(metavar="N[,N…]", help="Tokens a sample; default: each model's own.")] = "",
    attention: Attention = "eager",
    optimizer: Optimizer = "none",
    compiled: Annotated[bool, typer.Option("--compiled", help="Run models through torch.compile.")] = False,
    minutes: Annotated[float, typer.Option(help="Time for measuring; the same command goes on.")] = 20.0,
    form: Format = "human",
) -> None:
    """Measure whole models with random weights, the cheapest first: forward, backward and optimizer, peak memory.

    Steps that do not fit or that the device cannot run are skipped, with the reason.

    Examples:

    - `neusight collect models --out ./measured --minutes 30`

    - `neusight collect models --out ./measured --models bert-large --attention sdpa --optimizer adamw`

    - `neusight evaluate models ./measured/models/latency.parquet --configs ./measured/models/configs`
    """
    from neusight.cli.collect import measuring, show
    from neusight.cli.output import Output
    from neusight.collect.models import collect_models
    from neusight.collect.request import Request

    tasks = planned(names, modes, dtypes, batches, seq_lens, attention, optimizer, compiled)
    request = Request(out=out, target=device, minutes=minutes)
    with measuring(out) as advance:
        report = collect_models(request, tasks, advance)
    row = {**asdict(report), "folder": str(out), "gpus": list(report.gpus)}
    Output(form).data(row, [row], lambda: show(report))


def planned(
    names: str, modes: str, dtypes: str, batches: str, seq_lens: str, attention: str, optimizer: str, compiled: bool
) -> list[ModelTask]:
    """What the options ask for; without names the usual models, the largest in inference alone.

    Raises:
        ModelError, BadParameter: an option that cannot be.
    """
    from neusight.collect.models import INFERENCE_MODELS, MODELS, Grid, model_plan

    grid = Grid(
        modes=listed(modes, "--modes"), dtypes=listed(dtypes, "--dtypes"), batches=numbers(batches, "--batches"),
        seq_lens=numbers(seq_lens, "--seq-lens") if seq_lens else [None], attention=attention, optimizer=optimizer,
        compiled=compiled,
    )  # fmt: skip
    if names:
        return model_plan(listed(names, "--models"), grid)
    usual = model_plan((*MODELS, *INFERENCE_MODELS), grid)
    return [task for task in usual if task.mode == "inference" or task.model in MODELS]
