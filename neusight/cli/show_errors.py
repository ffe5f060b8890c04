"""Predictions beside measurements on a screen: what each ``neusight evaluate`` shows, and what it warns of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neusight.cli.options import note_corrections
from neusight.cli.output import Output, line, note, table
from neusight.cli.show_training import seconds
from neusight.units import gib, milliseconds

if TYPE_CHECKING:
    from neusight.api import Predictor

_PHASE_COLUMNS = ("predicted_ms", "measured_ms", "ape")
_KERNELS = {
    ">rows": "{count:,}",
    ">mean": "{mape:.1f}",
    ">median": "{median_ape:.1f}",
    ">bias": "{bias:+.1f}",
    ">bound": "{roofline_mape:.1f}",
    ">inside": "{inside:.0f}",
    ">execution": "{execution_mape:.1f}",
}
_SUMMARY = {
    ">count": "{count:,}",
    ">mean": "{mean:.1f}",
    ">median": "{median:.1f}",
    ">worst": "{worst:.1f}",
    ">bias": "{bias:+.1f}",
    ">inside": "{inside:.0f}",
}
"""Figures of ``Scored``, and how they are written."""
_DTYPES = {
    **{name: name.replace("float", "fp") for name in ("float64", "float32", "tf32", "float16")},
    **{"bfloat16": "bf16", "float8": "fp8", "int8": "int8", "float4": "fp4"},
}
"""Dtypes of products, and what they are called where there is little room."""
_WORST = 8
_FEW = 40
"""Pairs that are shown one by one."""
_DEGREES = ("tp", "pp", "cp", "ep")


def figures(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table of rows: titles as in ``Column.of`` with the form of each cell; a dash where the row lacks its figure."""
    table(list(columns), ([_cell(form, row) for form in columns.values()] for row in rows))


def _cell(form: str, row: Mapping[str, Any]) -> str:
    try:
        return form.format_map(row)
    except (KeyError, TypeError):
        return "-"


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
    known = {title: form for title, form in _KERNELS.items() if _cell(form, errors["total"]) != "-"}
    if ">execution" in known:
        line("execution: mean error of times without the launch, where they were measured.")
    rows = _with_family(errors["rows"])
    total = {"gpu": "all", "op": "", "family": "all", "dtype": "", **errors["total"]}
    if len(errors["by_family"]) == 1:
        figures({"gpu": "{gpu}", "op": "{op}"} | known, [*rows, total])
        return
    # The median of each op gives way where there is no room for it.
    short = {title: form for title, form in known.items() if title != ">median" or ">execution" not in known}
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        line(f"\n{gpu}")
        figures({"op": "{op}", "dtype": "{dtype}"} | short, [row for row in rows if row["gpu"] == gpu])
    line("\nby family and dtype")
    figures({"family": "{family}", "dtype": "{dtype}"} | known, [*errors["by_family"], total])


def _with_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ops of families that share the name of one, such as forward, get their family's before their own."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["op"], set()).add(row["family"])
    shared = set().union(*(named for named in families.values() if len(named) > 1))
    return [{**row, "op": f"{row['family']} {row['op']}"} if row["family"] in shared else row for row in rows]


