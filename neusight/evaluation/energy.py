"""What boards draw, predicted against meters: power of steady kernels and served models, energy of tokens and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.datasets.power import ROOFLINES, SteadyPower, steady_powers
from neusight.datasets.published_steps import INFERENCES
from neusight.devices import load_gpu
from neusight.errors import NeusightError
from neusight.estimates.energy import BoardEnergy, around, board_energy
from neusight.evaluation.serving import deployed_cells, figure_of
from neusight.evaluation.steps import evaluate_steps
from neusight.laws.board_power import metered
from neusight.laws.fitted import shipped_boards, shipped_physics
from neusight.learn.boards import steady_energy
from neusight.measured.score import Progress, Row, Scored, Selection, answered, compared, some
from neusight.serving import Deployment, ServingEstimate, serve
from neusight.serving.cells import ServingCase

if TYPE_CHECKING:
    from neusight.api import Predictor

UNITS = {"power_w": "W", "joule_per_token": "J/token", "energy_j": "J"}
USABLE = ("isl not told", "isl and rate are documented means", "engine version not told")
"""Beginnings of faults that leave a time by the token usable."""
SECOND = (1.0, 1.0, 1.0)
"""Of which power is the energy [s]."""
BY = ("source", "gpu", "reading")


def evaluate_energy(
    data: Path, predictor: Predictor, selection: Selection | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Predict every reading of a meter below a folder of data sets, and compare.

    Args:
        data: the folder; tables that it lacks are left out.
        predictor: whose predictions.
        selection: which rows of each table.
        progress: called with (done, of) a table.

    Returns:
        ``rows``, one a reading and quantity (``power_w`` of a board, ``joule_per_token``, ``energy_j`` of a step):
        source, gpu, what, quantity, predicted, low, high, measured, ape, bias, inside, fault, reading (source, GPU and
        unit). ``means`` by source, gpu and reading, and ``total``: of rows whose power has no fault. ``skipped``: rows
        that are not compared, each with its reason.

    Raises:
        DataError: a foreign file, or no row left.
    """
    chosen, rows, skipped = selection or Selection(), [], []
    known = [(data / name, read) for name, read in TABLES.items() if (data / name).is_file()]
    for done, (path, read) in enumerate(known, start=1):
        found, left_out = read(path, predictor, chosen)
        rows += found
        skipped += left_out
        if progress:
            progress(done, len(known))
    some(rows, data, skipped, "it has no reading of a meter")
    scored = Scored.of([row for row in rows if usable(row)])
    means = {by: scored.summary(by) for by in BY}
    return {"rows": rows, "means": means, "total": scored.figures(), "skipped": skipped}


def usable(row: Row) -> bool:
    """Whether its fault, if any, leaves the figure usable: that of a token needs the rate."""
    if row["quantity"] == "joule_per_token" and "tokens/s" in row["fault"]:
        return False
    return not row["fault"] or row["fault"].startswith(USABLE)


