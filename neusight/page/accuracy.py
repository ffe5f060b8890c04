"""Errors of estimates against measurements: figures of committed experiments, ours and others', in one form."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neusight.errors import DataError, nearest
from neusight.figures import Chart, Dot, Scale
from neusight.paths import checkout_dir, read_json

OURS = "ours"
LEFT_OUT, AMONG = "ours, left out of the fit", "ours, among the fit"
_LEAST = 0.1
"""Smallest error that is drawn [%]: smaller ones are drawn there."""
Cells = Mapping[str, Any]
"""Cells of summaries that ``accuracy.toml`` declares."""
BY: Mapping[str, Sequence[Cells]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Cells of summaries, by the quantity that groups them."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors of one predictor in one cell of an experiment's summary, in percent of measured values.

    ``row``: place of the cell, ``runs``: the share of our answers that another predictor can run too; ``left_out``:
    True if the named device was left out of all fits; ``outdated``: True if the run is older than the laws or constants
    that ship. A mean over GPUs counts these.
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
        """Id of its row in a table."""
        return f"{self.experiment}-{self.row}-{self.predictor}".replace(" ", "-")

    @property
    def run(self) -> str:
        """The experiment, marked if it is of an earlier run."""
        return f"{self.experiment}{' (an earlier run)' if self.outdated else ''}"

    @property
    def series(self) -> str:
        """Name of the series: ours by whether the named device was fitted, others by name."""
        if self.predictor != OURS:
            return self.predictor
        return LEFT_OUT if self.left_out else AMONG


def accuracies(by: str) -> tuple[Accuracy, ...]:
    """Accuracies of all committed experiments in one grouping, in their order.

    Raises:
        DataError: an unknown grouping.
    """
    if by not in BY:
        raise DataError(f"accuracy is not told by '{by}'{nearest(by, BY)}: by {', '.join(BY)}")
    from neusight.lab.results import SUMMARY

    # Ours is listed with each of the others, and is the same where they answer the same rows.
    seen: dict[tuple[Any, ...], Accuracy] = {}
    for declared in BY[by]:
        for experiment in declared["experiments"]:
            path = checkout_dir("experiments") / experiment / SUMMARY
            for row in _rows(declared, experiment, read_json(path)) if path.is_file() else ():
                seen.setdefault((row.experiment, row.name, row.predictor, row.count, row.mean, row.median), row)
    return tuple(seen.values())


def _rows(declared: Cells, experiment: str, summary: Mapping[str, Any]) -> Iterator[Accuracy]:
    """Yield rows of a summary's cells, if it has such cells; with a cell of another predictor ours as well."""
    from neusight.lab.results import is_current

    cells: Any = summary
    for key in declared["path"].split("."):
        cells = cells.get(key, ()) if isinstance(cells, Mapping) else ()
    named = (numbered for numbered in enumerate(cells) if _is_named(declared, numbered[1]))
    for place, cell in named:
        row = Accuracy(
            experiment=experiment, row=f"{declared['path']}[{place}]", name=declared["name"].format_map(cell),
            predictor=_predictor_of(cell, summary), left_out=declared.get("left_out", False),
            count=cell.get("count") or cell.get("gpus") or 0, outdated=not is_current(summary),
            **{name: cell.get(name) or None for name in ("median", "bias", "inside")}, mean=cell["mean"],
        )  # fmt: skip
        if "ours_mean" in cell:
            yield replace(row, predictor=OURS, mean=cell["ours_mean"], median=cell["ours_median"])
            row = replace(row, runs=_share_of_answered(cell, summary))
        yield row


def _predictor_of(cell: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The predictor of a cell: a contestant by its title, or its name in summaries of an earlier form."""
    name = next((str(cell[key]) for key in ("contestant", "predictor") if cell.get(key)), OURS)
    contestants = summary["declared"].get("contestants", ()) if name != OURS else ()
    return next((c["title"] for c in contestants if c["name"] == name and c.get("title")), name)


def _is_named(declared: Cells, cell: Mapping[str, Any]) -> bool:
    """True if a cell has an error, the declared words, and all words of its name."""
    words = {key: value for key, value in cell.items() if isinstance(value, str) and value}
    try:
        declared["name"].format_map(words)
    except KeyError:
        return False
    return "mean" in cell and all(str(cell.get(key, "")) == word for key, word in declared.get("where", {}).items())


def _share_of_answered(cell: Mapping[str, Any], summary: Mapping[str, Any]) -> float:
    """Share of our answers that another predictor can run too."""
    cells = (*summary["groups"]["source_quantities"], *summary["groups"].get("doubted", ()))
    same = [c for c in cells if (c["source"], c["quantity"]) == (cell["source"], cell["quantity"])]
    return min(1.0, cell["count"] / same[-1]["count"]) if same else 1.0


def chart(by: str, rows: Sequence[Accuracy]) -> Chart:
    """Mean errors by name, ours and others', the smallest of ours first."""
    mine = {row.name: row.mean for row in reversed(rows) if row.predictor == OURS}
    names = sorted(dict.fromkeys(row.name for row in rows), key=lambda name: mine.get(name, float("inf")))
    dots = (
        Dot(x=max(row.mean, _LEAST), y=names.index(row.name), series=row.series, note=describe(row), link=row.id)
        for row in rows
    )
    return Chart(
        name="accuracy", title=f"Mean error by {by}", x=Scale(name="mean error", unit="%", log=True),
        lanes=tuple(names), dots=tuple(dots), rows=tuple(vars(row) for row in rows), series=(LEFT_OUT, AMONG),
    )  # fmt: skip


def describe(row: Accuracy) -> str:
    """One row in words."""
    inside = "" if row.inside is None else f", {row.inside:.0f} % inside the interval"
    bias = "" if row.bias is None else f", bias {row.bias:+.1f} %"
    return f"{row.name}: {row.predictor}\n{row.mean:.1f} % of {row.count:,}{bias}{inside}\n{row.run}, {row.row}"


_COLUMNS = {
    "": "{name}", "predictor": "{series}", "mean error": "{mean:.1f} %", "median": "{median:.1f} %",
    "bias": "{bias:+.1f} %", "inside": "{inside:.0f} %", "rows": "{count:,}", "can run": "{runs:.0f} %",
    "experiment": "{run}", "row": "{row}",
}  # fmt: skip
HEAD = tuple(_COLUMNS)


def cells_of(row: Accuracy) -> tuple[str, ...]:
    """Cells of a table's row with ``HEAD``; a cell is empty where there is no figure."""
    runs = None if row.runs is None else 100 * row.runs
    figures = {**vars(row), "series": row.series, "run": row.run, "runs": runs}
    return tuple(_cell(form, figures) for form in _COLUMNS.values())


def _cell(form: str, figures: Mapping[str, Any]) -> str:
    try:
        return form.format_map(figures)
    except TypeError:
        return ""
