"""Ladders of optimisations of training, each table by its own reader."""

from __future__ import annotations

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, reads
from neusight.evaluation.what_if.finetuning import of_litgpt, of_optimizers, of_peft, of_torchtune
from neusight.evaluation.what_if.sharded_training import of_torchtitan
from neusight.measured.score import Row

READERS = {
    "torchtitan": of_torchtitan, "torchtune": of_torchtune, "huggingface/peft": of_peft, "litgpt": of_litgpt,
    "torchao/optim": of_optimizers,
}  # fmt: skip
"""By a word in a row's source, or in what is told of its framework."""


@reads("training_ladders")
def of_ladders(record: Row, stated: dict[str, str]) -> Pair:
    """By the repository of a row's source.

    Raises:
        DataError: a source, or a method of it, that nothing reads.
    """
    if record["mode"] != "training":
        raise DataError("a row of inference among those of training is not read")
    for where in (str(record["source"]), stated.get("framework", "")):
        for word, reader in READERS.items():
            if word in where and ("peft" in stated or reader is not of_peft):
                return reader(record, stated)
    raise DataError(f"no reader of the tables of {record['source']}")
