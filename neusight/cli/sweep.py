"""``neusight sweep``: every combination of models, GPUs and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.output import Output, bar, busy, note, paragraph, table
from neusight.errors import shown
from neusight.units import decimal, milliseconds

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is combined."""

    gpu: opt.Gpus
    overrides: opt.Overrides = field(default_factory=list)
    prices: opt.Prices = None
    batch: opt.Batches = "1"
    mode: opt.Modes = "inference"
    seq_len: opt.SeqLens = ""
    dtype: opt.Dtypes = ""

    @property
    def values(self) -> dict[str, list[Any]]:
        """By the argument of ``Predictor.sweep``."""
        return {
            "batches": opt.numbers(self.batch, "--batch"),
            "modes": opt.named_modes(self.mode, "--mode"),
            "seq_lens": opt.numbers(self.seq_len, "--seq-len") if self.seq_len else [None],
            "dtypes": opt.named_dtypes(self.dtype, "--dtype") if self.dtype else [None],
        }


def sweep(
    model: Annotated[str, typer.Argument(metavar="MODEL[,MODEL…]", help="Models, as for `neusight predict`.")],
    grid: Grid,
    models: opt.Models,
    workers: opt.Workers,
    optimizer: opt.Optimizer = "none",
    attention: opt.Attention = None,
    steps: opt.Steps = None,
    sparsity: opt.Sparsity = "",
    form: opt.Format = "human",
) -> None:
    """Predict every combination of models, GPUs and batches: latency, throughput, memory, cost.

    Steps that do not fit are marked; those that cannot be estimated keep their reason. Exit 1 where none can be.

    Examples:

    - `neusight sweep gpt2-large,gpt2-xl --gpu l4,a100-pcie-80gb --mode training --batch 1,2,4,8`

    - `neusight sweep bert-large --gpu t4,l4 --batch 1,8,32 --seq-len 128,512 --format csv > plan.csv`
    """
    gpus, names = opt.devices(grid.gpu, grid.overrides, grid.prices), opt.listed(model, "MODEL")
    values = grid.values
    opt.check_optimizer(optimizer, values["modes"])
    _note_unused_zeros(gpus, sparsity)
    predictor = models.load(gpus)
    with busy("predicting") as advance:
        rows = predictor.shared(**workers.keywords).sweep_rows(
            names, gpus, **values, optimizer=optimizer, attention=attention, steps=steps,
            sparsity=sparsity or None, progress=advance,
        )  # fmt: skip
    opt.note_corrections(predictor, [] if grid.overrides else [row["gpu"] for row in rows if not row["error"]])
    if form != "human":
        opt.note_prices(gpus)
    Output(form).data(rows, rows, lambda: _show_sweep(rows))
    if failed := [row["error"] for row in rows if row["error"]]:
        grade = "error" if len(failed) == len(rows) else "warning"
        note(f"{grade}: {len(failed)} of {len(rows)} steps could not be estimated: {failed[0]}")
        if grade == "error":
            raise typer.Exit(1)


def _note_unused_zeros(gpus: Sequence[DeviceSpec], sparsity: str) -> None:
    """Rows of a sweep have no room for what a single estimate warns of."""
    dense = [device.id for device in gpus if device.kind == "gpu"] if sparsity else []
    if dense:
        note(f"note: --sparsity has no effect on {', '.join(dense)}: GPUs do not skip zeros")


def _show_sweep(rows: list[dict[str, Any]]) -> None:
    """What all steps share is left out of the table."""
    good = [row for row in rows if not row["error"]]
    best = max((row["samples_per_s"] for row in good), default=0.0) or 1.0
    same = {key for key in ("mode", "seq_len", "dtype") if len({row[key] for row in good}) == 1}
    keys = [key for key in ("model", "gpu", "mode", "batch", "seq_len", "dtype") if key not in same]
    titles = [f">{key}" if key in ("batch", "seq_len") else key for key in keys]
    titles += [">latency", ">samples/s", "", ">GiB"]
    for name, unit in dict.fromkeys((row["model"], row["unit"]) for row in good if row["unit"]):
        paragraph("step", f"{shown(name)}: {unit}")
    if good:
        table(titles, ((*(_text(row[key]) for key in keys), *_sweep_cells(row, best)) for row in good))
    paragraph("assumed", *dict.fromkeys(row["assumed"] for row in good))
    reasons = Counter((row["model"], row["error"]) for row in rows if row["error"])
    for (model, reason), count in reasons.items():
        paragraph("no estimate", f"{_text(model)}, {count} step{'s' if count > 1 else ''}: {reason}")


def _text(value: Any) -> str:
    return "-" if value is None else shown(value)


def _sweep_cells(row: dict[str, Any], best: float) -> tuple[str, ...]:
    memory = f"{row['needed_bytes'] / 2**30:.1f}" + ("" if row["fits"] else " no fit")
    share = row["samples_per_s"] / best if row["fits"] else 0.0
    return milliseconds(row["latency_s"]), decimal(row["samples_per_s"]), bar(share, 4), memory
