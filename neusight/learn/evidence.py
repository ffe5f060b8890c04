"""What all fits of constants have in common: rows that were read, a solve, and a judgement where devices are left out.

``ConstantsFit`` declares one of them. A fit reads ``Evidence`` once; whatever is left out of it later, the device of a
fold or boards that a person names, is left out by ``Evidence.folds`` or ``without``, and solved by the same function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from neusight.errors import DataError, NeusightError
from neusight.laws.fitted import FittedConstants
from neusight.learn import Report as Report
from neusight.measured import MeasuredTable
from neusight.measured.compare import question_of
from neusight.measured.folder import hashes, sources_of
from neusight.quick_dataclasses import dataclass as quick_dataclass


class OfDevice(Protocol):
    """A row, or several of one device."""

    @property
    def gpu(self) -> str:
        """Id of the device."""


_NONE: Mapping[str, int] = MappingProxyType({})
REPORTED = 20
"""Items from one report of progress to the next."""
R = TypeVar("R", bound=OfDevice)
T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What to fit to: measured rows in the folder ``data`` without devices ``hold_out``; ``each`` rows, at most, of
    what is alike, drawn by ``seed``. Physics takes ``steps`` at most.

    ``again``: in one round, from constants that ship.
    """

    data: Path
    hold_out: tuple[str, ...] = ()
    each: int = 200
    steps: int = 15
    seed: int = 0
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence(Generic[R]):
    """Rows that constants learn from, the files that they come from, and how many others tell nothing, by reason.

    ``held`` are rows that were left out of it.
    """

    rows: Sequence[R]
    files: Sequence[Path]
    skipped: Counter[str] = field(default_factory=Counter)
    held: Sequence[R] = ()

    @classmethod
    def of(
        cls, tables: Iterable[MeasuredTable], ask: Callable[[Any, Any], R], skipped: Mapping[str, int] = _NONE,
        report: Report | None = None,
    ) -> Evidence[R]:  # fmt: skip
        """Answers to rows of tables.

        Args:
            tables: the rows.
            ask: gets a row and its question.
            skipped: rows that were left out before, by reason; rows that are no question or have no answer are added.
            report: called with progress.
        """
        tables, counts = list(tables), Counter(skipped)
        rows = [(row, table) for table in tables for row in table.frame.to_dict("records")]
        answers = ask_each(rows, lambda each: ask(each[0], question_of(*each)), counts, report, "rows")
        return cls(rows=list(answers), files=[table.path for table in tables], skipped=counts)

    @property
    def gpus(self) -> list[str]:
        """Devices that have rows."""
        return sorted({row.gpu for row in self.rows} - {""})

    def about(self) -> dict[str, Any]:
        """Where constants come from: fields of ``FittedConstants``."""
        data = hashes(self.files)
        return {"gpus": self.gpus, "data": data, "skipped": dict(self.skipped), "rows": len(self.rows)}

    def without(self, names: Collection[str]) -> Evidence[R]:
        """Rows of all other devices and sources."""
        return self._split(lambda row: row.gpu in names or getattr(row, "source", "") in names)

    def folds(self, trait: str, report: Report | None = None) -> Iterator[tuple[str, Evidence[R]]]:
        """Each value of an attribute of rows, with the rows of all others."""
        value_of = attrgetter(trait)
        values = sorted({value_of(row) for row in self.rows})
        for done, value in enumerate(values):
            if report:
                report(f"constants without {value}", done, len(values), float("nan"))
            yield value, self._split(lambda row, value=value: value_of(row) == value)  # type: ignore[misc]

    def _split(self, held: Callable[[R], bool]) -> Evidence[R]:
        return replace(
            self, rows=[row for row in self.rows if not held(row)], held=[row for row in self.rows if held(row)]
        )


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items that have the same key, in the order of their first ones."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def ask_each(
    items: Collection[T], ask: Callable[[T], K], left_out: Counter[str], report: Report | None = None, task: str = ""
) -> Iterator[K]:
    """Yield what is asked of each item; count those without an answer in ``left_out``, by reason."""
    for done, item in enumerate(items):
        if report and done % REPORTED == 0:
            report(task, done, len(items), float("nan"))
        try:
            answer = ask(item)
        except NeusightError as error:
            left_out[str(error)] += 1
        else:
            yield answer


def source_of(table: Path) -> str:
    """Who measured the kernels of a table."""
    return ", ".join(sorted(sources_of([table])))


def sample(rows: int, most: int, seed: int | np.random.Generator) -> np.ndarray:
    """Positions of ``most`` of so many rows at most, drawn by chance, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])


def sample_groups(groups: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Positions of ``most`` rows at most of each group, by its number in ``groups``, drawn by chance."""
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    return np.concatenate([rows[sample(len(rows), most, generator)] for rows in members])


def group_weights(
    groups: np.ndarray, worth: float, within: np.ndarray | float = 1.0, most: float = np.inf
) -> np.ndarray:
    """Weights of rows by which each group counts as much, however many rows it has: what these have in common is one
    observation and not thousands.

    Args:
        groups: number of each row's group, shape (n,).
        worth: rows that a group counts as.
        within: weights of rows within their group.
        most: weight of a row at most: of a group with few rows, that counts as less.
    """
    share = np.broadcast_to(within, groups.shape)
    return np.asarray(np.minimum(worth * share / np.bincount(groups, share)[groups], most))


