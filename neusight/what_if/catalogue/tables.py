"""Storage and form of tables of embeddings."""

from __future__ import annotations

from neusight.steps.questions import StepQuestion
from neusight.transforms.passes import EARLY, Pass
from neusight.transforms.tables import SKEW, as_trains, on_host, with_hot_rows
from neusight.what_if.transforms import check_mode, transform

HOT_BYTES = 512 * 2**20
"""Size of the hot rows on a device (Adnan et al. 2021, FAE; from memory)."""
RANK = 32
"""Rank of tensor trains (Yin et al. 2021, section 6: 8 to 64)."""
CACHED = 1e-4
"""Share of rows that are stored unchanged next to tensor trains (Yin et al. 2021, section 6: 0.01 %; from memory)."""
LEAST_ROWS = 100_000
"""Rows of the smallest table that becomes a train: the seven largest of Criteo Kaggle's 26 (Yin et al. 2021, section
6)."""
UPDATED = 0.5
"""Share of hot rows that still change (assumption; Maboud et al. 2024 choose it by a threshold while training)."""


def _skew(step: StepQuestion) -> float:
    """The exponent that the model's name states, such as ``dlrm-terabyte@1.05``."""
    exponent = str(step.model).partition("@")[2]
    return float(exponent) if exponent.replace(".", "", 1).isdecimal() else SKEW


@transform(
    "host-tables", group="tables", source="Naumov et al. 2019, DLRM; Jiang et al. 2019, XDL", effort="a framework"
)
def host_tables(step: StepQuestion) -> StepQuestion:
    """The host holds tables and updates them; sums of rows and their gradients cross its link, which alone counts."""
    return step.changed_by(Pass(part="tables", order=EARLY, change=on_host))


@transform(
    "hot-rows", group="tables", effort="a framework",
    source="Adnan et al. 2021, Accelerating Recommendation System Training by Leveraging Popular Choices (FAE)",
)  # fmt: skip
def hot_rows(step: StepQuestion) -> StepQuestion:
    """512 MiB of the rows that are asked for most lie on the GPU, others come from the host."""
    return step.changed_by(Pass(part="tables", order=EARLY, change=with_hot_rows, arguments=(HOT_BYTES, _skew(step))))


@transform(
    "stale-rows-skipped", group="tables", effort="a framework", accuracy="none to 0.1 % as the source states it",
    source="Maboud et al. 2024, Efficient Training of Recommender Models through Popularity-Based Skipping",
)  # fmt: skip
def stale_rows_skipped(step: StepQuestion) -> StepQuestion:
    """As hot-rows, and half of the hot rows that a step reads have no gradient, as they hardly change any more."""
    check_mode(step, "training")
    arguments = (HOT_BYTES, _skew(step), UPDATED)
    return step.changed_by(Pass(part="tables", order=EARLY, change=with_hot_rows, arguments=arguments))


@transform(
    "tensor-train-tables", group="tables", effort="a library", accuracy="0.03 to 0.3 % as the source states it",
    source="Yin et al. 2021, TT-Rec: Tensor Train Compression for Deep Learning Recommendation Models",
)  # fmt: skip
def tensor_train_tables(step: StepQuestion) -> StepQuestion:
    """Tables of 100,000 rows or more as three small tensors, of whose slices each row that is read is a product, but
    for the few that are asked for most.
    """
    arguments = (RANK, LEAST_ROWS, CACHED, _skew(step))
    return step.changed_by(Pass(part="tables", order=EARLY, change=as_trains, arguments=arguments))
