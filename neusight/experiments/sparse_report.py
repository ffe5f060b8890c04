"""``report.md`` of a simulated experiment: every figure in it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neusight.experiments.markdown import figure, table, wrapped
from neusight.experiments.sparse_figures import DRAWINGS

Results = Mapping[str, Any]


def render(results: Results, figures: Sequence[str]) -> str:
    """The report as Markdown."""
    parts = [f"# {results['title']}", wrapped(results["question"])]
    if results["quick"]:
        parts.append(wrapped(f"**{results['quick']}**"))
    parts += [_setup(results), "## Beside the literature", *_verdicts(results)]
    parts += ["## Random zeros", _random(results), *_figures(figures, "random.png", "clustering.png")]
    parts += ["## Networks", *_networks(results), *_figures(figures, "networks.png")]
    parts += ["## Designs", _designs(results), *_figures(figures, "designs.png")]
    parts += ["## The tile model", _model(results), *_figures(figures, "model.png")]
    parts += ["## Layer by layer", _layers(results)]
    return "\n\n".join(parts) + "\n"


def _figures(drawn: Sequence[str], *names: str) -> list[str]:
    shown = [name for name in names if name in drawn]
    return [f"![{name.removesuffix('.png')}]({name})\n\n{wrapped(DRAWINGS[name][1])}" for name in shown]


def _setup(results: Results) -> str:
    lines = [
        "Cycles are those of the scheduler, streams drawn at random with each operand's zeros and clustering; the "
        "machine is 16 tiles of 4x4 PEs of 16 lanes, three rows of the dense schedule in sight.",
        "A layer's zeros were measured on real training steps of the network, of small batches on a CPU: "
        + "; ".join(f"{n['name']}: `{n['measured']}`" for n in results["networks_declared"]) + ".",
        f"Again with `neusight experiments run {results['experiment']}`.",
    ]  # fmt: skip
    return "\n".join(f"- {wrapped(line, 78)}".replace("\n", "\n  ") for line in lines)


def _verdicts(results: Results) -> list[str]:
    rows = [
        (row["target"], row["aim"], f"{row['value']:.2f}", "yes" if row["met"] else "**no**")
        for row in results["verdicts"]
    ]
    said = [
        "Agrees: within a tenth of what was reported, or within the limit. The paper's networks were trained to the "
        "end on real data, ours for a few steps on random inputs: their zeros are fewer. Energies of memories are "
        "assumptions (`neusight/accelerators/tensordash/machine.py`)."
    ]
    return [table(("figure", "aim", "found", "agrees"), rows), wrapped(said[0])]


def _random(results: Results) -> str:
    rows = results["random"]
    counts = list(dict.fromkeys(row["rows"] for row in rows))
    found = {(row["rows"], row["sparsity"]): row["speedup"] for row in rows}
    law = {row["sparsity"]: row["ideal"] for row in rows}
    lines = [(f"{s:g}", *(f"{found[count, s]:.2f}" for count in counts), f"{law[s]:.2f}") for s in law]
    return table(("zeros", *(f"{count} PE rows" for count in counts), "law"), lines)


def _networks(results: Results) -> list[str]:
    rows = results["networks"]
    kinds = [key for key in rows[0] if key != "network"]
    titles = {"all": "all", "compute_energy": "energy of compute", "energy": "with memories"}
    shown = table(
        ("network", *(titles.get(kind, kind) for kind in kinds)),
        [(row["network"], *(figure(row[kind], ".2f") for kind in kinds)) for row in rows],
    )
    said = (
        "Speed-up over the dense twin of each product of training, of all, and the dense twin's energy over ours. "
        "Products alone: what runs beside the PEs, and the DRAM, are left out, as in the paper."
    )
    return [shown, wrapped(said)]


def _designs(results: Results) -> str:
    rows = results["designs"]
    names = list(dict.fromkeys(row["network"] for row in rows))
    found = {(row["axis"], row["value"], row["network"]): row["speedup"] for row in rows}
    points = list(dict.fromkeys((row["axis"], row["value"]) for row in rows))
    lines = [(f"{axis} = {value}", *(f"{found[axis, value, name]:.2f}" for name in names)) for axis, value in points]
    return table(("machine", *names), lines)


def _model(results: Results) -> str:
    names = list(dict.fromkeys(row["network"] for row in results["products"]))
    lines = []
    for name in names:
        errors = [abs(row["model_error"]) for row in results["products"] if row["network"] == name]
        lines.append((name, f"{len(errors):,}", f"{sum(errors) / len(errors):.2f}", f"{max(errors):.2f}"))
    shown = table(("network", "products of layers", "mean error", "worst"), lines)
    return f"{shown}\n\nCycles by the tile model against the simulator's, percent."


def _layers(results: Results) -> str:
    lines = [
        (
            f"{row['network']} {row['layer']}",
            row["product"],
            f"{row['sparsity']:.2f}",
            f"{row['cycles']:,.0f}",
            f"{row['dense'] / row['cycles']:.2f}",
            f"{row['model_error']:+.1f}",
        )
        for row in results["products"]
    ]
    head = ("layer", "product", "zeros", "cycles", "speed-up", "model, %")
    return table(head, lines, words=2)
