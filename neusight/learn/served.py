"""Measured rows of served models as deployments under their loads, for constants of whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from neusight.learn.evidence import ask_each
from neusight.measured import MeasuredTable
from neusight.measured.compare import question_of
from neusight.measured.folder import rows_to_fit
from neusight.serving.deployment import Deployment, share_prices
from neusight.serving.load import Load, longest_of
from neusight.serving.run import ServingRun
from neusight.serving.simulate import simulate

if TYPE_CHECKING:
    from neusight.api import Predictor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ServedRow:
    """A measured row, its load, and what it deploys."""

    row: Mapping[Any, Any]
    load: Load
    deployment: Deployment

    @property
    def shares(self) -> float:
        """How many times the load of one group the whole load is."""
        return self.deployment.shares(self.load)

    def measured(self, *names: str) -> float | None:
        """The first of some columns that the row measured."""
        return next((self.row[name] for name in names if self.row.get(name, 0.0) > 0.0), None)

    def simulated(self) -> ServingRun:
        """The run of one group's share of the load.

        Raises:
            LoadError: a load that cannot run.
        """
        served = self.deployment
        return simulate(served.share_of(self.load), served.limits, served.tables, served.server.request_s)


@dataclass(frozen=True, kw_only=True)
class ServedRows:
    """Rows that constants learn from, those whose passes take the same times together; ``files`` that they come from,
    and why others are left out, each reason with their number.
    """

    groups: list[list[ServedRow]]
    files: list[Path]
    left_out: Counter[str] = field(default_factory=Counter)

    def answers(
        self,
        ask: Callable[[ServedRow], T],
        left_out: Counter[str],
        prepare: Callable[[Deployment], Deployment] = lambda deployment: deployment,
    ) -> Iterator[T]:
        """What is asked of each row; those without an answer are counted in ``left_out``, by reason."""
        for group in self.groups:
            deployments = share_prices([prepare(one.deployment) for one in group])
            rows = [replace(one, deployment=each) for one, each in zip(group, deployments, strict=True)]
            yield from ask_each(rows, ask, left_out)


def read_served(data: Path, predictor: Predictor, quantity: str = "") -> ServedRows:
    """Served models in a folder of measured rows that constants learn from, those that measured a quantity.

    Raises:
        DataError: none there.
    """
    groups: dict[Any, list[ServedRow]] = {}
    left_out: Counter[str] = Counter()
    tables = rows_to_fit(data, "serving", left_out, quantity)

    def served(row: Mapping[Any, Any], question: Any) -> tuple[Any, ServedRow]:
        deployment = predictor.deployment(question.model, question.device, longest_of(question.load), question.setup)
        _ = deployment.limits
        key = question.model, row["gpu"], question.setup.priced
        return key, ServedRow(row=row, load=question.load, deployment=deployment)

    for key, row in ask_each([*resolved_rows(tables, left_out)], lambda each: served(*each), left_out):
        groups.setdefault(key, []).append(row)
    return ServedRows(groups=list(groups.values()), files=[table.path for table in tables], left_out=left_out)


def resolved_rows(tables: Iterable[MeasuredTable], left_out: Counter[str]) -> Iterator[tuple[Mapping[Any, Any], Any]]:
    """Rows of tables with what they ask; those that are no question are counted in ``left_out``, by reason."""

    def resolved(row: Mapping[Any, Any], table: MeasuredTable) -> tuple[Mapping[Any, Any], Any]:
        question: Any = question_of(row, table)
        return row, question.resolve()

    for table in tables:
        yield from ask_each(table.frame.to_dict("records"), partial(resolved, table=table), left_out)
