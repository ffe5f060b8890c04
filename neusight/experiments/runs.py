"""Whole runs, served or trained: errors of what ships, and with dies left out of which nothing was known.

Nothing is trained here. Constants of physics, of links, of engines and of steps are fitted again without all boards of
a die; tile models saw those boards in training, so nothing that they learned counts there: physics alone does.
Constants of engines and of steps were fitted to some of these runs, which the report says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.datasets.rows import read_rows
from neusight.datasets.schema import read_parquet
from neusight.distributed.factors import shipped_factors
from neusight.evaluation import Scored, Selection, evaluate_memory, evaluate_serving, evaluate_training
from neusight.evaluation.serving import MODELS, Prepare, means
from neusight.evaluation.training import measured_steps
from neusight.executors.base import LINK
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.executors.link import LinkPredictor
from neusight.experiments.constants import Constants
from neusight.experiments.folds import code_sha256
from neusight.laws.fitted import shipped_links
from neusight.laws.physics import Physics
from neusight.learn.engines import fit_engines, with_fitted
from neusight.learn.links import links_without
from neusight.learn.training_steps import factors_without, observe
from neusight.paths import data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import Fold, PublishedMedian, Reason, ServingDeclaration, TrainingDeclaration
    from neusight.learn import Report
    from neusight.serving import Deployment

QUICK_CELLS = 40
WORST = 10
LEAST_GPUS = 8
"""Of the steps that the target for the mean is about."""
SPLIT = ("source", "quantity", "engine", "gpu")
PEERS = ("peer", "source", "quantity")
COLUMNS = ("predicted", "low", "high", "measured")
KEPT = (
    *("source", "model", "gpu", "num_gpus", "dtype", "plan", "seq_len", "predicted_ms", "inside", "mfu", "bubble"),
    *("fits", "oom"),
)
Results = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def unseen(predictor: Predictor, boards: Collection[str], physics: Physics, data: Path) -> Predictor:
    """The same, as if some boards had never been measured."""
    kernels = predictor.kernel_predictor
    artifacts = {name: artifact.without(boards) for name, artifact in kernels.artifacts.items()}
    links = LinkPredictor(links_without(data, boards, shipped_links()))
    return Predictor(KernelPredictor(artifacts, kernels.choice, physics=physics), executors={LINK: links})


def fold_predictors(
    folds: Iterable[Fold], shipped: Predictor, quick: bool, report: Report | None
) -> Iterator[tuple[Fold, Predictor]]:
    """Each fold with a predictor as if its boards had never been measured: constants are fitted without them."""
    constants = Constants(data_dir(), code_sha256(), quick)
    for fold in folds:
        physics = constants.without(fold.held_out, report).physics
        yield fold, unseen(shipped, fold.held_out, physics, data_dir())


def advance_of(name: str, report: Report | None) -> Callable[[int, int], None]:
    """Reports progress of what is named."""

    def advance(done: int, of: int) -> None:
        if report:
            report(name, done, of, float("nan"))

    return advance


def files_sha256(names: Sequence[str], folder: Path) -> dict[str, str]:
    """SHA-256 of files in a folder."""
    return {name: file_sha256(folder / name) for name in names if name}


def run_serving(declared: ServingDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Predict every cell and compare.

    Returns:
        ``rows``: a figure of a cell each, without what was measured; ``means`` and ``means_all`` of
        ``evaluate_serving``; ``groups``: by source, quantity, engine and GPU count, mean, median, bias, inside, and
        the 10th, 50th and 90th percentile of predicted over measured; ``peers``: by peer, source and quantity what they
        and this predictor are wrong by on the cells that both predict; ``published``: errors of others on runs that
        they name alone; ``worst``: cells without fault that are most wrong; ``dies``: of each die that was left out, by
        source, engine and quantity, and of all of a quantity, the figures of its cells and (``known_``) those with it
        in the fit; ``assumed``, ``skipped``, ``unread``: defaults taken, reasons and columns
        that nothing reads, counted; ``unfitted``: why fits leave cells out; ``sha256`` of the files.
    """
    folder, limit = data_dir(), QUICK_CELLS if quick else None
    served = _served(declared, Predictor.load(), Selection(limit=limit), advance_of("cells", report))
    rows = served["rows"]
    names = ("cell", *SPLIT, "mode", "predicted", "inside", "fault")
    results: Results = {
        "rows": [{name: row[name] for name in names} | {"error": row["bias"]} for row in rows],
        "means": means([row for row in rows if not row["fault"]]),
        "means_all": means(rows),
        "groups": groups(rows),
        "peers": peers(rows, read_parquet(folder / declared.peers).to_pylist()) if declared.peers else [],
        "published": list(published(rows, declared.published)),
        "worst": worst(rows, declared.reasons),
        "assumed": served["assumed"],
        "skipped": counted(served["skipped"]),
        "unread": served["unread"],
        **_served_without(declared, rows, quick, report),
        "sha256": files_sha256((*declared.tables, *models_of(declared), declared.peers), folder),
    }
    return results


