"""The report of a simulated experiment, words and figures: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.experiments.page import (
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
from neusight.figures.palette import COLOURS, GREY

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
        "machine is 16 tiles of 4x4 PEs of 16 lanes, three rows of the dense schedule in sight. Padding and lanes that "
        "channels do not fill are skipped like zeros.",
        "A layer's zeros were measured on training steps of the network with small real samples, on a CPU: "
        + "; ".join(f"{n['name']}: `{n['measured']}`" for n in networks)
        + ".",
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]


_REMARK = (
    "Of what the paper reports, a tenth more or less is met. It gives its networks one by one as bars alone, which are "
    "not copied here, and what is marked as recalled comes from memory of its text. Its networks were trained to the "
    "end on large data; ours learn handwritten digits or Python's reference from random weights until their loss has "
    "fallen, at fewer pixels than they are priced at; weights are pruned once, at the start, where the paper prunes "
    "all along (recalled). Energies of memories are assumptions "
    "(`neusight/executors/tensordash/machine.py`)."
)


def sections(results: Results) -> dict[str, list[str]]:
    """Words and tables, by the part of the report whose figures follow them."""
    return {
        "random": ["## Random zeros", _random(results)],
        "networks": ["## Networks", *_networks(results)],
        "zeros": ["## Why networks differ", *_reasons(results)],
        "course": ["## From the first update to the last", *_course(results)] if results["course"] else [],
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
    kinds = [*_products(results), "compute_energy", "energy"]
    columns = (("network", "{network}"), *((heads.get(kind, kind), f"{{{kind}:.2f}}") for kind in kinds))
    text = (
        "Speed-up over the dense twin of each product of training, of all, and the dense twin's energy over ours. "
        "Products alone: what runs beside the PEs, and the DRAM, are left out, as in the paper."
    )
    apart = [network["name"] for network in results["declared"]["networks"] if not network["in_mean"]]
    counted = [f"Not in the mean: {', '.join(apart)}."] if apart else []
    return [listing(results["networks"], columns), wrapped(" ".join([text, *counted]))]


def _reasons(results: Results) -> list[str]:
    kinds = list(dict.fromkeys(row["zeros"] for row in results["changed"]))
    changed = matrix(results["changed"], "network", ("zeros", kinds), "{speedup:.2f}")
    return [
        *_shares(results),
        changed,
        wrapped(
            "Speed-up with zeros as measured, in profiles measured otherwise (pixels as their `source` says), and with "
            "one thing changed: zeros that do not keep together, no zeros in weights, and gradients with at least the "
            "zeros of activations. Normalisation between a layer and its rectifier leaves none of them, as the paper "
            "says of DenseNet-121 (recalled)."
        ),
        *_levels(results),
    ]


def _shares(results: Results) -> list[str]:
    shares = [{**row, "cell": f"{100 * row['zeros']:.0f}"} for row in results["zeros"]]
    heads = _products(results)
    text = "Percent of zeros of the operand that is scheduled, weighted by dense cycles"
    lines: list[str] = []
    if reported := _reported(results):
        heads.append(head := f"for {reported:g}x")
        wanted = _wanted(results["uniform"], reported)
        shares += [{"network": name, "product": head, "cell": f"{100 * w:.0f}"} for name, w in wanted.items()]
        text += f", and that all activations and gradients would need for {reported:g} times the dense speed"
        lines = ["\n".join(wrapped(f"- {line}", 78).replace("\n", "\n  ") for line in _shortfalls(results, reported))]
    return [matrix(shares, "network", ("product", heads), "{cell}"), wrapped(f"{text}."), *filter(None, lines)]


def _levels(results: Results) -> list[str]:
    if not results["uniform"]:
        return []
    levels = [{**row, "level": f"{100 * row['share']:g} %"} for row in results["uniform"]]
    heads = list(dict.fromkeys(row["level"] for row in levels))
    text = (
        "Speed-up with the same share of independent zeros in all activations and gradients; without any, that of "
        "padding and of lanes that channels do not fill."
    )
    return [matrix(levels, "network", ("level", heads), "{speedup:.2f}"), wrapped(text)]


def _reported(results: Results) -> float | None:
    """The speed-up that the paper gives for its networks together."""
    targets = results["declared"]["targets"]
    return next((t["reported"] for t in targets if (t["table"], t["figure"]) == ("networks", "all")), None)


def _wanted(uniform: Rows, speedup: float) -> dict[str, float]:
    """The share of zeros with which each network reaches a speed-up, between those that were simulated."""
    import numpy as np

    wanted = {}
    for name in dict.fromkeys(row["network"] for row in uniform):
        own = [row for row in uniform if row["network"] == name]
        if own[0]["speedup"] <= speedup <= own[-1]["speedup"]:
            wanted[name] = float(np.interp(speedup, [r["speedup"] for r in own], [r["share"] for r in own]))
    return wanted


def _shortfalls(results: Results, reported: float) -> list[str]:
    """For each network, the products that are slower than what the paper reports, and the zeros they have."""
    shares = {(row["network"], row["product"]): row["zeros"] for row in results["zeros"]}
    lines = []
    for row in results["networks"]:
        name = row["network"]
        slow = [
            f"{product} {row[product]:.2f}x with {100 * share:.0f} % zeros"
            for (network, product), share in shares.items()
            if network == name and product != "all" and row[product] < reported
        ]
        if slow:
            lines.append(f"{name}, {row['all'] / reported - 1:+.0%} of {reported:g}: {', '.join(slow)}")
    return lines


def _course(results: Results) -> list[str]:
    shown = matrix(staged(results["course"]), "network", ("stage", _stages(results["course"])), "{all:.2f}")
    return [shown, "Speed-up of all products after so many updates of the weights."]


def staged(rows: Rows) -> Rows:
    """With ``stage``: the number of updates in words, ``end`` for a network's last."""
    last = {name: max(r["updates"] for r in rows if r["network"] == name) for name in {r["network"] for r in rows}}
    return [{**row, "stage": "end" if row["updates"] == last[row["network"]] else f"{row['updates']}"} for row in rows]


