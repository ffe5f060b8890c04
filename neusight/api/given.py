"""``Given``: measured figures of one's own, which correct answers as far as their doubts are those of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp, sqrt
from typing import Any

import numpy as np

from neusight.estimates import Estimate, LoneKernel
from neusight.estimates.core import summed
from neusight.laws.bounds import CLOCKS
from neusight.laws.doubts import Anchors, Doubts, spread, weighed
from neusight.quick_dataclasses import dataclass

SHARED: Mapping[str, float] = {"source": 0.2, "engine": 0.2}
"""Share of the variance of a doubt that different questions have in common, by the first word of its key: what an
engine's times or a source's figures miss differs by model and load."""
OTHERS = 0.6
"""The same of all other doubts."""
OF_SOURCE = 0.2
"""Share of the variance of all doubts that the figures of one who measures have in common, where an answer states no
doubt between sources: host, clocks, versions, way of counting (fitted, as are both shares above: of 27 choices a good
one by the score of 785 figures of 38 sources beside one other row, `neusight evaluate --anchored source`, which does
not make times per token worse; sources that are left out in turn score as well)."""
NOISE = 0.02
"""Standard deviation of the log of a measured figure that a repetition of it does not share (fitted: median of the
repetitions that sources record, 0.3 % of times per token to 2 % of times to a first token and of steps)."""
FAR = 10.0
"""Distance beyond the end of an interval, as a factor, of which no doubt is the cause, but another unit or question
(assumption: of 785 sound figures none is beyond 2.4; units differ by 60 or more)."""
_RATES = ("output_tokens_per_s", "steady_output_tokens_per_s")
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_OF = " of "
"""Between a key and the question that a part of its doubt is of."""
_NAMED = 3
"""Causes of a change that its words name."""
_SAME = 0.005
"""Changes of a figure and of its spread, as shares, below which measurements tell nothing of it."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """What measurements change in a metric.

    Attributes:
        shift: of its logarithm.
        shifts: the same by key.
        before, after: standard deviations of the logarithm of true over predicted.
    """

    shift: float
    shifts: Mapping[str, float]
    before: float
    after: float

    @property
    def counts(self) -> bool:
        """Whether it is worth a word."""
        return abs(self.shift) > _SAME or self.after < (1.0 - _SAME) * self.before

    @property
    def words(self) -> str:
        """``+8 %, mostly source and composition``."""
        sizes = summed((key.partition(":")[0].replace("own", "kernel"), size) for key, size in self.shifts.items())
        causes = [cause for cause, size in sizes.items() if abs(size) > 0.2 * abs(self.shift)]
        causes = sorted(causes, key=lambda cause: -abs(sizes[cause]))[:_NAMED]
        return f"{100.0 * (exp(self.shift) - 1.0):+.0f} %" + (f", mostly {' and '.join(causes)}" if causes else "")


@dataclass(frozen=True, kw_only=True)
class Given:
    """Measured figures of one's own.

    Attributes:
        lines: of each figure ``place`` (the device), ``metric``, ``measured``, ``predicted``, ``doubts`` of the
            prediction, and ``noise``, the standard deviation of the log of the measurement by itself.
        name: of the file that holds them.
        unused: what of the file does not count, and why; "" where all does.
    """

    lines: Sequence[Mapping[str, Any]]
    name: str = ""
    unused: str = ""

    @cached_property
    def anchors(self) -> Anchors:
        """The same as anchors."""
        log_ratio = np.log([line["measured"] / line["predicted"] for line in self.lines])
        return Anchors(self._column("doubts"), log_ratio, np.array(self._column("noise")))

    def _column(self, name: str) -> list[Any]:
        return [line[name] for line in self.lines]

    def applied(self, answer: Any) -> Any:
        """The answer with its metrics moved, and the moves in ``given``; unchanged where they tell nothing of it."""
        metrics = (*_LATENCIES, "throughput") if hasattr(answer, "ttft_s") else ("time",)
        moves = {metric: moved(self.anchors, doubts_of(answer, metric)) for metric in metrics}
        moves = {metric: move for metric, move in moves.items() if move.counts}
        answer = replace(answer, warnings=(*answer.warnings, self.unused)) if self.unused else answer
        figures = "1 figure" if len(self.lines) == 1 else f"{len(self.lines)} figures"
        if not moves:
            what = f"{figures} of {self.name} ({', '.join(dict.fromkeys(self._column('metric')))})"
            return replace(answer, warnings=(*answer.warnings, f"--given has no effect: {what} tell nothing of this"))
        what = f"{figures} of {', '.join(dict.fromkeys(self._column('place')))}"
        after = changed(answer, moves)
        words = "; ".join(
            f"{metric} {move.words}, 90 %: {' -> '.join(f'±{_margin(one, metric):.0%}' for one in (answer, after))}"
            for metric, move in moves.items()
        )
        given = {"file": self.name, "figures": len(self.lines), "words": f"by {what}: {words}"}
        sizes = {metric: dict(vars(move)) for metric, move in moves.items()}
        return replace(after, given={**after.given, **given, "moves": sizes})


def _margin(answer: Any, metric: str) -> float:
    """Upper end of the 90 % interval of a metric over its value, less 1."""
    if metric == "time":
        return float(answer.high_s / answer.latency_s - 1.0)
    figure = answer.output_tokens_per_s if metric == "throughput" else answer.latency(metric)
    return float(figure.high / figure.mean - 1.0)


def moved(anchors: Anchors, doubts: Doubts) -> Move:
    """What measured figures change in a figure of such doubts."""
    shifts = {key: size * anchors.values[key] for key, size in doubts.items() if key in anchors.values}
    by_key = summed((key.partition(_OF)[0], shift) for key, shift in shifts.items())
    return Move(shift=sum(shifts.values()), shifts=by_key, before=spread(doubts), after=anchors.spread(doubts))


def doubts_of(answer: Any, metric: str) -> dict[str, float]:
    """Signed standard deviations of the log of a metric by key.

    A doubt of which other questions share a part alone becomes two, one of them of this question. Questions are the
    same where their answers are, whichever words ask: a name or another of a device, a default or the same value.
    """
    doubts = answer.doubts if metric == "time" else answer.doubts_of(metric)
    of_source = 0.0 if any(key.startswith("source:") for key in doubts) else OF_SOURCE
    sizes = {f"source:{metric}": sqrt(of_source) * spread(doubts)} if of_source else {}
    for key, size in doubts.items():
        shared = (1.0 - of_source) * SHARED.get(key.partition(":")[0], OTHERS)
        sizes[key] = sqrt(shared) * size
        sizes[f"{key}{_OF}{answer.latency_s:.6g} s"] = sqrt(1.0 - of_source - shared) * size
    return sizes


def bound_s(answer: Any) -> float:
    """The time that no answer beats; 0 where it is not stated."""
    return float(getattr(answer, "bound_s", answer.latency_s * getattr(answer, "hfu", 0.0)))


def fault_of(line: Mapping[str, Any], bound: float, unit: str) -> str:
    """The reason why a measured figure cannot be of its question, "" if it can: its bound or its interval."""
    measured, low, high = line["measured"], line["low"], line["high"]
    beyond = max(measured / high, low / measured)
    is_below_bound = CLOCKS * measured < bound
    if beyond <= FAR and not is_below_bound:
        return ""
    far = f"{beyond:,.0f} times beyond the 90 % interval {low:.4g} to {high:.4g}"
    why = f"below the bound {bound:.4g}" if is_below_bound else far
    return f"{line['quantity']} {measured:.4g} is {why}: is the unit {unit}?"


def changed(answer: Any, moves: Mapping[str, Move]) -> Any:
    """An answer whose metrics are moved, none of its times below its bound."""
    if isinstance(answer, LoneKernel):
        return _row(answer, moves["time"], moves["time"].after / moves["time"].before)
    if isinstance(answer, Estimate):
        move = moves["time"]
        rows = tuple(_row(row, move) for row in answer.by_kernel)
        factor = sum(row.total_s for row in rows) / answer.latency_s
        return replace(
            answer,
            by_kernel=rows,
            board_energy=answer.board_energy and answer.board_energy * factor,
            given={"remains": move.after / move.before},
        )
    if "time" in moves:
        return _training(answer, moves["time"])
    return _served(answer, moves)


def _row(row: Any, move: Move, remains: float = 1.0) -> Any:
    """A kernel whose time moves, but not below its bound; a share of its doubts remains."""
    if not row.latency_s:
        return row
    latency_s = max(exp(move.shift) * row.latency_s, row.bound_s)
    factor, ratio = latency_s / row.latency_s, move.after / move.before
    low_s, high_s = (latency_s * (end / row.latency_s) ** ratio for end in (row.low_s, row.high_s))
    return replace(
        row, latency_s=latency_s, low_s=max(low_s, row.bound_s), high_s=high_s,
        utilisation=min(row.utilisation / factor, 1.0),
        errors_s=tuple((key, factor * remains * size_s) for key, size_s in row.errors_s),
    )  # fmt: skip


def _training(answer: Any, move: Move) -> Any:
    """A training step whose time moves, but not below its arithmetic at the devices' peak."""
    least_s = bound_s(answer)
    latency_s = max(exp(move.shift) * answer.latency_s, least_s)
    factor, ratio = latency_s / answer.latency_s, move.after / move.before
    low_s, high_s = (latency_s * (end / answer.latency_s) ** ratio for end in answer.interval)
    return replace(
        answer, latency_s=latency_s, interval=(max(low_s, least_s), high_s),
        board_energy=answer.board_energy and answer.board_energy * factor,
        doubts=weighed([(ratio, answer.doubts)]),
    )  # fmt: skip


