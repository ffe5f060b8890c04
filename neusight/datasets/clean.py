"""Cleaning as code: each rule names a fault, says why its rows mislead a learner, and counts what it removes.

Cleaning is for training. An evaluation reports on every row. A rule compares a GPU's rows with each other and with
its datasheet, never with another GPU, so that no measured level of a held-out GPU reaches a training row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.columns import MAY_BE_ZERO, strings_or
from neusight.datasets.conditions import SERVING
from neusight.datasets.load import collected, kernel_columns
from neusight.datasets.measured import measured
from neusight.datasets.schema import COLLECTED_TABLES
from neusight.devices import DeviceSpec
from neusight.errors import DataError, nearest

if TYPE_CHECKING:
    import pandas as pd

SHAPE = (
    *("batch", "m", "n", "k", "rows", "cols"),
    *("in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding"),
)
EXTENTS = tuple(
    dict.fromkeys((*SHAPE, *(c.name for f in COLLECTED_TABLES for c in kernel_columns(f) if c.kind == "integer")))
)
"""Whole numbers of the shapes of all tables."""
_LAUNCH = ("gpu", "family", "op", "dtype", "split", "kernel_name", "grid_x", "grid_y", "grid_z", "batch")
_FILTER = ("kernel_size", "stride", "padding")
_LAYER = ("gpu", "framework", "kernel", "dtype", "hidden_size", "ffn_size", "num_experts", "top_k")
FAST_SHARE = 0.05
"""Share of a layer's balanced rows beyond which it is the routing, not a row, that is not as it says (assumption)."""
HEAT = r"thermal|brake"
"""Reasons for throttling that say something of the room, not of the device: a power limit is part of it."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """``mask`` takes the frame of ``measured`` and returns True for the rows to remove."""

    name: str
    why: str
    mask: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class CleanResult:
    """``frame`` are the rows that stay, on their old index; ``report`` has rule, why, gpu, family, op, removed, of."""

    frame: pd.DataFrame
    report: pd.DataFrame


def clean(
    frame: pd.DataFrame,
    devices: Mapping[str, DeviceSpec] | None = None,
    rules: Sequence[Rule] | None = None,
) -> CleanResult:
    """Apply the rules one after another, each to what the ones before left.

    Args:
        frame: rows as ``load_kernels`` gives them.
        devices: specs by id; default the catalogue.
        rules: default ``RULES``; ``rules_named`` picks some of them.
    """
    import pandas as pd

    removed: list[tuple[str | int, ...]] = []
    broken = invalid(frame)
    _count(removed, RULES[0], frame, broken)
    rows = measured(frame[~broken], devices)
    for rule in RULES[1:] if rules is None else [r for r in rules if r is not RULES[0]]:
        mask = rule.mask(rows)
        _count(removed, rule, rows, mask)
        rows = rows[~mask]
    report = pd.DataFrame(removed, columns=["rule", "why", "gpu", "family", "op", "removed", "of"])
    return CleanResult(frame.loc[rows.index], report)


def rules_named(names: Sequence[str]) -> list[Rule]:
    """The rules of these names.

    Raises:
        DataError: an unknown name.
    """
    known = {r.name: r for r in RULES}
    if unknown := [n for n in names if n not in known]:
        raise DataError(f"no cleaning rule '{unknown[0]}': one of {', '.join(known)}{nearest(unknown[0], known)}")
    return [known[n] for n in names]


def explained(report: pd.DataFrame) -> pd.DataFrame:
    """A report by rule: rows removed in all, where most of them were, and why the rule is there."""
    import pandas as pd

    rows = []
    for (rule, why), part in _named(report).groupby(["rule", "why"], sort=False):
        worst = part[part["removed"] > 0].nlargest(3, "removed")
        named = (f"{g} {o} {n}" for g, o, n in zip(worst["gpu"], worst["op"], worst["removed"], strict=True))
        rows.append((rule, part["removed"].sum(), ", ".join(named), why))
    return pd.DataFrame(rows, columns=["rule", "removed", "mostly", "why"]).set_index("rule")


def by_gpu(report: pd.DataFrame) -> pd.DataFrame:
    """The rows of a report that removed something: removed and of, by rule, gpu and op."""
    return _named(report)[report["removed"] > 0].set_index(["rule", "gpu", "op"])[["removed", "of"]]


def _named(report: pd.DataFrame) -> pd.DataFrame:
    """Ops of families that share the name of one get their family's before their own: ``conv2d forward``."""
    alone = report.groupby("op")["family"].transform("nunique") == 1
    alone &= ~report["family"].isin(report.loc[~alone, "family"])
    return report.assign(op=report["op"].where(alone, report["family"] + " " + report["op"]))


