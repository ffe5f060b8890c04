"""Language models as they are served: errors of the predictor that ships, and of others on the runs that both know.

Nothing is trained here: constants of engines were fitted to some of these cells, which the report says of its figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.evaluation.scored import Selection
from neusight.evaluation.serving import evaluate_serving
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.judge import at_most, between
from neusight.experiments.serving_dies import without_dies
from neusight.paths import data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare_serving import Reason, ServingDeclaration, ServingTargets
    from neusight.learn import Report

QUICK_CELLS, QUICK_SAID = 40, "A quick run: forty cells. Its figures are no results."
WORST = 10
LEAST = 10
"""Figures of a die that tell enough to be held against a target."""
SPLIT = ("source", "quantity", "engine", "gpu")
Results = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def run(declared: ServingDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Predict every cell and compare.

    Returns:
        ``rows``: a figure of a cell each, without what was measured; ``means`` and ``means_all`` of
        ``evaluate_serving``; ``groups``: by source, quantity, engine and GPU count, mean, median, bias, inside, and
        the 10th, 50th and 90th percentile of predicted over measured; ``peers``: by peer, source and quantity what they
        and this predictor are wrong by on the cells that both predict; ``worst``: cells without fault that are most
        wrong; ``dies``: of each die that was left out, by source, engine and quantity, the figures of its cells and
        (``known_``) those with it in the fit; ``assumed``, ``skipped``: defaults taken and reasons, counted;
        ``sha256`` of the files; ``verdicts``.
    """
    folder = data_dir() / declared.data
    limit = QUICK_CELLS if quick else declared.limit

    def advance(done: int, of: int) -> None:
        if report:
            report("cells", done, of, float("nan"))

    picked = Selection(limit=limit)
    found = evaluate_serving(
        folder / declared.cells, Predictor.load(), folder / declared.models, picked, progress=advance
    )
    rows = found["rows"]
    results: Results = {
        "rows": [_kept(row) for row in rows],
        "means": found["means"],
        "means_all": found["means_all"],
        "groups": groups(rows),
        "peers": peers(rows, _told(folder / declared.peers)) if declared.peers else [],
        "worst": worst(rows, declared.reasons),
        "assumed": found["assumed"],
        "skipped": _counted(found["skipped"]),
        "dies": [row for die in _left_out(declared, quick, report) for row in _beside(die, rows)],
        "sha256": {
            name: file_sha256(folder / name) for name in (declared.cells, declared.models, declared.peers) if name
        },
    }
    return results | {"verdicts": list(verdicts(results, declared.targets))}


