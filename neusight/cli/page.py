"""``neusight page``: a local page that answers, draws and compares."""

from __future__ import annotations

from pathlib import Path

from neusight.cli.asked import CommandOptions
from neusight.questions import Step
from neusight.questions.field import path, switch, whole
from neusight.questions.parts import OUTPUT
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PageOptions(CommandOptions):
    """The first question, and the address of the page."""

    model: str = like(
        Step, "model", default="", help="Model of the first question; a function in Python only here.", listable=False
    )
    gpu: str = like(Step, "gpu", listable=False)
    port: int = whole("Port of this machine.", OUTPUT, 8080, high=65_535)
    export: Path | None = path("Write pages of accuracy for a site instead, as plain HTML.", OUTPUT, metavar="DIR")
    show: bool = switch("Open a browser.", OUTPUT, True)


def page(options: PageOptions) -> None:
    """Open a local page: ask, drag, look, decide, trust. Nothing leaves this machine.

    Examples:

    - `neusight page`

    - `neusight page ./config.json --gpu h100,mi300x --port 9000 --no-show`

    - `neusight page --export ./site`
    """
    from neusight.cli.output import note

    if options.export is not None:
        from neusight.page.html import export as write

        for path in write(options.export):
            note(f"wrote {path}")
        return
    from neusight.page.app import serve
    from neusight.page.form import Form

    form = Form.of([(name, text) for name, text in (("model", options.model), ("gpu", options.gpu)) if text])
    note(f"http://127.0.0.1:{options.port}/ until Ctrl-C")
    serve(form, [options.model] if ":" in options.model else [], options.port, show=options.show)
