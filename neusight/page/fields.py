"""Fields of the question on the screen, each as its declaration says: a text, a choice or a switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from nicegui import ui

from neusight.errors import one_line
from neusight.page.form import Form
from neusight.questions import Step
from neusight.questions.parts import CLUSTER, DEVICE, ENGINE, LOAD, MODEL, PLAN
from neusight.questions.question import NamedField

_PRESSED = "no-caps dense spread toggle-color=blue-10 toggle-text-color=white"
_BUTTONS = ("mode",)
"""Choices of one click."""
HEAD = ("model", "gpu", "mode")
"""Fields that stay where they are in all modes."""
_USUAL = frozenset(
    ("batch", "seq_len", "optimizer", "dtype", "launch", "tp", "dp", "cluster", "nodes", "isl", "osl", "concurrency",
     "request_rate", "engine", "replicas")
)  # fmt: skip
"""Fields that are seen at once; all others are behind "more"."""
_LONGEST = 22
"""Characters of a term that names a field on the screen."""
_OF_FILES = ("per_node", "network")
"""Fields that steps take from the file of their cluster."""
_ON_OFF = {"true": "on", "false": "off"}
Changed = Callable[[str], Awaitable[None]]


def panels(form: Form) -> dict[str, list[str]]:
    """Fields of the question by the title of their group: those that count in its mode, and those that are given."""
    words = {name for name, _ in form.words()}
    groups: dict[str, list[str]] = {title: [] for title in (MODEL, LOAD, DEVICE, ENGINE, PLAN, CLUSTER)}
    for name, one in form.question.fields().items():
        of_mode = one.field.of_mode
        counts = of_mode in ("", getattr(form.question, "mode", of_mode)) and one.field.panel in groups
        counts = counts and not (isinstance(form.question, Step) and name in _OF_FILES)
        if name not in HEAD and (counts or name in words):
            groups.setdefault(one.field.panel, []).append(name)
    return {title: names for title, names in groups.items() if names}


def fill_panels(form: Form, add: Callable[[str], None]) -> None:
    """Put all fields but those of the head on the screen, group by group: the usual ones, others behind "more".

    Args:
        form: whose fields.
        add: puts the field of a name on the screen.
    """
    for title, names in panels(form).items():
        with ui.element("fieldset").classes("panel"):
            ui.html(title, tag="legend", sanitize=False)
            with ui.element("div").classes("question"):
                for name in filter(_USUAL.__contains__, names):
                    add(name)
                if others := [name for name in names if name not in _USUAL]:
                    _more(form, others, add)


def _more(form: Form, names: Sequence[str], add: Callable[[str], None]) -> None:
    """Fields that are there once somebody opens them, or one of them is given."""
    with ui.element("details").classes("more") as details:
        ui.html("more", tag="summary", sanitize=False)
        place = ui.element("div").classes("question")

    def build() -> None:
        with place:
            for name in () if place.default_slot.children else names:
                add(name)

    details.on("toggle", build, args=[])
    if any(given(form, names)):
        details.props("open")
        build()


def term(one: NamedField) -> str:
    """The standard term of a field, with which its help begins; its name where the help begins otherwise."""
    words, colon, _ = one.help.partition(": ")
    return words[0].lower() + words[1:] if colon and len(words) <= _LONGEST and "." not in words else one.name


class FieldView:
    """One field on the screen."""

    def __init__(
        self, one: NamedField, form: Form, changed: Changed, *, wide: bool = False, known: Sequence[str] = ()
    ) -> None:
        self._one = one
        self._mark: Any = None
        self._changed = changed
        self._element = self._build(form, known)
        self._element.classes(f"field-{one.name} {'wide' if wide or self._example else ''}")
        with self._element:
            ui.tooltip(one.help).props("delay=600 max-width=420px")
        self.show_mistake(form)

    def _build(self, form: Form, known: Sequence[str]) -> Any:
        spec, label = self._one.field, self._label
        if self._one.name in _BUTTONS:
            toggle = ui.toggle(list(spec.choices), value=self._value(form), on_change=self._typed)
            return self._marked(toggle).props(_PRESSED)
        if spec.kind == "switch" and self._one.default is not None:
            return self._marked(ui.switch(label, value=self._value(form), on_change=self._typed)).props("dense")
        if options := self._options:
            chosen = ui.select(options, label=label, value=self._value(form), on_change=self._typed)
            return chosen.props(
                f"dense stack-label hide-bottom-space {'clearable' if self._one.default in ('', None) else ''}"
            )
        several = spec.kind == "texts"
        if several:
            line: Any = ui.textarea(label, value=self._value(form), on_change=self._typed).props("autogrow rows=1")
        else:
            usual = [*known, *(spec.write(usual.value) for usual in spec.if_unset(form.question))]
            line = ui.input(label, value=self._value(form), on_change=self._typed, autocomplete=usual or None)
        return line.props("dense stack-label debounce=350 hide-bottom-space")

    def _marked(self, element: Any) -> Any:
        """An element that cannot show a mistake itself, with a line for it."""
        self._mark = ui.label().classes("wrong").props('role="alert"')
        return element

    @property
    def _label(self) -> str:
        words = term(self._one)
        return words if words.lower().startswith(self._one.name) else f"{self._one.name}: {words}"

    @property
    def _options(self) -> dict[str, str]:
        """Values of a choice, with their titles."""
        choices = {choice: choice for choice in self._one.field.choices}
        return choices or (_ON_OFF if self._one.field.kind == "switch" else {})

    def _value(self, form: Form) -> Any:
        text = form.text(self._one.name)
        if self._one.field.kind == "switch" and self._one.default is not None:
            return text == "true"
        if self._options:
            return text if text in self._options else None
        return text

    async def _typed(self, event: Any) -> None:
        value = event.value
        await self._changed(str(value).lower() if isinstance(value, bool) else value or "")

    def reflect(self, form: Form) -> None:
        """Show what the form has, which was changed elsewhere."""
        self._element.value = self._value(form)

    def show_mistake(self, form: Form, line: str = "") -> None:
        """Mark a field that cannot be read or that ``line`` blames; show what is assumed where it is not given."""
        mistake = form.mistakes.get(self._one.name)
        line = str(mistake.error) if mistake else line
        if self._mark is not None:
            say(self._mark, line)
        else:
            self._element.error = one_line(line) or None
        if isinstance(self._element, ui.input | ui.textarea):
            text = form.assumed(self._one.name) or self._example
            self._element.props(f'placeholder="{text}"')

    @property
    def _example(self) -> str:
        metavar = self._one.field.metavar
        return metavar if "=" in metavar else ""


def given(form: Form, names: Sequence[str]) -> Iterator[str]:
    """Fields among ``names`` that are given."""
    words = {name for name, _ in form.words()}
    return (name for name in names if name in words)


def say(label: ui.label, line: str) -> None:
    """Put the line of a mistake into a label, which is hidden where there is none."""
    label.text = one_line(line)
    label.set_visibility(bool(line))
