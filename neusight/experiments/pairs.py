"""What optimisations gain, as public projects and papers measured it, against what is predicted of each pair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neusight.api import Predictor
from neusight.evaluation import Scored, Selection
from neusight.evaluation.what_if import evaluate_what_if
from neusight.experiments.runs import Results, advance_of, counted, figures, files_sha256
from neusight.paths import data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import PairsDeclaration
    from neusight.learn import Report

QUICK_PAIRS = 60
KEPT = ("set", "optimisation", "as_written", "model", "gpu", "metric", "applied", "predicted_gain", "inside")
STATED = ("as_written", "gpu", "predicted_gain", "low_gain", "high_gain", "inside")
BY = {"by_gpu": ("gpu",), "by_set": ("set", "optimisation", "metric"), "groups": ("optimisation", "metric")}


def run_pairs(declared: PairsDeclaration, folder: Path, quick: bool, report: Report | None = None) -> Results:
    """Predict every pair, and each effect that a paper states.

    Returns:
        ``rows``: a pair each, without what was measured; ``optimisations``: of each and of ``all`` how many pairs
        there are, of how many the model is named, how many are answered, and the errors of those; the same errors
        ``by_gpu``, ``by_set`` and in ``groups`` with percentiles of predicted over measured; ``published``: effects,
        predicted and stated; ``skipped``: reasons, counted; ``sha256`` of the table.
    """
    predictor, selection = Predictor.load(), Selection(limit=QUICK_PAIRS if quick else None)
    advance = advance_of("pairs", report)
    found = evaluate_what_if(data_dir() / declared.pairs, predictor, selection=selection, progress=advance)
    scored = Scored.of(found["rows"], "_gain")
    results: Results = {
        "rows": [{name: row[name] for name in KEPT} | {"error": row["bias"]} for row in found["rows"]],
        "optimisations": [*found["optimisations"], found["total"]],
        **{table: [names | figures(part) for names, part in scored.groups(*keys)] for table, keys in BY.items()},
        "skipped": counted(found["skipped"]),
        "sha256": files_sha256((declared.pairs,), data_dir()),
    }
    if declared.published:
        stated = evaluate_what_if(folder / declared.published, predictor)
        effects = (
            {name: row[name] for name in STATED} | {"stated_gain": row["measured_gain"]} for row in stated["rows"]
        )
        results["published"] = list(effects)
        results["unanswered"] = [{name: row[name] for name in ("as_written", "reason")} for row in stated["skipped"]]
    return results
