"""What all views share: the head with their names, the question, and light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nicegui import run, ui

from neusight.devices import list_devices
from neusight.errors import NeusightError
from neusight.figures.echarts import SCRIPT
from neusight.page.fields import fill_panels
from neusight.page.kept import keep_model
from neusight.page.tab import Tab, View
from neusight.workloads.catalogue import list_hub, list_workloads

STYLE, _SCRIPT = (Path(__file__).with_name(name) for name in ("style.css", "page.js"))
PRIMARY = "#0b5fa5"
_MOST_BYTES = 64 * 2**20
"""Of a file that is dropped: a model's description, not its weights."""


def frame(tab: Tab, views: Sequence[View], dark: bool | None) -> None:
    """The head, the question, and places for the answer."""
    ui.add_head_html(f"<style>{STYLE.read_text()}</style><script>{SCRIPT.read_text()}{_SCRIPT.read_text()}</script>")
    ui.dark_mode(dark)
    ui.colors(primary=PRIMARY)
    ui.page_title(f"{tab.view.title} · neusight")
    with ui.header().props("reveal").style("padding: 8px 16px; background: #0b3f6b"):
        _head(tab, views)
    if tab.view.asks:
        question(tab)
    tab.build()


def _head(tab: Tab, views: Sequence[View]) -> None:
    with ui.element("nav").classes("views").props('aria-label="views"').style("width: 100%"):
        ui.label("neusight").classes("brand")
        for view in views:
            link = ui.link(view.title, view.path)
            if view is tab.view:
                link.props('aria-current="page"')
        ui.space()
        switch = ui.button(icon="contrast").props('flat dense color=white aria-label="light or dark"')
        switch.on("click", js_handler="() => asking.switchDark()")


@cache
def known() -> tuple[list[str], list[str]]:
    """Models and devices that fields complete: read once, since all tabs wait for that."""
    return [*(info.name for info in list_workloads()), *list_hub()], [device.id for device in list_devices()]


def question(tab: Tab) -> None:
    """Fields of the question: model, devices and mode above the groups of the mode."""
    with ui.element("div").classes("question"):
        models, devices = known()
        tab.field("model", wide=True, known=models)
        tab.field("gpu", wide=True, known=devices)
        with ui.element("div").classes("mode"):
            tab.field("mode")
        _files(tab)
    tab.panels = ui.element("div").classes("panels")
    with tab.panels:
        fill_panels(tab.form, tab.field)


def _files(tab: Tab) -> None:
    """A button that chooses a file, and the whole page as the place to drop it."""
    refused = f"this file is no config.json, .onnx or .pt2, or larger than {_MOST_BYTES / 2**20:.0f} MiB"
    upload = ui.upload(on_upload=lambda event: _dropped(tab, event), on_rejected=lambda: tab.wrong(refused))
    upload.style("display: none")
    upload.props(f'auto-upload max-file-size={_MOST_BYTES} accept=".json,.onnx,.pt2"')
    button = ui.button("or drop a file", on_click=lambda: upload.run_method("pickFiles"))
    button.props('flat dense no-caps title="config.json, .onnx or .pt2"')
    ui.run_javascript(f"asking.drop({upload.id})")


async def _dropped(tab: Tab, event: Any) -> None:
    """A file becomes the model; one that is not understood says so, and the question stays as it is."""
    event.sender.reset()
    try:
        path = await run.io_bound(keep_model, event.file.name, await event.file.read())
    except NeusightError as mistake:
        tab.wrong(str(mistake))
    else:
        await tab.change(model=str(path))
        tab.reflect()
