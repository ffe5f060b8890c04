"""Errors of scored lines by group, of the same lines otherwise predicted beside them, and the lines that err most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.lab.declare import NOTHING, Contestant, ErrorGroup, Reason, fitting
from neusight.measured.errors import figures, truths
from neusight.measured.table import TRUTH

if TYPE_CHECKING:
    import pandas as pd

GAINS = ("gain", "ratio")
FACTOR = "factor"
CLEAR = 0.05
"""From which a measured gain or loss is one."""
WORST = 10
ROW = ["set", "place", "quantity"]
"""Columns that name a measured figure."""
_FIXED = ("set", "contestant", "seed", "left_out", "fold", "group", "kind", "place", "of", "pairs", "base")


def grouped(lines: pd.DataFrame, group: ErrorGroup) -> list[dict[str, Any]]:
    """A row of errors for each group of lines; true and false quantities are never mixed with others."""
    own = lines["pairs"].eq(group.pairs.column) if group.pairs else lines["pairs"].isna()
    chosen = lines[own.to_numpy(bool) & fitting(lines, group.where)]
    if group.beside:
        others = lines[fitting(lines, group.beside) & lines["predicted"].notna().to_numpy()].drop_duplicates(ROW)
        beside = others[[*ROW, "predicted", "low", "high"]].rename(columns=lambda n: n if n in ROW else f"beside_{n}")
        chosen = chosen.merge(beside, on=ROW)
    truth = chosen["quantity"].isin(TRUTH).rename("truth")
    rows = []
    for values, part in chosen.groupby([*group.by, truth], observed=True, dropna=False):
        names = {name: _plain(value) for name, value in zip(group.by, values, strict=False)}
        row = names | errors_of(part) | (_beside(part, group.prefix) if group.beside else {})
        if group.figure and group.figure not in row:
            row[group.figure] = _figure_of(part, group.figure)
        rows += [row] if row["count"] >= group.least else []
    return _averaged(rows, group) if group.average else _ranked(rows, group)


def errors_of(lines: pd.DataFrame) -> dict[str, Any]:
    """Lines, percent that is answered, count of those and their errors, with percentiles of predicted over measured;
    of gains ``sign``, the percent of clear gains and losses that are predicted as such.
    """
    answered = lines[lines["predicted"].notna()]
    found: dict[str, Any] = {"rows": len(lines), "answered": 100.0 * len(answered) / len(lines), "count": len(answered)}
    if answered.empty:
        return found
    if answered["quantity"].iloc[0] in TRUTH:
        return found | truths(answered)
    predicted, measured = (answered[name].to_numpy(float) for name in ("predicted", "measured"))
    width = 100.0 * ((answered["high"] - answered["low"]) / answered["predicted"]).median()
    found |= figures(answered) | {"ratio": np.percentile(predicted / measured, (10, 50, 90)).tolist()}
    found |= {} if np.isnan(width) else {"width": float(width)}
    clear = np.abs(measured - 1.0) > CLEAR
    if answered["quantity"].isin(GAINS).all() and clear.any():
        found["sign"] = 100.0 * float(((predicted > 1.0) == (measured > 1.0))[clear].mean())
    return found


def _figure_of(part: pd.DataFrame, name: str) -> float:
    """The geometric mean of predicted over measured, or the mean of a column."""
    logs = np.log(part["predicted"].astype(float) / part["measured"].astype(float))
    return float(np.exp(logs.mean()) if name == FACTOR else part[name].mean())


def _beside(part: pd.DataFrame, prefix: str) -> dict[str, Any]:
    others = part.assign(**{name: part[f"beside_{name}"] for name in ("predicted", "low", "high")})
    return {f"{prefix}_{name}": value for name, value in errors_of(others).items() if name not in ("rows", "answered")}


def _ranked(rows: list[dict[str, Any]], group: ErrorGroup) -> list[dict[str, Any]]:
    """Marks the contestant with the least mean of those of one group by ``best``."""
    if "contestant" not in group.by:
        return rows
    alike = [name for name in group.by if name != "contestant"]
    least: dict[tuple[Any, ...], float] = {}
    for row in (row for row in rows if "mean" in row):
        key = tuple(row[name] for name in alike)
        least[key] = min(least.get(key, row["mean"]), row["mean"])
    return [row | {"best": row.get("mean") == least.get(tuple(row[name] for name in alike))} for row in rows]


def _averaged(rows: Sequence[Mapping[str, Any]], group: ErrorGroup) -> list[dict[str, Any]]:
    """Means over groups that differ in the columns ``average`` alone, which count alike; ``groups`` is their number."""
    import pandas as pd

    by = [name for name in group.by if name not in group.average]
    if not rows:
        return []
    frame = pd.DataFrame(rows).drop(columns=["ratio", *group.average], errors="ignore")
    means = frame.groupby(by, dropna=False).agg("mean") if by else frame.mean().to_frame().T
    sums = frame.groupby(by, dropna=False)[["rows", "count"]].agg("sum")
    sizes = frame.groupby(by, dropna=False).size()
    found: list[dict[str, Any]] = means.assign(**sums, groups=sizes).reset_index().to_dict("records")
    return [{name: _plain(value) for name, value in row.items()} for row in found]


def _plain(value: Any) -> Any:
    """A cell as JSON has it; "" where it is empty."""
    if value is None or value != value:
        return ""
    return value.item() if isinstance(value, np.generic) else value


def published(lines: pd.DataFrame, contestants: Sequence[Contestant], ours: str) -> list[dict[str, Any]]:
    """Errors that others publish of rows, ``theirs``, beside ours of the same; rows that are not there have none."""
    own = lines[lines["contestant"].eq(ours) & lines["left_out"].eq(NOTHING) & lines["pairs"].isna()]
    rows = []
    for contestant in contestants:
        for figure in contestant.figures:
            same = own[fitting(own, figure.where) & own["predicted"].notna().to_numpy()]
            if not len(same):
                continue
            errors, name = errors_of(same), "mean" if figure.median is None else "median"
            words = " ".join(map(str, figure.where.values()))
            theirs = figure.mean if figure.median is None else figure.median
            row = {"contestant": contestant.title or contestant.name, "of": words, "figure": name, "theirs": theirs}
            rows.append(row | {"ours": errors[name], "count": errors["count"], "inside": errors.get("inside")})
    return rows


def worst(lines: pd.DataFrame, reasons: Sequence[Reason], ours: str) -> list[dict[str, Any]]:
    """Rows that ship's predictions miss most by ratio, each by its worst figure, with what is thought of them."""
    own = lines["contestant"].eq(ours) & lines["left_out"].eq(NOTHING) & lines["pairs"].isna()
    shown = lines[own & lines["predicted"].notna() & ~lines["quantity"].isin(TRUTH)].reset_index(drop=True)
    size = np.abs(np.log(shown["predicted"].to_numpy(float) / shown["measured"].to_numpy(float)))
    order = shown.iloc[np.argsort(-size, kind="stable")].drop_duplicates(["set", "place"]).head(WORST)
    thought = np.full(len(order), "", dtype=object)
    for reason in reversed(reasons):
        thought[fitting(order, reason.where)] = reason.reason
    rows = []
    for row, why in zip(order.to_dict("records"), thought, strict=True):
        words = {name: value for name, value in row.items() if isinstance(value, str) and name not in _FIXED}
        told = [value for name, value in words.items() if value and name not in ("quantity", "assumed", "table", "row")]
        error = 100.0 * (row["predicted"] / row["measured"] - 1.0)
        rows.append(
            {"row": " ".join(dict.fromkeys([str(row["set"]), *told])), "quantity": row["quantity"],
             "predicted": row["predicted"], "error": error, "reason": why}
        )  # fmt: skip
    return rows
