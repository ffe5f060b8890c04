"""``neusight evaluate``: predicted against measured; ``neusight bench``: speed of the program itself on this
machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from neusight.cli import options as opt
from neusight.cli.output import Output, busy, figures, line, note
from neusight.questions.field import required, switch, text, texts, whole
from neusight.questions.parts import Assurance, OnGpu, Seeded
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal

_MANY = 30
"""Rows of a group from which on its median decides which of two predictors is ahead."""
_REASONS = 8
"""Number of reasons of skipped rows that are listed."""


@dataclass(frozen=True, kw_only=True)
class MeasuredFiles(opt.Models, opt.Workers, opt.Formatted):
    """Tables of measurements, the predictor, and the parts of the result to show."""

    files: tuple[str, ...] = required(
        "Tables of measured rows, .parquet or .csv; `neusight datasets columns` says what they have.", "",
        kind="texts", metavar="FILE", complete="files",
    )  # fmt: skip
    by: tuple[str, ...] = text(
        "Columns that group rows: any of the tables, file, kind, quantity.", opt.OUTPUT, ("file", "quantity"),
        listable=True, metavar="COLUMN[,COLUMN…]",
    )  # fmt: skip
    worst: int = whole("Rows that err most to show, with their questions.", opt.OUTPUT, 0, low=0, high=1000)
    against: Path | None = opt.path(
        "Predictions of other predictors, compared over the rows that both predict: columns source, table, row, "
        "quantity, predicted, and peer where there are several.",
        opt.OUTPUT,
    )
    anchored: tuple[str, ...] = text(
        "Take rows that share these columns, such as source or source,gpu, in turn as the only ones that are known of "
        "the others (`--given`): errors without them and with them; 12 rows of a group, drawn by --seed.",
        opt.OUTPUT, (), listable=True, metavar="COLUMN[,COLUMN…]",
    )  # fmt: skip
    pairs: tuple[str, ...] = text(
        "Compare ratios of rows that differ in one of these columns alone, such as tp, launch or dtype, as well.",
        opt.OUTPUT, (), listable=True, metavar="COLUMN[,COLUMN…]",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MeasuredRows(opt.Limited, opt.OfSplit, OnGpu, Seeded):
    """Rows that are compared."""

    HELP: ClassVar[Mapping[str, str]] = {
        "gpu": "Rows of these devices. Default: all.",
        "limit": "Most rows of a file, drawn at random. Default: all.",
    }

    source: str = text("Rows of this source. Default: all.", opt.CHOICE, metavar="NAME")
    leave_out: str = text(
        "Predict each row as if its device, and all boards of its die, generation or vendor, had never been measured, "
        "or its source no served model: constants (without a source those of engines) are fitted again without them "
        "($NEUSIGHT_DATA), and what tile models learned there does not count.",
        opt.CHOICE, choices=("die", "device", "generation", "vendor", "source"),
    )  # fmt: skip
    slo: tuple[str, ...] = texts(
        "Compare whether a service level held, such as ttft=2s,tpot=50ms, where a row measured all its times, with the "
        "probability that it does. May be repeated.",
        opt.CHOICE, metavar="TIME=LIMIT,…",
    )  # fmt: skip
    suspect: bool = switch("Count rows that their source or a check doubts as well.", opt.CHOICE)

    def check(self) -> None:
        """Raises:
        FieldError: what is no service level.
        """
        super().check()
        for level in self.slo:
            Assurance(slo=level)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(opt.WithTileModels, opt.Formatted):
    """The timed program, and the number of repeats."""

    repeats: int = whole("Runs of each; the median counts.", opt.CHOICE, 5, high=1000)


def evaluate(options: MeasuredFiles, rows: MeasuredRows) -> None:
    """Compare predictions with measured rows of any kind: kernels, steps, training, serving, memory, power, gains.

    The columns of a file say what it measured. Errors are in percent: below zero, predictions are too low. inside:
    rows within their 90 % interval. crps: continuous ranked probability score of a log-normal with that interval, in
    percent: 100 σ (z (2 Φ(z) − 1) + 2 φ(z) − 1/√π), z = (ln measured − μ) / σ, ends at μ ± 1.645 σ.

    Of what is true or false, such as `fits` and service levels (`--slo`), the mean predicted probability beside how
    often it was true, and the Brier score; `--by quantity,chance` tells them apart by predicted probability.

    Where at least ten sets of rows differ in one column alone (gpu, dtype, engine, a degree of a plan): rank
    correlation of predictions, and regret, by how much what is predicted to be best is worse than the best.

    Rows that cannot be asked are counted with their reason, and so are suspect ones.

    Examples:

    - `neusight evaluate mine.csv --by gpu,quantity --worst 5`

    - `neusight evaluate $NEUSIGHT_DATA/serving/*.parquet --limit 50 --jobs 2`

    - `neusight evaluate $NEUSIGHT_DATA/serving/inferencex.parquet --by gpu,engine,quantity --pairs tp,ep --against
      $NEUSIGHT_DATA/serving/peers/aiconfigurator.parquet`
    """
    from neusight.measured import SOUGHT, RowChoice, compare_peers, decisions, files_of, peers_of, summarise
    from neusight.measured import evaluate as compared
    from neusight.measured.anchors import evaluate_anchored
    from neusight.measured.pairs import summarise_ratios

    peers = None if options.against is None else peers_of(options.against)
    choice = RowChoice(
        gpus=tuple(map(opt.named_gpu, rows.gpu)), split=rows.split, source=rows.source,
        limit=rows.limit, seed=rows.seed, suspect=rows.suspect, slos=rows.slo,
    )  # fmt: skip
    needed = [*options.by, *(SOUGHT if peers is not None else ()), *options.pairs]
    files, predictor = files_of(options.files), opt.load_predictor(options.tile_models, options.calibration)
    with busy("predicting") as advance:
        if options.anchored:
            return _show_anchored(evaluate_anchored(files, predictor, choice, options.anchored, advance), options)
        if rows.leave_out:
            from neusight.lab.evaluate import evaluate_left_out
            from neusight.paths import data_dir

            more: dict[str, Any] = {"needed": needed, "note": note, **options.keywords}
            evaluation = evaluate_left_out(files, rows.leave_out, data_dir(), choice, advance, **more)
        else:
            evaluation = compared(files, predictor, choice, advance, needed=needed, **options.keywords)
    for level in rows.slo:
        if not any((table["quantity"] == level).any() for table in evaluation.tables):
            note(f"warning: --slo {level} is compared with no row: none measured all times that it limits")
    data: dict[str, Any] = {
        "summary": summarise(evaluation.columns(options.by), options.by),
        "decisions": decisions(evaluation.tables, *([options.pairs, 1] if options.pairs else ())),
        "skipped": evaluation.skipped,
    }
    if peers is not None:
        data["against"] = compare_peers(evaluation.columns(needed), peers, options.by)
    if options.pairs:
        data["pairs"] = [row for name in options.pairs for row in summarise_ratios(evaluation.tables, name)]
    if options.worst:
        data["worst"] = evaluation.worst(options.worst)
    if options.form != "human":
        data["rows"] = [row for table in evaluation.tables for row in evaluation.rows(table)]
    _note_skipped(evaluation.skipped)
    opt.note_corrections(predictor, evaluation.gpus)
    Output(options.form).data(data, data.get("rows", ()), lambda: _show(data, options.by))


def _show_anchored(groups: Sequence[Mapping[str, Any]], options: MeasuredFiles) -> None:
    """Show errors by kind, group and metric, without and with another row of the group."""
    keys = ("kind", *options.anchored, "metric")
    title = "In percent: without another row of the group, and with one.\n"
    pairs = (f">{n} = {n}:.1f | >with = anchored_{n}:.1f" for n in ("median", "inside", "crps"))
    shown = [_with_group(row, keys) for row in groups]
    rows = f"~{' '.join(keys)} = group | >rows = rows:, | {' | '.join(pairs)}"
    Output(options.form).data(groups, groups, lambda: figures(rows, shown, title))


def _note_skipped(skipped: Sequence[Mapping[str, Any]]) -> None:
    """Report rows without an answer by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for row in skipped:
        counts[row["reason"]] = counts.get(row["reason"], 0) + row["rows"]
    reasons = sorted(counts.items(), key=lambda one: -one[1])
    for reason, count in reasons[:_REASONS]:
        note(f"warning: {count:,} row{'s' * (count > 1)} skipped: {reason}")
    if rest := reasons[_REASONS:]:
        skipped_rows = sum(count for _, count in rest)
        note(f"warning: {skipped_rows:,} rows skipped for {len(rest)} more reasons: see --format json")


