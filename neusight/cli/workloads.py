"""``neusight workloads``: models that are ready to predict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from neusight.cli.options import Attention, Batch, Dtype, Format, Mode, Optimizer, SeqLen

app = typer.Typer(no_args_is_help=True, help="The models that are ready to predict.")


@app.command("list")
def list_(form: Format = "human") -> None:
    """List all ready models."""
    from neusight.cli.output import Column, Output, table
    from neusight.workloads import list_workloads

    found = list_workloads()
    rows = [asdict(info) for info in found]

    def human() -> None:
        columns = (Column("name"), Column("parameters", right=True), Column("longest", right=True), Column("kind"))
        table(columns, ((i.name, _count(i.parameters), str(i.max_seq_len or "-"), i.kind) for i in found))

    Output(form).data(rows, rows, human)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A name, a config.json, or package.module:function.")],
    mode: Mode = "inference",
    batch: Batch = 1,
    seq_len: SeqLen = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    form: Format = "human",
) -> None:
    """Show what one step runs: kernels with counts, and memory. No device is involved.

    Example: `neusight workloads show gpt2-large --mode training --batch 4`
    """
    from neusight.cli.output import Column, Output, line, table
    from neusight.kernels.describe import describe
    from neusight.units import gib
    from neusight.workloads import load_graph

    graph = load_graph(
        model, mode=mode, batch=batch, seq_len=seq_len, dtype=dtype, optimizer=optimizer, attention=attention
    )
    rows = [
        {"operator": f.operator, "phase": f.phase, "count": f.count, "family": f.kernel.family, **asdict(f.kernel)}
        for f in graph.kernels
    ]
    kernels = [{"kernel": describe(f.kernel), **_head(row)} for f, row in zip(graph.kernels, rows, strict=True)]

    def human() -> None:
        length = f", sequence {graph.seq_len}" if graph.seq_len else ""
        line(f"{graph.model}: {mode}, batch {batch}{length}, {dtype}; {_count(graph.parameters)} parameters")
        line(f"peak memory {gib(graph.memory.peak)}; {graph.host_operators} operators dispatched by the host")
        columns = (Column("kernel", wrap=True), Column("phase"), Column("count", right=True), Column("operator"))
        table(columns, ((k["kernel"], k["phase"], str(k["count"]), k["operator"]) for k in kernels))

    data = asdict(graph) | {"kernels": rows, "peak_bytes": graph.memory.peak}
    Output(form).data(data, kernels, human)


def _head(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("family", "operator", "phase", "count")}


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