def _left_out(
    declared: ServingDeclaration, quick: bool, report: Report | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of each die, said without it."""
    folder = data_dir() / declared.data
    cells, models = folder / declared.cells, folder / declared.models
    limit = QUICK_CELLS if quick else None
    for die, found in without_dies(declared.dies, cells, models, data_dir(), quick=limit, report=report):
        yield die.name, found["rows"]


def _beside(die: tuple[str, list[dict[str, Any]]], rows: Rows) -> Iterator[dict[str, Any]]:
    """Figures of a die's cells without fault, left out and (``known``) not, by source, engine and quantity."""
    known = {(row["cell"], row["quantity"]): row for row in rows}
    parts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in die[1]:
        if not row["fault"] and (row["cell"], row["quantity"]) in known:
            parts.setdefault(tuple(row[name] for name in ("source", "engine", "quantity")), []).append(row)
    for key, part in sorted(parts.items()):
        same = [known[row["cell"], row["quantity"]] for row in part]
        names = dict(zip(("source", "engine", "quantity"), key, strict=True))
        yield {"die": die[0]} | names | figures(part) | {f"known_{k}": v for k, v in figures(same).items()}


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cell", *SPLIT, "mode", "predicted", "inside", "fault")
    return {name: row[name] for name in names} | {"error": row["bias"]}


def groups(rows: Rows) -> list[dict[str, Any]]:
    """Figures by ``SPLIT``, of rows with and without fault."""
    parts: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        parts.setdefault((*(row[name] for name in SPLIT), "fault" if row["fault"] else ""), []).append(row)
    names = (*SPLIT, "fault")
    return [dict(zip(names, key, strict=True)) | figures(parts[key]) for key in sorted(parts)]


def figures(rows: Rows) -> dict[str, Any]:
    """Errors in percent, and percentiles of predicted over measured."""
    ratio = np.array([1 + row["bias"] / 100 for row in rows])
    low, middle, high = np.percentile(ratio, (10, 50, 90)).tolist()
    wrong = 100 * np.abs(ratio - 1)
    return {
        "count": len(rows),
        "mean": float(wrong.mean()),
        "median": float(np.median(wrong)),
        "bias": float(100 * (ratio.mean() - 1)),
        "inside": 100 * float(np.mean([row["inside"] for row in rows])),
        "ratio": [low, middle, high],
    }


def _told(path: Any) -> list[dict[str, Any]]:
    from neusight.datasets.schema import read_parquet

    rows: list[dict[str, Any]] = read_parquet(path).to_pylist()
    return rows


def peers(rows: Rows, told: Rows) -> list[dict[str, Any]]:
    """What others and this predictor are wrong by, by peer, source and quantity, on figures that both predict."""
    mine = {(row["cell"], row["quantity"]): row for row in rows}
    shared: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in told:
        if own := mine.get((row["cell"], row["quantity"])):
            theirs = 100 * abs(row["predicted"] / own["measured"] - 1)
            shared.setdefault((row["peer"], own["source"], row["quantity"]), []).append((theirs, own["ape"]))
    found = []
    for peer, source, quantity in sorted(shared):
        theirs, ours = np.array(shared[peer, source, quantity]).T
        found.append(
            {"peer": peer, "source": source, "quantity": quantity, "count": len(ours)}
            | {"mean": float(theirs.mean()), "median": float(np.median(theirs))}
            | {"ours_mean": float(ours.mean()), "ours_median": float(np.median(ours))}
        )
    return found


def worst(rows: Rows, reasons: Sequence[Reason] = ()) -> list[dict[str, Any]]:
    """Cells without fault whose predictions are most wrong by ratio, each by its worst figure, with what they spend
    their time on and, where the declaration says something of them, the reason.
    """
    ordered = sorted((row for row in rows if not row["fault"]), key=lambda row: -_away(row))
    seen: dict[str, dict[str, Any]] = {}
    for row in ordered:
        names = ("cell", "quantity", "predicted", "limited_by")
        said = next((r.reason for r in reasons if fnmatch(row["cell"], r.cells)), "")
        seen.setdefault(row["cell"], {name: row[name] for name in names} | {"error": row["bias"], "reason": said})
        if len(seen) == WORST:
            break
    return list(seen.values())


def _away(row: Mapping[str, Any]) -> float:
    return float(abs(np.log(row["predicted"] / row["measured"])))


def _counted(skipped: Rows) -> list[dict[str, Any]]:
    counts = Counter(row["reason"] for row in skipped)
    return [{"reason": reason, "count": count} for reason, count in counts.most_common()]


def verdicts(found: Mapping[str, Any], targets: ServingTargets) -> Iterator[dict[str, Any]]:
    """Every target, of cells without fault; other predictors are compared on all cells that both predict."""
    by_quantity = {row["quantity"]: row for row in found["means"] if row["by"] == "quantity"}
    for quantity, limit in targets.median.items():
        if row := by_quantity.get(quantity):
            yield at_most(f"median error of {quantity}", row["median"], limit, _above(found, quantity, limit))
    if targets.coverage:
        for row in (row for row in found["means"] if row["by"] == "source"):
            yield between(f"{row['source']} within 90 % intervals", row["inside"], targets.coverage, [])
    for row in found.get("dies", ()):
        if targets.left_out and row["count"] >= LEAST:
            said = f"median of {row['quantity']} of {row['source']} on {row['engine']}, {row['die']} left out"
            yield at_most(said, row["median"], round(targets.left_out * row["known_median"], 1), [])
    if targets.better_than_peers:
        best: dict[tuple[str, str], Mapping[str, Any]] = {}
        for row in found["peers"]:
            key = (row["source"], row["quantity"])
            best[key] = min(best.get(key, row), row, key=lambda r: r["mean"])
        for (source, quantity), row in best.items():
            said = f"mean error of {quantity} on {row['count']} cells of {source} that {row['peer']} predicts"
            yield at_most(said, row["ours_mean"], round(row["mean"], 1), [])


def _above(found: Mapping[str, Any], quantity: str, limit: float) -> list[str]:
    rows = (row for row in found["means"] if row["by"] == "source quantity" and row["quantity"] == quantity)
    return [f"{row['source']} {row['median']:.1f}" for row in rows if row["median"] > limit]
