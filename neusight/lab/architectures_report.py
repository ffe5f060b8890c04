"""How many architectures of a library get an estimate: a summary of each mode, and the report that is made of them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from neusight.lab.architectures import LIMIT_S, Answer, grouped
from neusight.lab.page import table, wrapped

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
    any_mode = next(iter(modes.values()))
    versions = " and ".join(f"{name} {number}" for name, number in sorted(any_mode["versions"].items(), reverse=True))
    intro = (
        f"Every type of model that has a class of its own in {versions}: made from its default configuration, two "
        "layers deep where its configuration can be cut, fed what its signature and configuration ask for, traced "
        "without any fallback of operators, and estimated. Types that transformers itself does not build from their "
        "default, or builds so that no input can run (a part whose shapes follow from the configuration alone fails on "
        "small real tensors), are listed and not counted. An answer that takes longer than "
        f"{LIMIT_S:.0f} s of a processor counts as missing; all times are such."
    )
    parts = [
        "# Architectures of transformers that get an estimate",
        wrapped(intro),
        _overview(modes),
        "Again with:",
        "```sh\n" + "\n".join(_command(summary) for _, summary in sorted(modes.items())) + "\n```",
    ]
    return "\n\n".join([*parts, *(_mode(summary) for _, summary in sorted(modes.items()))]) + "\n"


def _command(summary: Mapping[str, Any]) -> str:
    """What draws the same types again; all of them need no draw."""
    drawn = f" --limit {summary['types']} --seed {summary['seed']}" if summary["types"] < summary["known"] else ""
    return f"neusight models check transformers --mode {summary['mode']}{drawn} --report experiments/architectures"


def _overview(modes: Mapping[str, Mapping[str, Any]]) -> str:
    head = ("mode", "types", "buildable", "answered", "share", "median time", "longest answer", "all")
    rows = [
        (
            mode,
            f"{summary['types']} of {summary['known']}",
            str(summary["buildable"]),
            str(summary["answered"]),
            f"{100 * summary['answered'] / max(1, summary['buildable']):.1f} %",
            f"{summary['seconds']['median']} s",
            f"{summary['seconds']['longest']} s",
            f"{summary['seconds']['total'] / 60:.0f} min",
        )
        for mode, summary in sorted(modes.items())
    ]
    return table(head, rows)


def _mode(summary: Mapping[str, Any]) -> str:
    counts = sorted(summary["fed"].items(), key=lambda item: (-item[1], item[0]))
    inputs = ", ".join(f"{kind} {count}" for kind, count in counts)
    reasons = [(each["reason"], str(each["count"]), ", ".join(each["architectures"])) for each in summary["reasons"]]
    outdated = [f"> {wrapped(text, 78)}".replace("\n", "\n> ") for text in [summary.get("outdated")] if text]
    parts = [
        f"## {summary['mode'].capitalize()}, on {summary['gpu']}",
        *outdated,
        wrapped(f"Fed, of those answered: {inputs}."),
        wrapped(f"At their default depth: {', '.join(summary['default_depth']) or 'none'}."),
        table(("what is missing", "types", "which"), reasons, words=3),
        table(("type", "what it says"), sorted(summary["missing"].items()), words=2),
        "Not counted, since transformers does not build them, or for no input, from their default configuration:",
        table(("type", "what it says"), sorted(summary["unbuildable"].items()), words=2),
    ]
    return "\n\n".join(parts)
