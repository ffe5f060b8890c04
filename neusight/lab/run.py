"""Run an experiment: what is left out, who predicts, which rows; all errors by group; targets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import nan
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, nearest
from neusight.lab.cache import code_sha256
from neusight.lab.contestants import MAKERS as PLAIN
from neusight.lab.contestants import Entrant, Lab, Round, ids_of
from neusight.lab.declare import NOTHING, Declaration, Experiment, Fold, LeftOut, RowsTable, fitting
from neusight.lab.groups import grouped, published, worst
from neusight.lab.hosts import with_hosts_of_others
from neusight.lab.left_out import boards_of, data_sha256, trait_of
from neusight.lab.results import rounded, versions
from neusight.lab.targets import verdicts
from neusight.lab.trained import MAKERS as TRAINED
from neusight.lab.trained import train_ahead
from neusight.measured import MeasuredTable, RowChoice, files_of, read_table
from neusight.measured.errors import SOUGHT
from neusight.measured.evaluation import FIGURES, answers, lines_of
from neusight.measured.kernels import skipped_counts
from neusight.measured.pairs import ratios
from neusight.paths import data_dir

if TYPE_CHECKING:
    import pandas as pd

    from neusight.learn import Report

QUICK = 40
MAKERS = PLAIN | TRAINED
"""Who makes an entrant, by the kind of the contestant."""
QUICK_REMARK = f"A quick run: {QUICK} rows of each table, and little that is learned. Its figures are no results."
_FIXED = (
    *("set", *SOUGHT, "model", "gpu", "contestant", "seed", "left_out", "fold", "group", "kind", "place"),
    *("quantity", "of", "pairs", "base", "question"),
)
"""Columns of all lines."""
TRAITS = ("die", "architecture", "generation", "vendor")
"""Columns of lines that follow from their device."""
_KEPT_ROWS = 50_000
"""Rows of results.json, at most."""


def run(
    experiment: Experiment, quick: bool = False, jobs: int = 1, report: Report | None = None, ray: str = ""
) -> dict[str, Any]:
    """Do what an experiment declares.

    Args:
        experiment: what to do.
        quick: a few rows, and little that is learned, to see that all works; the results say so.
        jobs, ray: processes that answer rows of models, see ``neusight.workers.hired``.
        report: called with progress.

    Returns:
        What ``results.json`` holds: the declaration, versions, ``seconds``, hashes of data and code, ``groups`` of
        errors by name, ``published`` errors of others, ``worst`` rows, ``skipped`` and ``assumed`` with their numbers,
        ``verdicts``, and ``rows``: single predictions without what was measured.

    Raises:
        DataError: data are missing or foreign, or nothing can be compared.
    """
    began, declared = monotonic(), experiment.declared
    data = data_dir() if declared.tables else experiment.folder
    tables = list(_tables(declared, data, experiment.folder, quick))
    if declared.simulation:
        from neusight.lab.simulated import simulated_table

        tables.append(("simulated", simulated_table(declared.simulation, experiment.folder, quick, report)))
    lab = Lab(declared=declared, data=data, folder=experiment.folder, tables=tables, quick=quick, report=report)
    lines, skipped = _lines(lab, jobs, ray)
    found = results_of(declared, lines)
    files = {table.path for _, table in tables}
    head = {
        "experiment": experiment.id,
        "declared": declared.model_dump(mode="json", exclude_defaults=True),
        "quick": QUICK_REMARK if quick else None,
        "versions": versions(),
        "seconds": monotonic() - began,
        "sha256": {name: each for name, each in data_sha256(data).items() if data / name in files},
        "code_sha256": code_sha256("neusight.lab.run"),
    }
    notes = {"skipped": skipped, "assumed": _assumed(tables)}
    return rounded(head | found | notes | {"rows": _kept(lines)})


def results_of(declared: Declaration, lines: pd.DataFrame) -> dict[str, Any]:
    """Groups, published errors, worst rows and verdicts of scored lines.

    Raises:
        DataError: nothing was predicted.
    """
    if not lines["predicted"].notna().any():
        raise DataError("no row of the experiment's tables can be predicted: see why with neusight evaluate")
    groups = {group.name: grouped(lines, group) for group in declared.groups}
    ours = declared.contestants[0].name
    parts = {
        "groups": groups,
        "published": published(lines, declared.contestants, ours),
        "worst": worst(lines, declared.reasons, ours),
    }
    judged = groups | {"published": parts["published"]}
    return parts | {"verdicts": verdicts(judged, declared.targets)}


def _tables(declared: Declaration, data: Path, folder: Path, quick: bool) -> Iterator[tuple[str, MeasuredTable]]:
    """Rows by their name in the column ``set``, each numbered by ``place``."""
    places = count()
    for table in declared.tables:
        for file in files_of(folder / name if (folder / name).is_file() else data / name for name in table.files):
            rows = _chosen(read_table(file), table, quick)
            if len(rows):
                frame = rows.frame.assign(place=[next(places) for _ in range(len(rows))])
                yield table.name or file.stem, replace(rows, frame=frame)


def _chosen(table: MeasuredTable, declared: RowsTable, quick: bool) -> MeasuredTable:
    chosen, _ = RowChoice(suspect=declared.suspect).of(table)
    frame = chosen.frame[fitting(chosen.frame, declared.where)]
    if declared.quantities:
        others = [name for name in chosen.quantities if name not in declared.quantities]
        frame = frame.drop(columns=others).dropna(subset=[*set(declared.quantities) & {*frame}], how="all")
    generator = np.random.default_rng(0)
    most = min(filter(None, [declared.each, QUICK if quick else None]), default=None)
    if most:
        by = [name for name in declared.by if name in frame]
        shuffled = frame.iloc[generator.permutation(len(frame))]
        kept = shuffled.groupby(by, dropna=False, observed=True).head(most) if by else shuffled.head(most)
        frame = kept.sort_index()
    return replace(chosen, frame=frame)


def rounds_of(declared: Declaration, gpus: Sequence[str], hosts: Sequence[str] = ()) -> Iterator[Round]:
    """Nothing left out, then every fold of everything that is left out in turn.

    Args:
        declared: the experiment.
        gpus, hosts: of its rows.
    """
    yield Round()
    for left_out in declared.left_out:
        for fold in _folds(left_out, gpus, hosts):
            turn = Round(left_out=left_out.label, fold=fold.name, group=fold.group or left_out.label, declared=left_out)
            yield replace(turn, **{"host": fold.name} if left_out.by == "host" else {"held_out": fold.held_out})


def _folds(left_out: LeftOut, gpus: Sequence[str], hosts: Sequence[str]) -> Iterator[Fold]:
    for fold in left_out.folds:
        if not (boards := fold.held_out or boards_of(fold.name, "die", gpus)):
            raise DataError(f"no device is of die '{fold.name}': name one of the catalogue, or give held_out")
        yield from fold.model_copy(update={"held_out": boards}).rounds()
    if not left_out.by:
        return
    values = hosts if left_out.by == "host" else [trait_of(gpu, left_out.by) for gpu in gpus]
    for value in left_out.among or sorted({value for value in values if value}):
        boards = (value,) if left_out.by == "host" else boards_of(value, left_out.by, gpus)
        if not boards:
            raise DataError(f"no row is of {left_out.by} '{value}'{nearest(value, values)}: correct `among`")
        yield Fold(name=value, held_out=boards)


def _lines(lab: Lab, jobs: int, ray: str) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Scored lines of every round and contestant, and why rows have none."""
    import pandas as pd

    gpus = _values(lab.tables, "gpu")
    needed = _needed(lab.declared)
    parts, skipped = [], []
    rounds = list(rounds_of(lab.declared, sorted(set(ids_of(gpus).values())), _values(lab.tables, "host")))
    train_ahead(lab, rounds, jobs, ray)
    for turn in rounds:
        tables = [(name, part) for name, table in lab.tables if len(part := _rows_of(table, turn))]
        for contestant in lab.declared.contestants if tables else ():
            for seed in contestant.seeds:
                if contestant.kind not in MAKERS:
                    raise DataError(f"no contestant is of kind '{contestant.kind}'{nearest(contestant.kind, MAKERS)}")
                entrant = MAKERS[contestant.kind](contestant, seed, turn, lab)
                if entrant is None:
                    continue
                named = {"contestant": contestant.name, "seed": seed}
                named |= {name: getattr(turn, name) for name in ("left_out", "fold", "group")}
                for name, table in tables:
                    lines, reasons = _compared(name, table, entrant, named, lab, jobs=jobs, ray=ray)
                    pairs = [_ratios(lines, group.pairs) for group in lab.declared.groups if group.pairs]
                    parts += [part.reindex(columns=needed) for part in (lines, *pairs)]
                    skipped += reasons if turn.left_out == NOTHING and contestant is lab.declared.contestants[0] else []
    return pd.concat(parts, ignore_index=True), skipped