def models_of(declared: ServingDeclaration) -> Iterator[str]:
    """Files of configurations beside the tables, below the data sets' folder."""
    return (str(Path(name).with_name(MODELS)) for name in declared.tables)


def _served(
    declared: ServingDeclaration,
    predictor: Predictor,
    selection: Selection,
    advance: Callable[[int, int], None],
    prepare: Prepare | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Rows, defaults, cells that are skipped and columns that are unread, of all tables that have such GPUs."""
    files = [data_dir() / name for name in declared.tables]
    parts = [
        evaluate_serving(file, predictor, selection=selection, progress=advance, prepare=prepare)
        for file in files
        if not selection.gpus or _gpus_of(file) & set(selection.gpus)
    ]
    found = {name: [row for part in parts for row in part[name]] for name in ("rows", "assumed", "skipped", "unread")}
    return found | {"assumed": _added(found["assumed"], "count"), "unread": _added(found["unread"], "rows")}


def _added(rows: Rows, count: str) -> list[dict[str, Any]]:
    """Rows that differ in nothing but a count, as one each."""
    sums: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for row in rows:
        sums[tuple((name, value) for name, value in row.items() if name != count)] += row[count]
    return [dict(names) | {count: total} for names, total in sorted(sums.items(), key=lambda item: str(item[0]))]


def _served_without(declared: ServingDeclaration, rows: Rows, quick: bool, report: Report | None) -> Results:
    """Figures of the cells of each die, by a predictor that knows nothing of it; and which cells fits leave out."""
    if not declared.folds:
        return {"dies": [], "unfitted": []}
    shipped, limit = Predictor.load(), QUICK_CELLS if quick else None
    fitted = fit_engines(data_dir(), shipped, rounds=1, report=report)
    dies: list[dict[str, Any]] = []
    for die, predictor in fold_predictors(declared.folds, shipped, quick, report):
        engines = fitted.without(die.held_out)

        def prepared(deployment: Deployment, known: Mapping[str, Any] = engines) -> Deployment:
            return with_fitted(deployment, known)

        selection, advance = Selection(gpus=die.held_out, limit=limit), advance_of(f"without {die.name}", report)
        left_out = _served(declared, predictor, selection, advance, prepared)
        dies += _beside(die.name, left_out["rows"], rows)
    return {"dies": dies, "unfitted": most_common(fitted.left_out)}


def _beside(die: str, left_out: Rows, rows: Rows) -> Iterator[dict[str, Any]]:
    """Figures of a die's cells without fault, left out and (``known``) not, by quantity, and by source and engine."""
    known = {(row["cell"], row["quantity"]): row for row in rows}
    kept = [row for row in left_out if not row["fault"] and (row["cell"], row["quantity"]) in known]
    every = {"source": "all", "engine": "all"}
    for keys in (("quantity",), ("source", "engine", "quantity")):
        for names, part in Scored.of(kept).groups(*keys) if kept else ():
            same = Scored.of([known[cell, part.keys["quantity"][at]] for at, cell in enumerate(part.keys["cell"])])
            known_figures = {f"known_{name}": value for name, value in figures(same).items()}
            yield {"die": die} | every | names | figures(part) | known_figures


def groups(rows: Rows) -> list[dict[str, Any]]:
    """Figures by ``SPLIT``, of rows with and without fault."""
    marked = Scored.of([{**row, "fault": "fault" if row["fault"] else ""} for row in rows])
    return [names | figures(part) for names, part in marked.groups(*SPLIT, "fault")]


def figures(rows: Scored) -> dict[str, Any]:
    """Errors in percent, and percentiles of predicted over measured."""
    named = {name: value for name, value in rows.figures().items() if name not in ("worst", "width")}
    return named | {"ratio": np.percentile(1 + rows.bias / 100, (10, 50, 90)).tolist()}


def peers(rows: Rows, published: Rows) -> list[dict[str, Any]]:
    """What others and this predictor are wrong by, by peer, source and quantity, on figures that both predict;
    ``best`` are those of the least mean error of a source and quantity.
    """
    mine = {(row["cell"], row["quantity"]): row for row in rows}
    both = [(row, own) for row in published if (own := mine.get((row["cell"], row["quantity"])))]
    if not both:
        return []
    theirs = Scored.of([{**own, "peer": row["peer"], "predicted": row["predicted"]} for row, own in both])
    ours = Scored(theirs.keys, *(np.array([own[name] for _, own in both]) for name in COLUMNS))
    rows_of_peers = []
    for (names, part), (_, same) in zip(theirs.groups(*PEERS), ours.groups(*PEERS), strict=True):
        others, figures_of_ours = part.figures(), same.figures()
        kept = {name: others[name] for name in ("count", "mean", "median")}
        rows_of_peers.append(names | kept | {f"ours_{name}": figures_of_ours[name] for name in ("mean", "median")})
    least: dict[tuple[str, str], float] = {}
    for row in rows_of_peers:
        key = row["source"], row["quantity"]
        least[key] = min(least.get(key, row["mean"]), row["mean"])
    return [{**row, "best": row["mean"] == least[row["source"], row["quantity"]]} for row in rows_of_peers]


def published(rows: Rows, peers: Iterable[PublishedMedian]) -> Iterator[dict[str, Any]]:
    """Median errors that others publish of runs, beside those found here on the same."""
    for peer in peers:
        same = [r for r in rows if r["quantity"] == peer.quantity and fnmatch(r["cell"], peer.cells)]
        if same:
            ours = Scored.of(same).figures()
            yield peer.model_dump() | {"count": ours["count"], "ours": ours["median"], "ours_inside": ours["inside"]}


def worst(rows: Rows, reasons: Sequence[Reason] = ()) -> list[dict[str, Any]]:
    """Cells without fault whose predictions are most wrong by ratio, each by its worst figure, with what they spend
    their time on and, where the declaration says something of them, the reason.
    """
    clean = (row for row in rows if not row["fault"])
    seen: dict[str, dict[str, Any]] = {}
    for row in sorted(clean, key=lambda row: -abs(np.log(row["predicted"] / row["measured"]))):
        kept = {name: row[name] for name in ("cell", "quantity", "predicted", "limited_by")}
        reason = next((r.reason for r in reasons if fnmatch(row["cell"], r.cells)), "")
        seen.setdefault(row["cell"], kept | {"error": row["bias"], "reason": reason})
        if len(seen) == WORST:
            break
    return list(seen.values())


def counted(skipped: Rows) -> list[dict[str, Any]]:
    """Reasons why rows are skipped, the most common first."""
    return most_common(Counter(row["reason"] for row in skipped))


def most_common(reasons: Counter[str]) -> list[dict[str, Any]]:
    """Reasons with their counts, the most common first."""
    return [{"reason": reason, "count": count} for reason, count in reasons.most_common()]


def run_training(declared: TrainingDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Predict every step and compare.

    Returns:
        ``rows``: a step each, without what was measured; ``totals``: of all steps, those on eight GPUs and more, and by
        source and by model; ``scaling``: by model and plan what a step's time on the fewest GPUs is of that on the
        most, predicted and measured; ``left_out``: by die and source errors with its steps in the fit (``known``), left
        out (``steps``), and with kernels and collectives left out as well (``all``); ``peers``; ``fits``: of each table
        how many that ran are predicted to fit; ``memory``: errors of peaks; ``worst``; ``assumed``; ``skipped``;
        ``unread``; ``unfitted``: why fits leave rows out; ``sha256`` of the files.
    """
    folder, shipped = data_dir(), Predictor.load()
    tables = [
        evaluate_training(folder / name, shipped, advance_of(f"steps of {Path(name).stem}", report))
        for name in declared.tables
    ]
    rows = [row for table in tables for row in table["rows"]]
    measured = [row for row in rows if row["measured_ms"] is not None]
    results: Results = {
        "rows": [{name: row[name] for name in KEPT} | {"error": row["bias"]} for row in rows],
        "totals": totals(measured),
        "scaling": list(scaling(measured)),
        **({"left_out": [], "unfitted": []} if quick else _trained_without(declared, shipped, measured, report)),
        "peers": list(_published(declared, measured)),
        "fits": [{"table": name, **table["memory"]} for name, table in zip(declared.tables, tables, strict=True)],
        "memory": evaluate_memory(folder / declared.memory)["means"] if declared.memory else [],
        "worst": _worst_steps(measured),
        **{name: [row for table in tables for row in table[name]] for name in ("assumed", "skipped", "unread")},
        "sha256": files_sha256((*declared.tables, declared.memory), folder),
    }
    return results


def totals(rows: Rows) -> list[dict[str, Any]]:
    """Errors of all steps, of those on many GPUs, and by source, model, GPU and dtype."""
    scored = Scored.of(rows, "_ms")
    large = scored.take(np.array([row["num_gpus"] >= LEAST_GPUS for row in rows], dtype=bool))
    summaries = [{"by": "all", "name": "", **scored.figures()}]
    summaries.append({"by": "many", "name": f"{LEAST_GPUS} GPUs and more", **large.figures()})
    for by in ("source", "model", "gpu", "dtype", "num_gpus"):
        summaries += [{"by": by, "name": str(names[by]), **part.figures()} for names, part in scored.groups(by)]
    return summaries


def scaling(rows: Rows) -> Iterator[dict[str, Any]]:
    """Steps of as many sequences a GPU on more and more GPUs: the time on the fewest over that on the most, percent."""
    series: dict[tuple[str, str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        # The plan without replicas: what stays the same while they grow in number.
        plan = " ".join(word for word in row["plan"].split() if not word.startswith("dp"))
        series.setdefault((row["source"], row["software"], row["model"], row["dtype"], plan), []).append(row)
    for (source, _, model, dtype, plan), part in sorted(series.items()):
        ordered = sorted(part, key=lambda row: int(row["num_gpus"]))
        each = [row["global_batch"] / row["num_gpus"] for row in ordered]
        if len({row["num_gpus"] for row in ordered}) < 3 or max(each) > min(each):
            continue
        first, last = ordered[0], ordered[-1]
        shares = {kind: 100 * first[f"{kind}_ms"] / last[f"{kind}_ms"] for kind in ("predicted", "measured")}
        yield {
            "source": source, "model": model, "dtype": dtype, "plan": plan, "from": first["num_gpus"],
            "to": last["num_gpus"], "predicted": shares["predicted"], "off": shares["predicted"] - shares["measured"],
        }  # fmt: skip


def _trained_without(declared: TrainingDeclaration, shipped: Predictor, rows: Rows, report: Report | None) -> Results:
    """Errors on each die by source: known, without its steps, and without anything of it; and which rows fits leave
    out.
    """
    if not declared.folds:
        return {"left_out": [], "unfitted": []}
    steps, skipped = measured_steps(data_dir() / name for name in declared.tables)
    observations, unobserved = observe(steps, shipped.timed, shipped_factors(), report)
    left_out: list[dict[str, Any]] = []
    for die, stranger in fold_predictors(declared.folds, shipped, False, report):
        # How far a step may be off is known of dies left out; factors alone are fitted again.
        factors = replace(factors_without(observations, die.held_out), spread=shipped_factors().spread)
        known = [row for row in rows if row["gpu"] in die.held_out]
        advance = advance_of(f"without {die.name}", report)
        parts: dict[str, Rows] = {"known": known}
        for name, predictor in (("steps", shipped), ("all", stranger)):
            parts[name] = [
                row
                for table in declared.tables
                for row in _measured_on(data_dir() / table, die.held_out, predictor, factors, advance)
            ]
        for source in ("", *sorted({str(row["source"]) for row in known})):
            left_out.append(
                {"die": die.name, "source": source or "all"}
                | {
                    name: Scored.of([row for row in part if not source or row["source"] == source], "_ms").figures()
                    for name, part in parts.items()
                }
            )
    reasons = Counter(row["reason"] for row in skipped) + unobserved
    return {"left_out": left_out, "unfitted": most_common(reasons)}


def _measured_on(
    table: Path, boards: Collection[str], predictor: Predictor, factors: Any, advance: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """Measured steps of a table on some GPUs; none where it has none of them."""
    if not _gpus_of(table) & set(boards):
        return []
    steps = evaluate_training(table, predictor, advance, factors=factors, gpus=boards)
    return [row for row in steps["rows"] if row["measured_ms"] is not None]


def _gpus_of(table: Path) -> set[str]:
    """GPUs of a table of runs."""
    return {str(row.get("gpu")) for row in read_rows(table, ("gpu",), "training runs")}


def _published(declared: TrainingDeclaration, rows: Rows) -> Iterator[dict[str, Any]]:
    """Errors that others publish for steps beside those found here."""
    for peer in declared.peers:
        for row in rows:
            same = row["model"].lower() == peer.model.lower() and row["engine"] == "megatron-local"
            if same and peer.recompute in row["plan"].split():
                yield peer.model_dump() | {"ours": row["ape"]}


def _worst_steps(rows: Rows) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: -row["ape"])[:WORST]
    names = ("source", "model", "num_gpus", "plan", "seq_len", "predicted_ms")
    return [{name: row[name] for name in names} | {"error": row["bias"]} for row in ordered]