def show_models(errors: Mapping[str, Any]) -> None:
    """Row by row, then means by GPU and mode, and by vendor."""
    times = {f"{what}_ms": what for what in ("predicted", "measured")}
    rows = [
        {**row, "mode": f"{_MODES[row['mode']]} {row['option']}".strip()}
        | {what: milliseconds(row[name] / 1e3) for name, what in times.items()}
        for row in errors["rows"]
    ]
    columns = {"gpu": "{gpu}", "model": "{model}", "mode": "{mode}", ">batch x seq": "{batch} x {seq_len}"}
    figures(columns | {">predicted": "{predicted}", ">measured": "{measured}", ">error": "{bias:+.1f} %"}, rows)
    line()
    line("Errors in percent. covered: rows without fallback; inside: rows within the 90 % interval.")
    by_vendor = [{"gpu": row["vendor"], "mode": "", **row} for row in errors["by_vendor"]]
    means = [*errors["means"], *by_vendor, {"gpu": "all", "mode": "", **errors["total"]}]
    columns = {"gpu": "{gpu}", "mode": "{mode}", ">rows": "{count}", ">mean": "{mape:.1f}", ">worst": "{max_ape:.1f}"}
    columns |= {">bias": "{bias:+.1f}", ">covered": "{covered:.0f}", ">inside": "{inside:.0f}"}
    figures(columns, [{**row, "mode": f"{row['mode']} {row.get('option', '')}".strip()} for row in means])


_MODES = {"inference": "infer", "training": "train"}


def show_serving(errors: Mapping[str, Any]) -> None:
    """Errors by what is compared, then what cells do not tell."""
    line("Errors in percent, of cells without fault and, in the last two columns, of all.")
    line("inside: within the 90 % interval; bias of tokens_per_s above 0: too many.\n")
    clean = {_name(row): row for row in errors["means"]}
    rows = [
        {**clean.get(_name(row), {}), "name": _name(row), "all": row["count"], "median_of_all": row["median"]}
        for row in errors["means_all"]
    ]
    columns = {"figures": "{name}", ">cells": "{count:,}"} | {f">{name}": _SUMMARY[f">{name}"] for name in _CLEAN}
    figures(columns | {">all": "{all:,}", ">median, all": "{median_of_all:.1f}"}, rows)
    if errors["assumed"]:
        line("\nWhat cells do not tell:\n")
        figures({"default": "{what}", "value": "{value}", ">cells": "{count:,}", "~why": "{reason}"}, errors["assumed"])


_CLEAN = ("mean", "median", "bias", "inside")


def _name(row: Mapping[str, Any]) -> str:
    """What rows have in common, degrees with their names: ``gpt``, ``tp 2``."""
    keys = [] if row["by"] == "all" else str(row["by"]).split()
    return " ".join(f"{key} {row[key]}" if key in _DEGREES else str(row[key]) for key in keys) or "all"


def show_steps(errors: Mapping[str, Any]) -> None:
    """Errors by GPU, workload, precision, layout and family of models, then by what rows spend their time in."""
    _summaries(errors)
    line("\nBias of rows by the kernels that they spend their time in; share of the predicted time.\n")
    figures({"kernels": "{kind}", ">share": "{share:.1f}", ">bias": "{bias:+.1f}"}, errors["by_kind"])
    for name, memory in errors["memory"].items():
        line(f"Memory, {name.replace('_', ' ')}: {memory['right']:.0f} % of {memory['count']:,}.")


def show_programs(errors: Mapping[str, Any]) -> None:
    """Errors by GPU, mode, level and size, and what modes gain over eager."""
    _summaries(errors)
    line("\nWhat hosts take for a call, and for each operator [us].\n")
    columns = {name: f"{{{name}}}" for name in ("host", "gpu", "measured_on", "launch")}
    figures(columns | {">call": "{call_us:.1f}", ">operator": "{operator_us:.1f}"}, errors["hosts"])
    line("\nWhat operators take of hosts, in units of a pointwise one.\n")
    columns = {"operator": "{kind}", ">fitted": "{fitted:.2f}", ">predicted with": "{predicted_with:.2f}"}
    figures(columns, errors["dispatches"])
    if not errors["gains"]:
        return
    line("\nWhat modes gain over eager. clear: gains and losses of over 5 %.\n")
    columns = {"mode": "{mode}", "size": "{size}", ">rows": "{count:,}", ">median": "{median:.1f}"}
    columns |= {">bias": "{bias:+.1f}", ">clear": "{clear:,}", ">right way, %": "{direction_right:.0f}"}
    figures(columns, errors["gains"])


