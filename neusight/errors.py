"""One exception class a kind of mistake; every message says what was wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

_LONGEST_WORD, _LONGEST_LINE = 200, 400
"""Characters of a message: a path may be long, 20,000 characters that someone pasted are not shown."""


class NeusightError(Exception):
    """Base of everything a user can cause. The command line prints it as one line and exits with 1.

    Whatever the message quotes, its text is one line of at most 400 characters.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class UnitError(NeusightError):
    """A quantity that cannot be read, or has the wrong unit."""


class DeviceError(NeusightError):
    """A device that is unknown, malformed, or lacks what a step needs."""


class ModelError(NeusightError):
    """A model that is unknown, or cannot be built or run with the given inputs."""


class InapplicableError(ModelError):
    """A what-if that a question does not admit, or that another excludes."""


class UndecidedError(ModelError):
    """A model that did not run after a value had to be assumed: with values it may."""


class CoverageError(NeusightError):
    """An operator, kernel family or dtype for which there is no rule."""


class UnmeasurableError(NeusightError):
    """A kernel or a step that the device or its library cannot run: a collection records it and goes on."""


class DataError(NeusightError):
    """A data set or file that is missing, truncated or not what its schema says."""


class LoadError(NeusightError):
    """Requests, or limits of a serving engine, that no engine can serve or run with."""


class ArtifactError(NeusightError):
    """A trained tile model that does not load: protocol, features or hashes differ."""


def shown(text: object, limit: int = 60) -> str:
    """What a user gave, as a message quotes it: what is longer than ``limit`` characters ends in an ellipsis."""
    whole = str(text)
    return whole if len(whole) <= limit else f"{whole[:limit]}…"


def one_line(text: str) -> str:
    """A message as one line: no word longer than a path may be; of a long line the end stays, which has the remedy."""
    line = " ".join(word if len(word) <= _LONGEST_WORD else shown(word) for word in text.split())
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[: _LONGEST_LINE * 5 // 8]} … {line[-_LONGEST_LINE * 2 // 8 :]}"


def reason(error: BaseException) -> str:
    """Why something failed, in one line: of a message of several lines the last, which libraries end with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1].removeprefix("ValueError: ")) if lines else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean a10, a30?``, or the empty string when nothing is a likely misspelling."""
    return did_you_mean(each for each in close_names(name, known) if each != name)


def did_you_mean(names: Iterable[str]) -> str:
    """The hint at the first three names; the empty string without any."""
    first = list(names)[:3]
    return f"; did you mean {', '.join(first)}?" if first else ""


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Names of which ``name`` is likely a misspelling, the most similar first.

    Whole names must look alike, and so must the words that they begin with: ``granite-small`` is no ``gpt3-small``.
    Those that begin with the same word come alone.
    """
    from difflib import get_close_matches

    word, names = shown(name.lower()), {each.lower(): each for each in known}
    if same := [names[each] for each in names if _letters(each) == _letters(word)]:
        return same
    alike = {each: _likeness(word, each) for each in get_close_matches(word, names, n=20, cutoff=0.5)}
    family = [names[each] for each, likeness in alike.items() if likeness == 1.0]
    return family or [names[each] for each, likeness in alike.items() if likeness >= _LEAST_LIKENESS]


def _letters(name: str) -> str:
    """A name without what separates its words."""
    return "".join(filter(str.isalnum, name))


_LEAST_LIKENESS = 0.7
"""Of words of which one may be a misspelling of the other."""


def _likeness(first: str, second: str) -> float:
    """2 x equal letters / all letters of the words that two names begin with; at least 0.9 of the same letters."""
    from difflib import SequenceMatcher

    a, b = ("".join(takewhile(str.isalpha, name.lstrip("-_. 0123456789"))) or name for name in (first, second))
    ratio = SequenceMatcher(None, a, b).ratio()
    return max(ratio, 0.9) if sorted(a) == sorted(b) else ratio
