"""``neusight sweep``: every combination of models, GPUs and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import Asked, leave_out
from neusight.cli.output import Output, bar, busy, figures, note, paragraph
from neusight.errors import shown
from neusight.measured.feedback import fillable_rows
from neusight.questions import Step

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec

_KEYS = ("model", "gpu", "mode", "batch", "seq_len", "dtype")
_SWEPT = leave_out("cluster", "nodes")


def sweep(
    asked: Annotated[Asked[Step], _SWEPT], models: opt.Models, workers: opt.Workers, output: opt.Formatted
) -> None:
    """Predict every combination of models, GPUs and batches: latency, throughput, memory, cost.

    Options are those of `neusight predict`, several values with commas between. Steps that do not fit are marked;
    those that cannot be estimated keep their reason. Exit 1 where none can be.

    Examples:

    - `neusight sweep gpt2-large,gpt2-xl --gpu l4,a100-pcie-80gb --mode training --batch 1,2,4,8`

    - `neusight sweep bert-large --gpu t4,l4 --batch 1,8,32 --seq-len 128,512 --format csv > plan.csv`;
      fill `latency_ms` with what you measure, then `neusight evaluate plan.csv`
    """
    steps, calls = asked.questions, opt.on_devices(asked)
    opt.check_steps(steps)
    gpus = list({call.id: call.device for call in calls if call.device}.values())
    _note_unused_zeros(gpus, steps[0].sparsity)
    predictor = models.load(gpus)
    points = [call.question.words() | {"gpu": call.device, "overrides": (), "prices": ""} for call in calls]
    with busy("predicting") as advance:
        rows = predictor.shared(**workers.keywords).rows(points, advance)
    others = [name for name in asked.axes if name not in _KEYS]
    rows = [{name: getattr(step, name) for name in others} | row for step, row in zip(steps, rows, strict=True)]
    opt.note_corrections(predictor, [] if steps[0].overrides else [row["gpu"] for row in rows if not row["error"]])
    if output.form != "human":
        opt.note_prices(gpus)
    data = [row | {"question": step.record()} for step, row in zip(steps, rows, strict=True)]
    Output(output.form).data(data, fillable_rows(steps, rows), lambda: _show_sweep(rows, others))
    if failed := [row["error"] for row in rows if row["error"]]:
        grade = "error" if len(failed) == len(rows) else "warning"
        note(f"{grade}: {len(failed)} of {len(rows)} steps could not be estimated: {failed[0]}")
        if grade == "error":
            raise typer.Exit(1)


def _note_unused_zeros(gpus: Sequence[DeviceSpec], sparsity: str) -> None:
    """Report unused sparsity, since rows of a sweep have no room for the warnings of a single estimate."""
    dense = [device.id for device in gpus if device.kind == "gpu"] if sparsity else []
    if dense:
        note(f"note: --sparsity has no effect on {', '.join(dense)}: GPUs do not skip zeros")


def _show_sweep(rows: list[dict[str, Any]], others: Sequence[str]) -> None:
    """Show a table without the options that all steps share."""
    good = [row for row in rows if not row["error"]]
    best = max((row["samples_per_s"] for row in good), default=0.0) or 1.0
    same = {key for key in ("mode", "seq_len", "dtype") if len({row[key] for row in good}) == 1}
    keys = [key for key in (*_KEYS, *others) if key not in same]
    columns = [f">{key}" if key in ("batch", "seq_len") else f"{key} = {key}_words" for key in keys]
    columns += [">latency = latency_s", ">samples/s = samples_per_s:decimal", " = bar", ">GiB = memory"]
    for name, unit in dict.fromkeys((row["model"], row["unit"]) for row in good if row["unit"]):
        paragraph("step", f"{shown(name)}: {unit}")
    figures(" | ".join(columns), (row | _words(row, best, keys) for row in good))
    paragraph("assumed", *dict.fromkeys(row["assumed"] for row in good))
    reasons = Counter((row["model"], row["error"]) for row in rows if row["error"])
    for (model, reason), count in reasons.items():
        paragraph("no estimate", f"{_text(model)}, {count} step{'s' if count > 1 else ''}: {reason}")


def _text(value: Any) -> str:
    return "-" if value is None else shown(value)


def _words(row: dict[str, Any], best: float, names: Sequence[str]) -> dict[str, str]:
    """Cells of a table with words."""
    memory = f"{row['needed_bytes'] / 2**30:.1f}" + ("" if row["fits"] else " no fit")
    share = row["samples_per_s"] / best if row["fits"] else 0.0
    return {f"{name}_words": _text(row[name]) for name in names} | {"memory": memory, "bar": bar(share, 4)}