def _values(tables: Sequence[tuple[str, MeasuredTable]], column: str) -> list[str]:
    return sorted({str(value) for _, t in tables if column in t.frame for value in t.frame[column].dropna().unique()})


def _needed(declared: Declaration) -> list[str]:
    """Columns of lines that any part of the results reads."""
    groups = declared.groups
    named = [name for group in groups for name in (*group.by, *group.where, *group.beside, group.figure)]
    named += [name for group in groups if group.pairs for name in (group.pairs.column, *group.pairs.also)]
    named += [name for reason in declared.reasons for name in reason.where]
    named += [name for c in declared.contestants for figure in c.figures for name in figure.where]
    return list(dict.fromkeys([*_FIXED, *FIGURES, *named]))


def _rows_of(table: MeasuredTable, turn: Round) -> MeasuredTable:
    """Rows that a round predicts."""
    frame, kept = table.frame, np.ones(len(table), dtype=bool)
    if turn.declared is not None:
        kept &= fitting(frame, turn.declared.where)
    if turn.held_out:
        ids = ids_of(list(frame["gpu"].astype(str).unique())) if "gpu" in frame else {}
        kept &= frame["gpu"].astype(str).map(ids).isin(turn.held_out).to_numpy() if ids else False
    if turn.host:
        kept &= (frame["host"].astype(str) == turn.host).to_numpy() if "host" in frame else False
    part = replace(table, frame=frame[kept])
    return with_hosts_of_others(part, table) if turn.host and len(part) else part


