"""Predictions beside measurements on a screen: what each ``neusight evaluate`` shows, and what it warns of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from neusight.cli.options import note_corrections
from neusight.cli.output import Output, figures, line, note

if TYPE_CHECKING:
    from neusight.api import Predictor

Errors = Mapping[str, Any]
Row = Mapping[str, Any]
_MEAN = ">mean = mean:.1f | >median = median:.1f"
_WORST = ">worst = worst:.1f"
_BIAS = ">bias = bias:+.1f | >inside = inside:.0f"
_SUMMARY = f">count = count:, | {_MEAN} | {_WORST} | {_BIAS}"
"""Figures of ``Scored``, and how they are written."""
_DTYPES = {
    **{name: name.replace("float", "fp") for name in ("float64", "float32", "tf32", "float16")},
    **{"bfloat16": "bf16", "float8": "fp8", "int8": "int8", "float4": "fp4"},
}
"""Dtypes of products, and what they are called where there is little room."""
_MOST = 8
"""Rows that err most which are shown."""
_FEW = 40
"""Pairs that are shown one by one."""
_MODES = {"inference": "infer", "training": "train"}
_DEGREES = ("tp", "pp", "cp", "ep")
_IN_PERCENT = "Errors in percent. inside: rows within the 90 % interval.\n"


def show(kind: str, errors: Errors, form: str, predictor: Predictor | None = None) -> None:
    """Warnings on stderr, and what an evaluation of a kind found in one of the forms."""
    for reason, count in _reasons(errors["skipped"]).items():
        note(f"warning: {count:,} row{'s' if count > 1 else ''} skipped: {reason}")
    if unread := errors.get("unread"):
        named = ", ".join(f"{each['column']} ({each['rows']:,} row{'s' * (each['rows'] > 1)})" for each in unread)
        note(f"warning: columns that are not read: {named}")
    if predictor is not None:
        note_corrections(predictor, (row["gpu"] for row in errors["rows"]))
    human, flat = _REPORTS[kind]
    Output(form).data(errors, [flat(row) for row in errors["rows"]], lambda: human(errors))


def _reasons(skipped: Iterable[Row]) -> Counter[str]:
    """Rows that are skipped by reason."""
    counts: Counter[str] = Counter()
    for row in skipped:
        counts[row["reason"]] += row.get("count", 1)
    return counts


def _with_phases(row: Row) -> dict[str, Any]:
    """Every row with the same columns: measurements without phases leave those empty."""
    names = ("predicted_ms", "measured_ms", "ape")
    return {f"{phase}_{name}": None for phase in ("forward", "backward") for name in names} | dict(row)


def _with_parts(row: Row) -> dict[str, Any]:
    """A row of memory with a column for each part."""
    return _without_lists(row) | row["parts"]


def _without_lists(row: Row) -> dict[str, Any]:
    """A row without what is no number or word."""
    return {name: value for name, value in row.items() if name not in ("shares", "assumed", "parts")}


def _by_mean(means: Mapping[str, Iterable[Row]]) -> list[dict[str, Any]]:
    """Means of each key, one after the other."""
    return [{**row, "by": by, "name": row[by]} for by, rows in means.items() for row in rows]


def show_kernels(errors: Errors) -> None:
    """One table; of several families or dtypes one a GPU, and the means by family and dtype at the end."""
    line("Errors in percent. bound: of the bound alone; inside: within the 90 % interval.")
    timed = errors["total"].get("execution_mape") is not None
    if timed:
        line("execution: mean error of times without the launch, where they were measured.")
    counts, median = ">rows = count:, | >mean = mape:.1f", " | >median = median_ape:.1f"
    others = f" | >bias = bias:+.1f | >bound = roofline_mape:.1f | >inside = inside:.0f{_EXECUTION * timed}"
    rows = _with_family(errors["rows"])
    total = {"gpu": "all", "op": "", "family": "all", "dtype": "", **errors["total"]}
    if len(errors["by_family"]) == 1:
        figures(f"gpu | op | {counts}{median}{others}", [*rows, total])
        return
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        # The median of each op gives way where there is no room for it.
        columns = f"op | dtype | {counts}{median * (not timed)}{others}"
        figures(columns, [row for row in rows if row["gpu"] == gpu], f"\n{gpu}")
    figures(f"family | dtype | {counts}{median}{others}", [*errors["by_family"], total], "\nby family and dtype")


_EXECUTION = " | >execution = execution_mape:.1f"


def _with_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ops of families that share the name of one, such as forward, get their family's before their own."""
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["op"], set()).add(row["family"])
    shared = set().union(*(named for named in families.values() if len(named) > 1))
    return [{**row, "op": f"{row['family']} {row['op']}"} if row["family"] in shared else row for row in rows]