Found = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Rows, and those that are skipped."""


def _steady(path: Path, _: Predictor, selection: Selection) -> Found:
    """Power at the rates that were measured: what is held against the meter is the law of energy alone."""
    kept = [vars(row) for row in steady_powers(path)]
    rows, skipped = answered(selection.of(kept), lambda row: _steady_row(SteadyPower(**row), path.stem), _named)
    return rows, skipped


def _steady_row(row: SteadyPower, source: str) -> dict[str, Any]:
    device = load_gpu(row.gpu)
    rates = {"gflop_per_s": row.flops_per_s / 1e9, "gb_per_s": row.bytes_per_s / 1e9, "clock_mhz": row.clock_hz / 1e6}
    demand = steady_energy(rates, device, shipped_physics().physics)
    drawn = metered(demand, shipped_boards().physics.gpu)
    energy = board_energy(device, float(drawn.total_j[0]), SECOND)
    what = f"{row.flops_per_byte:g} FLOP/B"
    return _row({"source": source, "gpu": row.gpu, "what": what, "fault": ""}, "power_w", energy, row.power_w)


def _named(row: Row, number: int) -> dict[str, Any]:
    return {"row": number, "gpu": row["gpu"]}


def _served(path: Path, predictor: Predictor, selection: Selection) -> Found:
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for group in deployed_cells(path, predictor, None, selection):
        for case, deployment in group:
            if case is None or case.cell.power_w is None:
                continue
            try:
                rows += _cell_rows(case, serve(_deployed(deployment), case.load))
            except NeusightError as error:
                skipped.append({"cell": case.cell.name, "reason": str(error)})
    return rows, skipped


def _inferred(path: Path, predictor: Predictor, selection: Selection) -> Found:
    """Energy of whole inferences, by libraries as other boards tell of them, and power meanwhile."""
    found = evaluate_steps(path, predictor, selection)
    read = [row for row in found["rows"] if row.get("measured_j") is not None]
    return [row for each in read for row in _inference_rows(each, path.stem)], found["skipped"]


def _inference_rows(row: Row, source: str) -> Iterator[dict[str, Any]]:
    named = {"source": source, "gpu": row["gpu"], "what": row["model"], "fault": ""}
    joules = [row[f"{name}_j"] for name in ("predicted", "low", "high", "measured")]
    watts = [1e3 * each / row["predicted_ms"] for each in joules[:3]] + [1e3 * joules[3] / row["measured_ms"]]
    for quantity, (predicted, low, high, measured) in (("power_w", watts), ("energy_j", joules)):
        yield _figures(named, quantity, compared(predicted, (low, high), measured))


def _deployed(deployment: Deployment | NeusightError) -> Deployment:
    if isinstance(deployment, NeusightError):
        raise deployment
    return deployment


def _cell_rows(case: ServingCase, estimate: ServingEstimate) -> Iterator[dict[str, Any]]:
    """Power of a board, and energy of an output token at the rate that the cell states."""
    cell, token, measured_w = case.cell, estimate.token_energy, case.cell.power_w or 0.0
    rates = _rates(case, estimate)
    named = {"source": cell.source, "gpu": cell.gpu, "what": cell.name, "fault": cell.fault}
    power = around(load_gpu(estimate.gpu), estimate.power_w / estimate.devices, SECOND)
    yield _row(named, "power_w", power, measured_w / cell.n_gpus)
    if rates:
        joules = token * (estimate.power_w / rates[0] / token.expected_j)
        yield _row(named, "joule_per_token", joules, measured_w / rates[1])


def _rates(case: ServingCase, estimate: ServingEstimate) -> tuple[float, float] | None:
    """Output tokens a second, predicted and measured; None where the cell states neither them nor a whole batch."""
    cell = case.cell
    if "tokens_per_s" in cell.measured:
        return figure_of(case, estimate, "tokens_per_s")[0], cell.measured["tokens_per_s"]
    if cell.mode != "static" or "e2e_ms" not in cell.measured:
        return None
    tokens = 1e3 * (cell.concurrency or 1.0) * cell.osl
    return tokens / figure_of(case, estimate, "e2e_ms")[0], tokens / cell.measured["e2e_ms"]


def _row(named: Row, quantity: str, energy: BoardEnergy, measured: float) -> dict[str, Any]:
    return _figures(named, quantity, compared(energy.expected_j, (energy.low_j, energy.high_j), measured))


def _figures(named: Row, quantity: str, figures: Row) -> dict[str, Any]:
    reading = f"{named['source']} {named['gpu']} {UNITS[quantity]}"
    return {**named, "quantity": quantity, **figures, "reading": reading}


TABLES: dict[str, Callable[[Path, Predictor, Selection], Found]] = {
    str(ROOFLINES): _steady,
    "serving/cells.parquet": _served,
    "serving-more/cells.parquet": _served,
    INFERENCES: _inferred,
}
"""What has readings of meters below the folder of data sets, and how it is read."""
