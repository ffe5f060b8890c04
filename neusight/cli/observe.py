"""``neusight observe``: calibrate an engine on a GPU by the log of a live server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import ONE_QUESTION, Asked, leave_out
from neusight.cli.output import Output, busy, line, note, table
from neusight.paths import calibrations_dir, user_path
from neusight.questions import Serving
from neusight.questions.field import required, whole
from neusight.questions.parts import LOAD
from neusight.questions.question import like
from neusight.questions.serving import OF_LOADS
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.executors.gpu.calibration.calibration import Calibration
    from neusight.learn.observe import Observed
    from neusight.serving.logs import ServerLog

_LONGEST = 8192
"""Tokens of a sequence, where neither the command nor the model has fewer."""
_MEANING = {
    "pass_s": "each pass", "rank_s": "several ranks", "sequence_s": "each sequence", "mixture_s": "layers of experts",
    "operator_s": "operators outside of graphs", "gap_s": "between overlapped passes",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LogOptions(opt.Written, opt.Models, opt.Formatted):
    """Logs, figures that they lack, and the file of the calibration."""

    HELP: ClassVar[Mapping[str, str]] = {
        "out": "File of the calibration. Default: ID.json in your own folder of calibrations.",
    }  # fmt: skip

    logs: tuple[str, ...] = required(
        "Records of requests, a log of vLLM or SGLang, or dumps of /metrics.", "", kind="texts", metavar="LOG"
    )
    isl: int | None = like(
        Serving, "isl", help="Input sequence length: tokens of a prompt on average, which logs of vLLM lack.",
        listable=False,
    )  # fmt: skip
    longest: int | None = whole(
        "Tokens of the longest prompt with its answer. Default: 8192, or all that the model takes.", LOAD, high=1 << 24
    )


NO_PART = leave_out(
    *OF_LOADS, "prices", "prefill", "kv_link", "kv_overlap", "router", "admitted", "prefix_hit", "host_cache"
)  # fmt: skip
"""Fields that a log has, or that do not count for the passes of one server."""


def observe(asked: Annotated[Asked[Serving], NO_PART, ONE_QUESTION], options: LogOptions) -> None:
    """Fit an engine's own time and factors of its kernels to what a live server says, starting from those that ship.

    Reads a row a request (arrival_s, prompt_tokens, output_tokens, ttft_s, tpot_s), the lines that vLLM and SGLang log
    while they serve, or two and more dumps of vLLM's /metrics. Half of it is held out for the error before and after;
    later commands take what it finds up for that GPU and engine, and say so.

    Examples:

    - `neusight observe Qwen/Qwen3-32B requests.csv --gpu h100 --tp 2 --dtype fp8`

    - `neusight observe Qwen/Qwen3-8B server.log --gpu l4 --isl 900 --max-num-seqs 64`

    - `neusight observe Qwen/Qwen3-8B 1.prom 2.prom 3.prom 4.prom 5.prom --gpu l4 --out l4.json`
    """
    from neusight.api import as_device
    from neusight.learn.observe import observe as fitted
    from neusight.serving.logs import read_log

    question = asked.questions[0]
    for name in asked.axes:
        hint = question.fields()[name].option
        raise typer.BadParameter("takes one: a log is of one server", param_hint=hint)
    question.check_device()
    question.refuse(("replicas",), "is of one server: give the log of one replica")
    device = as_device(opt.named_gpu(question.gpu), question.overrides)
    for text in question.without_effect():
        note(f"warning: {text}")
    predictor = options.load()
    usual = min(_LONGEST, question.decoder().max_len or _LONGEST)
    longest = question.max_model_len or options.longest or usual
    with busy("observing"):
        deployment = predictor.deployment(question.model_or_name(), device, longest, question.setup())
        log = read_log(list(map(user_path, options.logs)), deployment.limits.kv_tokens or 0, options.isl)
        observed = fitted(deployment, log.windows)
    file = _with_observed(predictor, device, observed).save(options.out or calibrations_dir() / f"{device.id}.json")
    _show(log, observed, file, options.form)


def _with_observed(predictor: Predictor, device: DeviceSpec, observed: Observed) -> Calibration:
    """The GPU's calibration with the observed engine, keeping its kernels and other engines."""
    from neusight.devices import gpu_of
    from neusight.executors.gpu.calibration.calibration import Calibration
    from neusight.learn.calibration.fit import unmeasured

    prior = predictor.kernel_predictor.correction(device)
    calibration = prior if isinstance(prior, Calibration) else unmeasured(predictor.kernel_predictor, gpu_of(device))
    return replace(calibration, engines={**calibration.engines, observed.era: observed.after})


def _show(log: ServerLog, observed: Observed, path: Path, form: str) -> None:

    rows = [
        {"constant": name, "before": observed.before[name], "after": observed.after[name]} for name in observed.before
    ]
    summary: dict[str, Any] = {
        "file": str(path), "log": log.kind, "engine": observed.era, "windows": observed.windows,
        "acceptance": log.acceptance, "error_before": observed.error_before, "error_after": observed.error_after,
        "constants": rows,
    }  # fmt: skip
    Output(form).data(summary, rows, lambda: _lines(summary))


def _lines(summary: dict[str, Any]) -> None:
    from neusight.units import milliseconds

    line(f"{summary['log']}: {summary['windows']} stretches of {summary['engine']}")
    line(f"error of the time per token: {summary['error_before']:.1f} % with the constants that ship,")
    line(f"{summary['error_after']:.1f} % of the later half with those of the earlier")
    if summary["acceptance"] is not None:
        line(f"drafted tokens accepted: {summary['acceptance']:.0%}, for --speculate …,acceptance=")
    line()
    moved = [row for row in summary["constants"] if row["constant"] not in ("request_s", "spread")]
    text = [
        (_MEANING[name], milliseconds(row["before"]), milliseconds(row["after"]))
        if (name := row["constant"]) in _MEANING
        else (f"kernels: {name}", f"x {row['before']:.3f}", f"x {row['after']:.3f}")
        for row in moved
    ]
    table(["engine's time", ">before", ">after"], text)
    line("kept for that GPU and engine; --calibration none leaves it out:")
    line(summary["file"])