def show_rates(errors: Mapping[str, Any]) -> None:
    """Shares of the datasheets' peaks by GPU; then what is published, with the reasons of outliers; then the means."""
    line("Percent of the datasheet's peak: copies of 1 GiB, products of 8192³ by dtype.\n")
    shares: dict[str, dict[str, Any]] = {}
    for row in errors["rows"]:
        shares.setdefault(row["gpu"], {"gpu": row["gpu"]})[row["what"]] = row["share"]
    named = {"copy": "copy", **_DTYPES}
    columns = {"gpu": "{gpu}"} | {f">{head}": f"{{{what}:.0f}}" for what, head in named.items()}
    figures(columns, shares.values())
    line("\nPublished rates in percent of the peak, and errors of the same kernels.\n")
    published = [{**row, "what": named[row["what"]]} for row in errors["rows"] if row["measured"] is not None]
    columns = {"gpu": "{gpu}", "of": "{what}", ">published": "{published_share:.0f}", ">error": "{bias:+.1f}"}
    figures(columns | {"~outlier": "{outlier}"}, [{**row, "outlier": row["outlier"] or ""} for row in published])
    line("\nErrors in percent. inside: rows within the 90 % interval.\n")
    figures({"of": "{what}"} | _SUMMARY, [*errors["means"], {"what": "all", **errors["total"]}])


def show_what_if(errors: Mapping[str, Any]) -> None:
    """Errors and coverage by optimisation, means by metric, GPU and set, each pair of few, and why others have none."""
    line(
        "Errors of the ratio in percent. sign: gains or losses over 5 % that are predicted as such; answered: of pairs"
    )
    line("whose model and GPU are named.\n")
    counts = {"optimisation": "{optimisation}", ">pairs": "{pairs:,}", ">named": "{named:,}", ">answered": "{answered}"}
    shares = ("answered", "sign")
    columns = counts | _SUMMARY | {">sign": "{sign}"}
    del columns[">count"]
    figures(
        columns,
        [
            row | {name: _percent(row.get(name)) for name in shares}
            for row in (*errors["optimisations"], errors["total"])
        ],
    )
    line()
    rows = [{**row, "by": by, "name": row[by]} for by, means in errors["means"].items() for row in means]
    rows = [row | {"sign": _percent(row["sign"])} for row in rows]
    figures({"by": "{by}", "": "{name}"} | _SUMMARY | {">sign": "{sign}"}, rows)
    if len(errors["rows"]) <= _FEW:
        line()
        interval = "{low_gain:.2f} to {high_gain:.2f}"
        columns = {"~pair": "{as_written}: {model}, {gpu}", ">measured": "{measured_gain:.2f}"}
        figures(columns | {">predicted": "{predicted_gain:.2f}", ">interval": interval}, errors["rows"])
    reasons = Counter(row["reason"] for row in errors["skipped"])
    if reasons:
        line()
        figures({">skipped": "{count:,}", "~why": "{why}"}, [{"why": w, "count": n} for w, n in reasons.most_common()])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0f}"


def _summaries(errors: Mapping[str, Any]) -> None:
    """Means by each key, and of all."""
    line("Errors in percent. inside: rows within the 90 % interval.\n")
    rows = [{**row, "by": by, "name": row[by]} for by, means in errors["means"].items() for row in means]
    figures({"by": "{by}", "": "{name}"} | _SUMMARY, [*rows, {"by": "all", "name": "", **errors["total"]}])


def show_energy(errors: Mapping[str, Any]) -> None:
    """Means by source, GPU and reading."""
    _summaries(errors)


