"""``Pair``: a pair of measurements as two questions. Canonical words for what sources say in their own.

Each module of this folder reads rows of some sets: a function with ``@reads`` that returns a case, or raises why it
cannot: ``UnnamedModelError`` where nobody knows which model was run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from neusight.devices import load_device
from neusight.errors import DataError, DeviceError
from neusight.measured.score import Row
from neusight.questions.what_if import METRICS, MetricName
from neusight.what_if.questions import Question, StepQuestion
from neusight.what_if.transforms import applied


class UnnamedModelError(DataError):
    """A pair of a model, or on a device, that its source does not name well enough."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two questions, the optimisations ``applied`` between them, and the metric in which they are compared."""

    before: Question
    after: Question
    applied: tuple[str, ...]
    metric: MetricName

    @classmethod
    def of(cls, record: Row, before: Question, names: Sequence[str], **after: Any) -> Pair:
        """Of a row whose optimisation is those of some names.

        Args:
            record: the row, for its metric.
            before: what ran first.
            names: of ``neusight.what_if.known()``.
            after: fields of the request that differ beside, such as a larger batch.

        Raises:
            ModelError: one of them does not apply.
        """
        question = applied(before, names)[-1]
        if after and isinstance(question, StepQuestion):
            question = question.asking(**after)
        return cls.between(record, before, question, names)

    @classmethod
    def between(cls, record: Row, before: Question, after: Question, names: Sequence[str]) -> Pair:
        """Of a row's two questions, each brought."""
        return cls(before=before, after=after, applied=tuple(names), metric=metric_of(record))

    def measured_in(self, metric: MetricName) -> Pair:
        """The same in another metric."""
        return replace(self, metric=metric)


Reader = Callable[[Row, dict[str, str]], Pair]
_READERS: dict[str, list[tuple[Callable[[Row], bool], Reader]]] = {}


def reads(*sets: str, of: Callable[[Row], bool] = lambda _: True) -> Callable[[Reader], Reader]:
    """Decorator of what reads the rows of some sets, of sets of several kinds those that ``of`` holds for: it takes a
    row and what is told of it.
    """

    def register(reader: Reader) -> Reader:
        for name in sets:
            _READERS.setdefault(name, []).append((of, reader))
        return reader

    return register


def pair_of(record: Row) -> Pair:
    """The case of a row.

    Raises:
        DataError: nothing reads its set; all else as its reader.
    """
    _load()
    readers = (reader for of, reader in _READERS.get(str(record.get("set", "")), ()) if of(record))
    reader = next(readers, None)
    if reader is None:
        raise DataError(f"no reader of '{record.get('as_written')}' in the set {record.get('set')}")
    return reader(record, stated(record))


def stated(record: Row) -> dict[str, str]:
    """What a source tells of the conditions, in its words.

    Raises:
        DataError: it is no JSON object.
    """
    return {name: str(value) for name, value in words_of(record).items()}


def words_of(record: Row) -> dict[str, Any]:
    """What is told of the conditions, a JSON object or a table of TOML.

    Raises:
        DataError: it is neither.
    """
    told = record["told"]
    try:
        return {str(name): value for name, value in (json.loads(told) if isinstance(told, str) else told).items()}
    except (ValueError, AttributeError):
        raise DataError(f"told is no JSON object: {told!r}") from None


def metric_of(record: Row) -> MetricName:
    """The metric of a row; of memory, the peak of what is allocated is measured.

    Raises:
        DataError: an unknown one.
    """
    for name in METRICS:
        if record["metric"] == name:
            return "peak" if name == "memory" else name
    raise DataError(f"unknown metric '{record['metric']}': one of {', '.join(METRICS)}")


def gpu_of(record: Row) -> str:
    """The id of a row's device, or that of the name that its source writes.

    Raises:
        UnnamedModelError: it is not told.
    """
    gpu, written = record.get("gpu"), record.get("gpu_as_written")
    if isinstance(gpu, str) and gpu:
        return gpu
    try:
        return load_device(str(written)).id
    except DeviceError:
        raise UnnamedModelError("the GPU is not told") from None


def whole(value: str, what: str) -> int:
    """A whole number as sources write it.

    Raises:
        DataError: it is none.
    """
    try:
        return int(float(value.replace(",", "")))
    except ValueError:
        raise DataError(f"{what} '{value}' is no number") from None


@cache
def _load() -> None:
    package = __name__.rpartition(".")[0]
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")
