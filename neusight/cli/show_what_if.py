"""Gains of optimisations on a screen: applied cumulatively, individually, and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.cli.output import Output, line, note, paragraph, table
from neusight.defaults import words_of
from neusight.units import gib, milliseconds
from neusight.what_if.gain import Gain, figure

if TYPE_CHECKING:
    from neusight.what_if import Rung, Transform, WhatIf

_COLUMNS = ("name", "group", "summary", "source", "accuracy", "effort")


def show_list(form: str) -> None:
    """Show all optimisations by group."""
    from neusight.what_if import known

    transforms = sorted(known().values(), key=lambda one: (one.group, one.name))
    rows = [{name: getattr(t, name) for name in _COLUMNS} | {"aliases": " ".join(t.aliases)} for t in transforms]
    Output(form).data(rows, rows, lambda: _show_groups(transforms))


def _show_groups(transforms: Sequence[Transform]) -> None:
    for group in dict.fromkeys(t.group for t in transforms):
        cells = [(", ".join((t.name, *t.aliases)), f"{t.summary} ({t.source})") for t in transforms if t.group == group]
        table((group, "~what it changes (source)"), cells)
        line()


def show(answer: WhatIf, form: str, question: Mapping[str, Any]) -> None:
    """Show the answer before, each cumulative rung, and the individual ones."""
    for warning in dict.fromkeys(answer.before.warnings):
        note(f"warning: {warning}")
    rows = [{"alone": False, **_flat(rung)} for rung in answer.rungs]
    rows += [{"alone": True, **_flat(rung)} for rung in answer.alone]
    data = answer.to_dict() | {"question": question, "assumed": dict(answer.before.assumed)}
    Output(form).data(data, rows, lambda: _human(answer))


def _flat(rung: Rung) -> dict[str, Any]:
    row = rung.to_dict()
    gains = {f"{metric}_{name}": value for metric in ("time", "memory") for name, value in row.pop(metric).items()}
    return row | gains


def _human(answer: WhatIf) -> None:
    before = answer.before
    memory = gib(figure(before, "memory"))
    line(f"{before.model} on {before.gpu}: {milliseconds(before.latency_s)}, {memory}, limited by {before.limiter}")
    paragraph("step", getattr(before, "unit", ""))
    paragraph("assumed", words_of(before.assumed))
    if answer.alone:
        line("\neach by itself\n")
        _rungs(answer.alone)
        line("\none upon the other\n")
    else:
        line()
    if answer.rungs:
        _rungs(answer.rungs)
        together = answer.gain()
        line(f"\ntogether {_ratio(together)}, memory {_ratio(answer.gain('memory'))}")
    elif not answer.alone:
        line("nothing applies")
    _costs([*answer.alone, *answer.rungs])
    if answer.refused:
        line("\ndo not apply\n")
        table(("optimisation", "~why"), [(name, _why(name, why)) for name, why in answer.refused.items()])


def _rungs(rungs: Sequence[Rung]) -> None:
    titles = ("optimisation", ">time", ">gain", "90 %", ">memory", ">gain", "limited by")
    table(titles, [_cells(rung) for rung in rungs])
    if not all(rung.answer.fits for rung in rungs):
        line("!: does not fit")


def _cells(rung: Rung) -> tuple[str, ...]:
    time, memory, answer = rung.time, rung.memory, rung.answer
    mark = "" if answer.fits else "!"
    return (
        rung.transform.name, milliseconds(time.after), f"{time.ratio:.2f}x", f"{time.low:.2f} - {time.high:.2f}",
        f"{mark}{gib(memory.after)}", f"{memory.ratio:.2f}x", answer.limiter,
    )  # fmt: skip


def _ratio(gain: Gain) -> str:
    return f"{gain.ratio:.2f}x (90 %: {gain.low:.2f} to {gain.high:.2f})"


def _costs(rungs: Sequence[Rung]) -> None:
    """Show the effort and the possible cost in quality of optimisations, where that is more than a line of code."""
    transforms = {rung.transform.name: rung.transform for rung in rungs}
    costly = [t for t in transforms.values() if t.accuracy or t.effort != "one line"]
    if costly:
        line("\nwhat they cost\n")
        table(("optimisation", "effort", "~quality"), [(t.name, t.effort, t.accuracy or "the same") for t in costly])


def _why(name: str, why: str) -> str:
    return why.removeprefix(f"{name} ").removeprefix("is ")


def draw(answer: WhatIf, file: Path) -> None:
    """Draw a waterfall: the time before, the reduction by each rung with its interval, and the time left."""
    from neusight.what_if.figures import ladder

    ladder(answer).save(file)
    note(f"wrote {file}")
