"""Programs of PyTorch as public benchmarks timed them, eager and compiled, predicted against measured; in percent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from pathlib import Path
from statistics import geometric_mean, stdev
from typing import TYPE_CHECKING, Any

from neusight.datasets.rows import flag, positive, read_rows, unread_columns
from neusight.engines import Host
from neusight.errors import DataError
from neusight.evaluation.hosts import IDLE, HostFit, TimedCall, fitted, fitted_dispatches, half_of
from neusight.measured.score import Progress, Row, Scored, Selection, answered, compared, some
from neusight.transforms.compiled import compiled
from neusight.workloads import load_workload
from neusight.workloads.dispatch import DISPATCHES, step_kinds

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.estimates import Estimate

NEEDED = ("gpu", "graph", "mode", "mean_ms", "std_ms")
_NAMES = ("gpu", "host", "level", "problem", "graph", "mode", "measured_on", "l2_flushed")
_READ = (*_NAMES, "mean_ms", "std_ms", "suspect", "tf32", "conv_tf32", "host_bytes")
_NOTES = ("torch_version", "cudnn_benchmark", "min_ms", "max_ms", "trials", "source_commit", "problem_commit")
LAUNCHES = {
    "eager": "eager",
    "compile": "compiled",
    "max_autotune_no_cudagraphs": "compiled",
    "reduce_overhead": "graph",
    "max_autotune": "graph",
    "cuda_graph": "cudagraphs",
}
"""Launch of each mode of the table."""
_DTYPES = {(False, False): "float32_ieee", (False, True): None, (True, True): "tf32"}
"""Dtype by whether products and convolutions of float32 may run in TF32; PyTorch's default is that of the program."""
BY = ("gpu", "mode", "level", "size")
LARGE_MS = 1.0
"""From which the time of a program is hardly that of its host."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which rows count: those whose standard deviation is at most ``spread`` percent of their mean, and, unless
    ``suspect``, that no one doubts.
    """

    spread: float = 10.0
    suspect: bool = False

    def reason(self, row: Row) -> str:
        """Why a row does not count; '' where it does."""
        if 100.0 * float(row["std_ms"]) > self.spread * positive(row, "mean_ms", 1e12):
            return f"standard deviation above {self.spread:g} % of the mean"
        return "marked as suspect" if flag(row, "suspect") and not self.suspect else ""


