"""``Point``: one of several questions with its answer, or with the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from neusight.cli.output import Advance, Output, Rows, headline, note
from neusight.errors import NeusightError
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec

Answer = TypeVar("Answer")
_BY_VALUE = ("model", "gpu", "dtype")
"""Options whose values are names by themselves."""
_COMPARED = 12
"""Number of estimates up to which each is compared with every other."""


@dataclass(frozen=True, kw_only=True)
class QuestionOnDevice:
    """A question with its device, None for a question on a cluster."""

    question: Any
    device: DeviceSpec | None = None

    @property
    def id(self) -> str:
        """Id of the device or the cluster."""
        return self.device.id if self.device else str(self.question.cluster)


@dataclass(frozen=True, kw_only=True)
class Point(Generic[Answer]):
    """A question with its estimate or the ``error`` in its place.

    ``options`` are its values of the options that could be lists.
    """

    call: QuestionOnDevice
    options: dict[str, Any] = field(default_factory=dict)
    estimate: Answer | None = None
    error: str = ""


def answers(
    calls: Sequence[QuestionOnDevice], answer: Callable[[QuestionOnDevice], Answer], *, many: bool, advance: Advance
) -> Iterator[Point[Answer]]:
    """Yield the answer to each question.

    Args:
        calls: the questions.
        answer: function that answers one question.
        many: True if an error is recorded in its point, and the other questions go on.
        advance: called before each question.

    Raises:
        NeusightError: a question has no answer, unless ``many``.
    """
    for done, call in enumerate(calls):
        if len(calls) > 1:
            advance(done, len(calls))
        try:
            yield Point(call=call, estimate=answer(call))
        except NeusightError as error:
            if not many:
                raise
            yield Point(call=call, error=str(error))


def check_answers(points: Sequence[Point[Answer]]) -> None:
    """Report on stderr how many of the points have no estimate, on which devices, and why.

    Raises:
        Exit: with 1, where no point has an estimate.
    """
    grade = "warning" if any(point.estimate for point in points) else "error"
    for error in dict.fromkeys(point.error for point in points if point.error):
        of = [point.call.id for point in points if point.error == error]
        note(f"{grade}: no estimate for {len(of)} of {len(points)} ({', '.join(dict.fromkeys(of))}): {error}")
    if grade == "error":
        raise typer.Exit(1)


def differing(points: Sequence[Point[Answer]], names: Iterable[str]) -> list[str]:
    """Options in which points differ: the columns of their table."""
    return [name for name in names if len({str(point.options.get(name)) for point in points}) > 1]


def name_of(point: Point[Any], names: Iterable[str]) -> str:
    """The point by its values of some options in words."""
    values = point.options | {"gpu": point.call.id}
    words = (str(values[n]) if n in _BY_VALUE else f"{n.replace('_', ' ')} {values[n]}" for n in names)
    return ", ".join(words)


def _few_answers(points: Sequence[Point[Answer]]) -> dict[str, Answer]:
    """Estimates by the options in which their points differ; {} unless they are several, a few, and all differ."""
    answered = [(point, point.estimate) for point in points if point.estimate]
    names = differing(points, points[0].options)
    named = {name_of(point, names): estimate for point, estimate in answered}
    return named if 1 < len(answered) <= _COMPARED and len(named) == len(answered) else {}


def _chances(estimate: Any, named: Mapping[str, Any]) -> dict[str, float]:
    """Probability that an estimate is faster than each of the others, by their names."""
    from neusight.what_if.gain import faster_probability

    return {name: faster_probability(estimate, other) for name, other in named.items() if other is not estimate}


def show(
    points: Sequence[Point[Any]],
    form: str,
    many: bool,
    *,
    data: Callable[[Any], dict[str, Any]],
    rows: Rows,
    full: Callable[[Any], None],
    table: Callable[[Sequence[Point[Any]]], None],
    counts: Callable[[Any], bool] | None = None,
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Show one estimate in full, or a table of several, and report the reasons of missing ones on stderr.

    Args:
        points: combinations with their estimates.
        form: human, json or csv.
        many: True if several were requested; JSON is then a list.
        data: an estimate as JSON.
        rows: rows of CSV.
        full, table: print one estimate, and those of all points.
        counts: function that says whether an estimate counts in a comparison of throughputs; None for no comparison.
        beside: options that decide an answer beside its question, which JSON keeps with it.

    Raises:
        Exit: with 1, where no point has an estimate.
    """
    estimates = [point.estimate for point in points if point.estimate]
    named = _few_answers(points) if counts else {}

    def record(e: Any) -> dict[str, Any]:
        values = data(e) | ({"faster_probability": _chances(e, named)} if named else {})
        return values | {"question": {**values["question"], **beside}}

    for text in dict.fromkeys(text for estimate in estimates for text in estimate.warnings):
        note(f"warning: {text}")

    def human() -> None:
        if estimates and len(points) > 1:
            from neusight.what_if.gain import ranking

            table(points)
            headline(ranking({name: e for name, e in named.items() if counts and counts(e)}))
        elif estimates:
            full(estimates[0])

    values = [
        {"gpu": point.call.id} | (record(point.estimate) if point.estimate else point.options | {"error": point.error})
        for point in points
    ]
    Output(form).data(values if many else values[0], rows, human)
    check_answers(points)
