"""Figures of errors by group, and what wrong predictions cost who decides by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.measured.table import TRUTH, columns_of, is_quantity, read_frame

if TYPE_CHECKING:
    import pandas as pd

_NORMAL_90 = 1.6448536269514722
"""Standard deviations to the ends of a normal's 90 % interval."""
_RATES = ("tokens_per_s", "steady_tokens_per_s", "tflop_per_s", "gain")
"""Quantities of which more is better."""
_UNDECIDED = (*TRUTH, "mean_batch")
DECIDED = ("gpu", "dtype", "backend", "engine", "tp", "pp", "dp", "cp", "ep", "vp", "shard")
"""Columns that people choose by a prediction."""
_TOGETHER = {"engine": ("engine_version",), "backend": ("variant",)}
"""Columns that differ with what is chosen."""
SOUGHT = ("source", "table", "row")
"""Columns that name a row."""
LEAST_DECISIONS = 10
"""Fewer choices say nothing."""


def summarise(lines: pd.DataFrame, by: Sequence[str]) -> list[dict[str, Any]]:
    """Rows, percent that is answered, and ``figures`` of the lines that share the values of some columns.

    Args:
        lines: columns quantity, predicted, low, high and measured, and those of ``by``.
        by: columns; true and false quantities are never mixed with others.
    """
    truth = lines["quantity"].isin(TRUTH).to_numpy()
    groups = lines.groupby([*by, truth], sort=False, observed=True, dropna=False)
    found = []
    for values, part in groups:
        names = {name: None if value != value else value for name, value in zip(by, values, strict=False)}
        answered = part[part["predicted"].notna()]
        counts = {"rows": len(part), "answered": 100.0 * len(answered) / len(part)}
        errors = {} if answered.empty else _verdicts(answered) if values[-1] else figures(answered)
        found.append({**names, **counts, **errors})
    return found


def figures(lines: pd.DataFrame) -> dict[str, Any]:
    """Median, mean, bias (mean signed), 90th percentile and worst of the errors of answered lines, in percent; inside,
    the percent of them within their 90 % interval, and crps, where intervals are stated.
    """
    predicted, low, high, measured = (lines[name].to_numpy(float) for name in ("predicted", "low", "high", "measured"))
    error = 100.0 * (predicted / measured - 1.0)
    size = np.abs(error)
    found = {"median": float(np.median(size)), "mean": float(size.mean()), "bias": float(error.mean())}
    found |= {"p90": float(np.percentile(size, 90)), "worst": float(size.max())}
    stated = ~np.isnan(low) & ~np.isnan(high) & (low > 0)
    if not stated.any():
        return found
    inside = (low <= measured) & (measured <= high)
    score = crps(low[stated], high[stated], measured[stated])
    return found | {"inside": 100.0 * float(inside[stated].mean()), "crps": float(score.mean())}


