"""Predictions beside measurements on a screen: what each ``neusight evaluate`` shows, and what it warns of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.cli.options import note_corrections
from neusight.cli.output import Column, Output, line, note, table
from neusight.cli.show_training import seconds
from neusight.units import milliseconds

if TYPE_CHECKING:
    from neusight.api import Predictor

_PHASE_COLUMNS = ("predicted_ms", "measured_ms", "ape")
_FIGURES = {
    "rows": ("count", ","),
    "mean": ("mape", ".1f"),
    "median": ("median_ape", ".1f"),
    "bias": ("bias", "+.1f"),
    "bound": ("roofline_mape", ".1f"),
    "inside": ("inside", ".0f"),
    "execution": ("execution_mape", ".1f"),
}
_SUMMARY = {"count": ",", "mean": ".1f", "median": ".1f", "worst": ".1f", "bias": "+.1f", "inside": ".0f"}
"""Figures of ``Scored``, and how they are written."""
_WORST = 8


def show(
    errors: Mapping[str, Any],
    form: str,
    human: Callable[[Mapping[str, Any]], None],
    predictor: Predictor | None = None,
    *,
    columns: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> None:
    """Warnings on stderr, and what an evaluation found in one of the forms; ``columns`` makes flat rows of its rows."""
    note_skipped(errors["skipped"])
    note_unread(errors.get("unread", ()))
    if predictor is not None:
        note_corrections(predictor, (row["gpu"] for row in errors["rows"]))
    Output(form).data(errors, [dict(columns(row)) for row in errors["rows"]], lambda: human(errors))


def note_skipped(skipped: Iterable[Mapping[str, Any]]) -> None:
    """A line for each reason why rows were skipped."""
    counts: Counter[str] = Counter()
    for row in skipped:
        counts[row["reason"]] += row.get("count", 1)
    for reason, count in counts.items():
        note(f"warning: {count:,} row{'s' if count > 1 else ''} skipped: {reason}")


def note_unread(unread: Sequence[Mapping[str, Any]]) -> None:
    """One line with the columns that nothing reads, and the rows that fill them."""
    if unread:
        named = ", ".join(f"{each['column']} ({each['rows']:,} row{'s' * (each['rows'] > 1)})" for each in unread)
        note(f"warning: columns that are not read: {named}")


def with_phases(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every row with the same columns: measurements without phases leave those empty."""
    return {f"{phase}_{what}": None for phase in ("forward", "backward") for what in _PHASE_COLUMNS} | dict(row)