def _count(into: list[tuple[str | int, ...]], rule: Rule, rows: pd.DataFrame, mask: np.ndarray) -> None:
    keys = ["gpu", "family", "op"]
    total = rows.groupby(keys, sort=True).size()
    gone = rows[mask].groupby(keys).size().reindex(total.index, fill_value=0)
    into.extend((rule.name, rule.why, *map(str, of), int(gone[of]), int(total[of])) for of in total.index)


def invalid(rows: pd.DataFrame) -> np.ndarray:
    """A latency that is no positive, finite number, or a shape with an extent below one."""
    latency = rows["latency_ms"].to_numpy(dtype=np.float64)
    bad = ~(np.isfinite(latency) & (latency > 0))
    for name in EXTENTS:
        if name in rows:
            bad |= (rows[name] < (0 if name in MAY_BE_ZERO else 1)).to_numpy()
    return bad


def throttled(rows: pd.DataFrame) -> np.ndarray:
    """Collected rows during which the driver slowed the device down for its heat or its power supply."""
    if "throttle" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return collected(rows) & rows["throttle"].str.contains(HEAT, case=False, na=False).to_numpy(dtype=bool)


def unstable(rows: pd.DataFrame) -> np.ndarray:
    """Collected rows whose launches lay too far apart for their median to mean much."""
    if "stable" not in rows:
        return np.zeros(len(rows), dtype=bool)
    return collected(rows) & (rows["stable"] == False).to_numpy(dtype=bool)  # noqa: E712 - neither True nor missing


def faster_than_datasheet(rows: pd.DataFrame) -> np.ndarray:
    """More FLOP/s than the peak, or more bytes/s than DRAM for operands that no cache holds, beyond 5 % of clocks; or
    marked so by the source.

    Winograd's F(4x4, 3x3) needs a quarter of the multiplications of a direct convolution (Lavin and Gray 2016), and
    cuDNN chooses it: convolutions may reach four times the peak. Twice the L2 is room for partial hits; a pass may find
    there what the one before it wrote.
    """
    gain = np.where(rows["family"] == "conv2d", 4.0, 1.0)
    compute = rows["flops"] / rows["execution_s"] > 1.05 * gain * rows["flops_per_s"]
    uncached = rows["bytes"] / rows["passes"] > 2.0 * rows["l2_bytes"]
    moved = uncached & (rows["bytes"] / rows["execution_s"] > 1.05 * rows["bytes_per_s"])
    return (compute | moved).to_numpy() | suspected(rows)


def fewer_experts(rows: pd.DataFrame) -> np.ndarray:
    """All rows of a layer of experts by a kernel, of whose balanced ones many would read weights faster than DRAM can:
    its tokens did not get the experts that the row says. Of DeepSeek-V3's layer, balanced over eight groups of experts
    that all score the same, a router that keeps four groups (arXiv 2412.19437, section 2.1.2) reaches half of them.
    """
    import pandas as pd

    if "num_experts" not in rows:
        return np.zeros(len(rows), dtype=bool)
    balanced = (rows["family"] == "moe") & (rows["distribution"] == "balanced")
    fast = pd.Series(faster_than_datasheet(rows), index=rows.index).astype(float).where(balanced)
    share = fast.groupby([rows[name] for name in _LAYER], dropna=False).transform("mean")
    return (share > FAST_SHARE).to_numpy()


def suspected(rows: pd.DataFrame) -> np.ndarray:
    """Rows that their source itself marks as too fast to be true."""
    return strings_or(rows, "suspect") != ""


def conflicting_duplicate(rows: pd.DataFrame) -> np.ndarray:
    """The same kernel measured more than once, more than 10 % off the median of its repetitions."""
    medians = rows.groupby("same")["latency_s"].transform("median")
    return ((rows["latency_s"] / medians - 1.0).abs() > 0.10).to_numpy()


def disturbed(rows: pd.DataFrame) -> np.ndarray:
    """Half as slow again as the median of at least three ``alike`` launches."""
    groups = rows["latency_s"].groupby(alike(rows))
    enough = (groups.transform("size") >= 3) & rows["grid"].notna()
    return (enough & (rows["latency_s"] > 1.5 * groups.transform("median"))).to_numpy()


