"""Rows that differ in nothing but one column: ratios of their figures, and what it costs to choose by predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.measured.errors import figures
from neusight.measured.table import columns_of, is_truth

if TYPE_CHECKING:
    import pandas as pd

DECIDED = ("gpu", "dtype", "backend", "engine", "tp", "pp", "dp", "cp", "ep", "vp", "shard")
"""Columns that people choose by a prediction."""
LEAST_DECISIONS = 10
"""Fewer choices say nothing."""
_RATES = ("tokens_per_s", "steady_tokens_per_s", "tflop_per_s", "gain")
"""Quantities of which more is better."""
_UNDECIDED = "mean_batch"
_TOGETHER = {
    "engine": ("engine_version",), "backend": ("variant",), "isl": ("isl_cv",), "osl": ("osl_cv",),
    "launch": ("host_call_us", "host_operator_us", "host_spread"),
}  # fmt: skip
"""Columns that differ with another one."""
_CLIENTS = {"num_prompts": np.inf, "warmup_requests": np.inf, "max_num_seqs": 1.0}
_PER: dict[str, dict[str, float]] = {"concurrency": _CLIENTS, "request_rate": {"num_prompts": np.inf}}
"""Columns of which rows have equally many for each unit of another one, up to a number: a server that takes more
sequences than there are clients does not run more."""
LARGE = 0.05
"""Gains and losses of which it counts whether their sign is predicted."""
EVERY = "all"
"""In place of two values, all pairs of values together."""
_ODD = np.uint64(6364136223846793005)
"""Tells columns apart that have the same cells."""
_MEASURED_BY = ("source", "host", "measured_on")
"""Columns that pairs share beside their question."""


def ratios(lines: pd.DataFrame, column: str, also: Sequence[str] = ()) -> pd.DataFrame:
    """Ratios of figures of rows that differ in nothing but a column, against the first of its values.

    Empty cells, which are the default, come first, then values in their order. Above 1 is better, as in measured
    gains: before over after of times, after over before of rates. Figures of rows that are alike count as their mean.

    Args:
        lines: answered and other lines of an ``Evaluation``.
        column: of a question, or any other.
        also: columns that pairs share beside their question.

    Returns:
        The lines of the later values: ``quantity`` is ``ratio`` and ``of`` the quantity it is of, ``predicted`` and
        ``measured`` are ratios, ``low`` and ``high`` are empty, ``base`` is the value that it is compared with.
    """
    answered = _answered(lines).reset_index(drop=True)
    options = _options(answered, column, [name for name in (*_MEASURED_BY, *also) if name in answered])
    options = options.iloc[_order(answered[column].loc[options["at"]])]
    first = options.groupby("rest", sort=False).transform("first")
    later = (options["at"] != first["at"]).to_numpy()
    chosen = answered.loc[options["at"][later]]
    more_is_better = chosen["quantity"].isin(_RATES).to_numpy()
    figures = {}
    for name in ("predicted", "measured"):
        gain = (options[name] / first[name]).to_numpy()[later]
        figures[name] = np.where(more_is_better, gain, 1.0 / gain)
    base = answered[column].loc[first["at"][later]].to_numpy()
    return chosen.assign(of=chosen["quantity"], quantity="ratio", base=base, low=np.nan, high=np.nan, **figures)


def summarise_ratios(tables: Sequence[pd.DataFrame], column: str) -> list[dict[str, Any]]:
    """Ratios of each quantity: those of all values together, then of each pair of values.

    ``predicted`` and ``measured`` are medians, ``large`` counts measured gains and losses beyond ``LARGE``, ``sign`` is
    the percent of these whose prediction gains or loses too, and the rest are errors of ratios in percent.
    """
    import pandas as pd

    found = []
    lines = pd.concat([ratios(table, column) for table in tables if column in table])
    for quantity, pairs in lines.groupby("of", sort=False, observed=True):
        found.append({"column": column, "quantity": quantity, "base": EVERY, "value": EVERY, **_summary(pairs)})
        for values, part in pairs.groupby(["base", column], sort=False, observed=True, dropna=False):
            base, value = (None if one != one else one for one in values)
            found.append({"column": column, "quantity": quantity, "base": base, "value": value, **_summary(part)})
    return found


def _summary(pairs: pd.DataFrame) -> dict[str, Any]:
    """Medians, signs and errors of the ratios of some pairs."""
    gains = {name: pairs[name].to_numpy(float) - 1.0 for name in ("predicted", "measured")}
    large = np.abs(gains["measured"]) > LARGE
    right = np.sign(gains["predicted"]) == np.sign(gains["measured"])
    sign = 100.0 * float(right[large].mean()) if large.any() else None
    medians = {name: 1.0 + float(np.median(gain)) for name, gain in gains.items()}
    return {"pairs": len(pairs), **medians, "large": int(large.sum()), "sign": sign, **figures(pairs)}


def _order(values: pd.Series) -> np.ndarray:
    """Positions of values in their order, empty ones first."""
    numbers = values.dtype.kind in "iufb"
    keys = values if numbers else values.astype(object).map(str).where(values.notna())
    return np.asarray(keys.reset_index(drop=True).sort_values(kind="stable", na_position="first").index)


def decisions(
    tables: Sequence[pd.DataFrame], columns: Sequence[str] = DECIDED, least: int = LEAST_DECISIONS
) -> list[dict[str, Any]]:
    """What it costs to choose by prediction, for each column that people choose and each quantity.

    Rows that differ in nothing but one column are a choice. ``rank``: mean rank correlation of prediction and
    measurement over choices; ``best``: percent of choices in which the best was chosen; ``regret``: by how many percent
    the chosen is worse than the best, mean, and ``worst``. Fewer than ``least`` choices are left out.
    """
    import pandas as pd

    found = []
    for column in columns:
        parts = [part for table in tables if column in table for part in _choices(table, column)]
        for quantity in dict.fromkeys(name for name, _ in parts):
            choices = pd.concat([costs for name, costs in parts if name == quantity])
            if len(choices) < least:
                continue
            regret = choices["regret"]
            costs = {"rank": choices["rank"].mean(), "best": 100.0 * (regret <= 0).mean(), "regret": regret.mean()}
            row = {"column": column, "quantity": quantity, "choices": len(choices)}
            found.append({**row, **costs, "worst": regret.max()})
    return found


def _choices(table: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Of each quantity the rank correlation and regret of every choice among values of the column."""
    answered = _answered(table)
    if answered[column].nunique() < 2:
        return []
    options = _options(answered, column)
    return [(str(name), _costs(part, name in _RATES)) for name, part in options.groupby("quantity", observed=True)]


