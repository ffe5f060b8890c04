"""``neusight bench``: how fast the program itself is, here."""

from __future__ import annotations

from typing import Annotated

import typer

from neusight.cli.options import Format, TileModels


def bench(
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 5,
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Measure the program on this machine: cold start, warm prediction, kernels a second, memory of a large trace.

    Example: `neusight bench --format json > bench.json`
    """
    from neusight.benchmark import measure
    from neusight.cli.output import Column, Output, note, table

    rows = []
    for row in measure(tile_models, repeats):
        note(f"{row['name']}: {row['value']:.4g} {row['unit']}")
        rows.append(row)

    def human() -> None:
        columns = [
            Column("what", wrap=True),
            Column("measured", right=True),
            Column("unit"),
            Column("limit", right=True),
        ]
        table(columns, ((r["name"], f"{r['value']:.4g}", r["unit"], f"{r['limit']:g}") for r in rows))

    Output(form).data(rows, rows, human)
