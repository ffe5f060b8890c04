"""The page as an application: its views, files of their charts, and a server on this machine alone."""

from __future__ import annotations

import asyncio
import re
import webbrowser
from collections.abc import Sequence
from threading import Thread, Timer
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from nicegui import app as nicegui_app
from nicegui import background_tasks, ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from neusight.errors import NeusightError
from neusight.figures import Chart
from neusight.page import ask, decide, drag, look, trust
from neusight.page.answers import Answers
from neusight.page.form import Form
from neusight.page.frame import STYLE, frame, known
from neusight.page.tab import Tab, View
from neusight.paths import checkout_dir

VIEWS: tuple[View, ...] = (ask.VIEW, drag.VIEW, look.VIEW, decide.VIEW, trust.VIEW)
_AT_ONCE_S = 1.0
_ENDINGS = {"trace": "trace.json"}
HOST = "127.0.0.1"
_TYPES = {
    **{"csv": "text/csv", "json": "application/json", "png": "image/png", "svg": "image/svg+xml"},
    "trace": "application/json",
}


def application(answers: Answers, first: Form, views: Sequence[View] = VIEWS) -> FastAPI:
    """All views and files.

    Args:
        answers: to questions of all tabs.
        first: the question of a URL that has none.
        views: what there is.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A page of somebody else must not reach this one through a name of its own.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    for view in views:
        _add_page(view, views, answers, first)
        _add_files(app, view, answers)
    _add_reports()
    ui.run_with(app, title="neusight", dark=None, tailwind=False, language="en-US", show_welcome_message=False)
    return app


def _add_page(view: View, views: Sequence[View], answers: Answers, first: Form) -> None:
    @ui.page(view.path)
    async def page(request: Request) -> None:
        words = request.query_params.multi_items()
        tab = Tab(view=view, form=Form.read(words) if words else first, answers=answers)
        frame(tab, views, {"1": True, "0": False}.get(request.cookies.get("dark", "")))
        ui.on("went", lambda event: tab.go(parse_qsl(event.args.removeprefix("?")), first))
        # An answer that comes at once is part of the page, another follows when it is there.
        _, late = await asyncio.wait({background_tasks.create(tab.start())}, timeout=_AT_ONCE_S)
        if late:
            tab.place.classes(add="asking")


def _add_files(app: FastAPI, view: View, answers: Answers) -> None:
    @app.get(f"/files{view.path.rstrip('/')}/{{name}}.{{form}}")
    async def file(name: str, form: str, request: Request) -> Response:
        if form not in _TYPES:
            raise HTTPException(404, f"no form '{form}' of a figure: one of {', '.join(_TYPES)}")
        try:
            question = Form.of(request.query_params.multi_items())
            shown = await answers.of(view.ask, question, slow=view.is_slow(question))
        except NeusightError as error:
            raise HTTPException(422, str(error)) from error
        charts = {chart.name: chart for chart in shown.charts}
        if name not in charts:
            raise HTTPException(404, f"no figure '{name}': one of {', '.join(charts)}")
        headers = {"Content-Disposition": f'attachment; filename="{name}.{_ENDINGS.get(form, form)}"'}
        return Response(_content(charts[name], form), media_type=_TYPES[form], headers=headers)


def _add_reports() -> None:
    """Reports of experiments, as they are committed, with their pictures."""
    nicegui_app.add_static_files("/experiments", checkout_dir("experiments"))

    @ui.page("/reports/{name}")
    def report(name: str) -> None:
        from neusight.experiments import find_experiment

        path = find_experiment(name).folder / "report.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else f"{name} has no report here"
        ui.add_css(STYLE)
        ui.markdown(re.sub(r"\]\((?=[\w-]+\.png)", f"](/experiments/{name}/", text))


def _content(chart: Chart, form: str) -> Any:
    texts = {"csv": chart.to_csv, "json": chart.to_json, "trace": chart.trace}
    return texts[form]() if form in texts else chart.picture(f".{form}")


def serve(form: Form, functions: Sequence[str], port: int, *, show: bool) -> None:
    """Until Ctrl-C.

    Args:
        form: the first question.
        functions: ``package.module:function`` models that may run.
        port: of this machine.
        show: whether a browser opens.
    """
    app = application(Answers(functions), form)
    Thread(target=known, daemon=True).start()
    if show:
        Timer(1.0, webbrowser.open, [f"http://{HOST}:{port}/"]).start()
    uvicorn.run(app, host=HOST, port=port, log_level="warning")