def _show(data: Mapping[str, Any], by: Sequence[str]) -> None:
    """Show errors by group, separately for truth values; choices; other predictors; rows with the largest errors.\n"""
    keys = f"~{' '.join(by)} = group"
    groups = [_with_group(row, by) for row in data["summary"]]
    errors = [row for row in groups if "right" not in row]
    sizes = ">median = median:.1f | >mean = mean:.1f | >bias = bias:+.1f"
    counts = f"{keys} | >rows = rows:, | >ans. = answered:.0f"
    ends = ">p90 = p90:.1f | >worst = worst:.0f | >inside = inside:.0f | >crps = crps:.1f"
    title = "In percent. ans.: with an answer; inside: within the 90 % interval.\n"
    figures(f"{counts} | {sizes} | {ends}", errors, title)
    verdicts = [row for row in groups if "right" in row]
    wrong = ">right = right:.1f | >wrongly\ntrue = wrongly_true:.1f | >wrongly\nfalse = wrongly_false:.1f"
    title = "\nTrue or false, in percent. said: mean probability; true: how often it was.\n"
    figures(f"{counts} | {wrong} | >said = said:.0f | >true = true:.0f | >brier = brier:.3f", verdicts, title)
    costs = ">rank correlation = rank:.2f | >best chosen = best:.0f | >regret = regret:.1f | >worst = worst:.1f"
    title = "\nChoosing by prediction. regret: percent by which the chosen is worse than best.\n"
    figures(f"choice of = column | by = quantity | >choices = choices:, | {costs}", data["decisions"], title)
    ratios = ">predicted = predicted:.2f | >measured = measured:.2f | >sign = sign:.0f"
    title = (
        "\nRatios of rows that differ in nothing else, above 1 a gain: medians; errors in\n"
        "percent; sign: percent of gains and losses beyond 5 % predicted as such.\n"
    )
    pairs = data.get("pairs", ())
    several = len({row["column"] for row in pairs}) > 1
    of = "column | quantity" if several else "quantity | ~base | ~value"
    shown = [row for row in pairs if not several or row["base"] == row["value"] == "all"]
    figures(f"{of} | >pairs = pairs:, | {ratios} | {sizes}", shown, title)
    theirs = ">their median = their_median:.1f | >their bias = their_bias:+.1f"
    names = dict.fromkeys(row["peer"] for row in data.get("against", ()))
    title = f"\nBeside {', '.join(names)}, over the rows that both predict.\n"
    peers = [_with_group(row, by if len(names) == 1 else ("peer", *by)) for row in data.get("against", ())]
    figures(f"{keys} | >rows = rows:, | {sizes} | {theirs} | ahead", peers, title)
    if sure := [row["ahead"] for row in peers if row["rows"] >= _MANY]:
        line(f"\nahead in {sure.count('ours')} of {len(sure)} groups of {_MANY} rows or more")
    columns = "~question | quantity | >predicted = predicted:.4g | >measured = measured:.4g | >error = error:+.0f"
    figures(columns, data.get("worst", ()), "\nRows that err most.\n")


def _with_group(row: Mapping[str, Any], by: Sequence[str]) -> dict[str, Any]:
    """A row with the values of its group in one text."""
    return {**row, "group": " ".join("-" if row[name] is None else str(row[name]) for name in by)}


def bench(options: BenchOptions) -> None:
    """Measure the program on this machine: cold start, warm prediction, kernels a second, memory of a large trace.

    Example: `neusight bench --format json > bench.json`
    """
    from neusight.benchmark import measure

    rows = []
    for row in measure(options.tile_models, options.repeats):
        note(f"{row['name']}: {decimal(row['value'], 4)} {row['unit']}")
        rows.append(row)
    shown = [{**row, "value": decimal(row["value"], 4), "limit": decimal(row["limit"], 6)} for row in rows]
    Output(options.form).data(rows, rows, lambda: figures("~what = name | >measured = value | unit | >limit", shown))
