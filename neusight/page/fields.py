"""Fields of the question on the screen, by their declarations: a text, a choice or a switch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement

from neusight.devices import cluster_ids, device_ids
from neusight.errors import one_line
from neusight.page.form import Form
from neusight.questions.parts import CLUSTER, DEVICE, ENGINE, LOAD, MODEL, PLAN
from neusight.questions.question import NamedField
from neusight.workloads.catalogue import list_hub, list_workloads

HEAD = ("model", "gpu", "mode")
"""Fields that stay where they are in all modes; the mode is a row of buttons."""
_USUAL = frozenset(
    ("batch", "seq_len", "optimizer", "dtype", "launch", "tp", "dp", "cluster", "nodes", "isl", "osl", "concurrency",
     "request_rate", "engine", "replicas")
)  # fmt: skip
"""Fields that are seen at once; all others are behind "more"."""
_LONGEST = 22
"""Characters of a term that names a field on the screen."""
_ON_OFF = {"true": "on", "false": "off"}
_TYPED = "dense stack-label debounce=350 hide-bottom-space"


def panels(form: Form) -> dict[str, list[str]]:
    """Fields of the question by the title of their group: those with an effect in its mode, and given ones."""
    groups: dict[str, list[str]] = {title: [] for title in (MODEL, LOAD, DEVICE, ENGINE, PLAN, CLUSTER)}
    for name, field in form.question.fields().items():
        of_mode = field.field.of_mode
        counts = of_mode in ("", getattr(form.question, "mode", of_mode)) and field.field.panel in groups
        if name not in HEAD and (counts or name in form.given):
            groups.setdefault(field.field.panel, []).append(name)
    return {title: names for title, names in groups.items() if names}


def fill_panels(form: Form, add: Callable[[str], None]) -> None:
    """Put all fields but those of the head on the screen, group by group: the usual ones, others behind "more".

    Args:
        form: the form with the fields.
        add: function that puts the field of a name on the screen.
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
    """Put fields on the screen once they are opened, or if one of them is given."""
    with ui.element("details").classes("more") as details:
        ui.html("more", tag="summary", sanitize=False)
        place = ui.element("div").classes("question")

    def build() -> None:
        with place:
            for name in () if place.default_slot.children else names:
                add(name)

    details.on("toggle", build, args=[])
    if any(name in form.given for name in names):
        details.props("open")
        build()


def term(one: NamedField) -> str:
    """The standard term of a field, with which its help begins; its name where the help begins otherwise."""
    words, colon, _ = one.help.partition(": ")
    return words[0].lower() + words[1:] if colon and len(words) <= _LONGEST and "." not in words else one.name


@cache
def known_models() -> list[str]:
    """Models that fields complete: read once, since all tabs wait for that."""
    return [*(info.name for info in list_workloads()), *list_hub()]


_KNOWN: dict[str, Callable[[], list[str]]] = {
    "models": known_models, "decoders": known_models, "devices": device_ids, "clusters": cluster_ids
}  # fmt: skip
"""Names that a field completes, by ``FieldSpec.complete``."""


class FieldView:
    """One field on the screen."""

    def __init__(self, one: NamedField, form: Form, changed: Callable[..., Awaitable[None]]) -> None:
        self._one = one
        self._changed = changed
        self._reflects = False
        self._is_switch = one.field.kind == "switch" and one.default is not None
        self._example = one.field.metavar if "=" in one.field.metavar else ""
        self._element = self._build(form)
        self.shows_mistakes = isinstance(self._element, ValidationElement)
        self._element.classes(f"field-{one.name} {'wide' if self._example or one.name in HEAD else ''}")
        with self._element:
            ui.tooltip(one.help).props("delay=600 max-width=420px")
        self.show_mistake(form)

    def _build(self, form: Form) -> Any:
        spec, name, value = self._one.field, self._one.name, self._value(form)
        words = term(self._one)
        label = words if words.lower().startswith(name) else f"{name}: {words}"
        if name == "mode":
            pressed = "no-caps dense spread toggle-color=blue-10 toggle-text-color=white"
            return ui.toggle(list(spec.choices), value=value, on_change=self._on_typed).props(pressed)
        if self._is_switch:
            return ui.switch(label, value=value, on_change=self._on_typed).props("dense")
        if self._options:
            clearable = "clearable" if self._one.default in ("", None) else ""
            chosen = ui.select(self._options, label=label, value=value, on_change=self._on_typed)
            return chosen.props(f"dense stack-label hide-bottom-space {clearable}")
        if spec.kind == "texts":
            return ui.textarea(label, value=value, on_change=self._on_typed).props(f"autogrow rows=1 {_TYPED}")
        names = _KNOWN.get(spec.complete)
        usual = [*(names() if names else ()), *(spec.write(usual.value) for usual in spec.if_unset(form.question))]
        return ui.input(label, value=value, on_change=self._on_typed, autocomplete=usual).props(_TYPED)

    @property
    def _options(self) -> dict[str, str]:
        """Values of a choice, with their titles."""
        field = self._one.field
        return {choice: choice for choice in field.choices} or (_ON_OFF if field.kind == "switch" else {})

    def _value(self, form: Form) -> Any:
        text = form.text(self._one.name)
        if self._is_switch:
            return text == "true"
        return None if self._options and text not in self._options else text

    def _on_typed(self, event: Any) -> Awaitable[None] | None:
        value = event.value
        text = str(value).lower() if isinstance(value, bool) else value or ""
        return None if self._reflects else self._changed(**{self._one.name: text})

    def reflect(self, form: Form) -> None:
        """Show the value of the form, which was changed elsewhere: it asks nothing."""
        self._reflects = True
        self._element.value = self._value(form)
        self._reflects = False

    def show_mistake(self, form: Form, line: str = "") -> None:
        """Mark a field that cannot be read or that ``line`` blames; show the assumed value where it is not given."""
        mistake = form.mistakes.get(self._one.name)
        if self.shows_mistakes:
            self._element.error = one_line(str(mistake.error) if mistake else line) or None
        if isinstance(self._element, ui.input | ui.textarea):
            self._element.props(f'placeholder="{form.assumed(self._one.name) or self._example}"')
