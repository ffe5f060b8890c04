"""Exported programs, eager and compiled: errors with hosts fitted to half of their programs, with hosts left out, and
with dies left out of which nothing was known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neusight.api import Predictor
from neusight.evaluation import Scored, Selection, evaluate_programs
from neusight.evaluation.programs import gains
from neusight.experiments.runs import QUICK_CELLS, Results, advance_of, counted, figures, files_sha256, fold_predictors
from neusight.paths import data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import ProgramsDeclaration
    from neusight.learn import Report

LEFT_OUT = ("nothing", "host", "die")
KEPT = ("gpu", "host", "graph", "mode", "l2_flushed", "size", "predicted_ms", "inside")


def run_programs(declared: ProgramsDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Predict every timing, each time with something else left out, and compare.

    Returns:
        ``rows``: a timing each, by what was ``left_out`` (of ``LEFT_OUT``), without what was measured; ``errors`` by
        what was left out, mode and size, and ``by_gpu`` by GPU beside: figures and the 10th, 50th and 90th percentile
        of predicted over measured; ``gains`` of modes over eager, see ``evaluation.programs.gains``; ``skipped``,
        ``unread``: reasons and columns that nothing reads, counted; ``sha256`` of the file.
    """
    results: Results = {name: [] for name in ("rows", "errors", "by_gpu", "gains")}
    evaluated = list(_evaluated(declared, quick, report))
    for left_out in LEFT_OUT:
        parts = [found for name, found in evaluated if name == left_out]
        rows = [row for found in parts for row in found["rows"]]
        if not rows:
            continue
        mark, scored = {"left_out": left_out}, Scored.of(rows, "_ms")
        kept = ({name: row[name] for name in KEPT} | {"day": row["measured_on"], "error": row["bias"]} for row in rows)
        results["rows"] += [mark | row for row in kept]
        for table, keys in {"errors": ("mode", "size"), "by_gpu": ("gpu", "mode", "size")}.items():
            results[table] += [mark | names | figures(part) for names, part in scored.groups(*keys)]
        results["gains"] += [mark | row for row in gains([row for found in parts for row in found["speedups"]])]
    (_, first), *_ = evaluated
    notes = {"skipped": counted(first["skipped"]), "unread": first["unread"]}
    return results | notes | {"sha256": files_sha256((declared.timings,), data_dir())}


def _evaluated(declared: ProgramsDeclaration, quick: bool, report: Report | None) -> Iterator[tuple[str, Results]]:
    """What is left out, and the comparison without it: of a die, of timings on its boards alone."""
    shipped, file = Predictor.load(), data_dir() / declared.timings
    limit = QUICK_CELLS if quick else None
    for left_out, hosts in (("nothing", "own"), ("host", "others")):
        advance, selection = advance_of(f"{left_out} left out", report), Selection(limit=limit)
        yield left_out, evaluate_programs(file, shipped, selection=selection, hosts=hosts, progress=advance)
    for die, predictor in fold_predictors(declared.folds, shipped, quick, report):
        advance, selection = advance_of(f"without {die.name}", report), Selection(gpus=die.held_out, limit=limit)
        yield "die", evaluate_programs(file, predictor, selection=selection, progress=advance)