def with_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of memory with a column for each part."""
    return {name: value for name, value in row.items() if name != "parts"} | row["parts"]


def show_kernels(errors: Mapping[str, Any]) -> None:
    """One table; of several families or dtypes one a GPU, and the means by family and dtype at the end."""
    line("Errors in percent. bound: of the bound alone; inside: within the 90 % interval.")
    figures = [title for title, (key, _) in _FIGURES.items() if errors["total"][key] is not None]
    if "execution" in figures:
        line("execution: mean error of times without the launch, where they were measured.")
    rows, total = (
        _with_family(errors["rows"]),
        {"gpu": "all", "op": "", "family": "all", "dtype": "", **errors["total"]},
    )
    if len(errors["by_family"]) == 1:
        _kernel_table(("gpu", "op"), figures, [*rows, total])
        return
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        line(f"\n{gpu}")
        # The median of each op gives way where there is no room for it.
        shown = [title for title in figures if title != "median" or "execution" not in figures]
        _kernel_table(("op", "dtype"), shown, [row for row in rows if row["gpu"] == gpu])
    line("\nby family and dtype")
    _kernel_table(("family", "dtype"), figures, [*errors["by_family"], total])


def _kernel_table(names: Sequence[str], figures: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    columns = [*(Column(name) for name in names), *(Column(title, right=True) for title in figures)]
    shown = [_FIGURES[title] for title in figures]
    table(
        columns, ((*(row[name] for name in names), *(_figure(row[key], form) for key, form in shown)) for row in rows)
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _with_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ops of families that share the name of one, such as forward, get their family's before their own."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["op"], set()).add(row["family"])
    shared = set().union(*(named for named in families.values() if len(named) > 1))
    return [{**row, "op": f"{row['family']} {row['op']}"} if row["family"] in shared else row for row in rows]


def show_models(errors: Mapping[str, Any]) -> None:
    """Row by row, then means by GPU and mode, and by vendor."""
    figures = ("batch x seq", "predicted", "measured", "error")
    columns = [Column("gpu"), Column("model"), Column("mode"), *(Column(name, right=True) for name in figures)]
    table(columns, (_model_cells(row) for row in errors["rows"]))
    line()
    line("Errors in percent. covered: rows without fallback; inside: rows within the 90 % interval.")
    numbers = ("rows", "mean", "worst", "bias", "covered", "inside")
    columns = [Column("gpu"), Column("mode"), *(Column(name, right=True) for name in numbers)]
    by_vendor = [{"gpu": row["vendor"], "mode": "", **row} for row in errors["by_vendor"]]
    shown = (*errors["means"], *by_vendor, {"gpu": "all", "mode": "", **errors["total"]})
    table(columns, ((r["gpu"], f"{r['mode']} {r.get('option', '')}".strip(), *_mean_cells(r)) for r in shown))


def _model_cells(row: dict[str, Any]) -> tuple[str, ...]:
    figures = (milliseconds(row[f"{what}_ms"] / 1e3) for what in ("predicted", "measured"))
    mode = {"inference": "infer", "training": "train"}[row["mode"]]
    return (
        row["gpu"],
        row["model"],
        f"{mode} {row['option']}".strip(),
        f"{row['batch']} x {row['seq_len']}",
        *figures,
        f"{row['bias']:+.1f} %",
    )


def _mean_cells(row: dict[str, Any]) -> tuple[str, ...]:
    errors = (f"{row['mape']:.1f}", f"{row['max_ape']:.1f}", f"{row['bias']:+.1f}")
    return str(row["count"]), *errors, f"{row['covered']:.0f}", f"{row['inside']:.0f}"


def show_serving(errors: Mapping[str, Any]) -> None:
    """Errors by what is compared, then what cells do not tell."""
    line("Errors in percent, of cells without fault and, in the last two columns, of all.")
    line("inside: within the 90 % interval; bias of tokens_per_s above 0: too many.\n")
    clean = {_name(row): row for row in errors["means"]}
    numbers = ("cells", "mean", "median", "bias", "inside", "all", "median")
    columns = [Column("figures"), *(Column(name, right=True) for name in numbers)]
    table(columns, (_serving_cells(row, clean.get(_name(row))) for row in errors["means_all"]))
    if errors["assumed"]:
        line("\nWhat cells do not tell:\n")
        columns = [Column("default"), Column("value"), Column("cells", right=True), Column("why", wrap=True)]
        table(columns, ((r["what"], str(r["value"]), f"{r['count']:,}", r["reason"]) for r in errors["assumed"]))


def _name(row: dict[str, Any]) -> str:
    return "all" if row["by"] == "all" else " ".join(str(row[key]) for key in row["by"].split())


def _serving_cells(row: dict[str, Any], clean: dict[str, Any] | None) -> tuple[str, ...]:
    forms = {"count": ",", "mean": ".1f", "median": ".1f", "bias": "+.1f", "inside": ".0f"}
    figures = ("-" if clean is None else format(clean[key], form) for key, form in forms.items())
    return _name(row), *figures, f"{row['count']:,}", f"{row['median']:.1f}"


def show_steps(errors: Mapping[str, Any]) -> None:
    """Errors by GPU, workload, precision, layout and family of models, then by what rows spend their time in."""
    line("Errors in percent. inside: rows within the 90 % interval.\n")
    columns = [Column("by"), Column(""), *(Column(name, right=True) for name in _SUMMARY)]
    rows = [(by, row[by], *_summary_cells(row)) for by, means in errors["means"].items() for row in means]
    table(columns, (*rows, ("all", "", *_summary_cells(errors["total"]))))
    line("\nBias of rows by the kernels that they spend their time in; share of the predicted time.\n")
    columns = [Column("kernels"), Column("share", right=True), Column("bias", right=True)]
    table(columns, ((row["kind"], f"{row['share']:.1f}", f"{row['bias']:+.1f}") for row in errors["by_kind"]))
    for name, memory in errors["memory"].items():
        line(f"Memory, {name.replace('_', ' ')}: {memory['right']:.0f} % of {memory['count']:,}.")


def show_programs(errors: Mapping[str, Any]) -> None:
    """Errors by GPU, mode, level and size, and what modes gain over eager."""
    line("Errors in percent. inside: rows within the 90 % interval.\n")
    columns = [Column("by"), Column(""), *(Column(name, right=True) for name in _SUMMARY)]
    rows = [(by, str(row[by]), *_summary_cells(row)) for by, means in errors["means"].items() for row in means]
    table(columns, (*rows, ("all", "", *_summary_cells(errors["total"]))))
    line("\nWhat hosts take for a call, and for each operator [us].\n")
    names = ("host", "gpu", "measured_on", "launch")
    columns = [*map(Column, names), *(Column(name, right=True) for name in ("call", "operator"))]
    figures = ("call_us", "operator_us")
    table(columns, ((*(r[n] for n in names), *(f"{r[n]:.1f}" for n in figures)) for r in errors["hosts"]))
    if not errors["gains"]:
        return
    line("\nWhat modes gain over eager, by the time of the mode; clear: gains and losses of over 5 %.\n")
    columns = [Column("mode"), Column("size"), *(Column(n, right=True) for n in ("rows", "median", "bias"))]
    columns += [Column("clear", right=True), Column("right way, %", right=True)]
    table(columns, map(_gain_cells, errors["gains"]))


def _gain_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    right = "-" if row["direction_right"] is None else f"{row['direction_right']:.0f}"
    figures = (f"{row['count']:,}", f"{row['median']:.1f}", f"{row['bias']:+.1f}", f"{row['clear']:,}", right)
    return row["mode"], row["size"], *figures


def _summary_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(format(row[key], form) for key, form in _SUMMARY.items())


def show_training(errors: Mapping[str, Any]) -> None:
    """Means, then the rows that err most, then memory and defaults."""
    line("Errors in percent. bias above 0: too slow; inside: within the 90 % interval.\n")
    groups = [(f"{by} {row[by]}", row) for by in ("source", "gpu", "dtype") for row in errors["means"][by]]
    columns = [Column("runs"), *(Column(name, right=True) for name in _SUMMARY)]
    table(columns, ((name, *_summary_cells(row)) for name, row in (*groups, ("all", errors["total"])) if row["count"]))
    line("\nrows that err most\n")
    titles = ("GPUs", "predicted", "measured", "error")
    columns = [Column("model"), Column("plan", wrap=True), *(Column(title, right=True) for title in titles)]
    measured = [row for row in errors["rows"] if row["ape"] is not None]
    table(columns, map(_step_cells, sorted(measured, key=lambda row: -row["ape"])[:_WORST]))
    line(f"\n{_memory_line(errors['memory'])}")
    if errors["assumed"]:
        line("\nWhat rows do not tell:\n")
        columns = [Column("what"), Column("value"), Column("rows", right=True), Column("why", wrap=True)]
        table(columns, ((r["what"], r["value"], f"{r['rows']:,}", r["why"]) for r in errors["assumed"]))


def _step_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    times = (seconds(row[f"{what}_ms"] / 1e3) for what in ("predicted", "measured"))
    return row["model"], row["plan"], str(row["num_gpus"]), *times, f"{row['bias']:+.1f} %"


def _memory_line(counts: Mapping[str, int]) -> str:
    ran = f"{counts['ran_and_fits']:,} of {counts['ran']:,} runs are predicted to fit"
    if not counts["out_of_memory"]:
        return f"memory: {ran}"
    return (
        f"memory: {ran}; of {counts['out_of_memory']:,} that ran out, {counts['out_of_memory_and_does_not_fit']:,} not"
    )
