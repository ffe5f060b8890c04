"""``neusight kernel`` and ``sweep``: one kernel on several GPUs, and every combination of models, GPUs and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli import options as opt
from neusight.cli.commands import check_answers, combined
from neusight.cli.options import ENGINE, Spec
from neusight.cli.output import Output, bar, busy, line, note, paragraph, table
from neusight.errors import shown
from neusight.units import decimal, milliseconds

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec
    from neusight.estimates import KernelEstimate


@dataclass(frozen=True, kw_only=True)
class SweepExecution:
    """How a kernel alone is run."""

    operands: Annotated[
        Literal["resident", "cold"],
        Spec("--operands", ENGINE, "Cold: all in device memory; resident: in L2, as when a launch is repeated.").text(),
    ] = "cold"
    timing: Annotated[
        Literal["stream", "graph", "profiler"],
        Spec(
            "--timing",
            ENGINE,
            "Launched alone, as one of many in a CUDA graph, or as a profiler sees it, without launch.",
        ).text(),
    ] = "stream"
    engine: opt.EngineName = "torch"


def kernel(
    name: Annotated[str, typer.Argument(help="A family (gemm, conv2d, attention, …) or operator (softmax, gelu, …).")],
    gpu: opt.Gpus,
    launch: SweepExecution,
    models: opt.Models,
    shape: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Its shape.")] = None,
    overrides: opt.Overrides = [],  # noqa: B006
    form: opt.Format = "human",
) -> None:
    """Predict the latency of a single kernel.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight kernel gemm m=4096 n=4096 k=4096 --gpu l4`

    - `neusight kernel bmm batch=16 m=512 n=512 k=64 --gpu t4,l4`

    - `neusight kernel grouped_gemm groups=8 tokens=4096 n=14336 k=4096 dtype=bf16 --gpu h100`

    - `neusight kernel attention batch=64 heads=32 kv_heads=8 q_len=1 kv_len=4096 head_dim=128 dtype=bf16 --gpu h100`

    - `neusight kernel gemm m=16 n=14336 k=4096 dtype=bf16 --timing graph --engine vllm --gpu h200`

    - `neusight kernel all_reduce ranks=8 bytes=67108864 --engine vllm --timing graph --gpu h100-sxm-80gb`

    - `neusight kernel softmax rows=8192 cols=1024 --gpu l4`

    - `neusight kernel conv2d batch=8 in_channels=64 out_channels=64 size=56 kernel=3 padding=1 --gpu l4`
    """
    from neusight.estimates.report import LONE_KERNEL_COLUMNS, columns

    fields = opt.pairs(shape or [], "FIELD=VALUE")
    gpus = opt.devices(gpu, overrides)
    predictor = models.load(gpus)
    options = vars(launch) | fields

    def estimate(combination: dict[str, Any]) -> KernelEstimate:
        return predictor.kernel(name, combination["gpu"], **options)

    points = list(combined({"gpu": gpus}, estimate, many=len(gpus) > 1))
    check_answers(points, "gpu")
    answers = [(point.options["gpu"].id, point.estimate) for point in points if point.estimate]
    opt.note_corrections(predictor, [] if overrides else [device for device, _ in answers])
    rows = [{"gpu": device, **columns(estimate, LONE_KERNEL_COLUMNS)} for device, estimate in answers]
    failed = [{"gpu": point.options["gpu"].id, "error": point.error} for point in points if point.error]
    Output(form).data(rows + failed if opt.is_list(gpu) else rows[0], rows, lambda: _show_kernels(answers))


def _show_kernels(answers: Sequence[tuple[str, KernelEstimate]]) -> None:
    line(answers[0][1].kernel)
    titles = ("gpu", ">latency", ">90 % interval", ">bound", ">of peak", "tile", "limited by")
    table(titles, (_kernel_cells(*each) for each in answers))


def _kernel_cells(gpu: str, e: KernelEstimate) -> tuple[str, ...]:
    latency, low, high, bound = (milliseconds(value) for value in (e.latency_s, e.low_s, e.high_s, e.bound_s))
    return gpu, latency, f"{low} - {high}", bound, f"{e.utilisation:.0%}", e.tile, e.limiter


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
        rows = predictor.shared(**workers.given).sweep_rows(
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
