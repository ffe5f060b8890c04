"""Error on held-out GPUs after some of their kernels were measured, chosen by a plan or at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.experiments.entrants import TileModelEntrant
from neusight.experiments.kernel_rows import rows_of_split

if TYPE_CHECKING:
    import pandas as pd

    from neusight.experiments.declare import Declaration, FewShot
    from neusight.experiments.rounds import Round


def few_shot_of(declared: Declaration, rounds: Sequence[Round], frame: pd.DataFrame) -> dict[str, Any]:
    """The curve of every held-out GPU, with the tile models that the targets judge.

    Kernels are drawn from the tested rows, and errors are those of the tested rows that no draw holds.

    Args:
        declared: the experiment, with ``few_shot``.
        rounds: its folds.
        frame: of ``load_kernels``.

    Returns:
        ``cells``: fold, gpu, design (plan or random), kind, points (measured kernels of all kinds together), rows,
        mape, inside and width (in percent of the prediction's lower end), means over seeds. ``by_kind``: design, kind,
        points, mean over GPUs, worst.
    """
    assert declared.few_shot is not None
    cells = []
    for r in rounds:
        entrant = r.entrants[0]
        assert isinstance(entrant, TileModelEntrant)
        for gpu in r.fold.held_out:
            rows = rows_of_split(frame[frame["gpu"] == gpu], declared.data.tested_split)
            cells += [{"fold": r.fold.name, **cell} for cell in _curve(entrant, gpu, rows, declared.few_shot)]
    return {"cells": cells, "by_kind": _by_kind(cells)}


def _curve(entrant: TileModelEntrant, gpu: str, rows: pd.DataFrame, asked: FewShot) -> list[dict[str, Any]]:
    """Cells of one GPU: means over seeds."""
    from neusight.learn.calibration import few_shot_curve

    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for seed in asked.seeds:
        predictor = entrant.predictor.kernel_predictor
        for row in few_shot_curve(predictor, load_device(gpu), rows, rows, asked.points, seed=seed):
            found.setdefault((row["design"], row["family"], row["count"]), []).append(row)
    return [
        {"gpu": gpu, "design": design, "kind": kind, "points": points, **_means(part)}
        for (design, kind, points), part in found.items()
    ]


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("mape", "inside")}
    return {"rows": rows[0]["rows"], **means, "width": 100 * (float(np.mean([row["width"] for row in rows])) - 1)}


def _by_kind(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, int], list[float]] = {}
    for cell in cells:
        found.setdefault((cell["design"], cell["kind"], cell["points"]), []).append(cell["mape"])
    return [
        {"design": design, "kind": kind, "points": points, "mean": float(np.mean(errors)), "worst": max(errors)}
        for (design, kind, points), errors in found.items()
    ]
