"""``neusight check``: what a bench or log says beside the prediction, inside of its interval or outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import CommandOptions, ParameterTraits, from_line
from neusight.cli.output import Output, busy, figures, headline, line, note, paragraph
from neusight.errors import NeusightError, one_line
from neusight.questions import FieldError, KernelCall, Serving, Step, Training
from neusight.questions.field import required
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal, milliseconds

if TYPE_CHECKING:
    from neusight.check import CheckedFigure, Result

_LONG = ("config", "decoder")
"""Fields whose words are too long for a headline."""


@dataclass(frozen=True, kw_only=True)
class ResultOptions(opt.Models, opt.Written, opt.Formatted):
    """A file of results, what predicts, and where its rows are kept."""

    HELP: ClassVar[Mapping[str, str]] = {"out": "Add the measured rows to this table for `neusight evaluate`."}

    result: Path = required(
        "What a bench or log wrote: vLLM's and SGLang's bench results, AIPerf, GenAI-Perf, GuideLLM, trtllm-bench, "
        "llama-bench, InferenceX, Megatron-LM's and Hugging Face Trainer's logs, nccl-tests, torch.utils.benchmark.",
        "", kind="path", complete="files",
    )  # fmt: skip

    def check(self) -> None:
        """Raises:
        BadParameter, DataError: a table that cannot be written.
        """
        super().check()
        opt.check_out(self.out, "--out", ".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class GivenWords(CommandOptions):
    """Words of a question, whose kind the file decides; names are options here."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    model: str = like(Step, "model", default="", argument=False, listable=False)
    name: str = like(KernelCall, "name", default="", argument=False, listable=False, option="--kernel")
    shape: tuple[str, ...] = like(KernelCall, "shape", default=(), argument=False, option="--shape")


ONE_OF = ParameterTraits(
    nouns=(GivenWords, Serving, Training, Step, KernelCall), read=lambda texts, _: GivenWords(chosen=texts), lists=False
)
FROM_LINE = from_line("The line or script that started the engine, whose words count as options do.")


def check(options: ResultOptions, words: Annotated[GivenWords, ONE_OF, FROM_LINE]) -> None:
    """Hold a result of a bench or log against the prediction: inside of the 90 % interval or outside.

    The file says what ran as far as its tool writes that down; the rest comes from the options of `neusight serving`,
    `training`, `predict` and `kernel`, which count before words of the file.

    Exit code: 0 where all figures are inside, 1 where one is outside, 2 where the file or an option is wrong.

    Examples:

    - `neusight check bench.json --gpu h100 --tp 2`

    - `neusight check bench.json --gpu h100 --from "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 64"`

    - `neusight check llama-bench.csv --out mine.csv`, then `neusight evaluate mine.csv`

    - `neusight check all_reduce.log --per-node 8 --network '8 x 400Gb/s'`

    - `neusight check train.log --gpu h100 --seq-len 8192 --model llama-3.1-8b`

    - `neusight check timer.txt --kernel gemm --shape m=4096 --shape n=4096 --shape k=4096 --gpu a100`
    """
    try:
        findings = _check(options, words.chosen)
    except FieldError:
        raise
    except NeusightError as error:
        note(f"error: {one_line(str(error))}")
        raise typer.Exit(2) from error
    raise typer.Exit(1 if any(finding.inside is False for finding in findings) else 0)


def _check(options: ResultOptions, words: Mapping[str, Any]) -> Sequence[CheckedFigure]:
    """Check the result, keep its rows and show the findings."""
    from neusight.check import check as compared
    from neusight.check import read_result, write_rows

    result = read_result(options.result, words)
    predictor = options.load([gpu for question in result.questions if (gpu := getattr(question, "gpu", ""))])
    with busy("predicting"):
        findings, reasons = compared(result, predictor)
    _note(result, reasons)
    rows = [{**asdict(f), "error": f.error} for f in findings]
    data = {"tool": result.format.tool, "file": str(options.result), "findings": rows}
    data["questions"] = [question.record() for question in result.questions]
    Output(options.form).data(data, rows, lambda: _show(result, findings))
    if options.out is not None:
        note(f"{options.out} has {write_rows(result, options.out)} rows now: see `neusight evaluate {options.out}`")
    return findings


def _note(result: Result, reasons: Sequence[str]) -> None:
    """Lines for words that options replace, for results that measured nothing, and for missing predictions."""
    for name, text in result.replaced.items():
        note(f"note: {name} is {text} in the file; the option counts")
    if result.empty:
        note(f"warning: {result.empty} results measured nothing that is known")
    for reason in reasons:
        note(f"warning: no prediction: {reason}")


def _show(result: Result, findings: Sequence[CheckedFigure]) -> None:
    """The question that all rows share, figures beside predictions, doubts, limits, and what was assumed.\n"""
    from neusight.check.findings import differing_fields

    differ = differing_fields(result.questions)
    headline(f"{result.format.tool}: {_words(result.questions[0], lambda name: name not in (*differ, *_LONG))}")
    line()
    rows = [_row(f, _words(result.questions[f.row - 1], differ.__contains__)) for f in findings]
    first, last = ("~result | ", "") if differ else ("", " | >error")
    figures(f"{first}quantity | >predicted | >90 % interval = interval | >measured | verdict{last}", rows)
    judged = [f for f in findings if f.inside is not None]
    line(f"\n{sum(bool(finding.inside) for finding in judged)} of {len(judged)} inside")
    doubts: dict[str, list[float]] = {}
    limits: dict[str, dict[str, None]] = {}
    for finding in findings:
        limits.setdefault(finding.limiter, {})[finding.quantity] = None
        for source, share in finding.errors.items():
            doubts.setdefault(source, []).append(share)
    ends = sorted(((max(shares), min(shares), source) for source, shares in doubts.items()), reverse=True)
    sizes = (f"{source} {' to '.join(dict.fromkeys((f'{low:.0%}', f'{high:.0%}')))}" for high, low, source in ends)
    paragraph("doubts", ", ".join(sizes) + " (standard deviations)" * bool(ends))
    paragraph("limited by", *(f"{limiter}: {', '.join(of)}" for limiter, of in limits.items() if limiter))
    assumed = {name: value for finding in findings for name, value in finding.assumed.items()}
    paragraph("assumed", ", ".join(f"{name} {text.partition(',')[0]}" for name, text in assumed.items()))


def _words(question: Any, is_shown: Callable[[str], bool]) -> str:
    """Words of a question as on a command line."""
    texts = [text if name == "shape" else f"{name}={text}" for name, text in question.texts() if is_shown(name)]
    return " ".join(texts)


def _row(one: CheckedFigure, result: str) -> dict[str, str]:
    """Cells of a finding, times with their units."""
    names = ("predicted", "low", "high", "measured")
    write = partial(decimal, digits=4) if not one.quantity.endswith("_ms") else lambda value: milliseconds(value / 1e3)
    cells = {name: write(value) for name in names if (value := getattr(one, name)) is not None}
    cells |= {"interval": f"{cells['low']} - {cells['high']}"} if "low" in cells else {}
    verdict = {None: "-", True: "inside", False: "OUTSIDE"}[one.inside]
    return {**cells, "result": result, "quantity": one.quantity, "verdict": verdict, "error": f"{one.error:+.0f}%"}
