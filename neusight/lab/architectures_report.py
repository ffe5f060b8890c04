"""How many architectures of a library get an estimate: a summary of each mode, and the report that is made of them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from neusight.lab.architectures import LIMIT_S, Answer, grouped
from neusight.lab.page import listing, quoted, table, wrapped

SUMMARY, REPORT = "summary.json", "report.md"
_KINDS = {"text": ("input_ids",), "images": ("pixel", "image"), "sound": ("input_features", "input_values", "audio")}
"""What a model is fed, by how names of its inputs begin."""
_LONGEST_REASON = 110


def summary_of(answers: Sequence[Answer], mode: str, gpu: str, known: int, seed: int = 0) -> dict[str, Any]:
    """What a report says of one mode: counts, times in seconds, what was fed, and what is missing and why.

    Whoever finds a summary wrong puts the reason under ``outdated``, which stands there until the next run.

    Args:
        answers: of all types, or of some at random.
        mode: what was asked for.
        gpu: id of the catalogue.
        known: how many types there are.
        seed: by which some of them were drawn.
    """
    buildable = [answer for answer in answers if answer.buildable]
    answered = [answer for answer in buildable if not answer.missing]
    seconds = [answer.seconds for answer in answers]
    return {
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "mode": mode,
        "gpu": gpu,
        "known": known,
        "seed": seed,
        "types": len(answers),
        "buildable": len(buildable),
        "answered": len(answered),
        "default_depth": sorted(answer.kind for answer in answered if answer.layers == "default"),
        "seconds": {
            "median": round(statistics.median(seconds), 1),
            "longest": round(max(answer.seconds for answer in answered), 1) if answered else 0.0,
            "total": round(sum(seconds)),
        },
        "fed": dict(Counter(_fed(answer.inputs) for answer in answered)),
        "reasons": grouped(buildable),
        "missing": {answer.kind: _short(answer.missing) for answer in buildable if answer.missing},
        "unbuildable": {answer.kind: _short(answer.missing) for answer in answers if not answer.buildable},
    }


def _fed(inputs: Sequence[str]) -> str:
    kinds = [kind for kind, begins in _KINDS.items() if any(text.startswith(begins) for text in inputs)]
    return " and ".join(kinds) or "other"


def _short(text: str) -> str:
    """The reason alone, without what is to be done about it, on one line of a table."""
    reason = text.partition("; c")[0].partition(": ")[2] or text
    reason = " ".join(reason.split()).replace("|", "\\|")
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."


def write(folder: Path, summary: Mapping[str, Any]) -> list[Path]:
    """Write a mode's summary beside those of others that a folder has, and the report of all."""
    folder.mkdir(parents=True, exist_ok=True)
    file, report = folder / SUMMARY, folder / REPORT
    modes = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    modes[summary["mode"]] = dict(summary)
    file.write_text(json.dumps(modes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    report.write_text(render(modes), encoding="utf-8")
    return [file, report]


def render(modes: Mapping[str, Mapping[str, Any]]) -> str:
    """The report in Markdown.

    Args:
        modes: ``summary_of`` of each mode.
    """
    summaries = [_with_shares(summary) for _, summary in sorted(modes.items())]
    versions = " and ".join(
        f"{name} {number}" for name, number in sorted(summaries[0]["versions"].items(), reverse=True)
    )
    commands = "\n".join(f"neusight models check transformers{_AGAIN.format_map(summary)}" for summary in summaries)
    parts = [
        "# Architectures of transformers that get an estimate",
        wrapped(_INTRODUCTION.format(versions=versions, limit_s=LIMIT_S)),
        listing(summaries, _OVERVIEW),
        "Again with:",
        f"```sh\n{commands}\n```",
        *(part for summary in summaries for part in _mode(summary)),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "Every type of model that has a class of its own in {versions}: made from its default configuration, two layers "
    "deep where its configuration can be cut, fed what its signature and configuration ask for, traced without any "
    "fallback of operators, and estimated. Types that transformers itself does not build from their default, or builds "
    "so that no input can run (a part whose shapes follow from the configuration alone fails on small real tensors), "
    "are listed and not counted. An answer that takes longer than {limit_s:.0f} s of a processor counts as missing; "
    "all times are such."
)
_OVERVIEW = (
    *(("mode", "{mode}"), ("types", "{types} of {known}"), ("buildable", "{buildable}"), ("answered", "{answered}")),
    *(("share", "{share:.1f} %"), ("median time", "{seconds[median]} s"), ("longest answer", "{seconds[longest]} s")),
    ("all", "{minutes:.0f} min"),
)
_AGAIN = " --mode {mode}{draw} --report experiments/architectures"


def _with_shares(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary with its share in percent, its minutes, and options that draw the same types again."""
    draw = f" --limit {summary['types']} --seed {summary['seed']}" if summary["types"] < summary["known"] else ""
    share = 100 * summary["answered"] / max(1, summary["buildable"])
    return {**summary, "share": share, "minutes": summary["seconds"]["total"] / 60, "draw": draw}


def _mode(summary: Mapping[str, Any]) -> Iterator[str]:
    counts = sorted(summary["fed"].items(), key=lambda item: (-item[1], item[0]))
    reasons = [(each["reason"], str(each["count"]), ", ".join(each["architectures"])) for each in summary["reasons"]]
    yield f"## {summary['mode'].capitalize()}, on {summary['gpu']}"
    if outdated := summary.get("outdated"):
        yield quoted(outdated)
    yield wrapped(f"Fed, of those answered: {', '.join(f'{kind} {count}' for kind, count in counts)}.")
    yield wrapped(f"At their default depth: {', '.join(summary['default_depth']) or 'none'}.")
    yield table(("what is missing", "types", "which"), reasons, words=3)
    yield table(("type", "what it says"), sorted(summary["missing"].items()), words=2)
    yield "Not counted, since transformers does not build them, or for no input, from their default configuration:"
    yield table(("type", "what it says"), sorted(summary["unbuildable"].items()), words=2)
