"""One open tab: its question, its view, and what is on the screen; the URL follows the question."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from typing import Any

from nicegui import ui
from nicegui.awaitable_response import AwaitableResponse

from neusight.api import Predictor
from neusight.errors import NeusightError, reason
from neusight.figures import Chart
from neusight.figures.echarts import height_px
from neusight.page.answers import Answers
from neusight.page.fields import HEAD, FieldView, fill_panels, given, say
from neusight.page.form import Form

_FEW = 6
"""Lanes of a chart that takes half the width of a wide screen."""
_SUSPECTS = ("mode", "gpu", "model")
"""Fields that are marked last where a question has no answer: all others make sense for some of them only."""
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
    whether there is a question at all, ``steady`` whether its texts stay where they are; ``unused`` names fields that
    are given and do not count here.
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
    unused: Callable[[Form], Sequence[str]] = lambda form: form.of_cluster
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
    fields: dict[str, FieldView] = field(default_factory=dict)
    """Fields of the question that are on the screen, by name."""
    panels: Any = None
    """Place of the fields of the mode."""
    prepared: Any = None
    """Of what answers are computed ahead, while nobody asks."""
    shapes: list[tuple[str, bool, int]] = field(default_factory=list)
    """Of charts: name, whether it is wide, height."""
    titles: dict[str, ui.html] = field(default_factory=dict)
    own: Any = None
    """Place of what somebody measured."""
    busy: bool = False
    """Whether a question is being answered."""
    asked: Form | None = None
    """The question that is being answered, or whose answer is on the screen."""
    slider: Any = None
    """Of a view on which one drags."""
    moving: bool = False
    """Whether somebody drags, and has not let go yet."""
    said: list[ui.label] = field(default_factory=list)
    """Answers that change in place."""
    _again: bool = False
    _entry: bool | None = None
    """Whether the next answer is an entry of the history; None leaves the address as it is."""

    def build(self) -> None:
        """Places for what comes: a line for mistakes, controls, texts, charts."""
        self.mistake = ui.label().classes("wrong").props('role="alert"')
        self.note = ui.label().classes("quiet")
        self.controls = ui.column().style("gap: 8px; width: 100%")
        with self.controls:
            self.view.controls(self)
        self.place = ui.element("div").classes("shown")
        with self.place:
            ui.label("working …").classes("working").props('role="status"')
            self.texts = ui.column().classes("w-full").style("gap: 10px; width: 100%")
            self.drawings = ui.element("div").classes("plots")
            self.after = ui.column().style("width: 100%")
        self.show_fields()

    async def change(self, **texts: str) -> None:
        """Take other words in fields; one that cannot be read spoils itself alone."""
        await self.ask(self.form.changed(**texts))

    async def go(self, words: Sequence[tuple[str, str]], first: Form) -> None:
        """Ask the question of an entry of the history, ``first`` where it has none."""
        self.form = Form.read(words) if words else first
        self.rebuild()
        self.reflect()
        self.show_fields()
        await self.start()

    async def start(self) -> None:
        """Answer the question of an address as it stands."""
        self._entry = None
        await (self.fail() if self.form.mistakes else self.redraw())

    async def ask(self, form: Form, *, entry: bool = True) -> None:
        """Ask another question, whose answer is a new entry of the history or replaces the address of this one."""
        other, self.form = form.mode != self.form.mode, form
        if other:
            self.rebuild()
        self.show_fields()
        if form.mistakes:
            await self.fail()
        elif form != self.asked:
            self._entry = bool(self._entry) or entry
            await self.redraw()

    def _tell(self, what: str, *words: Any) -> AwaitableResponse:
        """Call a function of ``page.js`` in the browser."""
        return self.place.client.run_javascript(f"asking.{what}({', '.join(map(json.dumps, words))})")

    async def fail(self) -> None:
        """Show no answer, since the question has none."""
        self.asked, self._again = None, False
        self._tell("failed")

    def rebuild(self) -> None:
        """Fields and controls of another mode."""
        self.fields = {name: one for name, one in self.fields.items() if name in HEAD}
        if self.panels is not None:
            self.panels.clear()
            with self.panels:
                fill_panels(self.form, self.field)
        self.controls.clear()
        with self.controls:
            self.view.controls(self)

    async def redraw(self) -> None:
        """The answer to the question as it stands; of those that come while one is answered, to the last."""
        self.asked, self._again = self.form, True
        if self.busy:
            return
        self.busy = True
        try:
            while self._again:
                self._again = False
                await self._redraw(self.form)
        finally:
            self.busy = False

    async def _redraw(self, form: Form) -> None:
        self._tell("ask", f"?{form.query}", self.view.steady)
        shown, error = await self._answer(form)
        if shown is not None and self.asked:
            await self._point(form)
            self._draw_answer(shown)
        elif error and self.asked and not self._again:
            await self.fail()
            await self._blame(form, error)

    def _draw_answer(self, shown: Shown) -> None:
        """Put an answer on the screen, unless its question has been spoilt since."""
        if self.asked:
            self.show(shown)
            if not self._again:
                self._tell("answered")

    async def _point(self, form: Form) -> None:
        """The address of an answer, which is there before the answer is."""
        entry, self._entry = self._entry, False
        told = self._tell("point", f"?{form.query}", entry)
        if entry:
            with suppress(TimeoutError):
                await told

    async def _answer(self, form: Form) -> tuple[Shown | None, str]:
        """The answer, or why there is none."""
        try:
            return await self.answers.of(self.view.ask, form, slow=self.view.is_slow(form)), ""
        except NeusightError as mistake:
            return None, str(mistake)
        except Exception as mistake:  # A page goes on where a command would end.
            return None, f"{type(mistake).__name__}: {reason(mistake)}"

    async def _blame(self, form: Form, error: str) -> None:
        """Mark the field without which the question has an answer, or say the error above all answers."""
        self.wrong(error)
        names = list(given(form, list(self.fields)))
        for name in sorted(names, key=lambda name: _SUSPECTS.index(name) if name in _SUSPECTS else -1):
            shown, _ = await self._answer(form.changed(**{name: ""}))
            if form != self.form or self._again or self.form.mistakes:
                return
            if shown is not None:
                self.wrong("")
                self.fields[name].show_mistake(form, error)
                return

    def field(self, name: str, *, wide: bool = False, known: Sequence[str] = ()) -> None:
        """A field of the question, as its declaration says."""

        async def changed(text: str) -> None:
            await self.change(**{name: text})

        one = self.form.declared(name)
        assert one is not None, name
        self.fields[name] = FieldView(one, self.form, changed, wide=wide, known=known)

    def reflect(self) -> None:
        """Fields show what the form has."""
        for field_ in self.fields.values():
            field_.reflect(self.form)

    def show_fields(self) -> None:
        """Mark fields that cannot be read; a mistake that has no field here is in the line above all answers."""
        for field_ in self.fields.values():
            field_.show_mistake(self.form)
        self.wrong("; ".join(str(m.error) for name, m in self.form.mistakes.items() if name not in self.fields))
        names = dict.fromkeys([*(name for name, _ in self.form.aside), *self.view.unused(self.form)])
        self.note.text = f"without effect here: {', '.join(names)}" if names else ""
        self.note.set_visibility(bool(self.note.text))

    def wrong(self, line: str) -> None:
        """A mistake, in the line that the command would print; "" for none."""
        say(self.mistake, line)

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
        self.place.client.run_javascript(f"neusight.draw({json.dumps(drawn)})")

    def _place(self, chart: Chart, wide: bool) -> None:
        with ui.element("section").classes("plot wide" if wide else "plot"):
            self.titles[chart.name] = ui.html(_title(chart), sanitize=False)
            plot = ui.echart(chart.echarts(), renderer="canvas").style(f"height: {height_px(chart)}px")
            plot.props(f'role="img" aria-label="{chart.title}"').mark(chart.name)
            plot.on_point_click(lambda event: self._tell("focus", event.data.get("link", "")))
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
