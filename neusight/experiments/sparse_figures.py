"""Figures of a simulated experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.canvas import COLOURS, GREY, MARKERS, canvas, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def random(results: Results) -> Figure:
    """Speed-up against independent zeros for each number of PE rows, below the sparse law."""
    rows = results["random"]
    figure, axes = _curves(rows, "rows", "sparsity", "{} PE rows", "share of zeros")
    law = [row for row in rows if row["rows"] == rows[0]["rows"]]
    axes.plot([row["sparsity"] for row in law], [row["ideal"] for row in law], color="black", lw=1, ls=":", label="law")
    axes.set_ylim(0.9, 3.15)
    legend(figure, [axes])
    return figure


def clustering(results: Results) -> Figure:
    """Speed-up at one share of zeros against how much they keep together."""
    label = "clustering (intra-class correlation)"
    figure, axes = _curves(results["clustering"], "cluster", "clustering", "by {}", label)
    legend(figure, [axes])
    return figure


def _curves(rows: Rows, series: str, along: str, name: str, label: str) -> tuple[Figure, Axes]:
    """Speed-up along one column, a line for each value of another."""
    figure, (axes,) = canvas(1, 1, width=5.2, height=3.6)
    for number, value in enumerate(dict.fromkeys(row[series] for row in rows)):
        own = [row for row in rows if row[series] == value]
        axes.plot(
            [row[along] for row in own], [row["speedup"] for row in own],
            marker=MARKERS[number], markersize=4, color=COLOURS[number], label=name.format(value),
        )  # fmt: skip
    axes.set(xlabel=label, ylabel="speed-up over dense")
    axes.grid(axis="y", color=GREY, alpha=0.3)
    return figure, axes


def networks(results: Results) -> Figure:
    """Speed-up of every network, product by product."""
    figure, (axes,) = canvas(1, 1, width=8.0, height=3.2)
    rows = results["networks"]
    kinds = [key for key in rows[0] if key not in ("network", "compute_energy", "energy")]
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        heights = [row[kind] or 0.0 for row in rows]
        places = [place + (number - (len(kinds) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, heights, width, color=COLOURS[number], label=kind)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_xticks(range(len(rows)), [row["network"] for row in rows], fontsize=8)
    axes.set(ylabel="speed-up over dense")
    legend(figure, [axes])
    return figure


def designs(results: Results) -> Figure:
    """Speed-up against one figure of the machine at a time, a line a network."""
    rows = results["designs"]
    kinds = list(dict.fromkeys(row["axis"] for row in rows))
    figure, panels = canvas(len(kinds), 3, width=9.0, height=2.7)
    for axes, kind in zip(panels, kinds, strict=True):
        for number, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
            own = [row for row in rows if (row["axis"], row["network"]) == (kind, network)]
            axes.plot(
                [str(row["value"]) for row in own], [row["speedup"] for row in own],
                marker=MARKERS[number], markersize=4, color=COLOURS[number], label=network,
            )  # fmt: skip
        axes.set_xlabel(kind)
        axes.grid(axis="y", color=GREY, alpha=0.3)
    panels[0].set_ylabel("speed-up over dense")
    legend(figure, panels)
    return figure


def model(results: Results) -> Figure:
    """Cycles of every layer's products by the tile model over those of the simulator."""
    figure, (axes,) = canvas(1, 1, width=5.2, height=3.6)
    rows = results["products"]
    for number, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
        own = [row for row in rows if row["network"] == network]
        axes.plot(
            [row["dense"] / row["cycles"] for row in own], [row["model_error"] for row in own],
            MARKERS[number], markersize=3, color=COLOURS[number], label=network,
        )  # fmt: skip
    axes.axhspan(-3, 3, color=GREY, alpha=0.2)
    axes.axhline(0.0, color="black", lw=0.8)
    axes.set(xlabel="simulated speed-up", ylabel="tile model over simulator, %")
    legend(figure, [axes])
    return figure


DRAWINGS = {
    "random.png": (random, "Speed-up with zeros at random against the number of PE rows; dotted: the sparse law."),
    "clustering.png": (clustering, "What zeros cost that keep together, by what they keep together in; four PE rows."),
    "networks.png": (networks, "Speed-up of training with the zeros of each network's profile, product by product."),
    "designs.png": (designs, "The same networks on machines with other PE rows, rows in sight, and lanes."),
    "model.png": (model, "The tile model beside the simulator, a point a layer and product; grey: 3 %."),
}
"""In the order of the report: how each is drawn, and its caption."""
