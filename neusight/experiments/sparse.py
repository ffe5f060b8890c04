"""Run a simulated experiment: make its rows, and the figures of every group of them that is declared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from neusight.experiments.simulated import CYCLES, network_rows, random_rows
from neusight.lab.targets import is_wanted

if TYPE_CHECKING:
    from neusight.experiments.declare import RowGroup, SparseDeclaration
    from neusight.learn import Report

QUICK_LENGTH = 256
MEAN = "geometric mean"


def run(declared: SparseDeclaration, folder: Path, quick: bool = False, report: Report | None = None) -> dict[str, Any]:
    """Simulate what is declared.

    Args:
        declared: what to do.
        folder: of the experiment, with the profiles.
        quick: with short streams, one seed and the first network.
        report: called with progress.

    Returns:
        ``by_group``: rows of each declared one by name; ``products``: a row for each product of each layer.

    Raises:
        DataError: a profile is missing, malformed, or of other layers than its network's.
    """
    zeros, networks = declared.random, declared.networks
    if quick:
        zeros = zeros.model_copy(update={"length": QUICK_LENGTH, "seeds": zeros.seeds[:1]})
        networks = networks[:1]
    frames = [random_rows(zeros)]
    for done, network in enumerate(networks, start=1):
        frames.append(network_rows(network, declared, folder))
        if report:
            report(network.name, done, len(networks), float("nan"))
    rows = pd.concat(frames, ignore_index=True)
    groups = {group.name: group_rows(group, rows, [n.name for n in networks if n.in_mean]) for group in declared.groups}
    layers = rows[(rows["value"] == "as measured") & (rows["layer"] != "all") & (rows["quantity"] == CYCLES)]
    errors = 100.0 * (layers["model"] / layers["measured"] - 1.0)
    products = layers.assign(ratio=layers["dense"] / layers["measured"], model_error=errors)
    names = ["network", "layer", "product", "zeros", "measured", "dense", "model", "ratio", "model_error"]
    return {"by_group": groups, "products": products[names].to_dict("records")}


def group_rows(group: RowGroup, rows: pd.DataFrame, in_mean: list[str]) -> list[dict[str, Any]]:
    """A row for each value of the group's keys: how many rows it is of, the geometric mean of the contestant's figure
    over the measured one, the mean and the worst of its errors in percent, and the mean share of zeros.

    Args:
        group: which rows, and by which keys.
        rows: of all networks.
        in_mean: networks that have a common row where the group is of their ratios.
    """
    for name, value in group.where.items():
        rows = rows[[is_wanted(cell, value) for cell in rows[name]]]
    keys = [*group.by, *group.across]
    if "network" in keys and "ratio" in group.figures:
        rows = pd.concat([rows, _in_common(rows, in_mean).assign(network=MEAN)])
    found = []
    for values, part in rows.groupby(keys, sort=False):
        ratio = part[group.contestant] / part["measured"]
        error = 100.0 * (ratio - 1.0).abs()
        figures = {"ratio": np.exp(np.log(ratio).mean()), "mean": error.mean(), "worst": error.max()}
        known = {"count": len(part), **figures, "zeros": part["zeros"].mean()}
        found.append(dict(zip(keys, values, strict=True)) | {name: float(known[name]) for name in group.figures})
    return found


def _in_common(rows: pd.DataFrame, networks: list[str]) -> pd.DataFrame:
    """Rows of these networks with what all of them have."""
    ours = rows[rows["network"].isin(networks)]
    counts = ours.groupby(["axis", "value", "product", "quantity"])["network"].transform("nunique")
    return ours[(counts == len(networks)) & (ours["layer"] == "all")]
