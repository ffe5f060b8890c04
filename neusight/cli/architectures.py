"""``neusight models check``: share of a library's architectures with an estimate, and reasons for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import described
from neusight.cli.output import Output, busy, figures, line
from neusight.questions import Step
from neusight.questions.field import path, text
from neusight.questions.parts import OnGpu, Seeded
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.lab.architectures import Answer


@dataclass(frozen=True, kw_only=True)
class CheckOptions(opt.Limited, Seeded, opt.Formatted):
    """Choice of architectures, and the folder of their report."""

    library: str = text(
        "Library whose architectures are estimated. Default: transformers.",
        "", "transformers", choices=("transformers", "timm", "torchvision"), argument=True,
    )  # fmt: skip
    mode: str = like(Step, "mode", listable=False)
    gpu: str = like(OnGpu, "gpu", default="l4", help="Device of the estimates.", listable=False, metavar="ID")
    report: Path | None = path("Write summary and report into a folder.", opt.OUTPUT, metavar="DIR")


def check(
    options: Annotated[CheckOptions, described(limit="Most architectures, drawn at random. Default: all.")],
) -> None:
    """Estimate every architecture of a library, and list what is missing.

    Those of transformers have their default configuration two layers deep; those of timm and torchvision are whole. No
    operator is replaced by a fallback, and no answer may take longer than 20 seconds. Types that transformers itself
    does not build from their default configuration do not count.

    Examples:

    - `neusight models check transformers --limit 40 --seed 1`

    - `neusight models check timm --limit 100 --mode training`

    - `neusight models check transformers --mode training --format json > coverage.json`

    - `neusight models check transformers --report experiments/architectures`
    """
    from neusight.api import Predictor
    from neusight.devices import load_device
    from neusight.lab.architectures import check as checked
    from neusight.lab.architectures import drawn, grouped
    from neusight.lab.architectures_report import summary_of, write

    library, seed, mode = options.library, options.seed, options.mode
    device = opt.named_gpu(options.gpu)
    load_device(device)  # What is wrong with it is one line, not the reason of every architecture.
    if options.report is not None and library != "transformers":
        raise typer.BadParameter("exists for transformers only: leave it out", param_hint="--report")
    kinds = drawn(options.limit, seed, library)
    with busy("estimating") as advance:
        answers = checked(Predictor.load(), kinds, device, mode, advance, library=library)
    rows = [asdict(answer) for answer in answers]
    counted = [answer for answer in answers if answer.buildable]
    answered = sum(answer.latency_s is not None for answer in counted)
    data: dict[str, Any] = {"library": library, "mode": mode, "gpu": device}
    data |= {"answered": answered, "of": len(counted), "types": len(rows)}
    data |= {"reasons": grouped(answers), "architectures": rows}
    if options.report is not None:
        write(options.report, summary_of(answers, mode, device, len(drawn(None, seed)), seed))
    Output(options.form).data(data, rows, lambda: _human(answers, data))


def _human(answers: Sequence[Answer], data: dict[str, Any]) -> None:

    columns = "architecture = kind | layers | >latency = latency_s | >took = {seconds:.1f} s"
    rows = (asdict(answer) | {"inputs": answer.group or " ".join(answer.inputs)} for answer in answers)
    figures(f"{columns} | ~inputs, or what is missing = inputs", rows)
    share = data["answered"] / data["of"] if data["of"] else 0.0
    line(f"{data['answered']} of {data['of']} architectures answered in {data['mode']} ({share:.0%})")
    if unbuilt := data["types"] - data["of"]:
        line(f"{unbuilt} more are not built from their default configuration by transformers itself")
    for group in data["reasons"]:
        line(f"  {group['count']:3} {group['reason']}: {', '.join(group['architectures'])}")
