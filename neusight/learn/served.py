"""Measured rows of served models as deployments under their loads, for constants of whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neusight.api import Predictor
from neusight.learn.evidence import Evidence, Report, ask_each, grouped
from neusight.measured.folder import rows_to_fit
from neusight.serving.deployment import Deployment, share_prices
from neusight.serving.load import Load, longest_of
from neusight.serving.run import ServingRun
from neusight.serving.simulate import simulate


@dataclass(frozen=True, kw_only=True)
class ServedRow:
    """A measured row, its load, and what it deploys; passes of rows of the same ``prices`` take the same times."""

    row: Mapping[Any, Any]
    load: Load
    deployment: Deployment
    prices: Any = None

    @property
    def gpu(self) -> str:
        """Id of the device."""
        return str(self.row["gpu"])

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


def read_served(data: Path, predictor: Predictor, quantity: str = "") -> Evidence[ServedRow]:
    """Served models in a folder of measured rows that constants learn from, those that measured a quantity.

    Raises:
        DataError: none there.
    """

    def served(row: Mapping[Any, Any], question: Any) -> ServedRow:
        asked = question.resolve()
        deployment = predictor.deployment(asked.model, asked.device, longest_of(asked.load), asked.setup)
        _ = deployment.limits
        prices = asked.model, row["gpu"], asked.setup.priced
        return ServedRow(row=row, load=asked.load, deployment=deployment, prices=prices)

    skipped: Counter[str] = Counter()
    return Evidence.of(rows_to_fit(data, "serving", skipped, quantity), served, skipped)


def answers(
    evidence: Evidence[ServedRow],
    ask: Callable[[ServedRow], Any],
    prepare: Callable[[Deployment], Deployment] = lambda deployment: deployment,
    report: Report | None = None,
) -> Evidence[Any]:
    """What is asked of each row with its deployment prepared; rows without an answer are counted."""
    found, skipped = list[Any](), Counter(evidence.skipped)
    for group in grouped(evidence.rows, lambda row: row.prices).values():
        deployments = share_prices([prepare(one.deployment) for one in group])
        rows = [replace(one, deployment=each) for one, each in zip(group, deployments, strict=True)]
        found += ask_each(rows, ask, skipped, report, f"{len(found):,} rows answered")
    return Evidence(rows=found, files=evidence.files, skipped=skipped)