def show_training(errors: Mapping[str, Any]) -> None:
    """Means, then the rows that err most, then memory and defaults."""
    line("Errors in percent. bias above 0: too slow; inside: within the 90 % interval.\n")
    groups = [{**row, "name": f"{by} {row[by]}"} for by in ("source", "gpu", "dtype") for row in errors["means"][by]]
    rows = [*groups, {**errors["total"], "name": "all"}]
    figures({"runs": "{name}"} | _SUMMARY, [row for row in rows if row["count"]])
    line("\nrows that err most\n")
    measured = [row for row in errors["rows"] if row["ape"] is not None]
    worst = [
        {**row, "predicted": seconds(row["predicted_ms"] / 1e3), "measured": seconds(row["measured_ms"] / 1e3)}
        for row in sorted(measured, key=lambda row: -row["ape"])[:_WORST]
    ]
    columns = {"model": "{model}", "~plan": "{plan}", ">GPUs": "{num_gpus}", ">predicted": "{predicted}"}
    figures(columns | {">measured": "{measured}", ">error": "{bias:+.1f} %"}, worst)
    line(f"\n{_memory_line(errors['memory'])}")
    if errors["assumed"]:
        line("\nWhat rows do not tell:\n")
        figures({"what": "{what}", "value": "{value}", ">rows": "{rows:,}", "~why": "{why}"}, errors["assumed"])


def _memory_line(counts: Mapping[str, int]) -> str:
    ran = f"{counts['ran_and_fits']:,} of {counts['ran']:,} runs are predicted to fit"
    if not counts["out_of_memory"]:
        return f"memory: {ran}"
    return (
        f"memory: {ran}; of {counts['out_of_memory']:,} that ran out, {counts['out_of_memory_and_does_not_fit']:,} not"
    )


def show_peaks(errors: Mapping[str, Any]) -> None:
    """Errors of peaks of memory: means, then the rows that err most."""
    line("Errors of the allocator's peak on the last rank, in percent.")
    line("within: share of rows within 10 %; inside: within the 90 % interval.\n")
    columns = {"by": "{name}", ">rows": "{count}", ">mean": "{mean:.1f}", ">median": "{median:.1f}"}
    columns |= {">max": "{max:.1f}", ">bias": "{bias:+.1f}", ">within": "{within:.0f}", ">inside": "{inside:.0f}"}
    figures(columns, [{**row, "name": _name(row)} for row in errors["means"]])
    for each in (each for each in errors["left_out"] if each["count"]):
        held = f"{each['inside']:.0f} % inside of {each['count']:,}, width {each['width']:.1f} % of the peak"
        line(f"\nintervals of each {each['left_out']} by the others alone: {held}")
    line("\nrows that err most\n")
    rows = [{**_with_gib(row), "gpu": str(row["gpu"]).split("-")[0]} for row in errors["worst"]]
    columns = {"case": "{case}", "gpu": "{gpu}", ">predicted": "{predicted}", ">measured": "{measured}"}
    figures(columns | {">error": "{bias:+.1f}"}, rows)


def show_verdicts(errors: Mapping[str, Any]) -> None:
    """How many verdicts on memory are right, then those that are not."""
    figures({"runs": "{by}", ">count": "{count}", ">right %": "{right:.1f}"}, errors["means"])
    for peaks in (each for each in errors["reserved"] if each["count"]):
        bias = f"mean {peaks['mean']:.1f} %, worst {peaks['worst']:.1f} %, bias {peaks['bias']:+.1f} %"
        line(f"\npeaks that the allocator reserved, {peaks['count']:,}: {bias}, {peaks['inside']:.0f} % inside")
    wrong = [_with_gib(row) for row in errors["rows"] if not row["right"]]
    if wrong:
        line("\nwrong\n")
        columns = {"model": "{model}", "framework": "{framework}", ">needed": "{needed}", ">usable": "{usable}"}
        figures(columns, wrong)


def _with_gib(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its sizes as people read them, under names without their unit."""
    sizes = {name: value for name, value in row.items() if name.endswith("_bytes") and value is not None}
    return {**row, **{name.removesuffix("_bytes"): gib(value) for name, value in sizes.items()}}
