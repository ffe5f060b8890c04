"""One open tab: its question, its view, and what is on the screen; the URL follows the question."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.errors import NeusightError, one_line, reason
from neusight.figures import Chart
from neusight.figures.echarts import height_px
from neusight.page.answers import Answers
from neusight.page.form import Form, written

_FEW = 6
"""Lanes of a chart that takes half the width of a wide screen."""
_PRESSED = "no-caps dense spread toggle-color=blue-10 toggle-text-color=white"
_BUTTONS = ("mode",)
"""Fields that are chosen by one click."""
_TO_LINK = "const to = document.getElementById('%s'); if (to) { to.scrollIntoView({block: 'center'}); to.focus(); }"
FORMS = ("csv", "json", "png", "svg")
"""In which a chart may be taken along."""
_CALLED = {"trace": "Perfetto"}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a view shows of a question: charts, and what is said beside them."""

    charts: tuple[Chart, ...] = ()
    rest: Any = None


@dataclass(frozen=True, kw_only=True)
class View:
    """A view: where it lies, what it asks of a predictor, and what it puts beside its charts.

    ``controls`` stand between question and answer, ``placed`` is called when charts are put on the screen, ``is_slow``
    says whether an answer takes longer than who drags may wait, ``below`` puts texts after the charts, ``asks`` says
    whether there is a question at all, ``steady`` whether its texts stay where they are.
    """

    path: str
    title: str
    ask: Callable[[Predictor, Form], Shown]
    texts: Callable[[Tab, Shown], None] = lambda tab, shown: None
    controls: Callable[[Tab], None] = lambda tab: None
    placed: Callable[[Tab], None] = lambda tab: None
    below: Callable[[Tab, Shown], None] = lambda tab, shown: None
    asks: bool = True
    steady: bool = False
    is_slow: Callable[[Form], bool] = lambda form: False