def _compared(
    name: str, table: MeasuredTable, entrant: Entrant, named: Mapping[str, Any], lab: Lab, *, jobs: int, ray: str
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Lines of one table, and how many of its rows are skipped for which reason."""
    without = f" without {named['fold']}" if named["fold"] else ""

    def advance(done: int, of: int) -> None:
        if lab.report:
            lab.report(f"{named['contestant']}{without}: {name}", done, of, nan)

    ((_, parts),) = answers([table], entrant, advance, jobs, ray)
    lines = lines_of(name, table, [scored for scored, _ in parts])
    lines = lines[lines["predicted"].notna()] if named["contestant"] != lab.declared.contestants[0].name else lines
    derived = _derived(lines, set(_needed(lab.declared)))
    reasons = skipped_counts([skip for _, skipped in parts for skip in skipped])
    return lines.assign(set=name, **named, **derived), [{"set": name, **reason} for reason in reasons]


def _derived(lines: pd.DataFrame, needed: set[str]) -> dict[str, Any]:
    """Columns that follow from others: traits of the device, how many devices, and batch of each."""
    derived: dict[str, Any] = {}
    for by in needed & set(TRAITS):
        derived[by] = lines["gpu"].astype(str).map({g: trait_of(g, by) for g in lines["gpu"].astype(str).unique()})
    if "devices" in needed and "dp" in lines:
        degrees = [lines[name].fillna(1) for name in ("dp", "tp", "pp", "cp") if name in lines]
        derived["devices"] = np.prod(degrees, axis=0).astype(int)
        if "global_batch_size" in lines:
            derived["device_batch"] = lines["global_batch_size"] / derived["devices"]
    if "config" in lines and "model" in lines:
        derived["model"] = lines["model"].astype(object).where(lines["model"].notna(), "config")
    return derived


def _ratios(lines: pd.DataFrame, pairs: Any) -> pd.DataFrame:
    """Ratios of pairs, marked by the column in which they differ."""
    if pairs.column not in lines:
        return lines.iloc[:0].assign(pairs=pairs.column)
    kept = lines.drop(columns=[name for name in pairs.ignore if name in lines])
    return ratios(kept, pairs.column, pairs.also).assign(pairs=pairs.column)


def _assumed(tables: Sequence[tuple[str, MeasuredTable]]) -> list[dict[str, Any]]:
    """Values that sources do not tell and that rows take, with the reason and how many rows."""
    counts: Counter[tuple[str, str]] = Counter()
    for _, table in tables:
        cells = table.frame["assumed"].dropna() if "assumed" in table.frame else ()
        for cell, rows in Counter(map(str, cells)).items():
            for column, reason in json.loads(cell) if cell.startswith("[") else ():
                counts[str(column), str(reason)] += rows
    return [{"column": column, "reason": reason, "rows": rows} for (column, reason), rows in counts.most_common()]


def _kept(lines: pd.DataFrame) -> list[dict[str, Any]]:
    """Single predictions, at most so many, without what was measured; ``level`` is how far off that lies, over how far
    the interval reaches on its side (logarithms).
    """
    answered = lines[lines["predicted"].notna() & lines["quantity"].ne("ratio")]
    if len(answered) > _KEPT_ROWS:
        answered = answered.sample(_KEPT_ROWS, random_state=0).sort_index()
    names = ["set", "place", "contestant", "seed", "left_out", "fold", "gpu", "quantity", "predicted"]
    inside = (answered["low"] <= answered["measured"]) & (answered["measured"] <= answered["high"])
    error = 100.0 * (answered["predicted"] / answered["measured"] - 1.0)
    missed = np.log(answered["measured"] / answered["predicted"])
    reach = np.log(answered["high"].where(missed > 0, answered["low"]) / answered["predicted"]).abs()
    figures = {"error": error, "inside": inside, "level": missed.abs() / reach.clip(lower=1e-9)}
    shown = answered[names].assign(**figures).astype(object)
    rows: list[dict[str, Any]] = shown.where(shown.notna(), None).to_dict("records")
    return rows