def _served(answer: Any, moves: Mapping[str, Move]) -> Any:
    """A served model whose latencies and rates move; cost and energy of a token follow its rate."""
    changes = {f"{name}_s": _metric(answer.latency(name), moves.get(name)) for name in _LATENCIES}
    changes |= {name: _metric(getattr(answer, name), moves.get("throughput")) for name in _RATES}
    factor = changes["output_tokens_per_s"].mean / answer.output_tokens_per_s.mean
    usd = answer.usd_per_million_output_tokens
    changes |= {name: factor * getattr(answer, name) for name in ("requests_per_s", "total_tokens_per_s")}
    ratios = {name: move.after / move.before for name, move in moves.items()}
    changes["metric_doubts"] = {
        name: weighed([(ratios.get(name, 1.0), doubts)]) for name, doubts in answer.metric_doubts.items()
    }
    changes |= {"token_energy": answer.token_energy * (1.0 / factor)}
    return replace(answer, usd_per_million_output_tokens=usd and usd / factor, **changes)


def _metric(metric: Any, move: Move | None) -> Any:
    """A metric whose mean and percentiles move, and whose interval becomes narrower."""
    if move is None or not metric.mean:
        return metric
    factor, ratio = exp(move.shift), move.after / move.before
    ends = {n: factor * metric.mean * (getattr(metric, n) / metric.mean) ** ratio for n in ("low", "high")}
    percentiles = {n: v and factor * v for n, v in vars(metric).items() if n.startswith("p")}
    return replace(metric, mean=factor * metric.mean, **percentiles, **ends)
