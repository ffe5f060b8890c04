"""How far estimates are from what was measured: the figures of committed experiments, ours and others', in one form."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from neusight.errors import DataError, nearest
from neusight.figures import Chart, Dot, Scale
from neusight.paths import checkout_dir, read_json

OURS = "ours"
LEFT_OUT, AMONG = "ours, left out of the fit", "ours, among the fit"


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Of one predictor in one cell of an experiment's summary, errors in percent of what was measured.

    ``row``: where the cell stands, ``runs``: the share of what ours answers that another predictor can run;
    ``left_out``: whether what is named was kept out of everything that is fitted; ``outdated``: whether it is of a run
    before laws or constants that ship.
    """

    experiment: str
    row: str
    name: str
    predictor: str
    left_out: bool
    count: int
    mean: float
    median: float | None = None
    bias: float | None = None
    inside: float | None = None
    runs: float | None = None
    outdated: bool = False

    @property
    def id(self) -> str:
        """Of its row in a table."""
        return f"{self.experiment}-{self.row}-{self.predictor}".replace(" ", "-")

    @property
    def run(self) -> str:
        """The experiment, and whether it is to be run again."""
        return f"{self.experiment}{' (an earlier run)' if self.outdated else ''}"

    @property
    def series(self) -> str:
        """Ours by whether it knew what is named, others by name."""
        if self.predictor != OURS:
            return self.predictor
        return LEFT_OUT if self.left_out else AMONG


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of a summary, as ``accuracy.toml`` declares them. A mean over GPUs counts these."""

    experiment: str
    path: str
    name: str
    left_out: bool | str = False
    where: Mapping[str, str] = field(default_factory=dict)
    peers: bool = False

    def read(self, summary: Mapping[str, Any]) -> Iterator[Accuracy]:
        """Those of a summary, none where it has no such cells."""
        cells: Any = summary
        held_out = {gpu for fold in summary.get("declared", {}).get("folds", ()) for gpu in fold["held_out"]}
        for key in self.path.split("."):
            cells = cells.get(key, ()) if isinstance(cells, Mapping) else ()
        of = self._of_peers(summary) if self.peers else partial(self._of, held_out)
        for place, cell in enumerate(cells):
            if "mean" in cell and all(str(cell.get(key, "")) == word for key, word in self.where.items()):
                yield from of(f"{self.path}[{place}]", cell)

    def _of(self, held_out: Collection[str], row: str, cell: Mapping[str, Any]) -> Iterator[Accuracy]:
        words = {key: value for key, value in cell.items() if isinstance(value, str) and value}
        try:
            name = self.name.format_map(words)
        except KeyError:  # Of what the source does not tell.
            return
        figures: dict[str, Any] = {name: cell.get(name) for name in ("median", "bias", "inside")}
        yield Accuracy(
            experiment=self.experiment, row=row, name=name,
            left_out=_unseen(cell, held_out) if isinstance(self.left_out, str) else self.left_out,
            predictor=str(cell.get("predictor", OURS)), mean=cell["mean"], **figures,
            count=cell.get("count") or cell.get("gpus") or 0,
        )  # fmt: skip

    def _of_peers(self, summary: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], Iterator[Accuracy]]:
        """Of another predictor, and ours where that one answers."""
        answered = {(one.get("source"), one.get("quantity")): one["count"] for one in summary["means"]}

        def read(row: str, cell: Mapping[str, Any]) -> Iterator[Accuracy]:
            name, count = f"{cell['source']}, {cell['quantity']}", cell["count"]
            same: dict[str, Any] = {"experiment": self.experiment, "row": row, "left_out": False, "name": name}
            yield Accuracy(**same, predictor=OURS, count=count, mean=cell["ours_mean"], median=cell["ours_median"])
            runs = min(1.0, count / answered.get((cell["source"], cell["quantity"]), count))
            figures: dict[str, Any] = {"mean": cell["mean"], "median": cell["median"], "runs": runs}
            yield Accuracy(**same, predictor=cell["peer"], count=count, **figures)

        return read


def _unseen(cell: Mapping[str, Any], held_out: Collection[str]) -> bool:
    return not cell["fitted"] if "fitted" in cell else cell["gpu"] in held_out


_LEAST = 0.1
"""Percent: smaller errors are drawn there."""


def _declared_cells() -> dict[str, tuple[Cells, ...]]:
    """Cells by what they compare accuracy by."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        by: tuple(Cells(experiment=name, **cell) for cell in cells for name in cell.pop("experiments"))
        for by, cells in table.items()
    }


BY = _declared_cells()
"""Cells of summaries by what accuracy is compared by."""


def accuracies(by: str) -> tuple[Accuracy, ...]:
    """All that committed experiments say by one thing, in their order.

    Raises:
        DataError: accuracy is not told by that.
    """
    if by not in BY:
        raise DataError(f"accuracy is not told by '{by}'{nearest(by, BY)}: by {', '.join(BY)}")
    from neusight.experiments.results import SUMMARY

    found: list[Accuracy] = []
    for cells in BY[by]:
        path = checkout_dir("experiments") / cells.experiment / SUMMARY
        if path.is_file():
            summary = read_json(path)
            outdated = bool(summary.get("outdated"))
            found += (replace(row, outdated=outdated) for row in cells.read(summary))
    # Ours stands beside each of the others, and is the same where they answer the same.
    seen: dict[tuple[Any, ...], Accuracy] = {}
    for row in found:
        seen.setdefault((row.experiment, row.name, row.predictor, row.count, row.mean, row.median), row)
    return tuple(seen.values())


def chart(by: str, rows: Sequence[Accuracy]) -> Chart:
    """Mean errors by name, ours and others', the smallest of ours first."""
    mine = {row.name: row.mean for row in reversed(rows) if row.predictor == OURS}
    names = sorted(dict.fromkeys(row.name for row in rows), key=lambda name: mine.get(name, float("inf")))
    dots = (
        Dot(
            x=max(row.mean, _LEAST), y=names.index(row.name), series=row.series, note=described(row), link=row.id,
        )
        for row in rows
    )  # fmt: skip
    return Chart(
        name="accuracy", title=f"Mean error by {by}", x=Scale(name="mean error", unit="%", log=True),
        lanes=tuple(names), dots=tuple(dots), rows=tuple(vars(row) for row in rows), series=(LEFT_OUT, AMONG),
    )  # fmt: skip


def described(row: Accuracy) -> str:
    """One row in words."""
    inside = "" if row.inside is None else f", {row.inside:.0f} % inside the interval"
    bias = "" if row.bias is None else f", bias {row.bias:+.1f} %"
    return f"{row.name}: {row.predictor}\n{row.mean:.1f} % of {row.count:,}{bias}{inside}\n{row.run}, {row.row}"


HEAD = ("", "predictor", "mean error", "median", "bias", "inside", "rows", "can run", "experiment", "row")


def cells_of(row: Accuracy) -> tuple[str, ...]:
    """Of a table with ``HEAD``."""

    def percent(value: float | None, form: str = ".1f") -> str:
        return "" if value is None else f"{value:{form}} %"

    runs = percent(None if row.runs is None else 100 * row.runs, ".0f")
    figures = (percent(row.mean), percent(row.median), percent(row.bias, "+.1f"), percent(row.inside, ".0f"))
    return (row.name, row.series, *figures, f"{row.count:,}", runs, row.run, row.row)