def _answered(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["predicted"].notna() & ~is_truth(table["quantity"]) & (table["quantity"] != _UNDECIDED)]


def _options(answered: pd.DataFrame, column: str, also: Sequence[str] = ()) -> pd.DataFrame:
    """Values of a column among rows that share everything else that is a question, and the columns ``also``.

    Returns:
        A row for each value of each such set, ``rest``, of at least two: means of ``predicted`` and ``measured``, its
        ``quantity``, and ``at``, the label of the first line.
    """
    words = {*columns_of("kernels").values(), *columns_of("gains").values()} - {column, *_TOGETHER.get(column, ())}
    alike = ["kind", "quantity", *also, *(name for name in answered if name in words)]
    per = {name: most for name, most in _PER.get(column, {}).items() if name in answered}
    each = {name: (answered[name] / answered[column]).clip(upper=most) for name, most in per.items()}
    options = answered[["quantity", "predicted", "measured"]].assign(
        rest=row_codes(answered.assign(**each), alike), value=row_codes(answered, [column]), at=answered.index
    )
    means = {"quantity": "first", "predicted": "mean", "measured": "mean", "at": "first"}
    options = options.groupby(["rest", "value"], as_index=False).agg(means)
    return options[options.groupby("rest")["value"].transform("size") > 1]


def row_codes(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """A number for each row of a table, the same where all these columns are."""
    import pandas as pd

    codes = np.zeros(len(frame), dtype=np.uint64)
    for name in names:
        cells = frame[name]
        cells = cells.astype(str) if cells.dtype == object else cells
        codes = codes * _ODD + pd.util.hash_pandas_object(cells, index=False).to_numpy()
    return codes


def _costs(options: pd.DataFrame, more_is_better: bool) -> pd.DataFrame:
    """Rank correlation and regret by choice, of options with their ``rest``."""
    import pandas as pd

    sign = -1.0 if more_is_better else 1.0
    rest, costs = options["rest"], sign * options[["predicted", "measured"]]
    ranks = costs.groupby(rest).rank()
    ranks -= ranks.groupby(rest).transform("mean")
    sums = (ranks**2).assign(product=ranks["predicted"] * ranks["measured"]).groupby(rest).sum()
    chosen = options.loc[costs["predicted"].groupby(rest).idxmin()].set_index("rest")["measured"]
    best = options.groupby("rest")["measured"].agg("max" if more_is_better else "min")
    regret = 100.0 * ((best / chosen if more_is_better else chosen / best) - 1.0)
    return pd.DataFrame({"rank": sums["product"] / np.sqrt(sums["predicted"] * sums["measured"]), "regret": regret})
