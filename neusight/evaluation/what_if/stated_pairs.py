"""Pairs in this project's own words: rows of no set, whose conditions are options of ``neusight what-if``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neusight.devices import cluster_of
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, gpu_of, reads, words_of
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.steps.answers import training_run
from neusight.what_if import Question, applied

_PLACE = ("per_node", "nodes", "network")


@reads("")
def of_own_words(record: Row, _: dict[str, str]) -> Pair:
    """A row of any model, on one GPU or on ``nodes`` of ``per_node`` with an ``engine``.

    Of what is told, ``apply`` names the optimisations, ``upon`` those that both have, ``instead_of`` those that the
    second has not, and ``first`` are words of the first that differ otherwise; all else is as ``StepQuestion.of`` or
    ``usual_run`` takes it.

    Raises:
        DataError: no optimisation is named.
    """
    told = words_of(record) | {"mode": record.get("mode", "inference")}
    names, upon, instead = (tuple(told.pop(name, ())) for name in ("apply", "upon", "instead_of"))
    if not names:
        raise DataError("told names no optimisation: add apply, such as apply = ['amp']")
    first = told.pop("first", {})
    asked = [_question(str(record["model"]), gpu_of(record), words) for words in (told | first, told)]
    lists = ((*upon, *instead), (*upon, *names))
    before, after = ((applied(one, these) or [one])[-1] for one, these in zip(asked, lists, strict=True))
    return Pair.between(record, before, after, names)


def _question(model: str, gpu: str, told: Mapping[str, Any]) -> Question:
    place = {name: told[name] for name in _PLACE if name in told}
    if not place:
        return step_question(model, gpu, **told)
    words = {name: value for name, value in told.items() if name not in (*_PLACE, "mode", "engine")}
    cluster = cluster_of(gpu, place.get("per_node", 1), place.get("nodes", 1), place.get("network", ""))
    return training_run(model, cluster, words, told.get("engine", "torch-eager"))
