"""One open tab: its question, its view, and the elements on the screen; the URL follows the question."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from typing import Any

from nicegui import ui
from nicegui.awaitable_response import AwaitableResponse

from neusight.api import Predictor
from neusight.errors import one_line
from neusight.figures import Chart
from neusight.figures.echarts import height_px
from neusight.page.answers import Answers, DeviceAnswer, said_of
from neusight.page.fields import HEAD, FieldView, fill_panels
from neusight.page.form import Form

_FEW = 6
"""Lanes of a chart that takes half the width of a wide screen."""
_SUSPECTS = ("mode", "gpu", "model")
"""Fields that are marked last where a question has no answer: all other fields are valid for some of them only."""
_FILES = {"csv": "CSV", "json": "JSON", "png": "PNG", "svg": "SVG"}
"""Formats in which a chart may be downloaded, and their labels."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A view's result for a question: charts, texts above and below them, and a text ``said`` while dragging;
    ``answers`` are those that may be downloaded as rows to measure.
    """

    charts: tuple[Chart, ...] = ()
    answers: Sequence[DeviceAnswer] = ()
    said: str = ""
    texts: Callable[[Tab], None] = lambda tab: None
    below: Callable[[Tab], None] = lambda tab: None


@dataclass(frozen=True, kw_only=True)
class View:
    """A view: its address, its question to a predictor, and the elements around its charts.

    ``controls`` are placed between question and answer, ``is_slow`` is True if an answer takes longer than dragging may
    wait, ``asks`` if there is a question at all, ``is_dragged`` if the first chart is dragged and texts stay in place;
    ``unused`` names fields that are given and have no effect here.
    """

    path: str
    title: str
    ask: Callable[[Predictor, Form], Shown]
    controls: Callable[[Tab], None] = lambda tab: None
    asks: bool = True
    is_dragged: bool = False
    unused: Callable[[Form], Sequence[str]] = lambda form: ()
    is_slow: Callable[[Form], bool] = lambda form: False


@dataclass(kw_only=True)
class Tab:
    """The state of one browser tab. Only the newest question is drawn, in any order of answers."""

    view: View
    form: Form
    answers: Answers
    plots: dict[str, ui.echart] = field(default_factory=dict)
    titles: dict[str, ui.html] = field(default_factory=dict)
    fields: dict[str, FieldView] = field(default_factory=dict)
    """Fields of the question that are on the screen, by name."""
    panels: Any = None
    """Place of the fields of the mode."""
    prepared: Any = None
    """Form whose answers are computed ahead, while the tab is idle."""
    shapes: list[tuple[str, int]] = field(default_factory=list)
    """Name and height of each chart."""
    busy: bool = False
    """True while a question is being answered."""
    asked: Form | None = None
    """The question that is being answered, or whose answer is on the screen."""
    slider: Any = None
    """Slider of a view with dragging."""
    slid: float = 0.0
    """The value that the slider shows."""
    pending: bool = False
    """True if a newer question waits for the answer of this one."""
    entry: int | None = None
    """Entry of the history for the question: a gesture of the browser, all of which share one, 0 for an edit, which is
    an entry by itself, or None, which leaves the address as it is."""

    def build(self) -> None:
        """Create the places of the page: a line for mistakes, controls, texts, charts."""
        self.mistake = ui.label().classes("wrong").props('role="alert"')
        self.note = ui.label().classes("quiet")
        self.controls = ui.column().style("gap: 8px; width: 100%")
        with self.controls:
            self.view.controls(self)
        self.place = ui.element("div").classes("shown")
        with self.place:
            ui.label("working …").classes("working").props('role="status"')
            self.said = ui.label().classes("answer said" if self.view.is_dragged else "said")
            self.texts = ui.column().classes("w-full").style("gap: 10px; width: 100%")
            self.drawings = ui.element("div").classes("plots")
            self.below = ui.column().style("width: 100%")
        self.show_fields()

    async def change(self, **texts: str) -> None:
        """Change the words of fields; one that cannot be read affects only itself."""
        await self.ask(self.form.changed(**texts))

    async def go(self, words: Sequence[tuple[str, str]], first: Form) -> None:
        """Ask the question of an entry of the history, ``first`` where it has none."""
        self.form = Form.read(words) if words else first
        self.rebuild()
        self.reflect()
        self.show_fields()
        await self.start()

    async def start(self) -> None:
        """Answer the question of an address."""
        self.entry = None
        await (self.fail() if self.form.mistakes else self.redraw())

    async def ask(self, form: Form, entry: int = 0) -> None:
        """Ask another question, whose answer is ``entry`` of the history."""
        other, self.form = form.page.mode != self.form.page.mode, form
        if other:
            self.rebuild()
        self.show_fields()
        if form.mistakes:
            await self.fail()
        elif form != self.asked:
            self.entry = entry
            await self.redraw()

    def _tell(self, what: str, *words: Any) -> AwaitableResponse:
        """Call a function of ``page.js`` in the browser."""
        return self.place.client.run_javascript(f"asking.{what}({', '.join(map(json.dumps, words))})")

    async def fail(self) -> None:
        """Show no answer, since the question has none."""
        self.asked, self.pending = None, False
        self._tell("failed")

    def rebuild(self) -> None:
        """Build the fields and controls of another mode."""
        self.fields = {name: f for name, f in self.fields.items() if name in HEAD}
        if self.panels is not None:
            self.panels.clear()
            with self.panels:
                fill_panels(self.form, self.field)
        self.controls.clear()
        with self.controls:
            self.view.controls(self)

    async def redraw(self) -> None:
        """Draw the answer to the current question; of questions that come while one is answered, only to the last."""
        self.asked, self.pending = self.form, True
        if self.busy:
            return
        self.busy = True
        try:
            while self.pending:
                self.pending = False
                await self._redraw(self.form, self.entry)
        finally:
            self.busy = False

    async def _redraw(self, form: Form, entry: int | None) -> None:
        self._tell("ask", f"?{form.query}", self.view.is_dragged)
        shown, error = await self._answer(form)
        if shown is None and self.asked and not self.pending:
            await self.fail()
            await self._blame(form, error)
        if shown is None or not self.asked:
            return
        if self.entry is None:
            # One has gone back: the address is no longer that of this question.
            entry = None
        if entry == 0:
            # The address of an edit is there before the answer is.
            with suppress(TimeoutError):
                await self._tell("point", f"?{form.query}", entry)
        if self.asked:
            # Past the elements, all of which a browser renders again where one of them is other.
            self._tell("answered", self._show(shown), shown.said, not self.pending)
        if entry:
            self._tell("point", f"?{form.query}", entry)

    async def _answer(self, form: Form) -> tuple[Shown | None, str]:
        """The answer, or the reason why there is none."""
        try:
            return await self.answers.of(self.view.ask, form, slow=self.view.is_slow(form)), ""
        except Exception as error:  # A page goes on where a command would end.
            return None, said_of(error)

    async def _blame(self, form: Form, error: str) -> None:
        """Mark the field without which the question has an answer, or show the error above all answers."""
        self.wrong(error)
        names = [name for name, f in self.fields.items() if name in form.given and f.shows_mistakes]
        for name in sorted(names, key=lambda name: _SUSPECTS.index(name) if name in _SUSPECTS else -1):
            shown, _ = await self._answer(form.changed(**{name: ""}))
            if form != self.form or self.pending or self.form.mistakes:
                return
            if shown is not None:
                self.wrong("")
                self.fields[name].show_mistake(form, error)
                return

    def field(self, name: str) -> None:
        """Put a field of the question on the screen, by its declaration."""
        declared = self.form.declared(name)
        assert declared is not None, name
        self.fields[name] = FieldView(declared, self.form, self.change)

    def reflect(self) -> None:
        """Show the values of the form in all fields."""
        for field_ in self.fields.values():
            field_.reflect(self.form)

    def show_fields(self) -> None:
        """Mark fields that cannot be read; a mistake that no field here shows is in the line above all answers."""
        for field_ in self.fields.values():
            field_.show_mistake(self.form)
        marked = [name for name, f in self.fields.items() if f.shows_mistakes]
        self.wrong("; ".join(str(m.error) for name, m in self.form.mistakes.items() if name not in marked))
        names = dict.fromkeys([*(name for name, _ in self.form.aside), *self.view.unused(self.form)])
        self.note.text = f"without effect here: {', '.join(names)}" if names else ""
        self.note.set_visibility(bool(names))

    def wrong(self, line: str) -> None:
        """Show a mistake, in the line that the command would print; "" for none."""
        self.mistake.text = one_line(line)
        self.mistake.set_visibility(bool(line))

    def _show(self, shown: Shown) -> list[tuple[int, dict[str, Any]]]:
        """Show texts again, unless the view keeps them; return charts to update where they are the same."""
        if not self.view.is_dragged:
            self.texts.clear()
            self.below.clear()
        with self.texts:
            shown.texts(self)
        with self.below:
            shown.below(self)
        drawn = self._draw(shown.charts)
        if not drawn:
            self.said.text = shown.said
        return drawn

    def _draw(self, charts: Sequence[Chart]) -> list[tuple[int, dict[str, Any]]]:
        """Place charts, or return existing ones with their options, for the browser to draw again."""
        shapes = [(chart.name, height_px(chart)) for chart in charts]
        if self.shapes != shapes:
            self.shapes = shapes
            self.drawings.clear()
            with self.drawings:
                self.plots = {chart.name: self._place(chart) for chart in charts}
            if self.view.is_dragged:
                self._tell("drag", self.plots[charts[0].name].id)
            return []
        for chart in charts:
            self.titles[chart.name].set_content(_title(chart))
        return [(self.plots[chart.name].id, chart.echarts()) for chart in charts]

    def _place(self, chart: Chart) -> ui.echart:
        few = 0 < len(chart.lanes) <= _FEW and any(chart.lanes) and not chart.zoom
        with ui.element("section").classes("plot" if few else "plot wide"):
            self.titles[chart.name] = ui.html(_title(chart), sanitize=False)
            plot = ui.echart(chart.echarts(), renderer="canvas").style(f"height: {height_px(chart)}px")
            plot.props(f'role="img" aria-label="{chart.title}"').mark(chart.name)
            plot.on_point_click(lambda event: self._tell("focus", event.data.get("link", "")))
            with ui.element("div").classes("links"):
                for form, called in (_FILES | ({"trace": "Perfetto"} if chart.zoom else {})).items():
                    # Its address is that of the question as it stands when it is followed.
                    ui.link(called, f"/files{self.view.path.rstrip('/')}/{chart.name}.{form}")
        return plot


def _title(chart: Chart) -> str:
    grey = '<p class="quiet">grey: outside of what was measured</p>' if chart.outside else ""
    return f"<h2>{escape(chart.title)}</h2>{grey}"


def link_predictions(view: str) -> None:
    """A link to the answers of a view as a table of rows to measure."""
    with ui.element("div").classes("links"):
        ui.link("predictions as CSV, to fill in what you measure", f"/files{view.rstrip('/')}/predictions.csv")


def show_copyable(title: str, text: str) -> None:
    """Show lines to copy."""
    with ui.element("div").style("width: 100%; min-width: 0"):
        with ui.row().style("align-items: center; gap: 8px"):
            ui.label(title).classes("quiet")
            button = ui.button("copy", on_click=lambda: ui.clipboard.write(text))
            button.props(f'flat dense no-caps aria-label="copy {title}"')
        words = re.sub(r"[^\s]+", lambda word: f"<span>{escape(word[0])}</span>", text)
        ui.html(f'<pre class="lines" tabindex="0" aria-label="{title}">{words}</pre>', sanitize=False)
