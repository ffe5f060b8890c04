"""``neusight predict``: duration of a step of a model, and its display on a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neusight.cli import options as opt
from neusight.cli.asked import Asked
from neusight.cli.output import bar, busy, figures, headline, line, paragraph
from neusight.cli.points import Point, answers, differing, show
from neusight.defaults import words_of
from neusight.questions import Step, Training
from neusight.questions.field import text
from neusight.questions.parts import OUTPUT, Assurance
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal, gib, milliseconds

if TYPE_CHECKING:
    from neusight.estimates import Estimate

_TOP = 12
"""Rows of operators and kernels that are shown."""
_SMALL_ERROR = 0.005
"""Errors below this share of the latency are not shown."""
_NOTHING = 1e-6
"""Share of the latency below which a phase is rounding."""
_SIDE = ("gpu", "latency_s", "low_s", "high_s", "samples_per_s", "limiter")
"""Figures of several estimates side by side."""


@dataclass(frozen=True, kw_only=True)
class EstimateForm(opt.Explained):
    """The form of the result, and what counts as fitting."""

    must_fit: float = like(Assurance, "must_fit")

    by: str = text("Rows of the table, and of CSV.", OUTPUT, "operator", choices=("operator", "phase", "kernel"))


def predict(asked: Asked[Step], models: opt.Learned, output: EstimateForm) -> None:
    """Predict the latency of one step of a model on GPUs.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight predict gpt2-large --gpu l4 --mode training --batch 1`

    - `neusight predict llama-2-7b --gpu a100,h100 --dtype bf16 --seq-len 1024`

    - `neusight predict vgg16 --gpu a100-sxm-40gb,tensordash --mode training --sparsity activations=0.6,gradients=0.5`

    - `neusight predict ./whisper/config.json --gpu l4 --seconds 30 --input decoder_input_ids=1x64:int64`

    - `neusight predict gpt2-large --gpu a100 --launch compiled`

    - `neusight predict timm:convnext_tiny@288 --gpu a100 --dtype amp --layout nhwc --batch 64`

    - `neusight predict gpt2-large --gpu a100 --mode training --optimizer adam --tp 4 --batch 8`

    - `neusight predict ./config.json --gpu h100-sxm-80gb --set dram_bandwidth=4.8TB/s --format json`

    - `neusight predict gpt3-175b --mode training --cluster dgx-a100 --nodes 8 --tp 8 --pp 8 --batch 512`
    """
    steps = asked.questions
    if steps[0].cluster:
        from neusight.cli.training import TrainingOptions, answer

        output.refuse(("must_fit",), "has no effect with --cluster: leave it out, or search with `neusight plan`")
        options = TrainingOptions(form=output.form, explain=output.explain)
        answer(Asked(Training, Step.training_words(asked.texts)), models, options)
        return
    opt.check_steps(steps)
    calls = opt.on_devices(asked)
    predictor = models.load([call.device for call in calls if call.device])
    with busy(f"predicting {steps[0].model}") as advance:
        answered = list(answers(calls, opt.asker(predictor), many=len(calls) > 1, advance=advance))
    points = [replace(point, options=asked.options_of(point.call.question)) for point in answered]
    show_estimates(points, output, asked)
    output.show_below(points)


vars(predict)["renamed"] = {
    "--compile": "--launch compiled", "--cuda-graph": "--launch graph", "--global-batch": "--batch",
    "--global-batch-size": "--batch",
}  # fmt: skip


def show_estimates(points: Sequence[Point[Estimate]], output: EstimateForm, asked: Asked[Step]) -> None:
    """Show one estimate in full, several side by side. JSON has everything, CSV the rows that ``by`` chooses."""
    from neusight.estimates.report import report

    def fits(e: Estimate) -> bool:
        return e.fit.fits_with(output.must_fit)

    names = [name for name in differing(points, points[0].options) if name not in ("model", "gpu")]
    show(
        [replace(p, estimate=p.estimate and _warned(p.estimate, output.must_fit)) for p in points],
        output.form, asked.many, full=partial(_full, by=output.by), counts=fits,
        beside={name: value for name, value in output.words().items() if name == "must_fit"},
        data=lambda e: report(e) | {"fits": fits(e)},
        rows=[{"model": e.model, "gpu": e.gpu, **{name: p.options[name] for name in names}, **row}
              for p in points if (e := p.estimate) for row in _rows(e, output.by)],
        table=partial(_side_by_side, names=names, fits=fits),
    )  # fmt: skip


def _warned(e: Estimate, must_fit: float) -> Estimate:
    """The estimate, which warns that its memory is enough with less than a demanded probability."""
    from neusight.estimates.build import memory_warning

    if not e.fits or e.fit.fits_with(must_fit):
        return e
    others = [text for text in e.warnings if text != memory_warning(e)]
    return replace(e, warnings=(*others, f"{e.fit} on {e.gpu}: less probable than --must-fit {must_fit:g}"))


def _rows(estimate: Estimate, by: str) -> list[dict[str, Any]]:
    from neusight.estimates.report import KERNEL_COLUMNS, OPERATOR_COLUMNS, columns, costliest

    if by == "kernel":
        return [columns(row, KERNEL_COLUMNS) for row in costliest(estimate)]
    if by == "operator":
        return [columns(row, OPERATOR_COLUMNS) for row in estimate.by_operator]
    return [{"phase": phase, "latency_s": seconds} for phase, seconds in estimate.by_phase.items()]


def _full(estimate: Estimate, by: str) -> None:
    _headline(estimate)
    _phases(estimate)
    if by != "phase":
        line()
        _costliest(estimate, by)
    line()
    _memory(estimate)
    _origin(estimate)


def _headline(e: Estimate) -> None:
    length = f", sequence {e.seq_len}" if e.seq_len else ""
    optimizer = f", {e.optimizer}" if e.optimizer != "none" else ""
    attention = f", {e.attention} attention" if e.attention != "eager" else ""
    gpu = e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}"
    headline(f"{e.model} on {gpu}: {e.mode}, batch {e.batch}{length}, {e.dtype}{attention}{optimizer}")
    paragraph("step", e.unit)
    paragraph("inputs", " ".join(e.inputs))
    paragraph("assumed", words_of(e.assumed))
    paragraph("latency", f"{milliseconds(e.latency_s)}  (90 %: {milliseconds(e.low_s)} to {milliseconds(e.high_s)})")
    errors = sorted(((size, source) for source, size in e.errors.items() if size >= _SMALL_ERROR), reverse=True)
    paragraph("error", f"{', '.join(f'{source} {size:.0%}' for size, source in errors)} (standard deviations)")
    paragraph("given", e.given.get("words", ""))
    tokens = f", {e.tokens_per_s:,.0f} tokens/s" if e.tokens_per_s else ""
    paragraph("throughput", f"{decimal(e.samples_per_s)} samples/s{tokens}")
    share = e.bound_s / e.latency_s if e.latency_s else 0.0
    paragraph("bound", f"no faster than {milliseconds(e.bound_s)} ({share:.0%} of the latency)")
    paragraph("limited by", e.limiter)
    if (energy := e.board_energy) is not None:
        parts = {"idle": energy.idle_j, **e.energy_j}
        listed = ", ".join(f"{name} {decimal(joules)}" for name, joules in parts.items() if joules)
        paragraph(
            "energy",
            f"{decimal(energy.expected_j)} J (90 %: {decimal(energy.low_j)} to {decimal(energy.high_j)}): {listed}",
        )


def _phases(e: Estimate) -> None:
    for title, times in (("phase", e.by_phase), ("part", e.by_part)):
        rows = [(name, s) for name, s in times.items() if s > _NOTHING * e.latency_s]
        figures(
            f"{title} = name | >latency = latency_s | {_SHARE}",
            ({"name": name, "latency_s": s, "share": s / e.latency_s} for name, s in rows), "",
        )  # fmt: skip


_SHARE = ">share = share:.1% | = share:bar"
_COSTLIEST = {
    "operator": f"operator | phase | >count = count:decimal6 | >latency = latency_s | {_SHARE} | limited by = limiter",
    "kernel": "~kernel | >count = count:decimal6 | >each = latency_s | >share = share:.1% | "
              ">of peak = utilisation:.0% | tile | limited by = limiter",
}  # fmt: skip


def _costliest(e: Estimate, by: str) -> None:
    """Show the operators or kernels that take most of the time."""
    rows = [{**row, "operator": _short(row["operator"])} for row in _rows(e, by)]
    if by == "kernel":
        rows = [{**row, "share": row["total_s"] / e.latency_s} for row in rows]
    figures(_COSTLIEST[by], rows[:_TOP])
    if more := rows[_TOP:]:
        share = sum(row["share"] for row in more)
        line(f"… and {len(more)} more {by}s ({share:.1%}); --format csv lists all")


def _short(operator: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    return operator.removeprefix("aten.").removesuffix(".default")


def _memory(e: Estimate) -> None:
    parts = ", ".join(f"{name} {gib(size)}" for name, size in e.memory.parts.items() if size)
    reserve = f"{gib(e.memory.reserve)} kept for context and allocator"
    paragraph("memory", str(e.fit), f"{parts}; {reserve}")


_ORIGINS = {
    "trained": "from kernels like these that were measured",
    "transferred": "from measured kernels of other kinds or dtypes",
    "fallback": "a lower bound alone",
}


def _origin(e: Estimate) -> None:
    covered = ", ".join(f"{share:.1%} {_ORIGINS[name]}" for name, share in e.coverage.items() if share)
    were = "were" if e.gpu in e.provenance.training_gpus else "were not"
    texts = [f"{covered} (share of the latency)", f"kernels of {e.gpu} {were} among them"]
    texts += [f"corrected by {e.provenance.calibration}"] if e.provenance.calibration else []
    texts += [f"zeros: {e.provenance.sparsity}"] if e.provenance.sparsity else []
    paragraph("based on", *texts, f"neusight {e.provenance.neusight}")


def _side_by_side(points: Sequence[Point[Estimate]], names: Sequence[str], fits: Callable[[Estimate], bool]) -> None:
    """Show several estimates, with the options in which they differ."""
    from neusight.estimates.report import columns

    answers = [(point.call.question, point.estimate) for point in points if point.estimate]
    first, slowest = answers[0][1], max(e.latency_s for _, e in answers)
    models = ", ".join(dict.fromkeys(e.model for _, e in answers))
    line(f"{models}: {first.mode}, batch {first.batch}, sequence {first.seq_len or '-'}, {first.dtype}")
    paragraph("assumed", words_of(first.assumed))
    paragraph("step", first.unit)
    rows = []
    for step, e in answers:
        row = {**columns(e, _SIDE), "bar": bar(e.latency_s / slowest, 6), "fits": "yes" if fits(e) else "NO"}
        rows.append(row | {name: getattr(step, name) for name in names})
    interval = ">90 % interval = {low_s} - {high_s} | = bar"
    speed = f">latency = latency_s | {interval} | >samples/s = samples_per_s:decimal"
    figures(" | ".join(["gpu", *names, speed, "limited by = limiter", "fits"]), rows)
