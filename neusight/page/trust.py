"""Trust: how far estimates are from what was measured, by experiments and by measurements of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from nicegui import ui

from neusight.api import Predictor
from neusight.devices import gpu_of, load_device
from neusight.errors import DataError, NeusightError
from neusight.page.accuracy import HEAD, Accuracy, accuracies, cells_of, chart
from neusight.page.form import Form
from neusight.page.kept import keep
from neusight.page.tab import Shown, Tab, View, copied
from neusight.page.tables import table

_LEAST = 20
"""Rows of a GPU, from which a calibration is offered, as ``neusight calibrate`` recommends."""


def ask(_: Predictor, form: Form) -> Shown:
    """Figures of all committed experiments by one thing."""
    rows = accuracies(form.page.by)
    return Shown(charts=(chart(form.page.by, rows),), rest=rows)


def controls(tab: Tab) -> None:
    """By what, and a table of one's own."""
    with ui.element("div").classes("question"):
        tab.field("by")
        upload = ui.upload(on_upload=partial(_dropped, tab)).props("auto-upload accept=.csv").style("display: none")
        button = ui.button("measurements of your own: a CSV", on_click=lambda: upload.run_method("pickFiles"))
        button.props('flat dense no-caps title="op,gpu,dtype,latency_ms and shapes"').classes("wide")
    tab.own = ui.column().style("width: 100%")


async def _dropped(tab: Tab, event: Any) -> None:
    """Errors of one's own table at once, or what is wrong with it."""
    file = keep(Path(event.file.name).name, await event.file.read())
    folder = file.parent
    event.sender.reset()
    tab.own.clear()
    with tab.own:
        try:
            errors = await tab.answers.of(partial(_errors, file, folder / "own"), tab.form, slow=True)
        except NeusightError as error:
            ui.label(str(error).replace(f"{folder}/", "")).classes("wrong").props('role="alert"')
            return
        _own(tab, errors, folder / "own")


def _errors(file: Path, out: Path, predictor: Predictor, _: Form) -> dict[str, Any]:
    from neusight.datasets.bring import import_csv
    from neusight.evaluation import evaluate_kernels

    if not out.is_dir():
        import_csv(file, out)
    return evaluate_kernels(out, predictor)


def _own(tab: Tab, errors: dict[str, Any], folder: Path) -> None:
    total = errors["total"]
    text = f"mean error {total['mape']:.1f} %, {total['inside']:.0f} % inside the interval, of {total['count']:,} rows"
    ui.label(text).classes("answer")
    names = ("gpu", "op", "dtype", "count", "mape", "bias", "inside")
    rows = ([_cell(row[name]) for name in names] for row in errors["rows"])
    ui.html(table(names, rows), sanitize=False)
    counts: dict[str, int] = {}
    for row in errors["rows"]:
        counts[row["gpu"]] = counts.get(row["gpu"], 0) + row["count"]
    for gpu, count in counts.items():
        if count >= _LEAST:
            ui.button(f"calibrate {gpu} by {count} rows", on_click=partial(_calibrate, tab, gpu, folder)).props("flat")
        copied(f"Calibrate {gpu}", f"neusight calibrate --gpu {gpu} --data {folder}")


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


async def _calibrate(tab: Tab, gpu: str, folder: Path) -> None:
    """Later answers take the correction up, here as in commands."""
    try:
        path = await tab.answers.of(partial(_fitted, gpu, folder), tab.form, slow=True)
    except NeusightError as error:
        ui.notify(str(error), type="negative")
        return
    tab.answers.forget()
    ui.notify(f"{path}: later answers for {gpu} are corrected by it")


def _fitted(gpu: str, folder: Path, predictor: Predictor, _: Form) -> Path:
    from neusight.datasets import load_kernels
    from neusight.learn.calibration import fit_calibration
    from neusight.paths import calibrations_dir

    frame = load_kernels(folder)
    rows = frame[frame["gpu"] == gpu]
    if rows.empty:
        raise DataError(f"there are no rows of {gpu}")
    calibration = fit_calibration(predictor.kernel_predictor, gpu_of(load_device(gpu)), rows)
    return calibration.save(calibrations_dir() / f"{gpu}.json")


def texts(tab: Tab, shown: Shown) -> None:
    """What the dots are, and all rows."""
    rows: Sequence[Accuracy] = shown.rest
    ui.label("Each dot is a row of the table below the chart, of an experiment that anyone can run again.")
    links = ", ".join(_report(*names) for names in dict.fromkeys((row.experiment, row.run) for row in rows))
    ui.html(f"<p>Reports: {links}</p>", sanitize=False)


def _report(experiment: str, run: str) -> str:
    return f'<a class="plain" href="/reports/{escape(experiment)}">{escape(run)}</a>'


def below(tab: Tab, shown: Shown) -> None:
    """All rows, which dots lead to."""
    ui.html(table(HEAD, map(cells_of, shown.rest), ids=[row.id for row in shown.rest]), sanitize=False)


VIEW = View(path="/trust", title="Trust", ask=ask, texts=texts, controls=controls, below=below, asks=False)
