"""``neusight kernel``: one kernel by itself, on several GPUs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import Asked
from neusight.cli.output import busy, figures, line, paragraph
from neusight.cli.points import answers, show
from neusight.defaults import words_of
from neusight.kernels.named import PUBLIC_NAMES
from neusight.questions import KernelCall
from neusight.questions.field import pairs_of

if TYPE_CHECKING:
    from neusight.estimates import LoneKernel

_COLUMNS = (
    "gpu | >latency = latency_s | >90 % interval = {low_s} - {high_s} | >bound = bound_s | "
    ">of peak = utilisation:.0% | tile | limited by = limiter"
)


def kernel(asked: Asked[KernelCall], models: opt.Learned, output: opt.Benched) -> None:
    """Predict the latency of a single kernel.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight kernel gemm m=4096 n=4096 k=4096 --gpu l4`

    - `neusight kernel bmm batch=16 m=512 n=512 k=64 --gpu t4,l4`

    - `neusight kernel grouped_gemm groups=8 tokens=4096 n=14336 k=4096 dtype=bf16 --gpu h100`

    - `neusight kernel attention batch=64 heads=32 kv_heads=8 q_len=1 kv_len=4096 head_dim=128 dtype=bf16 --gpu h100`

    - `neusight kernel gemm m=16 n=14336 k=4096 dtype=bf16 --timer cuda_graph --backend vllm --gpu h200`

    - `neusight kernel all_reduce ranks=8 bytes=67108864 --backend vllm --timer cuda_graph --gpu h100-sxm-80gb`

    - `neusight kernel all_reduce ranks=32 bytes=17179869184 --cluster aws-p6-b200 --nodes 4`

    - `neusight kernel softmax rows=8192 cols=1024 --gpu l4`

    - `neusight kernel conv2d batch=8 in_channels=64 out_channels=64 size=56 kernel=3 padding=1 --gpu l4`
    """
    from neusight.estimates.report import LONE_KERNEL_COLUMNS, columns

    for name in pairs_of(asked.questions[0].shape):
        if name in PUBLIC_NAMES:
            raise typer.BadParameter(f"{name} is now {PUBLIC_NAMES[name]}", param_hint="FIELD=VALUE")
    calls = opt.on_devices(asked)
    predictor = models.load([call.device for call in calls if call.device])
    with busy("predicting") as advance:
        points = list(answers(calls, opt.asker(predictor), many=len(calls) > 1, advance=advance))
    estimates: list[tuple[str, LoneKernel]] = [(p.call.id, p.estimate) for p in points if p.estimate]
    opt.note_corrections(predictor, [] if asked.questions[0].overrides else [gpu for gpu, _ in estimates])
    rows = [{"gpu": gpu, **columns(estimate, LONE_KERNEL_COLUMNS)} for gpu, estimate in estimates]
    named = "" if len({row["kernel"] for row in rows}) == 1 else "~kernel | "

    def human(_: Any) -> None:
        line(f"{len(rows)} kernels" if named else rows[0]["kernel"])
        figures(named + _COLUMNS, rows)
        paragraph("assumed", words_of(estimates[0][1].assumed))
        paragraph("given", estimates[0][1].given.get("words", ""))

    data = partial(columns, names=(*LONE_KERNEL_COLUMNS, "question", "assumed", "given", "warnings"))
    show(points, output.form, asked.many, data=data, rows=rows, full=human, table=human)
    output.show_below(points)