def alike(rows: pd.DataFrame) -> np.ndarray:
    """Number of the group of launches that can hardly differ: same GPU, kernel, grid, batch and shape class.

    Shape class: the inner extent (k, in_channels, cols, or elements of an elementwise kernel) within 7 %; for collected
    rows every number of the kernel.
    """
    import pandas as pd

    inner = rows["flops"].where(rows["family"] == "elementwise")
    for name in ("k", "in_channels", "cols"):
        if name in rows:
            inner = inner.fillna(rows[name])
    keys = pd.DataFrame({"inner": _class(inner), "block": rows.get("block_x", 0)})
    for name in (*_LAUNCH, *_FILTER):
        keys[name] = rows.get(name)
    own = collected(rows)
    for name in EXTENTS if own.any() else ():
        if name in rows:
            keys[f"class of {name}"] = _class(rows[name]).where(own)
    return keys.groupby(list(keys), dropna=False, sort=False).ngroup().to_numpy()


def _class(extent: pd.Series) -> pd.Series:
    """Steps of 7 %."""
    return np.round(np.log2(extent.clip(lower=1.0)) / 0.1)


def host_stall(rows: pd.DataFrame) -> np.ndarray:
    """Products too small to take device time, half as slow again as the launch floor of their GPU and op.

    Counted in whole tiles, with an inner extent of 128 at most, they need less than 4 microseconds; the rest is host.
    A floor below 10 microseconds is that of a CUDA graph, in which no host takes part. Rows of engines are means of
    many launches and collected ones medians, in which no stall survives, and a profiler does not see one.
    """
    if "k" not in rows:
        return np.zeros(len(rows), dtype=bool)
    short = np.maximum(rows["padded_flops"] / rows["flops_per_s"], rows["bytes"] / rows["bytes_per_s"]) < 4e-6
    many = np.isin(strings_or(rows, "framework"), SERVING) | (strings_or(rows, "timing") != "")
    small = short & (rows["k"] <= 128) & ~many & ~collected(rows)
    floors = rows[small].groupby(["gpu", "op"])["latency_s"].transform("median").reindex(rows.index)
    return (small & (floors > 1e-5) & (rows["latency_s"] > 1.5 * floors)).to_numpy()


def launch_loop(rows: pd.DataFrame) -> np.ndarray:
    """One call that launched more than eight kernels: a loop over what the workspace holds.

    Of collected rows convolutions alone: others loop over what they are given, such as experts or parameters.
    """
    planned = collected(rows) & (rows["family"] != "conv2d")
    return ((rows["kernels"] > 8) & ~planned).to_numpy()


def throttled_split(rows: pd.DataFrame) -> np.ndarray:
    """Rows of 1 ms and more of a split whose large products reach less than half of the other split's utilisation.

    Large: 10 GFLOP and more, 30 rows in both splits. Shorter rows stay: 25 launches of them don't heat a card.
    """
    compute = (rows["flops"] / rows["flops_per_s"] / rows["latency_s"]).where(rows["flops"] >= 1e10)
    groups = compute.groupby([rows["gpu"], rows["op"], rows["split"]])
    table = groups.median().where(groups.count() >= 30).unstack()
    if table.shape[1] < 2:
        return np.zeros(len(rows), dtype=bool)
    slow = table.lt(0.5 * table.max(axis=1), axis=0).stack()
    keys = rows.set_index(["gpu", "op", "split"]).index
    return slow.reindex(keys, fill_value=False).to_numpy(dtype=bool) & (rows["latency_s"] >= 1e-3).to_numpy()


RULES: tuple[Rule, ...] = (
    Rule(name="invalid", why="no positive finite latency, or an extent below one", mask=invalid),
    Rule(name="throttled", why="the driver slowed the GPU down for heat or its power supply", mask=throttled),
    Rule(name="unstable", why="single launches of the kernel lay too far apart", mask=unstable),
    Rule(
        name="fewer_experts",
        why="tokens went to fewer experts than the routing that the rows state",
        mask=fewer_experts,
    ),
    Rule(
        name="faster_than_datasheet",
        why="more work a second than the GPU can do: the timer or the shape is wrong",
        mask=faster_than_datasheet,
    ),
    Rule(
        name="conflicting_duplicate",
        why="the same kernel took more than 10 % longer or shorter in its other measurements",
        mask=conflicting_duplicate,
    ),
    Rule(name="disturbed", why="50 % slower than launches of the same kernel, grid and shape class", mask=disturbed),
    Rule(name="host_stall", why="no device time to speak of, yet 50 % above the launch floor", mask=host_stall),
    Rule(
        name="launch_loop",
        why="more than eight kernels in one call: how many depends on the free workspace, not on the shape",
        mask=launch_loop,
    ),
    Rule(
        name="throttled_split",
        why="a split whose long products reach less than half of the same GPU's other split",
        mask=throttled_split,
    ),
)