def evaluate_programs(
    path: Path,
    predictor: Predictor,
    *,
    programs: Path | None = None,
    selection: Selection | None = None,
    filters: Filters | None = None,
    hosts: str = "own",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict every timing of a program and compare.

    Args:
        path: parquet or CSV with gpu, graph, mode, mean_ms, std_ms; ``host``, ``measured_on``, ``tf32``, ``conv_tf32``,
            ``l2_flushed``, ``host_bytes`` and ``suspect`` where it has them.
        predictor: whose predictions.
        programs: folder of ``<graph>.pt2``; default ``problems`` beside the file.
        selection: which rows: of some GPUs, and so many of them, drawn at random; default all.
        filters: which of them count.
        hosts: what the host takes for a call is fitted to ``own``, half of the programs that were timed on the same
            host, GPU and day, for the other half, or to ``others``, timings on all other hosts.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: gpu, host, level, problem, graph, mode, measured_on, l2_flushed, size (below or above 1 ms),
        predicted_ms, low_ms, high_ms, measured_ms, ape, bias, inside. ``means`` by ``BY``, ``by_mode_and_size`` and
        ``total``: figures of ``Scored``. ``hosts``: what hosts take [us], fitted to all of their programs, and their
        means. ``dispatches``: what an operator of each kind is to all hosts, in units of a pointwise one, as fitted to
        these programs and as predictions have it.
        ``speedups``: see ``speedups``, and ``gains``: of those by mode, see ``gains``. ``skipped``: rows that are not
        compared, each with its reason. ``unread``: columns that nothing reads, with the number of rows.

    Raises:
        DataError: no such file or folder, a foreign file, or no row left.
    """
    folder = path.parent / "problems" if programs is None else programs
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the one that holds <graph>.pt2 for the programs of {path}")
    records = (selection or Selection()).of(read_rows(path, NEEDED, "timed programs"))
    chosen, estimates = filters or Filters(), _Estimates(predictor, folder)

    def call_of(record: Row) -> tuple[Row, TimedCall]:
        if reason := chosen.reason(record):
            raise DataError(reason)
        return record, estimates.call(record)

    # Traces and programs are kept for the next row of the same graph.
    ordered = sorted(records, key=lambda row: str(row["graph"]))
    calls, skipped = answered(ordered, call_of, lambda row, _: {key: row.get(key) for key in _NAMES}, progress)
    some(calls, path, skipped)
    fit = HostFit(calls=_by_half(calls))
    rows = [_row(record, estimates(record, _host(fit, record, hosts))) for record, _ in calls]
    scored, ratios = Scored.of(rows, "_ms"), speedups(rows)
    return {
        "rows": rows,
        "means": {name: scored.summary(name) for name in BY},
        "by_mode_and_size": scored.summary("mode", "size"),
        "total": scored.figures(),
        "hosts": _hosts(fit),
        "dispatches": _dispatches(fit),
        "speedups": ratios,
        "gains": gains(ratios),
        "skipped": skipped,
        "unread": unread_columns(records, _READ, _NOTES),
    }


def _group(record: Row) -> tuple[str, ...]:
    """Whose host takes what: the same host, GPU and day, and how it launches."""
    return (*(str(record.get(name)) for name in ("host", "gpu", "measured_on")), LAUNCHES[str(record["mode"])])


def _by_half(calls: Iterable[tuple[Row, TimedCall]]) -> dict[tuple[tuple[str, ...], int], list[TimedCall]]:
    found: dict[tuple[tuple[str, ...], int], list[TimedCall]] = {}
    for record, call in calls:
        found.setdefault((_group(record), half_of(str(record["graph"]))), []).append(call)
    return found


def _host(fit: HostFit, record: Row, hosts: str) -> Host:
    host = fit.host(_group(record), half_of(str(record["graph"])), hosts)
    return replace(host, copied_bytes=int(record.get("host_bytes", 0)))


def _hosts(fit: HostFit) -> list[dict[str, Any]]:
    """What each host takes by all of its calls [us]; then all that launch alike: their geometric means, and the spread
    of operators from one to another.
    """
    rows = []
    for group, calls in sorted(fit.by_group().items()):
        host = fitted(calls, fit.others(group))
        named = dict(zip(("host", "gpu", "measured_on", "launch"), group, strict=True))
        times = {"call_us": 1e6 * host.call_s, "operator_us": 1e6 * host.operator_s, "spread": host.spread}
        rows.append(named | times)
    return rows + [
        {"host": "all", "gpu": "all", "measured_on": "all", "launch": launch, **_usual(alike)}
        for launch in sorted({row["launch"] for row in rows})
        if len(alike := [row for row in rows if row["launch"] == launch]) > 1
    ]


def _usual(hosts: Sequence[Row]) -> dict[str, float]:
    means = {name: geometric_mean([row[name] for row in hosts]) for name in ("call_us", "operator_us")}
    return {**means, "spread": stdev(log(row["operator_us"]) for row in hosts)}


def _dispatches(fit: HostFit) -> list[dict[str, Any]]:
    """What operators of each kind take of hosts that dispatch them one by one."""
    groups = [calls for group, calls in fit.by_group().items() if group[-1] in ("eager", "compiled")]
    found = fitted_dispatches(groups) if groups else {}
    return [{"kind": kind, "fitted": units, "predicted_with": DISPATCHES[kind]} for kind, units in found.items()]


class _Estimates:
    """Estimates of rows; traces and programs are the predictor's to keep."""

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        self.predictor, self.folder = predictor, folder
        self._kinds = lru_cache(maxsize=None)(_kinds)
        self._kernels_s: dict[tuple[Any, ...], float] = {}

    def call(self, row: Row) -> TimedCall:
        """What is known of a call before its host."""
        key = tuple(row.get(name) for name in ("graph", "gpu", "mode", "tf32", "conv_tf32", "l2_flushed"))
        if key not in self._kernels_s:
            self._kernels_s[key] = self(row, IDLE).latency_s
        kinds = self._kinds(str(self._file(row)), LAUNCHES[str(row["mode"])])
        return TimedCall(1e-3 * float(row["mean_ms"]), self._kernels_s[key], kinds)

    def _file(self, row: Row) -> Path:
        file = self.folder / f"{row['graph']}.pt2"
        if not file.is_file():
            raise DataError(f"no {file.name} among the programs")
        return file

    def __call__(self, row: Row, host: Host) -> Estimate:
        mode, key = str(row["mode"]), (flag(row, "tf32"), flag(row, "conv_tf32", True))
        if mode not in LAUNCHES:
            raise DataError(f"mode '{mode}' is not estimated: one of {', '.join(LAUNCHES)}")
        if key not in _DTYPES:
            raise DataError("products in TF32 beside convolutions in float32 are not estimated")
        operands = "cold" if flag(row, "l2_flushed") else "resident"
        step: dict[str, Any] = {"dtype": _DTYPES[key], "launch": LAUNCHES[mode], "operands": operands}
        return self.predictor.estimate(str(self._file(row)), str(row["gpu"]), host=host, **step)


def _kinds(file: str, launch: str) -> Counter[str]:
    """What the host dispatches in a call."""
    return step_kinds(compiled(load_workload(file, dtype="float32", launch=launch)))


def _row(record: Row, estimate: Estimate) -> dict[str, Any]:
    ends, measured_ms = estimate.interval, float(record["mean_ms"])
    return {
        **{name: record.get(name) for name in _NAMES},
        "size": "below 1 ms" if measured_ms < LARGE_MS else "above 1 ms",
        **compared(1e3 * estimate.latency_s, (1e3 * ends[0], 1e3 * ends[1]), measured_ms, "_ms"),
    }


def speedups(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """What each mode gains over eager on the same GPU and host on the same day: time of eager over time of the mode,
    as predicted and as measured, and how far the first is off [%].
    """
    return [
        {
            **{name: row[name] for name in (*_NAMES, "size")},
            "eager_ms": eager["measured_ms"],
            **(gain := compared(*_gains(eager, row), "_gain")),
            "direction": (gain["predicted_gain"] > 1) == (gain["measured_gain"] > 1),
        }
        for eager, row in _pairs(rows)
    ]


def _gains(eager: Row, row: Row) -> tuple[float, tuple[float, float], float]:
    """Predicted, its interval, and measured. Errors of the device's kernels are the same in both modes; how far they
    cancel is not known, so that ends are those of the mode alone.
    """
    predicted = eager["predicted_ms"] / row["predicted_ms"]
    ends = eager["predicted_ms"] / row["high_ms"], eager["predicted_ms"] / row["low_ms"]
    return predicted, ends, eager["measured_ms"] / row["measured_ms"]


def _pairs(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("gpu", "host", "graph", "measured_on", "l2_flushed"))

    listed = list(rows)
    eager = {key(row): row for row in listed if row["mode"] == "eager"}
    for row in listed:
        if row["mode"] != "eager" and key(row) in eager:
            yield eager[key(row)], row


CLEAR = 0.05
"""Gain or loss beyond which its direction is judged."""


def gains(ratios: Sequence[Row]) -> list[dict[str, Any]]:
    """By mode and by size of eager: count, median error of the predicted gain [%], and of gains and losses of more
    than 5 % their count and the percentage whose direction is right.
    """
    if not ratios:
        return []
    out = []
    for names, part in Scored.of(ratios, "_gain").groups("mode", "size"):
        clear = part.keys["direction"].to_numpy(bool)[abs(part.measured - 1.0) > CLEAR]
        right = 100.0 * float(clear.mean()) if len(clear) else None
        out.append({**names, **part.figures(), "clear": len(clear), "direction_right": right})
    return out
