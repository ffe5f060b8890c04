"""``Point``: one combination of options with its answer; what has no answer is named with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Generic, TypeVar

import typer

from neusight.cli.output import Advance, Output, Rows, headline, note
from neusight.errors import NeusightError
from neusight.quick_dataclasses import dataclass

MOST_POINTS = 10_000
"""Combinations that a command answers: more are a slip of the keyboard."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Point(Generic[Answer]):
    """One combination of options, with its estimate or the ``error`` that stands for it."""

    options: dict[str, Any]
    estimate: Answer | None = None
    error: str = ""


def combined(
    axes: Mapping[str, Sequence[Any]],
    answer: Callable[[dict[str, Any]], Answer],
    *,
    many: bool,
    advance: Advance | None = None,
) -> Iterator[Point[Answer]]:
    """Every combination of the values of ``axes``, the last of which changes fastest.

    Args:
        axes: values by option.
        answer: of one combination.
        many: whether an error stands in its point, and the others go on.
        advance: called before each.

    Raises:
        BadParameter: too many combinations. NeusightError: what is wrong, unless ``many``.
    """
    count = check_count(axes)
    for done, values in enumerate(product(*axes.values())):
        if advance and count > 1:
            advance(done, count)
        options = dict(zip(axes, values, strict=True))
        try:
            yield Point(options=options, estimate=answer(options))
        except NeusightError as error:
            if not many:
                raise
            yield Point(options=options, error=str(error))


def check_count(axes: Mapping[str, Sequence[Any]]) -> int:
    """The number of combinations.

    Raises:
        BadParameter: too many.
    """
    if (count := prod(map(len, axes.values()))) > MOST_POINTS:
        raise typer.BadParameter(f"{count:,} combinations are too many: leave values out, or search with `plan`")
    return count


def check_answers(points: Sequence[Point[Answer]], name: str) -> None:
    """Say on stderr which values of an option have no estimate, and why.

    Raises:
        Exit: with 1, where no point has an estimate.
    """
    none = not any(point.estimate for point in points)
    for error in dict.fromkeys(point.error for point in points if point.error):
        of = [str(getattr(value, "id", value)) for value in (p.options[name] for p in points if p.error == error)]
        which = "" if len(of) == len(points) else f"no estimate of {', '.join(of)}: "
        note(f"{'error' if none else 'warning'}: {which}{error}")
    if none:
        raise typer.Exit(1)


def differing(points: Sequence[Point[Answer]], names: Iterable[str]) -> list[str]:
    """Options in which points differ: the columns of their table."""
    return [name for name in names if len({str(point.options.get(name)) for point in points}) > 1]


def show(
    points: Sequence[Point[Any]],
    form: str,
    many: bool,
    *,
    data: Callable[[Any], dict[str, Any]],
    rows: Rows,
    full: Callable[[Any], None],
    table: Callable[[Sequence[Point[Any]]], None],
) -> None:
    """One estimate in full, or a table of several with the reasons of those that have none.

    Args:
        points: combinations with their estimates.
        form: human, json or csv.
        many: whether several were asked for; JSON is then a list.
        data: an estimate as JSON.
        rows: of CSV.
        full, table: print one estimate, and those of all points.

    Raises:
        Exit: with 1, where no point has an estimate.
    """
    estimates = [point.estimate for point in points if point.estimate]
    for text in dict.fromkeys(text for estimate in estimates for text in estimate.warnings):
        note(f"warning: {text}")

    def human() -> None:
        if estimates and not many:
            full(estimates[0])
            return
        table(points)
        for reason in _reasons(points):
            headline(reason)

    values = [data(point.estimate) if point.estimate else point.options | {"error": point.error} for point in points]
    Output(form).data(values if many else values[0], rows, human)
    if not estimates:
        note(f"error: none of {len(points)} combinations has an estimate: {points[0].error}")
        raise typer.Exit(1)


def _reasons(points: Sequence[Point[Answer]]) -> Iterator[str]:
    """A line for each reason why points have no estimate."""
    errors = [point.error for point in points if point.error]
    for error in dict.fromkeys(errors):
        count = errors.count(error)
        yield f"no estimate for {count} combination{'s' if count > 1 else ''}: {error}"