def crps(low: np.ndarray, high: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Continuous ranked probability score, in percent, of a log-normal whose 90 % interval is low to high.

    With μ the middle and σ the width of the interval in logarithms over 2 · 1.645, and z = (ln measured − μ) / σ:
    100 σ (z (2 Φ(z) − 1) + 2 φ(z) − 1/√π). Of a prediction that is certain, the error itself.
    """
    from scipy.special import ndtr

    sigma = np.maximum(np.log(high / low) / (2.0 * _NORMAL_90), 1e-9)
    z = (np.log(measured) - 0.5 * np.log(low * high)) / sigma
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    score: np.ndarray = 100.0 * sigma * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))
    return score


def _verdicts(lines: pd.DataFrame) -> dict[str, Any]:
    """Of what is true or false: percent that is right, that is wrongly predicted true, and wrongly false."""
    said, was = (lines[name].to_numpy(float) > 0.5 for name in ("predicted", "measured"))
    cases = {"right": said == was, "wrongly_true": said & ~was, "wrongly_false": ~said & was}
    return {name: 100.0 * float(case.mean()) for name, case in cases.items()}


def decisions(tables: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """What it costs to choose by prediction, for each column that people choose and each quantity.

    Rows that differ in nothing but one column are a choice. ``rank``: mean rank correlation of prediction and
    measurement over choices; ``best``: percent of choices in which the best was chosen; ``regret``: by how many percent
    the chosen is worse than the best, mean, and ``worst``.
    """
    import pandas as pd

    found = []
    for column in DECIDED:
        parts = [part for table in tables if column in table for part in _choices(table, column)]
        for quantity in dict.fromkeys(name for name, _ in parts):
            choices = pd.concat([costs for name, costs in parts if name == quantity])
            if len(choices) < LEAST_DECISIONS:
                continue
            regret = choices["regret"]
            costs = {"rank": choices["rank"].mean(), "best": 100.0 * (regret <= 0).mean(), "regret": regret.mean()}
            found.append(
                {"column": column, "quantity": quantity, "choices": len(choices), **costs, "worst": regret.max()}
            )
    return found


def _choices(table: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Of each quantity the rank correlation and regret of every choice among values of the column."""
    answered = table[table["predicted"].notna() & ~table["quantity"].isin(_UNDECIDED)]
    if answered.empty or answered[column].nunique() < 2:
        return []
    kind = "kernels" if "kernel" in set(answered["kind"]) else "models"
    left_out = (column, *_TOGETHER.get(column, ()))
    words = [name for name in answered if name in columns_of(kind).values() and name not in left_out]
    options = answered[["quantity", "predicted", "measured"]].assign(
        rest=_codes(answered, words), value=_codes(answered, [column])
    )
    options = options.groupby(["quantity", "rest", "value"], observed=True, as_index=False).mean()
    several = options.groupby(["quantity", "rest"], observed=True)["value"].transform("size") > 1
    return [
        (str(name), _costs(part, name in _RATES)) for name, part in options[several].groupby("quantity", observed=True)
    ]


def _codes(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """A number for each row, the same where all these columns are."""
    import pandas as pd

    codes = np.zeros(len(frame), dtype=np.uint64)
    for number, name in enumerate(names):
        cells = frame[name]
        cells = cells.astype(str) if cells.dtype == object else cells
        codes += pd.util.hash_pandas_object(cells, index=False, hash_key=f"{number:016d}").to_numpy()
    return codes


def _costs(options: pd.DataFrame, more_is_better: bool) -> pd.DataFrame:
    """Rank correlation and regret by choice, of options with their ``rest``."""
    import pandas as pd

    sign = -1.0 if more_is_better else 1.0
    rest, costs = options["rest"], sign * options[["predicted", "measured"]]
    ranks = costs.groupby(rest).rank()
    ranks -= ranks.groupby(rest).transform("mean")
    sums = (ranks**2).assign(product=ranks["predicted"] * ranks["measured"]).groupby(rest).sum()
    chosen = options.loc[costs["predicted"].groupby(rest).idxmin()].set_index("rest")["measured"]
    best = options.groupby("rest")["measured"].agg("max" if more_is_better else "min")
    regret = 100.0 * ((best / chosen if more_is_better else chosen / best) - 1.0)
    return pd.DataFrame({"rank": sums["product"] / np.sqrt(sums["predicted"] * sums["measured"]), "regret": regret})


def peers_of(path: Path) -> pd.DataFrame:
    """Predictions of other predictors: source, table, row, quantity, peer and ``theirs``.

    A file has a column ``predicted`` beside ``quantity``, or a column for each quantity as measured tables have it.

    Raises:
        DataError: another file.
    """
    frame = read_frame(path)
    if missing := [name for name in SOUGHT if name not in frame]:
        raise DataError(f"{path} has no column {missing[0]}: predictions are of a row by {', '.join(SOUGHT)}")
    quantities = [name for name in frame if is_quantity(str(name))]
    if "quantity" not in frame and quantities:
        names = [name for name in (*SOUGHT, "peer") if name in frame]
        frame = frame.melt(names, quantities, "quantity", "predicted").dropna(subset="predicted")
    if not {"quantity", "predicted"} <= {*frame}:
        raise DataError(f"{path} has no predictions: give columns quantity and predicted, or one for each quantity")
    named = frame.rename(columns={"predicted": "theirs"}).assign(peer=frame.get("peer", path.stem))
    return named[[*SOUGHT, "quantity", "peer", "theirs"]]


def compare_peers(lines: pd.DataFrame, peers: pd.DataFrame, by: Sequence[str]) -> list[dict[str, Any]]:
    """Errors of rows that both predicted, in percent: median, mean and bias of ours, and theirs.

    Raises:
        DataError: no row of the other predictors is among the lines.
    """
    keys = [*SOUGHT, "quantity"]
    ours = lines[lines["predicted"].notna()].astype(dict.fromkeys(keys, object))
    both = ours.merge(peers.astype(dict.fromkeys(keys, object)), on=keys)
    if both.empty:
        raise DataError("no row has a prediction of the other predictors: their source, table and row are others")
    found = []
    for values, part in both.groupby(["peer", *by], sort=False, observed=True, dropna=False):
        theirs = figures(part.assign(predicted=part["theirs"], low=np.nan, high=np.nan))
        mine = figures(part)
        errors = {f"{of}{name}": each[name] for of, each in (("", mine), ("their_", theirs))
                  for name in ("median", "mean", "bias")}  # fmt: skip
        found.append({**dict(zip(("peer", *by), values, strict=True)), "rows": len(part), **errors})
    return found