@dataclass(kw_only=True)
class Tab:
    """What one browser tab shows. Only the newest question is drawn, whatever order answers come in."""

    view: View
    form: Form
    answers: Answers
    plots: dict[str, ui.echart] = field(default_factory=dict)
    greys: dict[str, Any] = field(default_factory=dict)
    """Of charts, the line that says what grey means."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the question, by name."""
    prepared: Any = None
    """Of what answers are computed ahead, while nobody asks."""
    shapes: list[tuple[str, bool, int]] = field(default_factory=list)
    """Of charts: name, whether it is wide, height."""
    titles: dict[str, ui.html] = field(default_factory=dict)
    own: Any = None
    """Place of what somebody measured."""
    of_mode: dict[str, Any] = field(default_factory=dict)
    """Fields that are of a step, or of a load."""
    busy: bool = False
    """Whether a question is being answered."""
    said: list[ui.label] = field(default_factory=list)
    """Answers that change in place."""
    _again: bool = False

    def build(self) -> None:
        """Places for what comes: a line for mistakes, controls, texts, charts."""
        self.mistake = ui.label().classes("wrong").props('role="alert"')
        self.mistake.set_visibility(False)
        self.controls = ui.column().style("gap: 8px; width: 100%")
        with self.controls:
            self.view.controls(self)
        self.waiting = ui.label("working …").classes("quiet").props('role="status"')
        self.waiting.set_visibility(False)
        self.texts = ui.column().classes("w-full").style("gap: 10px; width: 100%")
        self.drawings = ui.element("div").classes("plots")
        self.after = ui.column().style("width: 100%")

    async def change(self, **texts: Any) -> None:
        """Other words in fields of the form."""
        try:
            form = self.form.changed(**{name: "" if text is None else str(text) for name, text in texts.items()})
        except NeusightError as error:
            self.wrong(str(error))
            return
        await self.ask(form)

    async def ask(self, form: Form) -> None:
        """Another question."""
        self.wrong("")
        if form != self.form:
            other, self.form = form.serving != self.form.serving, form
            self.point()
            if other:
                self.rebuild()
            await self.redraw()

    def rebuild(self) -> None:
        """Fields and controls of another mode."""
        for kind, element in self.of_mode.items():
            element.set_visibility(self.form.serving == (kind == "load"))
        self.controls.clear()
        with self.controls:
            self.view.controls(self)

    def point(self) -> None:
        """The URL, with the question; links to other views take it from there."""
        ui.navigate.history.replace(f"{self.view.path}?{self.form.query}")

    async def redraw(self) -> None:
        """The answer to the question as it stands; of those that come while one is answered, to the last."""
        self._again = True
        if self.busy:
            return
        self.busy = True
        try:
            while self._again:
                self._again = False
                await self._redraw()
        finally:
            self.busy = False

    async def _redraw(self) -> None:
        self.waiting.set_visibility(self.view.is_slow(self.form))
        try:
            shown: Shown | None = await self.answers.of(self.view.ask, self.form, slow=self.view.is_slow(self.form))
            error = ""
        except NeusightError as mistake:
            shown, error = None, str(mistake)
        except Exception as mistake:  # A page goes on where a command would end.
            shown, error = None, f"{type(mistake).__name__}: {reason(mistake)}"
        self.waiting.set_visibility(False)
        if not self._again:
            self.wrong(error)
        if shown is not None:
            self.show(shown)

    def field(self, name: str, title: str, *, wide: bool = False, known: Sequence[str] = ()) -> None:
        """A field of the form as text."""
        value = getattr(self.form, name)

        async def changed(event: Any) -> None:
            await self.change(**{name: event.value})

        text = "" if value is None else written(value)
        field = ui.input(title, value=text, on_change=changed, autocomplete=list(known) or None)
        field.props("dense debounce=350").classes("wide" if wide else "").mark(name)
        self.fields[name] = field

    def choice(self, name: str, values: Sequence[str] | Mapping[str, str]) -> None:
        """A field of the form as one of some values, or of values with their titles."""

        async def changed(event: Any) -> None:
            await self.change(**{name: event.value})

        options = dict(values) if isinstance(values, Mapping) else list(values)
        value = getattr(self.form, name)
        if name in _BUTTONS:
            chosen: Any = ui.toggle(options, value=value, on_change=changed).props(_PRESSED)
            chosen.classes("wide")
        else:
            chosen = ui.select(options, value=value, label=name, on_change=changed).props("dense")
        self.fields[name] = chosen.mark(name)

    def reflect(self, name: str) -> None:
        """A field of the question shows what the form has, which somebody changed elsewhere."""
        value = getattr(self.form, name)
        self.fields[name].value = "" if value is None else written(value)

    def wrong(self, line: str) -> None:
        """A mistake, in the line that the command would print; "" for none."""
        self.mistake.text = one_line(line)
        self.mistake.set_visibility(bool(line))

    def show(self, shown: Shown) -> None:
        """Texts anew, unless the view keeps them; charts in place where they are the same."""
        if not self.view.steady:
            self.texts.clear()
        with self.texts:
            self.view.texts(self, shown)
        self.draw(shown.charts)
        self.after.clear()
        with self.after:
            self.view.below(self, shown)

    def say(self, lines: Sequence[str]) -> None:
        """Answers of a view that keeps its texts, a line each, in place: who drags waits for nothing else."""
        if len(lines) != len(self.said):
            self.texts.clear()
            with self.texts:
                self.said = [ui.label().classes("answer") for _ in lines]
        for label, line in zip(self.said, lines, strict=True):
            label.text = line

    def draw(self, charts: Sequence[Chart]) -> None:
        """Charts, in place where they are there."""
        shapes = [(chart.name, wide, height_px(chart)) for chart, wide in zip(charts, _wide(charts), strict=True)]
        if self.shapes != shapes:
            self.shapes = shapes
            self.plots.clear()
            self.drawings.clear()
            with self.drawings:
                for chart, (_, wide, _) in zip(charts, shapes, strict=True):
                    self._place(chart, wide)
                self.view.placed(self)
            return
        for chart in charts:
            self.greys[chart.name].set_visibility(chart.outside)
            self.titles[chart.name].set_content(_title(chart))
        # Past the elements, all of which a browser renders again where one of them is other.
        drawn = [(self.plots[chart.name].id, chart.echarts()) for chart in charts]
        ui.run_javascript(f"neusight.draw({json.dumps(drawn)})")

    def _place(self, chart: Chart, wide: bool) -> None:
        with ui.element("section").classes("plot wide" if wide else "plot"):
            self.titles[chart.name] = ui.html(_title(chart), sanitize=False)
            plot = ui.echart(chart.echarts(), renderer="canvas").style(f"height: {height_px(chart)}px")
            plot.props(f'role="img" aria-label="{chart.title}"').mark(chart.name)
            plot.on_point_click(lambda event: ui.run_javascript(_TO_LINK % event.data.get("link", "")))
            self.plots[chart.name] = plot
            grey = self.greys[chart.name] = ui.label("grey: outside of what was measured").classes("quiet")
            grey.set_visibility(chart.outside)
            with ui.element("div").classes("links"):
                for form in (*FORMS, *(("trace",) if chart.zoom else ())):
                    # Its address is that of the question as it stands when it is followed.
                    ui.link(_CALLED.get(form, form.upper()), f"/files{self.view.path.rstrip('/')}/{chart.name}.{form}")


def _title(chart: Chart) -> str:
    return f"<h2>{escape(chart.title)}</h2>"


def _wide(charts: Sequence[Chart]) -> list[bool]:
    """Which take all of a wide screen: those of many marks, and those that nothing stands beside."""
    wide = [not (0 < len(chart.lanes) <= _FEW and any(chart.lanes)) or chart.zoom for chart in charts]
    for at in range(len(charts)):
        beside = len(list(takewhile(lambda each: not each, reversed(wide[:at]))))
        alone = beside % 2 == 0 and all(wide[at + 1 : at + 2])
        wide[at] = wide[at] or alone
    return wide


def copied(title: str, text: str) -> None:
    """Lines to copy."""
    with ui.element("div").style("width: 100%; min-width: 0"):
        with ui.row().style("align-items: center; gap: 8px"):
            ui.label(title).classes("quiet")
            button = ui.button("copy", on_click=lambda: ui.clipboard.write(text))
            button.props(f'flat dense no-caps aria-label="copy {title}"')
        words = re.sub(r"[^\s]+", lambda word: f"<span>{escape(word[0])}</span>", text)
        ui.html(f'<pre class="lines" tabindex="0" aria-label="{title}">{words}</pre>', sanitize=False)
