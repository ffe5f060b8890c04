"""Distributed training: errors of steps with what ships, with steps of a die left out, and with all of it left out.

Nothing is trained here; factors of kernels in steps are fitted again without what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.datasets.rows import read_rows
from neusight.evaluation.memory import evaluate_memory
from neusight.evaluation.scored import Scored
from neusight.evaluation.training import evaluate_training, measured_steps
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.constants import Constants
from neusight.experiments.folds import code_sha256
from neusight.experiments.judge import at_most, between
from neusight.experiments.serving_dies import unseen
from neusight.learn.training_steps import factors_without, observe
from neusight.paths import data_dir

if TYPE_CHECKING:
    from neusight.distributed.factors import Factors
    from neusight.experiments.declare_training import TrainingDeclaration
    from neusight.learn import Report

QUICK_SAID = "A quick run: nothing is left out. Its figures are no results."
KEPT = (
    *("source", "model", "gpu", "num_gpus", "dtype", "plan", "seq_len", "predicted_ms", "inside", "mfu", "bubble"),
    *("fits", "oom"),
)
LEAST_GPUS = 8
"""Of the steps that the target for the mean is about."""
WORST = 10
Results = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def run(declared: TrainingDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Predict every step and compare.

    Returns:
        ``rows``: a step each, without what was measured; ``totals``: of all steps, those on eight GPUs and more, and by
        source and by model; ``scaling``: by model and plan what a step's time on the fewest GPUs is of that on the
        most, predicted and measured; ``left_out``: by die and source errors with its steps in the fit (``known``), left
        out (``steps``), and with kernels and collectives left out as well (``all``); ``peers``; ``fits``: of each table
        how many that ran are said to fit; ``memory``: errors of peaks; ``worst``; ``assumed``; ``skipped``; ``sha256``
        of the files; ``verdicts``.
    """
    folder = data_dir()
    tables = [folder / name for name in declared.tables]
    shipped = Predictor.load()
    found = [_evaluated(table, shipped, None, report=report) for table in tables]
    rows = [row for part in found for row in part["rows"]]
    measured = [row for row in rows if row["measured_ms"] is not None]
    results: Results = {
        "rows": [{name: row[name] for name in KEPT} | {"error": row["bias"]} for row in rows],
        "totals": totals(measured),
        "scaling": list(scaling(measured)),
        "left_out": [] if quick else list(_left_out(declared, shipped, measured, report)),
        "peers": list(_peers(declared, measured)),
        "fits": [{"table": name, **part["memory"]} for name, part in zip(declared.tables, found, strict=True)],
        "memory": evaluate_memory(folder / declared.memory)["means"] if declared.memory else [],
        "worst": _worst(measured),
        "assumed": [row for part in found for row in part["assumed"]],
        "skipped": [row for part in found for row in part["skipped"]],
        "sha256": {name: file_sha256(folder / name) for name in (*declared.tables, declared.memory) if name},
    }
    return results | {"verdicts": list(verdicts(results, declared))}


def _evaluated(
    table: Path, predictor: Predictor, factors: Factors | None, *, gpus: Sequence[str] = (), report: Report | None
) -> dict[str, Any]:
    def advance(done: int, of: int) -> None:
        if report and done % 20 == 0:
            report(f"steps of {table.stem}", done, of, float("nan"))

    return evaluate_training(table, predictor, advance, factors=factors, gpus=gpus)


def totals(rows: Rows) -> list[dict[str, Any]]:
    """Errors of all steps, of those on many GPUs, and by source, model, GPU and dtype."""
    large = [row for row in rows if row["num_gpus"] >= LEAST_GPUS]
    found = [{"by": "all", "name": "", **summary(rows)}]
    found.append({"by": "many", "name": f"{LEAST_GPUS} GPUs and more", **summary(large)})
    for by in ("source", "model", "gpu", "dtype", "num_gpus"):
        for name in sorted({row[by] for row in rows}):
            found.append({"by": by, "name": str(name), **summary(row for row in rows if row[by] == name)})
    return found


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
        shares = {said: 100 * first[f"{said}_ms"] / last[f"{said}_ms"] for said in ("predicted", "measured")}
        yield {
            "source": source, "model": model, "dtype": dtype, "plan": plan, "from": first["num_gpus"],
            "to": last["num_gpus"], "predicted": shares["predicted"], "off": shares["predicted"] - shares["measured"],
        }  # fmt: skip