def _stages(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["stage"] for row in sorted(staged(rows), key=lambda row: row["updates"])))


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
    rows, kinds = results["networks"], _products(results)
    figure, (axes,) = canvas(1, 1, 9.0, 3.2)
    width = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        heights = [row[kind] or 0.0 for row in rows]
        at = [x + (place - (len(kinds) - 1) / 2) * width for x in range(len(rows))]
        axes.bar(at, heights, width, color=COLOURS[place], label=kind)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_xticks(range(len(rows)), [row["network"].replace(" ", "\n") for row in rows], fontsize=SMALL)
    axes.set(ylabel="speed-up over dense")
    legend(figure, [axes])
    return figure


def course(results: Results) -> Figure:
    """Speed-up of every network against the updates of its weights, product by product and of all."""
    rows = staged(results["course"])
    kinds = _products(results)
    stages = _stages(results["course"])
    figure, panels = canvas(len(kinds), 4, sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        for place, network in enumerate(dict.fromkeys(row["network"] for row in rows)):
            own = [row for row in rows if row["network"] == network]
            at, heights = [stages.index(row["stage"]) for row in own], [row[kind] for row in own]
            axes.plot(at, heights, markersize=4, **style(place), label=network)
        axes.set_xticks(range(len(stages)), stages, fontsize=SMALL)
        axes.set_xlabel(f"updates, {kind}")
        axes.grid(axis="y", color=GREY, alpha=0.3)
    figure.supylabel("speed-up over dense", fontsize=10)
    legend(figure, panels)
    return figure


def _products(results: Results) -> list[str]:
    """Products that networks have, and ``all``."""
    return list(dict.fromkeys(row["product"] for row in results["zeros"]))


def layers(results: Results) -> Figure:
    """Speed-up of every product, layer by layer in the order in which they run."""
    rows = results["products"]
    names = list(dict.fromkeys(row["network"] for row in rows))
    figure, panels = canvas(len(names), 2, 9.0, 1.8, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        own = [row for row in rows if row["network"] == name]
        order = list(dict.fromkeys(row["layer"] for row in own))
        for place, product in enumerate(p for p in _products(results) if p != "all"):
            speedups = {i: _layer_speedup(own, layer, product) for i, layer in enumerate(order)}
            shown = {i: speedup for i, speedup in speedups.items() if speedup is not None}
            axes.plot(list(shown), list(shown.values()), markersize=3, lw=0.8, **style(place), label=product)
        axes.set_title(name, fontsize=SMALL)
        axes.set_xticks([0, len(order) - 1], ["first", "last"] if len(order) > 1 else ["only", ""], fontsize=SMALL)
        axes.grid(axis="y", color=GREY, alpha=0.3)
    figure.supylabel("speed-up over dense", fontsize=10)
    figure.supxlabel("layer", fontsize=10)
    legend(figure, panels)
    return figure


def _layer_speedup(rows: Rows, layer: str, product: str) -> float | None:
    own = [row for row in rows if (row["layer"], row["product"]) == (layer, product)]
    return sum(row["dense"] for row in own) / sum(row["cycles"] for row in own) if own else None


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
    "layers.png": Drawing(
        layers, "Speed-up of each layer's products, in the order in which layers run.", "networks", "products"
    ),
    "course.png": Drawing(
        course, "Speed-up against updates of the weights; `end` is each network's last.", "course", "course"
    ),
    "designs.png": Drawing(
        designs, "The same networks on machines with other PE rows, rows in sight, and lanes.", "designs", "designs"
    ),
    "model.png": Drawing(
        model, "The tile model beside the simulator, a point a layer and product; grey: 3 %.", "tile_model", "products"
    ),
}
SPARSE = ReportForm(setup=setup, sections=sections, figures=_FIGURES, remark=_REMARK)
