"""``neusight datasets``: measured data that the project knows, and the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import described
from neusight.cli.commands import Commands
from neusight.questions import Step
from neusight.questions.field import required, text
from neusight.questions.parts import OnGpu
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal

if TYPE_CHECKING:
    import pandas as pd

    from neusight.datasets import VerifyReport

app = Commands(help="Measured data: list, verify, import, show.")


@app.command("list")
def list_(output: opt.Formatted) -> None:
    """List the data sets that this checkout describes."""
    from neusight.cli.output import Output, figures
    from neusight.datasets import list_datasets

    manifests = list_datasets()
    rows = [
        {"name": m.name, "rows": m.rows, "files": len(m.files), "gpus": list(m.gpus), "licence": m.about.licence}
        for m in manifests
    ]
    shown = [{"name": m.name, "rows": m.rows, "gpus": len(m.gpus), "title": m.about.title} for m in manifests]
    columns = "name | >rows = rows:, | >GPUs = gpus | ~what it is = title"
    Output(output.form).data(rows, rows, lambda: figures(columns, shown))


@app.command()
def show(
    dataset: Annotated[opt.Named, described(name="A name of `neusight datasets list`.")], output: opt.Formatted
) -> None:
    """Show the card of a data set: origin, licence, files, known faults."""
    from neusight.cli.output import Output, line
    from neusight.datasets import find_dataset
    from neusight.datasets import show as card

    manifest = find_dataset(dataset.name)
    files = [{key: value for key, value in asdict(f).items() if not isinstance(value, dict)} for f in manifest.files]
    Output(output.form).data(asdict(manifest), files, lambda: line(card(dataset.name).rstrip()))


@app.command()
def verify(
    dataset: Annotated[opt.Named, described(name="A name of `neusight datasets list`, or a folder or parquet file.")],
    output: opt.Formatted,
) -> None:
    """Check a data set: hashes, units, physics, noise, and what cleaning removes and why. Exit 1 if it is not sound.

    Examples:

    - `NEUSIGHT_DATA=/data neusight datasets verify neusight-fp32`

    - `neusight datasets verify ./measured`
    """
    from neusight.cli.output import Output, busy, note
    from neusight.datasets import verify as check

    with busy(f"verifying {dataset.name}"):
        report = check(dataset.name)
    rows = [{"path": path, "state": state} for path, state in report.hashes.items()]
    Output(output.form).data(report.to_dict(), rows, lambda: _show(report, rows))
    for problem in report.problems:
        note(f"error: {problem}")
    if not report.ok:
        raise typer.Exit(1)


def _show(report: VerifyReport, files: Sequence[Mapping[str, Any]]) -> None:
    from neusight.cli.output import figures, line

    line(f"{report.name}: {'sound' if report.ok else 'NOT SOUND'}")
    figures("file = path | sha256 = state", files)
    for title, frame in report.tables.items():
        line()
        line(title)
        _frame(frame.reset_index() if frame.index.name or frame.index.nlevels > 1 else frame)


def _frame(frame: pd.DataFrame) -> None:
    """Long texts wrap; where the table is wide, so do the names of its columns, and a GPU that all rows have is left
    out.
    """
    from neusight.cli.output import table

    rows = [[_text(value) for value in row] for row in frame.itertuples(index=False)]
    names = [str(name) for name in frame]
    widths = [max(len(row[place]) for row in [names, *rows]) for place in range(len(names))]
    wide = sum(widths) + 2 * len(widths) > 80
    if wide and "gpu" in frame and frame["gpu"].nunique() == 1 < len(frame):
        return _frame(frame.drop(columns="gpu"))
    titles = [_BREAKS.sub("\n", name) if wide else name for name in names]
    kinds = [frame[name].dtype.kind for name in frame]
    marks = [">" if kind in "iuf" else "~" * (width > 24) for kind, width in zip(kinds, widths, strict=True)]
    table([mark + title for mark, title in zip(marks, titles, strict=True)], rows)


_BREAKS = re.compile(r"(?<=[-_])|(?<=float)|(?<=int)")
"""Where the name of a column may break: a100-pcie, p95_percent, float16."""


def _text(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return decimal(value, 4) if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(opt.Formatted):
    """Rows of one kind."""

    kind: str = text("Rows of one kind: predict, training, serving, kernel or gains. Default: all.", "", argument=True)


@app.command()
def columns(options: ColumnOptions) -> None:
    """Show the columns that a table of measured rows may have, for `neusight evaluate`: words of questions as options
    have them, measured quantities with their unit, and where a row comes from.

    Example: `neusight datasets columns serving`
    """
    from neusight.cli.output import Output, figures
    from neusight.measured.columns import described_columns

    rows = described_columns(options.kind)
    Output(options.form).data(rows, rows, lambda: figures("name | ~unit or choices = unit | ~meaning", rows))


@dataclass(frozen=True, kw_only=True)
class ImportOptions(opt.OfSplit, opt.Formatted):
    """The files, and the folder of the data set."""

    folder: Path = required("CSV measurements: the folder of the paper's artifact, or your own.", "", kind="path")
    gpu: str = like(OnGpu, "gpu", help="Device id, where the files have no GPU column.", listable=False, metavar="ID")
    dtype: str = like(
        Step, "dtype", default="float32", help="Precision, where the files have no dtype column.", listable=False
    )
    created: Path = required("Folder to create.", "", kind="path", metavar="OUT")


@app.command("import")
def import_(
    options: Annotated[ImportOptions, described(split="train or test, where the paths of files do not tell it.")],
) -> None:
    """Bring CSV measurements into parquet with a manifest.

    Example: `neusight datasets import ./NeuSight/data ./artifact`
    """
    from neusight.cli.output import Output, line
    from neusight.datasets import import_csv

    out = options.created
    manifest = import_csv(options.folder, out, options.gpu or None, options.split or None, options.dtype)
    rows = [{"path": f.path, "rows": f.rows, "sha256": f.sha256} for f in manifest.files]

    def human() -> None:
        line(f"{manifest.rows:,} rows of {len(manifest.gpus)} GPUs in {out}")
        for record in manifest.files:
            line(f"  {record.path}: {record.rows:,} rows")

    Output(options.form).data(asdict(manifest), rows, human)
