"""Tables of docs/accuracy.md and README, from summaries of experiments; ``experiments/accuracy.toml`` says which."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.errors import DataError
from neusight.lab.declare import declared_in
from neusight.lab.page import listing, table
from neusight.lab.report import columns_of
from neusight.lab.results import Results
from neusight.lab.targets import value_of
from neusight.paths import checkout_dir

FILE = "accuracy.toml"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"


def accuracy_part(results: Results) -> str:
    """An experiment's part of docs/accuracy.md: those of its groups that show any figure there; '' without one."""
    declared = declared_in(results)
    tables = []
    for group in declared.groups:
        if group.accuracy and (rows := results["groups"].get(group.name)):
            names = len(group.by) - len(group.average)
            tables.append(listing(rows, columns_of(rows, group, group.accuracy), words=names))
    details = f"Details: `experiments/{results['experiment']}/report.md`."
    return "\n\n".join([f"**{declared.title}.** {declared.question}\n{details}", *tables]) if tables else ""


def headline_block(summaries: Mapping[str, Results], root: Path | None = None) -> str:
    """README's table: a row for each of the file's, errors in percent.

    Args:
        summaries: by the experiment's id.
        root: folder of experiments; default that of the checkout.

    Raises:
        DataError: a summary lacks a declared row.
    """
    declared = tomllib.loads(((root or checkout_dir("experiments")) / FILE).read_text(encoding="utf-8"))
    rows = [_headline(each, summaries.get(each["experiment"], {})) for each in declared["rows"]]
    return table(("what was predicted", "numbers", "median error", "mean", "in the 90 % interval"), rows)


def _headline(declared: Mapping[str, Any], summary: Results) -> Sequence[str]:
    rows = value_of(summary, declared["table"]) or ()
    row = next((each for each in rows if declared["where"].items() <= each.items()), None)
    if row is None:
        raise DataError(f"{declared['experiment']} has no row {declared['where']} in {declared['table']}: run it again")
    errors = (f"{row[name]:.1f}" for name in ("median", "mean"))
    return declared["title"], f"{row['count']:,}", *errors, f"{row['inside']:.0f}"


def update_accuracy(path: Path, block: str) -> bool:
    """Put a block between the marks of a file; whether the file changed.

    Raises:
        DataError: a mark is missing.
    """
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path} lacks {BEGIN} … {END}: add both lines where the accuracy table belongs")
    after = f"{head}{BEGIN}\n{block}\n{END}{tail}"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before
