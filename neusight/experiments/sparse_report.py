"""The report of a simulated experiment, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.page import (
    COLOURS,
    GREY,
    SMALL,
    Drawing,
    ReportForm,
    canvas,
    legend,
    listing,
    matrix,
    style,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def setup(results: Results) -> list[str]:
    """How it was done, an item each."""
    run = {row["network"] for row in results["networks"]}
    networks = [n for n in results["declared"]["networks"] if n["name"] in run]
    return [
        "Cycles are those of the scheduler, streams drawn at random with each operand's zeros and clustering; the "
        "machine is 16 tiles of 4x4 PEs of 16 lanes, three rows of the dense schedule in sight.",
        "A layer's zeros were measured on real training steps of the network, of small batches on a CPU: "
        + "; ".join(f"{n['name']}: `{n['measured']}`" for n in networks)
        + ".",
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]


_REMARK = (
    "Of what the paper reports, a tenth more or less is met. Its networks were trained to the end on real data, ours "
    "for a few steps on random inputs: their zeros are fewer. Energies of memories are assumptions "
    "(`neusight/executors/tensordash/machine.py`)."
)


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    return {
        "random": ["## Random zeros", _random(results)],
        "networks": ["## Networks", *_networks(results)],
        "designs": ["## Designs", _designs(results)],
        "tile_model": ["## The tile model", _tile_model(results)],
    }


def _random(results: Results) -> str:
    rows = results["random"]
    heads = {row["rows"]: f"{row['rows']} PE rows" for row in rows}
    cells = [{"zeros": f"{r['sparsity']:g}", "series": heads[r["rows"]], "speedup": r["speedup"]} for r in rows]
    law = [{"zeros": f"{r['sparsity']:g}", "series": "law", "speedup": r["ideal"]} for r in rows]
    return matrix([*cells, *law], "zeros", ("series", (*heads.values(), "law")), "{speedup:.2f}")


def _networks(results: Results) -> list[str]:
    heads = {"all": "all", "compute_energy": "energy of compute", "energy": "with memories"}
    kinds = [key for key in results["networks"][0] if key != "network"]
    columns = (("network", "{network}"), *((heads.get(kind, kind), f"{{{kind}:.2f}}") for kind in kinds))
    text = (
        "Speed-up over the dense twin of each product of training, of all, and the dense twin's energy over ours. "
        "Products alone: what runs beside the PEs, and the DRAM, are left out, as in the paper."
    )
    return [listing(results["networks"], columns), wrapped(text)]


def _designs(results: Results) -> str:
    rows = [{**row, "machine": f"{row['axis']} = {row['value']}"} for row in results["designs"]]
    names = list(dict.fromkeys(row["network"] for row in rows))
    return matrix(rows, "machine", ("network", names), "{speedup:.2f}")


def _tile_model(results: Results) -> str:
    columns = (
        *(("network", "{network}"), ("products of layers", "{products:,}"), ("mean error", "{mean:.2f}")),
        ("worst", "{worst:.2f}"),
    )
    shown = listing(results["tile_model"], columns)
    return f"{shown}\n\nCycles by the tile model against the simulator's, percent; layer by layer in `results.json`."


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
    figure, (axes,) = canvas(1, 1, 5.2, 3.6)
    for place, value in enumerate(dict.fromkeys(row[series] for row in rows)):
        own = [row for row in rows if row[series] == value]
        axes.plot(
            [row[along] for row in own], [row["speedup"] for row in own],
            markersize=4, **style(place), label=name.format(value),
        )  # fmt: skip
    axes.set(xlabel=label, ylabel="speed-up over dense")
    axes.grid(axis="y", color=GREY, alpha=0.3)
    return figure, axes


def networks(results: Results) -> Figure:
    """Speed-up of every network, product by product."""
    figure, (axes,) = canvas(1, 1, 8.0, 3.2)
    rows = results["networks"]
    kinds = [key for key in rows[0] if key not in ("network", "compute_energy", "energy")]
    width = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        heights = [row[kind] or 0.0 for row in rows]
        at = [x + (place - (len(kinds) - 1) / 2) * width for x in range(len(rows))]
        axes.bar(at, heights, width, color=COLOURS[place], label=kind)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_xticks(range(len(rows)), [row["network"] for row in rows], fontsize=SMALL)
    axes.set(ylabel="speed-up over dense")
    legend(figure, [axes])
    return figure


def designs(results: Results) -> Figure:
    """Speed-up against one figure of the machine at a time, a line a network."""
    rows = results["designs"]
    kinds = list(dict.fromkeys(row["axis"] for row in rows))
    figure, panels = canvas(len(kinds), 3, sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        for place, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
            own = [row for row in rows if (row["axis"], row["network"]) == (kind, network)]
            axes.plot(
                [str(row["value"]) for row in own], [row["speedup"] for row in own],
                markersize=4, **style(place), label=network,
            )  # fmt: skip
        axes.set_xlabel(kind)
        axes.grid(axis="y", color=GREY, alpha=0.3)
    figure.supylabel("speed-up over dense", fontsize=10)
    legend(figure, panels)
    return figure


def model(results: Results) -> Figure:
    """Cycles of every layer's products by the tile model over those of the simulator."""
    figure, (axes,) = canvas(1, 1, 5.2, 3.6)
    rows = results["products"]
    for place, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
        own = [row for row in rows if row["network"] == network]
        axes.plot(
            [row["dense"] / row["cycles"] for row in own], [row["model_error"] for row in own],
            linestyle="", markersize=3, **style(place), label=network,
        )  # fmt: skip
    axes.axhspan(-3, 3, color=GREY, alpha=0.2)
    axes.axhline(0.0, color="black", lw=0.8)
    axes.set(xlabel="simulated speed-up", ylabel="tile model over simulator, %")
    legend(figure, [axes])
    return figure


_FIGURES = {
    "random.png": Drawing(
        random,
        "Speed-up with zeros at random against the number of PE rows; dotted: the sparse law.",
        "random",
        "random",
    ),
    "clustering.png": Drawing(
        clustering,
        "What zeros cost that keep together, by what they keep together in; four PE rows.",
        "random",
        "clustering",
    ),
    "networks.png": Drawing(
        networks,
        "Speed-up of training with the zeros of each network's profile, product by product.",
        "networks",
        "networks",
    ),
    "designs.png": Drawing(
        designs, "The same networks on machines with other PE rows, rows in sight, and lanes.", "designs", "designs"
    ),
    "model.png": Drawing(
        model, "The tile model beside the simulator, a point a layer and product; grey: 3 %.", "tile_model", "products"
    ),
}
SPARSE = ReportForm(setup=setup, sections=sections, figures=_FIGURES, remark=_REMARK)
