"""``value_at``: a word or figure of a record, by the place that a format declares for it.

A place is a path (``metrics.ttft.mean``, ``names.0``, ``log.-1``), ``--osl`` for an option of the command, a number, a
list of places of which the first that is filled counts, or a table:

- ``at``: the place that the others change.
- ``when``, ``unless``: values by path, with all of which, or with any of which, the place is empty otherwise.
- ``take``: one number of a list: ``mean``, ``median``, ``settled`` (median without the first), ``count``,
  ``distinct`` (how many), ``cv`` (standard deviation over mean). Default: the last.
- ``pattern``: a regular expression whose first group is the value.
- ``words``: the product's words by those of the file; others are empty.
- ``plus`` (0 where it is empty), ``times``, ``over``: places of numbers that are added, multiplied, divided by.
- ``unit``: unit of a time, or the path of one; columns are in ms.
- ``digits``: digits that are kept of a number, ``least``: the least that it may be.
- ``to``: the place of the upper end of a range, whose lower end is the number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from neusight.errors import DataError, shown

Record = Mapping[str, Any]
_MS = {"s": 1e3, "sec": 1e3, "seconds": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
"""Milliseconds of units of time."""
_TAKEN: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "mean": lambda values: fmean(map(number, values)),
    "median": lambda values: median(map(number, values)),
    "settled": lambda values: median(map(number, values[1:] or values)),
    "count": len,
    "distinct": lambda values: len(set(values)),
    "cv": lambda values: pstdev(map(number, values)) / fmean(map(number, values)),
}


def value_at(place: Any, record: Record) -> Any:
    """The value of a place; None where the record lacks it.

    Raises:
        DataError: a text in place of a number.
    """
    if isinstance(place, str):
        return _last(at_path(record, place))
    if isinstance(place, list):
        return next((value for each in place if (value := value_at(each, record)) is not None), None)
    if not isinstance(place, Mapping):
        return place
    if not _applies(place, record):
        return None
    value = _taken(place, record)
    if value is not None and "pattern" in place:
        matched = re.search(place["pattern"], str(value))
        value = matched[1] if matched else None
    if value is not None and "words" in place:
        value = place["words"].get(str(value))
    return value if value is None else _computed(place, record, value)


def number(value: Any) -> float:
    """Raises:
    DataError: the value is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"'{shown(value)}' stands in place of a number") from None


def _applies(place: Record, record: Record) -> bool:
    def is_so(path: str, value: Any) -> bool:
        return str(_last(at_path(record, path))).lower() == str(value).lower()

    wanted, excluded = place.get("when", {}).items(), place.get("unless", {}).items()
    return all(is_so(*one) for one in wanted) and not any(is_so(*one) for one in excluded)


def _taken(place: Record, record: Record) -> Any:
    if "take" not in place:
        return value_at(place["at"], record)
    values = at_path(record, place["at"])
    return _TAKEN[place["take"]](values) if isinstance(values, list) and values else None


def _computed(place: Record, record: Record, value: Any) -> Any:
    """The value after the arithmetic of the place; itself where the place has none."""
    if not place.keys() & {"plus", "times", "over", "unit", "digits", "least", "to"}:
        return value
    times, over = (value_at(place.get(name, 1), record) for name in ("times", "over"))
    if times is None or not number(over or 0):
        return None
    result = (number(value) + number(value_at(place.get("plus", 0), record) or 0)) * number(times) / number(over)
    if unit := place.get("unit"):
        result *= _MS.get(unit) or _MS[value_at(unit, record)]
    result = max(result, place.get("least", result))
    result = round(result, place["digits"] or None) if "digits" in place else result
    return f"{result}..{value_at(place['to'], record)}" if "to" in place else result


def at_path(record: Record, path: str) -> Any:
    """What stands at a path; None where nothing does."""
    if path in record:
        return record[path]
    value: Any = record
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)] if re.fullmatch(r"-?\d+", key) and -len(value) <= int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _last(value: Any) -> Any:
    return (value[-1] if value else None) if isinstance(value, list) else value
