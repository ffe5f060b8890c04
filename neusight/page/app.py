"""The page as an application: its views, files of their charts, and a server on this machine alone."""

from __future__ import annotations

import asyncio
import re
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from threading import Thread, Timer
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from nicegui import app as nicegui_app
from nicegui import background_tasks, run, ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from neusight.errors import NeusightError
from neusight.figures.echarts import SCRIPT
from neusight.page import ask, decide, drag, look, trust
from neusight.page.answers import Answers, predictions
from neusight.page.fields import fill_panels, known_models
from neusight.page.form import Form
from neusight.page.kept import chosen_file, keep_model
from neusight.page.tab import Tab, View
from neusight.paths import checkout_dir

VIEWS: tuple[View, ...] = (ask.VIEW, drag.VIEW, look.VIEW, decide.VIEW, trust.VIEW)
HOST = "127.0.0.1"
_AT_ONCE_S = 1.0
_TYPES = {"csv": "text/csv", "json": "application/json", "png": "image/png", "svg": "image/svg+xml"}
"""Media types of files of charts; a trace is JSON as well."""
_STYLE, _SCRIPT = (Path(__file__).with_name(name) for name in ("style.css", "page.js"))
_MOST_BYTES = 64 * 2**20
"""Largest size of a dropped file [B]: a model's description, not its weights."""


def application(answers: Answers, first: Form, views: Sequence[View] = VIEWS) -> FastAPI:
    """The application with all views and files.

    Args:
        answers: to questions of all tabs.
        first: the question of a URL that has none.
        views: the views to add.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A page of another site must not reach this one through a name of that site.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    for view in views:
        _add_page(view, views, answers, first)
        _add_files(app, view, answers)
    _add_reports()
    # Browsers that are silent for less than a minute, asleep or on a slow line, find their tab as they left it.
    ui.run_with(app, dark=None, tailwind=False, language="en-US", reconnect_timeout=60.0, show_welcome_message=False)
    return app


def _add_page(view: View, views: Sequence[View], answers: Answers, first: Form) -> None:
    @ui.page(view.path)
    async def page(request: Request) -> None:
        words = request.query_params.multi_items()
        tab = Tab(view=view, form=Form.read(words) if words else first, answers=answers)
        ui.dark_mode({"1": True, "0": False}.get(request.cookies.get("dark", "")))
        _fill(tab, views)
        ui.on("went", lambda event: tab.go(parse_qsl(event.args.removeprefix("?")), first))
        # An answer that comes at once is part of the page, another follows when it is there.
        _, late = await asyncio.wait({background_tasks.create(tab.start())}, timeout=_AT_ONCE_S)
        if late:
            tab.place.classes(add="asking")


def _fill(tab: Tab, views: Sequence[View]) -> None:
    """Put the names of all views, the question, and places for the answer on the page."""
    ui.add_head_html(f"<style>{_STYLE.read_text()}</style><script>{SCRIPT.read_text()}{_SCRIPT.read_text()}</script>")
    ui.colors(primary="#0b5fa5")
    ui.page_title(f"{tab.view.title} · neusight")
    header = ui.header().props("reveal").style("padding: 8px 16px; background: #0b3f6b")
    with header, ui.element("nav").classes("views").props('aria-label="views"').style("width: 100%"):
        ui.label("neusight").classes("brand")
        for view in views:
            ui.link(view.title, view.path).props('aria-current="page"' if view is tab.view else "")
        ui.space()
        switch = ui.button(icon="contrast").props('flat dense color=white aria-label="light or dark"')
        switch.on("click", js_handler="() => asking.switchDark()")
    if tab.view.asks:
        _question(tab)
    tab.build()


def _question(tab: Tab) -> None:
    """Model, devices and mode above the groups of fields of the mode; a file that is dropped anywhere is the model."""
    refused = f"this file is no config.json, .onnx or .pt2, or larger than {_MOST_BYTES / 2**20:.0f} MiB"
    with ui.element("div").classes("question"):
        tab.field("model")
        tab.field("gpu")
        with ui.element("div").classes("mode"):
            tab.field("mode")
        upload, button = chosen_file("or drop a file", ".json,.onnx,.pt2", lambda event: _take_file(tab, event))
        upload.props(f"max-file-size={_MOST_BYTES}").on_rejected(lambda: tab.wrong(refused))
        button.props('title="config.json, .onnx or .pt2"')
        ui.run_javascript(f"asking.drop({upload.id})")
    tab.panels = ui.element("div").classes("panels")
    with tab.panels:
        fill_panels(tab.form, tab.field)


async def _take_file(tab: Tab, event: Any) -> None:
    """Make a file the model; report one that cannot be read, and leave the question as it is."""
    try:
        path = await run.io_bound(keep_model, event.file.name, await event.file.read())
    except NeusightError as mistake:
        tab.wrong(str(mistake))
    else:
        await tab.change(model=str(path))
        tab.reflect()


def _add_files(app: FastAPI, view: View, answers: Answers) -> None:
    @app.get(f"/files{view.path.rstrip('/')}/{{name}}.{{form}}")
    async def file(name: str, form: str, request: Request) -> Response:
        if form not in (*_TYPES, "trace"):
            raise HTTPException(404, f"no form '{form}' of a figure: one of {', '.join(_TYPES)}, trace")
        try:
            question = Form.of(request.query_params.multi_items())
            shown = await answers.of(view.ask, question, slow=view.is_slow(question))
        except NeusightError as error:
            raise HTTPException(422, str(error)) from error
        charts = {chart.name: chart for chart in shown.charts}
        if (name, form) == ("predictions", "csv") and shown.answers:
            content: str | bytes = predictions(shown.answers)
        elif name in charts:
            content = charts[name].trace() if form == "trace" else charts[name].content(f".{form}")
        else:
            raise HTTPException(404, f"no figure '{name}': one of {', '.join(charts)}")
        ending = {"trace": "trace.json"}.get(form, form)
        headers = {"Content-Disposition": f'attachment; filename="{name}.{ending}"'}
        return Response(content, media_type=_TYPES.get(form, "application/json"), headers=headers)


def _add_reports() -> None:
    """Add the committed reports of experiments, with their pictures."""
    nicegui_app.add_static_files("/experiments", checkout_dir("experiments"))

    @ui.page("/reports/{name}")
    def report(name: str) -> None:
        folders = {file.parent.name: file.parent for file in checkout_dir("experiments").glob("*/experiment.toml")}
        path = folders.get(name, Path(name)) / "report.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else f"{name} has no report here"
        ui.add_css(_STYLE)
        ui.markdown(re.sub(r"\]\((?=[\w-]+\.png)", f"](/experiments/{name}/", text))


def serve(form: Form, functions: Sequence[str], port: int, *, show: bool) -> None:
    """Serve the page until Ctrl-C.

    Args:
        form: the first question.
        functions: ``package.module:function`` models that may run.
        port: port of this machine.
        show: True to open a browser.
    """
    app = application(Answers(functions), form)
    Thread(target=known_models, daemon=True).start()
    if show:
        Timer(1.0, webbrowser.open, [f"http://{HOST}:{port}/"]).start()
    # Messages do not leave this machine: to compress them takes longer than to send them.
    uvicorn.run(app, host=HOST, port=port, log_level="warning", ws_per_message_deflate=False)