def show_models(errors: Errors) -> None:
    """Row by row, then means by GPU and mode, and by vendor."""
    rows = [{**row, "mode": _MODES[row["mode"]]} for row in errors["rows"]]
    columns = "gpu | model | mode = {mode} {option} | >batch x seq = {batch} x {seq_len}"
    figures(f"{columns} | >predicted = predicted_ms | >measured = measured_ms | >error = {{bias:+.1f}} %", rows)
    everything = {"gpu": "all", "mode": "", **errors["total"]}
    means = [*errors["means"], *({"gpu": row["vendor"], "mode": "", **row} for row in errors["by_vendor"]), everything]
    columns = "gpu | mode = {mode} {option} | >rows = count | >mean = mape:.1f | >worst = max_ape:.1f"
    figures(
        f"{columns} | >bias = bias:+.1f | >covered = covered:.0f | >inside = inside:.0f",
        [{"option": "", **row} for row in means],
        "\nErrors in percent. covered: rows without fallback; inside: rows within the 90 % interval.",
    )


def show_serving(errors: Errors) -> None:
    """Errors by what is compared, then what cells do not tell."""
    line("Errors in percent, of cells without fault and, in the last two columns, of all.")
    line("inside: within the 90 % interval; bias of tokens_per_s above 0: too many.\n")
    clean = {_name(row): row for row in errors["means"]}
    rows = [
        {**clean.get(_name(row), {}), "name": _name(row), "all": row["count"], "median_of_all": row["median"]}
        for row in errors["means_all"]
    ]
    all_cells = ">all = all:, | >median, all = median_of_all:.1f"
    figures(f"figures = name | >cells = count:, | {_MEAN} | {_BIAS} | {all_cells}", rows)
    columns = "default = what | value | >cells = count:, | ~why = reason"
    figures(columns, errors["assumed"], "\nWhat cells do not tell:\n")


def _name(row: Row) -> str:
    """What rows have in common, degrees with their names: ``gpt``, ``tp 2``."""
    keys = [] if row["by"] == "all" else str(row["by"]).split()
    return " ".join(f"{key} {row[key]}" if key in _DEGREES else str(row[key]) for key in keys) or "all"


def show_summary(errors: Errors) -> None:
    """Means by each key, and of all."""
    total = {"by": "all", "name": "", **errors["total"]}
    figures(f"by | = name | {_SUMMARY}", [*_by_mean(errors["means"]), total], _IN_PERCENT)


def show_steps(errors: Errors) -> None:
    """Errors by GPU, workload, precision, layout and family of models, then by what rows spend their time in."""
    show_summary(errors)
    title = "\nBias of rows by the kernels that they spend their time in; share of the predicted time.\n"
    figures("kernels = kind | >share = share:.1f | >bias = bias:+.1f", errors["by_kind"], title)
    for name, memory in errors["memory"].items():
        line(f"Memory, {name.replace('_', ' ')}: {memory['right']:.0f} % of {memory['count']:,}.")


def show_programs(errors: Errors) -> None:
    """Errors by GPU, mode, level and size, and what modes gain over eager."""
    show_summary(errors)
    columns = "host | gpu | measured_on | launch | >call = call_us:.1f | >operator = operator_us:.1f"
    figures(columns, errors["hosts"], "\nWhat hosts take for a call, and for each operator [us].\n")
    columns = "operator = kind | >fitted = fitted:.2f | >predicted with = predicted_with:.2f"
    figures(columns, errors["dispatches"], "\nWhat operators take of hosts, in units of a pointwise one.\n")
    columns = "mode | size | >rows = count:, | >median = median:.1f | >bias = bias:+.1f | >clear = clear:,"
    title = "\nWhat modes gain over eager. clear: gains and losses of over 5 %.\n"
    figures(f"{columns} | >right way, % = direction_right:.0f", errors["gains"], title)


def show_rates(errors: Errors) -> None:
    """Shares of the datasheets' peaks by GPU; then what is published, with the reasons of outliers; then the means."""
    shares: dict[str, dict[str, Any]] = {}
    for row in errors["rows"]:
        shares.setdefault(row["gpu"], {"gpu": row["gpu"]})[row["what"]] = row["share"]
    named = {"copy": "copy", **_DTYPES}
    columns = " | ".join(("gpu", *(f">{head} = {what}:.0f" for what, head in named.items())))
    title = "Percent of the datasheet's peak: copies of 1 GiB, products of 8192³ by dtype.\n"
    figures(columns, shares.values(), title)
    measured = [row for row in errors["rows"] if row["measured"] is not None]
    published = [{**row, "what": named[row["what"]], "outlier": row["outlier"] or ""} for row in measured]
    columns = "gpu | of = what | >published = published_share:.0f | >error = bias:+.1f | ~outlier"
    figures(columns, published, "\nPublished rates in percent of the peak, and errors of the same kernels.\n")
    figures(f"of = what | {_SUMMARY}", [*errors["means"], {"what": "all", **errors["total"]}], f"\n{_IN_PERCENT}")


