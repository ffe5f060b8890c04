"""Single kernels of held-out GPUs: what every predictor says of every measured row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import to_batches
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments.baselines.roofline import roofline_s
from neusight.kernels.work import work_of

if TYPE_CHECKING:
    import pandas as pd

    from neusight.devices import DeviceSpec
    from neusight.experiments.entrants import Entrant
    from neusight.kernels import KernelBatch

BY_OP = ("gemm", "row_reduction")
"""Families whose operators are different programs; the operators of others differ in their arithmetic alone."""
ID_DIGITS = 12


@dataclass(frozen=True)
class Tested:
    """Measured rows of one GPU as kernels: ``facts`` has a row a measurement, ``batches`` with their positions in it.

    Columns of ``facts``: gpu, family, op, kind, id (of the kernel), flops, bytes, roofline and measured (both ms).
    """

    device: DeviceSpec
    facts: pd.DataFrame
    batches: Sequence[tuple[KernelBatch, np.ndarray]]


def tested_rows(frame: pd.DataFrame, gpu: str, split: str, families: Sequence[str]) -> Tested:
    """The rows of a GPU that are tested.

    Args:
        frame: of ``load_kernels``.
        gpu: id of the catalogue.
        split: as ``rows_of_split``.
        families: keep these; none given keeps all.

    Raises:
        DataError: no row is left.
    """
    keep = frame["gpu"] == gpu
    if families:
        keep &= frame["family"].isin(list(families))
    rows = rows_of_split(frame[keep], split)
    if rows.empty:
        raise DataError(f"no row of {gpu} in split '{split or 'any'}': hold out GPUs that the data have")
    device, batches = load_device(gpu), to_batches(rows)
    facts = rows[["gpu", "family", "op"]].assign(measured=rows["latency_ms"].to_numpy(float))
    facts["kind"] = np.where(facts["family"].isin(BY_OP), facts["op"], facts["family"])
    for batch, positions in batches:
        for name, values in _facts(batch, device).items():
            facts.loc[positions, name] = values
    facts["id"] = _unique(facts["id"])
    return Tested(device, facts, batches)


def rows_of_split(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """Rows of a split, none if there are none; of families that were never split (no row of them is in it, though some
    of others are) all; "" keeps all rows.
    """
    chosen = frame["split"] == split
    whole = ~frame["family"].isin(frame.loc[chosen, "family"].unique()) & chosen.any()
    return (frame[chosen | whole] if split else frame).reset_index(drop=True)


def _facts(batch: KernelBatch, device: DeviceSpec) -> dict[str, Any]:
    work = work_of(batch)
    roofline_ms = 1e3 * roofline_s(batch, device)
    return {"id": kernel_ids(batch), "flops": work.flops, "bytes": work.bytes, "roofline": roofline_ms}


def kernel_ids(batch: KernelBatch) -> list[str]:
    """A short hash of each kernel: the same kernel has the same, in any run and on any GPU."""
    columns = [batch[name].astype(str) for name in sorted(batch.columns)]
    texts = (" ".join((batch.family, *fields)) for fields in zip(*columns, strict=True))
    return [sha256(text.encode()).hexdigest()[:ID_DIGITS] for text in texts]


def _unique(ids: pd.Series) -> pd.Series:
    """A kernel that was measured again has its turn behind its hash."""
    turn = ids.groupby(ids).cumcount()
    return ids.where(turn == 0, ids + "-" + (turn + 1).astype(str))


def predicted_rows(tested: Tested, entrant: Entrant) -> pd.DataFrame:
    """The facts with what a predictor says: predictor, seed, and in ms predicted, low, high (NaN without interval)."""
    out = tested.facts.assign(predictor=entrant.name, seed=entrant.seed, predicted=np.nan, low=np.nan, high=np.nan)
    for batch, positions in tested.batches:
        said = entrant.kernels(batch, tested.device)
        out.loc[positions, "predicted"] = 1e3 * said.latency_s
        if said.low_s is not None and said.high_s is not None:
            out.loc[positions, "low"], out.loc[positions, "high"] = 1e3 * said.low_s, 1e3 * said.high_s
    return out