def _left_out(
    declared: TrainingDeclaration, shipped: Predictor, rows: Rows, report: Report | None
) -> Iterator[dict[str, Any]]:
    """Errors on each die by source: known, without its steps, and without anything of it."""
    if not declared.left_out:
        return
    from neusight.distributed.factors import shipped_factors

    steps, _ = measured_steps(data_dir() / name for name in declared.tables)
    observations, _ = observe(steps, shipped.timed, shipped_factors(), report)
    constants = Constants(data_dir(), code_sha256(), False)
    for die in declared.left_out:
        # How far a step may be off is known of dies left out; factors alone are fitted again.
        factors = replace(factors_without(observations, die.boards), spread=shipped_factors().spread)
        blind = unseen(shipped, die.boards, constants.without(die.boards, report).physics, data_dir())
        known = [row for row in rows if row["gpu"] in die.boards]
        parts: dict[str, Rows] = {"known": known, "steps": _on(declared, shipped, factors, die.boards, report)}
        parts["all"] = _on(declared, blind, factors, die.boards, report)
        for source in ("", *sorted({str(row["source"]) for row in known})):
            yield {"die": die.name, "source": source or "all"} | {
                name: summary(row for row in part if not source or row["source"] == source)
                for name, part in parts.items()
            }


def summary(rows: Any) -> dict[str, Any]:
    """Figures of measured steps."""
    return Scored.of(list(rows), "_ms").figures()


def _on(
    declared: TrainingDeclaration, predictor: Predictor, factors: Factors, gpus: Sequence[str], report: Report | None
) -> list[dict[str, Any]]:
    """Measured steps on some GPUs."""
    found = []
    for name in declared.tables:
        table = data_dir() / name
        if any(row.get("gpu") in gpus for row in read_rows(table, ("gpu",), "training runs")):
            rows = _evaluated(table, predictor, factors, gpus=gpus, report=report)["rows"]
            found += [row for row in rows if row["measured_ms"] is not None]
    return found


def _peers(declared: TrainingDeclaration, rows: Rows) -> Iterator[dict[str, Any]]:
    """Errors that others publish for steps beside those found here."""
    for peer in declared.peers:
        for row in rows:
            words = row["plan"].split()
            same = row["model"].lower() == peer.model.lower() and row["framework"] == "megatron-local"
            if same and peer.recompute in words:
                yield peer.model_dump() | {"ours": row["ape"]}


def _worst(rows: Rows) -> list[dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: -row["ape"])[:WORST]
    names = ("source", "model", "num_gpus", "plan", "seq_len", "predicted_ms")
    return [{name: row[name] for name in names} | {"error": row["bias"]} for row in ordered]


def verdicts(found: Mapping[str, Any], declared: TrainingDeclaration) -> Iterator[dict[str, Any]]:
    """Every target, with steps of each die left out."""
    targets = declared.targets
    for row in found["left_out"]:
        who = f"steps on {row['die']}, left out of the fit"
        if row["source"] == "all" and targets.mean is not None:
            yield at_most(f"mean error of {who}", row["steps"]["mean"], targets.mean, [])
        if row["source"] != "all" and targets.source is not None:
            yield at_most(f"{row['source']}: {who}", row["steps"]["mean"], targets.source, [])
        if row["source"] == "all" and targets.coverage:
            yield between(f"{who}: within 90 % intervals", row["steps"]["inside"], targets.coverage, [])
    if targets.efficiency is not None and found["scaling"]:
        off = [abs(row["off"]) for row in found["scaling"]]
        yield at_most("points that efficiency of scaling is off, mean", float(np.mean(off)), targets.efficiency, [])
        yield at_most("points that efficiency of scaling is off, worst", max(off), targets.efficiency, [])