def show_what_if(errors: Errors) -> None:
    """Errors and coverage by optimisation, means by metric, GPU and set, each pair of few, and why others have none."""
    line(
        "Errors of the ratio in percent. sign: gains or losses over 5 % that are predicted as such; answered: of pairs"
    )
    line("whose model and GPU are named.\n")
    counts = "optimisation | >pairs = pairs:, | >named = named:, | >answered = answered:.0f"
    means = f"{_MEAN} | {_WORST} | {_BIAS} | >sign = sign:.0f"
    figures(f"{counts} | {means}", [*errors["optimisations"], errors["total"]])
    figures(f"by | = name | >count = count:, | {means}", _by_mean(errors["means"]), "")
    if len(errors["rows"]) <= _FEW:
        columns = "~pair = {as_written}: {model}, {gpu} | >measured = measured_gain:.2f"
        interval = ">interval = {low_gain:.2f} to {high_gain:.2f}"
        figures(f"{columns} | >predicted = predicted_gain:.2f | {interval}", errors["rows"], "")
    reasons = [{"why": why, "count": count} for why, count in _reasons(errors["skipped"]).most_common()]
    figures(">skipped = count:, | ~why", reasons, "")


def show_training(errors: Errors) -> None:
    """Means, then the rows that err most, then memory and defaults."""
    groups = _by_mean({by: errors["means"][by] for by in ("source", "gpu", "dtype")})
    rows = [row for row in (*groups, {**errors["total"], "by": "all", "name": ""}) if row["count"]]
    title = "Errors in percent. bias above 0: too slow; inside: within the 90 % interval.\n"
    figures(f"runs = {{by}} {{name}} | {_SUMMARY}", rows, title)
    measured = [row for row in errors["rows"] if row["ape"] is not None]
    worst = sorted(measured, key=lambda row: -row["ape"])[:_MOST]
    columns = "model | ~plan | >GPUs = num_gpus | >predicted = predicted_ms | >measured = measured_ms"
    figures(f"{columns} | >error = {{bias:+.1f}} %", worst, "\nrows that err most\n")
    line(f"\n{_memory_line(errors['memory'])}")
    figures("what | value | >rows = rows:, | ~why", errors["assumed"], "\nWhat rows do not tell:\n")


def _memory_line(counts: Mapping[str, int]) -> str:
    ran = f"memory: {counts['ran_and_fits']:,} of {counts['ran']:,} runs are predicted to fit"
    if not counts["out_of_memory"]:
        return ran
    return f"{ran}; of {counts['out_of_memory']:,} that ran out, {counts['out_of_memory_and_does_not_fit']:,} not"


def show_memory(errors: Errors) -> None:
    """Errors of peaks, where those were measured, else how many verdicts are right."""
    (_show_peaks if "worst" in errors else _show_verdicts)(errors)


def _show_peaks(errors: Errors) -> None:
    """Errors of peaks of memory: means, then the rows that err most."""
    line("Errors of the allocator's peak on the last rank, in percent.")
    line("within: share of rows within 10 %; inside: within the 90 % interval.\n")
    columns = f"by = name | >rows = count | {_MEAN} | >max = max:.1f | >bias = bias:+.1f"
    means = [{**row, "name": _name(row)} for row in errors["means"]]
    figures(f"{columns} | >within = within:.0f | >inside = inside:.0f", means)
    for each in (each for each in errors["left_out"] if each["count"]):
        held = f"{each['inside']:.0f} % inside of {each['count']:,}, width {each['width']:.1f} % of the peak"
        line(f"\nintervals of each {each['left_out']} by the others alone: {held}")
    rows = [{**row, "gpu": str(row["gpu"]).split("-")[0]} for row in errors["worst"]]
    columns = "case | gpu | >predicted = predicted_bytes | >measured = measured_bytes | >error = bias:+.1f"
    figures(columns, rows, "\nrows that err most\n")


def _show_verdicts(errors: Errors) -> None:
    """How many verdicts on memory are right, then those that are not."""
    figures("runs = by | >count | >right % = right:.1f", errors["means"])
    for peaks in (each for each in errors["reserved"] if each["count"]):
        bias = f"mean {peaks['mean']:.1f} %, worst {peaks['worst']:.1f} %, bias {peaks['bias']:+.1f} %"
        line(f"\npeaks that the allocator reserved, {peaks['count']:,}: {bias}, {peaks['inside']:.0f} % inside")
    wrong = [row for row in errors["rows"] if not row["right"]]
    figures("model | framework | >needed = needed_bytes | >usable = usable_bytes", wrong, "\nwrong\n")


_REPORTS: Mapping[str, tuple[Callable[[Errors], None], Callable[[Row], dict[str, Any]]]] = {
    "kernels": (show_kernels, dict),
    "models": (show_models, _with_phases),
    "serving": (show_serving, dict),
    "steps": (show_steps, _without_lists),
    "programs": (show_programs, dict),
    "rates": (show_rates, dict),
    "energy": (show_summary, dict),
    "what_if": (show_what_if, dict),
    "memory": (show_memory, _with_parts),
    "training": (show_training, dict),
}
"""By kind of measurement, what people see, and rows of CSV."""
