"""Ladders of optimisations of training, each table by its own reader."""

from __future__ import annotations

from neusight.errors import DataError
from neusight.evaluation.scored import Row
from neusight.evaluation.what_if.cases import Pair, reads
from neusight.evaluation.what_if.sharded_training import of_torchtitan


@reads("training_ladders")
def of_ladders(record: Row, stated: dict[str, str]) -> Pair:
    """By the repository of a row's source."""
    source = str(record["source"])
    if "torchtitan" in source or "torchtitan" in stated.get("framework", ""):
        return of_torchtitan(record, stated)
    raise DataError(f"no reader of the tables of {source}")
