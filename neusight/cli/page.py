"""``neusight page``: a local page that answers, draws and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neusight.cli import options as opt
from neusight.cli.options import OUTPUT, Spec


def page(
    model: Annotated[
        str, typer.Argument(help="The first question, as `neusight predict` takes it; a function in Python only here.")
    ] = "",
    gpu: opt.Gpus = "",
    port: Annotated[int, Spec("--port", OUTPUT, "Of this machine.").number(1, 65535)] = 8080,
    export: Annotated[
        Path | None,
        Spec("--export", OUTPUT, "Write pages of accuracy for a site instead, as plain HTML.", "DIR").text(),
    ] = None,
    show: Annotated[bool, Spec("--show/--no-show", OUTPUT, "Open a browser.").text()] = True,
) -> None:
    """Open a local page: ask, drag, look, decide, trust. Nothing leaves this machine.

    Examples:

    - `neusight page`

    - `neusight page ./config.json --gpu h100,mi300x --port 9000 --no-show`

    - `neusight page --export ./site`
    """
    from neusight.cli.output import note

    if export is not None:
        from neusight.page.export import export as write

        for path in write(export):
            note(f"wrote {path}")
        return
    from neusight.page.app import serve
    from neusight.page.form import Form

    form = Form.of([(name, text) for name, text in (("model", model), ("gpu", gpu)) if text])
    note(f"http://127.0.0.1:{port}/ until Ctrl-C")
    serve(form, [model] if ":" in model else [], port, show=show)
