"""Figures of errors by group, of our predictions and of other predictors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.laws.doubts import NORMAL_90
from neusight.measured.table import is_quantity, is_truth, read_frame

if TYPE_CHECKING:
    import pandas as pd

SOUGHT = ("source", "table", "row")
"""Columns that name a row."""


def summarise(lines: pd.DataFrame, by: Sequence[str]) -> list[dict[str, Any]]:
    """Rows, percent that is answered, and ``figures`` of the lines that share the values of some columns.

    Args:
        lines: columns quantity, predicted, low, high and measured, and those of ``by``.
        by: columns; true and false quantities are never mixed with others.
    """
    truth = is_truth(lines["quantity"]).to_numpy()
    groups = lines.groupby([*by, truth], sort="chance" in by, observed=True, dropna=False)
    found = []
    for values, part in groups:
        names = {name: None if value != value else value for name, value in zip(by, values, strict=False)}
        answered = part[part["predicted"].notna()]
        counts = {"rows": len(part), "answered": 100.0 * len(answered) / len(part)}
        errors = {} if answered.empty else truths(answered) if values[-1] else figures(answered)
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

    sigma = np.maximum(np.log(high / low) / (2.0 * NORMAL_90), 1e-9)
    z = (np.log(measured) - 0.5 * np.log(low * high)) / sigma
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(100.0 * sigma * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi)))


def truths(lines: pd.DataFrame) -> dict[str, Any]:
    """Of what is true or false: percent that is right, that is wrongly predicted true, and wrongly false, the mean
    predicted probability and how often it was true; ``brier`` is the mean squared difference of predicted
    probabilities from what was (Brier 1950).
    """
    chance, was = lines["predicted"].to_numpy(float), lines["measured"].to_numpy(float) > 0.5
    yes = chance > 0.5
    cases = {"right": yes == was, "wrongly_true": yes & ~was, "wrongly_false": ~yes & was, "said": chance, "true": was}
    brier = float(np.square(chance - was).mean())
    return {name: 100.0 * float(case.mean()) for name, case in cases.items()} | {"brier": brier}


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
    """Errors of rows that both predicted, in percent: median, mean and bias of ours, and theirs; ``ahead`` is whose
    median is smaller.

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
        errors = {f"{of}{name}": each[name] for of, each in (("", figures(part)), ("their_", theirs))
                  for name in ("median", "mean", "bias")}  # fmt: skip
        ahead = "ours" if errors["median"] < errors["their_median"] else "theirs"
        found.append({**dict(zip(("peer", *by), values, strict=True)), "rows": len(part), **errors, "ahead": ahead})
    return found
