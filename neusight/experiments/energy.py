"""Energy as an experiment: what boards draw, held against their meters, seen and with each GPU left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.evaluation import Selection, evaluate_energy
from neusight.evaluation.energy import TABLES, usable
from neusight.experiments.page import Drawing, ReportForm, listing, wrapped
from neusight.experiments.runs import QUICK_CELLS, advance_of, counted, figures, files_sha256
from neusight.experiments.runs_report import Results, Rows, ratio_panels, rerun
from neusight.laws.fitted import shipped_boards
from neusight.measured.score import Scored
from neusight.paths import data_dir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neusight.experiments.declare import EnergyDeclaration
    from neusight.learn import Report

KEPT = ("source", "gpu", "what", "quantity", "predicted", "inside")
QUANTITIES = {
    "power_w": "power of a board",
    "joule_per_token": "energy of an output token",
    "energy_j": "energy of a step",
}
_ERRORS = (("median", "{median:.1f}"), ("mean", "{mean:.1f}"), ("bias", "{bias:+.1f}"))


def run_energy(declared: EnergyDeclaration, quick: bool, report: Report | None = None) -> dict[str, Any]:
    """Predict every reading.

    Returns:
        ``rows``: a reading each, without what was measured; ``sources`` and ``readings``: errors by source and
        quantity, and by GPU beside, with percentiles of predicted over measured; ``left_out``: errors of power with
        each GPU left out of the fit; ``constants``; ``skipped``: reasons, counted; ``sha256`` of the tables.
    """
    predictor, selection = Predictor.load(), Selection(limit=QUICK_CELLS if quick else None)
    found = evaluate_energy(data_dir(), predictor, selection, advance_of("energy", report))
    scored, boards = Scored.of([row for row in found["rows"] if usable(row)]), shipped_boards()
    return {
        "rows": [{name: row[name] for name in KEPT} | {"error": row["bias"]} for row in found["rows"]],
        "sources": [names | part.figures() for names, part in scored.groups("source", "quantity")],
        "readings": [names | figures(part) for names, part in scored.groups("source", "gpu", "quantity")],
        "left_out": [{**row, "count": row["rows"]} for row in boards.errors if row["fit"] == "left out"],
        "constants": boards.constants(),
        "skipped": counted(found["skipped"]),
        "sha256": files_sha256([name for name in TABLES if (data_dir() / name).is_file()], data_dir()),
    }


def setup(results: Results) -> list[str]:
    """How energies were compared, an item each."""
    count = sum(row["count"] for row in results["sources"])
    return [
        f"Readings: {count:,}. Power is that of a board; hosts are not among it.",
        "Of steady kernels (roofline_power) rates and clocks are as measured, so that the law of energy stands alone; "
        "of served models everything is predicted from the model, the GPU and the load.",
        "A board draws a share of its limit whatever runs, and what the power law has for arithmetic and for bytes, "
        "each with a constant: three for all GPUs (`neusight fit boards`).",
        rerun(results),
    ]


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    named = (("source", "{source}"), ("GPU", "{gpu}"))
    counts, inside = ("readings", "{count:,}"), ("inside", "{inside:.0f}")
    constants = (("constant", "{name}"), ("value", "{value:.3g}"), ("prior", "{prior:.3g}"), ("kept", "{kept:.2f}"))
    return {
        "readings": [
            "## Errors by source, GPU and quantity",
            listing(
                _named(results["readings"]), (*named, ("quantity", "{quantity}"), counts, *_ERRORS, inside), words=3
            ),
        ],
        "left_out": [
            "## Each GPU left out of the fit",
            wrapped("Errors of power in percent with constants that were fitted without the GPU."),
            listing(results["left_out"], (*named, counts, *_ERRORS), words=2),
        ],
        "constants": ["## Constants", listing(results["constants"], (*constants, ("why", "{why}")))],
    }


def ratios(results: Results) -> Figure:
    """Predicted over measured by source and GPU, a panel a quantity."""
    groups = [{**row, "line": f"{row['source']} {row['gpu']}"} for row in results["readings"]]
    return ratio_panels(groups, ("quantity", tuple(QUANTITIES)), "line", lambda _: "readings", ("readings", ""))


def accuracy(results: Results) -> list[str]:
    """Tables of docs/accuracy.md: errors by source."""
    columns = (("source", "{source}"), ("", "{quantity}"), ("readings", "{count:,}"), *_ERRORS)
    return [listing(_named(results["sources"]), (*columns, ("inside", "{inside:.0f}")), words=2)]


def _named(rows: Rows) -> list[dict[str, Any]]:
    return [{**row, "quantity": QUANTITIES[row["quantity"]]} for row in rows]


ENERGY = ReportForm(
    setup=setup,
    sections=sections,
    accuracy=accuracy,
    figures={
        "energy.png": Drawing(
            ratios,
            "Predicted over measured power of a board, and energy of an output token: the median, and 80 % of the "
            "readings.",
            "readings",
            "readings",
        )
    },
)
