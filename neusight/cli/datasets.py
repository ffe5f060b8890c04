"""``neusight datasets``: measured data that the project describes, and the user's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import described
from neusight.cli.commands import Commands
from neusight.cli.output import Output, busy, figures, line, note
from neusight.paths import checkout_dir, data_dir
from neusight.questions import Step
from neusight.questions.field import required, text
from neusight.questions.parts import OnGpu
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass

app = Commands(help="Measured rows: list, show, verify, import, pack.")


@app.command("list")
def list_(output: opt.Formatted) -> None:
    """List measured data that this checkout describes."""
    from neusight.measured.manifest import list_descriptions

    rows = [
        {"name": dataset.name, "rows": dataset.rows, "files": len(dataset.files), "licences": list(dataset.licences),
         "title": dataset.title}
        for dataset in list_descriptions()
    ]  # fmt: skip
    Output(output.form).data(rows, rows, lambda: figures("name | >rows = rows:, | >files = files:, | ~title", rows))


@dataclass(frozen=True, kw_only=True)
class MeasuredPaths(opt.Formatted):
    """Tables of measured rows."""

    paths: tuple[str, ...] = required(
        "Tables of measured rows, or folders of them.", "", kind="texts", metavar="FILE|FOLDER", complete="files"
    )


@app.command()
def show(
    dataset: Annotated[opt.Named, described(name="A table of measured rows, or a name of `neusight datasets list`.")],
    output: opt.Formatted,
) -> None:
    """Show what a table holds: rows by kind, source and device, columns and how many rows fill them. Of a name of
    `neusight datasets list` its card: origin, licences, files, known faults.

    Examples:

    - `neusight datasets show mine.csv`

    - `neusight datasets show neusight-fp32`
    """
    from neusight.measured import read_table
    from neusight.measured.manifest import find_description
    from neusight.measured.overview import overview

    if (path := Path(dataset.name)).suffix in (".csv", ".parquet") or path.exists():
        data = overview(read_table(path))
        return Output(output.form).data(data, data["columns"], lambda: _show_table(data))
    description = find_description(dataset.name)
    card = (checkout_dir("datasets") / description.name / "card.md").read_text(encoding="utf-8")
    rows = [asdict(file) for file in description.files]
    return Output(output.form).data(asdict(description), rows, lambda: line(card.rstrip()))


def _show_table(data: Mapping[str, Any]) -> None:

    line(f"{data['file']}: {data['rows']:,} rows; measured: {', '.join(data['quantities'])}")
    for name in ("kinds", "sources", "gpus"):
        rows = [{"name": key, "rows": count} for key, count in data[name].items()]
        figures(f"~{name.removesuffix('s')} = name | >rows = rows:,", rows, "")
    figures("~column = name | part | >filled = filled:,", data["columns"], "")


@app.command()
def verify(options: MeasuredPaths) -> None:
    """Check tables of measured rows: columns, units, values, questions that cannot be asked, rows that rules doubt, and
    hashes where a manifest lists the files. Exit 1 if any is not sound; doubts inform.

    Examples:

    - `neusight datasets verify mine.csv`

    - `neusight datasets verify $NEUSIGHT_DATA`
    """
    from neusight.measured.verify import verify as check

    with busy("verifying"):
        findings = check([Path(path) for path in options.paths])
    rows = [asdict(finding) for finding in findings]
    faults = sum(finding.fault for finding in findings)

    def human() -> None:
        for finding in findings:
            count = f", {finding.rows:,} row{'s' * (finding.rows > 1)}" if finding.rows else ""
            line(f"{finding.file}: {'fault' if finding.fault else 'doubt'}: {finding.rule}{count}: {finding.example}")
        line(f"NOT SOUND: {faults} fault{'s' * (faults > 1)}" if faults else "sound")

    Output(options.form).data(rows, rows, human)
    if faults:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class PackOptions(opt.Formatted):
    """The archive."""

    archive: Path = required("Archive to write, .tar.gz.", "", kind="path", metavar="OUT.tar.gz")


@app.command()
def pack(options: PackOptions) -> None:
    """Write one archive of the measured rows below `$NEUSIGHT_DATA` whose licence allows it, with cards, hashes and
    licences. Unpacked it is a folder for `NEUSIGHT_DATA`. Files without a stated licence are left out.

    Example: `neusight datasets pack measured.tar.gz`
    """
    from neusight.measured.pack import pack as write

    packed = write(options.archive, data_dir())
    rows = [{"name": name, **asdict(file)} for name, file in packed.files]
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        entry = counts.setdefault((row["name"], row["licence"]), {**row, "files": 0, "rows": 0})
        entry |= {"files": entry["files"] + 1, "rows": entry["rows"] + (row["rows"] or 0)}
    shown = list(counts.values())
    Output(options.form).data(rows, rows, lambda: figures("name | licence | >files = files:, | >rows = rows:,", shown))
    for name, reason in dict.fromkeys((name, reason) for name, _, reason in packed.left_out):
        files = [file.path for other, file, _ in packed.left_out if other == name]
        note(f"left out of {name}, {reason}: {', '.join(files[:3])}{', …' * (len(files) > 3)}")


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
    from neusight.measured.columns import described_columns

    rows = described_columns(options.kind)
    Output(options.form).data(rows, rows, lambda: figures("name | ~unit or choices = unit | ~meaning", rows))


@dataclass(frozen=True, kw_only=True)
class ImportOptions(opt.OfSplit, opt.Formatted):
    """The files, and the folder of the data set."""

    folder: Path = required("A CSV file of measured rows, or a folder of them.", "", kind="path")
    gpu: str = like(OnGpu, "gpu", help="Device id, where the files have no GPU column.", listable=False, metavar="ID")
    dtype: str = like(
        Step, "dtype", default="", help="Precision, where the files have no dtype column.", listable=False
    )
    created: Path = required("Folder to create.", "", kind="path", metavar="OUT")


@app.command("import")
def import_(
    options: Annotated[ImportOptions, described(split="train or test, where the files have no split column.")],
) -> None:
    """Check CSV files of measured rows and write them as parquet, with columns of today's names.

    Example: `neusight datasets import mine.csv ./mine --gpu l4`
    """
    from neusight.measured.overview import import_tables

    defaults = {"gpu": options.gpu, "dtype": options.dtype, "split": options.split}
    tables = import_tables(options.folder, options.created, defaults)
    rows = [{"file": str(table.path), "rows": len(table), "measured": table.quantities} for table in tables]

    def human() -> None:
        for table in tables:
            line(f"{table.path}: {len(table):,} rows; measured: {', '.join(table.quantities)}")

    Output(options.form).data(rows, rows, human)