@quick_dataclass(frozen=True, kw_only=True)
class FoundConstants(FittedConstants):
    """Constants that stand in code, as a fit finds them again."""

    deviations: dict[str, float] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


Errors = Iterable[tuple[Mapping[str, Any], Any]]
"""Words, and logarithms of predicted over measured values of the rows that they are of."""


def together(errors: Errors) -> dict[tuple[tuple[str, Any], ...], np.ndarray]:
    """Errors of all rows that share their words."""
    groups = grouped(errors, lambda error: tuple(error[0].items()))
    return {words: np.concatenate([np.atleast_1d(off) for _, off in parts]) for words, parts in groups.items()}


def error_rows(fit: str, errors: Errors) -> list[dict[str, Any]]:
    """Errors in percent, a row for all that share their words: ``rows``, ``mean``, ``median`` and ``bias``."""
    rows = []
    for words, log_errors in together(errors).items():
        off = 100.0 * np.expm1(log_errors)
        figures = {"mean": np.abs(off).mean(), "median": np.median(np.abs(off)), "bias": off.mean()}
        rounded = {name: round(float(value), 2) for name, value in figures.items()}
        rows.append({"fit": fit, **dict(words), "rows": len(off), **rounded})
    return rows


def significant(values: Mapping[str, float], digits: int = 4) -> dict[str, float]:
    """Values with so many significant digits."""
    return {name: float(f"{value:.{digits}g}") for name, value in values.items()}


class SolvedFold(NamedTuple):
    """Rows ``held`` out whose ``trait`` has a value, with the constants that are fitted to all others."""

    trait: str
    value: str
    held: Sequence[Any]
    fitted: Any


@dataclass(frozen=True, kw_only=True)
class ConstantsFit:
    """A fit of constants.

    Attributes:
        read: evidence in a folder of measured rows.
        rows: what it has rows of, for the error where there are none.
        solve: constants of evidence.
        errors: of rows by constants; listed of those that constants are fitted to and of those that are left out.
        traits: attributes of rows, each of whose values is left out in turn.
        finish: constants with figures that rows left out decide.
        kept: such figures which stay as they ship where boards are left out: finding them takes long.
        unfitted: constants without evidence; default an error.
    """

    read: Callable[[FitOptions, Report | None], Evidence[Any]]
    solve: Callable[[Evidence[Any], FitOptions, Report | None], Any]
    errors: Callable[[Sequence[Any], Any], Errors] | None = None
    traits: Sequence[str] = ()
    finish: Callable[[Any, Sequence[SolvedFold]], Any] = lambda fitted, folds: fitted
    kept: tuple[str, ...] = ()
    unfitted: Any = None
    rows: str = "rows to learn from"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """All that decide what a fit finds."""
        return tuple(filter(None, (self.read, self.solve, self.errors, self.finish)))

    def fitted(self, options: FitOptions, report: Report | None = None) -> Any:
        """Constants that are fitted to a folder of measured rows.

        Raises:
            DataError: no rows to learn from there.
        """
        evidence = self.read(options, report)
        if not evidence.rows:
            raise DataError(f"{options.data} has no {self.rows}: give the folder of measured rows")
        return self.judged(evidence, self.solve(evidence, options, report), options, report)

    def without(
        self, evidence: Evidence[Any], names: Collection[str], options: FitOptions, shipped: Mapping[str, Any]
    ) -> Any:
        """Constants that are fitted again to the rows of other devices and sources; ``shipped`` as its file has it.

        Raises:
            DataError: there are no others.
        """
        rest = evidence.without(names)
        if not rest.rows and self.unfitted is None:
            raise DataError(f"{options.data} has rows of {', '.join(sorted(names))} alone: leave fewer out")
        fitted = self._solved(rest, options)
        if self.kept:
            return replace(fitted, **{name: shipped[name] for name in self.kept})
        return self.judged(rest, fitted, options)

    def _solved(self, evidence: Evidence[Any], options: FitOptions) -> Any:
        return self.solve(evidence, options, None) if evidence.rows else self.unfitted

    def judged(self, evidence: Evidence[Any], fitted: Any, options: FitOptions, report: Report | None = None) -> Any:
        """With errors where each value of the traits is left out, and what those decide."""
        rests = [(trait, *fold) for trait in self.traits for fold in evidence.folds(trait, report)]
        solved = [SolvedFold(trait, value, rest.held, self._solved(rest, options)) for trait, value, rest in rests]
        folds = [fold for fold in solved if fold.fitted is not None]
        if self.errors:
            found = error_rows("seen", self.errors(evidence.rows, fitted))
            for trait, several in grouped(folds, lambda fold: fold.trait).items():
                name = f"left out by {trait}" if len(self.traits) > 1 else "left out"
                found += error_rows(name, (each for fold in several for each in self.errors(fold.held, fold.fitted)))
            fitted = replace(fitted, errors=found)
        return self.finish(fitted, folds)
