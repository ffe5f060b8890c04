"""Trust: errors of estimates, by experiments and by the user's measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.devices import gpu_of, load_device
from neusight.errors import NeusightError
from neusight.page.accuracy import HEAD, Accuracy, accuracies, cells_of, chart
from neusight.page.form import Form
from neusight.page.html import table
from neusight.page.kept import chosen_file, keep
from neusight.page.tab import Shown, Tab, View, show_copyable

_LEAST = 20
"""Rows of a GPU from which on a calibration is offered, as ``neusight calibrate`` recommends."""
_BY = ("gpu", "op", "dtype", "quantity")
_FIGURES = ("mean", "bias", "inside")
"""Figures of the user's measurements."""


def ask(_: Predictor, form: Form) -> Shown:
    """Accuracies of all committed experiments in one grouping."""
    rows = accuracies(form.page.by)
    return Shown(charts=(chart(form.page.by, rows),), texts=partial(_texts, rows), below=partial(_table, rows))


def controls(tab: Tab) -> None:
    """Show the choice of the grouping, and the upload of the user's table."""
    with ui.element("div").classes("question"):
        tab.field("by")
        _, button = chosen_file("measurements of your own: a CSV", ".csv", lambda event: _take_file(tab, panel, event))
        button.props('title="gpu, op and shapes or model, dtype, latency_ms"').classes("wide")
    panel = ui.column().style("width: 100%")


async def _take_file(tab: Tab, own: ui.column, event: Any) -> None:
    """Show the errors of the user's table, or its mistakes."""
    file = keep(Path(event.file.name).name, await event.file.read())
    folder = file.parent
    own.clear()
    with own:
        try:
            errors = await tab.answers.of(partial(_errors, file, folder / "own"), tab.form, slow=True)
        except NeusightError as error:
            ui.label(str(error).replace(f"{folder}/", "")).classes("wrong").props('role="alert"')
        else:
            _own(tab, errors, folder / "own")


def _errors(file: Path, out: Path, predictor: Predictor, _: Form) -> list[dict[str, Any]]:
    """Errors by device, operator and precision, empty for columns that tables of models lack."""
    from neusight.measured import evaluate, summarise
    from neusight.measured.overview import import_tables

    if not out.is_dir():
        import_tables(file, out, {})
    evaluation = evaluate(sorted(out.glob("*.parquet")), predictor)
    return summarise(evaluation.columns(_BY), _BY)


def _own(tab: Tab, errors: Sequence[dict[str, Any]], folder: Path) -> None:
    rows = [row for row in errors if "inside" in row]
    count = sum(row["rows"] for row in rows)
    mean, inside = (sum(row["rows"] * row[name] for row in rows) / max(count, 1) for name in ("mean", "inside"))
    text = f"mean error {mean:.1f} %, {inside:.0f} % inside the interval, of {count:,} rows"
    ui.label(text).classes("answer")
    cells = [
        [*(str(row[name] or "") for name in _BY), f"{row['rows']:,}", *(f"{row[name]:.1f}" for name in _FIGURES)]
        for row in rows
    ]
    ui.html(table((*_BY, "rows", *_FIGURES), cells), sanitize=False)
    counts = Counter[str]()
    for row in rows:
        counts[row["gpu"]] += row["rows"]
    for gpu, count in counts.items():
        if count >= _LEAST:
            ui.button(f"calibrate {gpu} by {count} rows", on_click=partial(_calibrate, tab, gpu, folder)).props("flat")
        show_copyable(f"Calibrate {gpu}", f"neusight calibrate --gpu {gpu} --data {folder}")


async def _calibrate(tab: Tab, gpu: str, folder: Path) -> None:
    """Fit a calibration; later answers use the correction, here as in commands."""
    try:
        path = await tab.answers.of(partial(_fit, gpu, folder), tab.form, slow=True)
    except NeusightError as error:
        ui.notify(str(error), type="negative")
    else:
        tab.answers.forget()
        ui.notify(f"{path}: later answers for {gpu} are corrected by it")


def _fit(gpu: str, folder: Path, predictor: Predictor, _: Form) -> Path:
    from neusight.learn.calibration import fit_calibration, read_rows
    from neusight.paths import calibrations_dir

    rows, sha256 = read_rows(folder, gpu)
    calibration = fit_calibration(predictor.kernel_predictor, gpu_of(load_device(gpu)), rows, sha256=sha256)
    return calibration.save(calibrations_dir() / f"{gpu}.json")


def _texts(rows: Sequence[Accuracy], _: Tab) -> None:
    """Show the meaning of the dots, and links to reports of their experiments."""
    ui.label("Each dot is a row of the table below the chart, of an experiment that anyone can run again.")
    runs = dict.fromkeys((row.experiment, row.run) for row in rows)
    links = (f'<a class="plain" href="/reports/{escape(name)}">{escape(run)}</a>' for name, run in runs)
    ui.html(f"<p>Reports: {', '.join(links)}</p>", sanitize=False)


def _table(rows: Sequence[Accuracy], _: Tab) -> None:
    """Show all rows, to which dots link."""
    ui.html(table(HEAD, map(cells_of, rows), ids=[row.id for row in rows]), sanitize=False)


VIEW = View(path="/trust", title="Trust", ask=ask, controls=controls, asks=False)
