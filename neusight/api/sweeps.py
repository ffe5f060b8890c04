"""Grids of models, devices and sizes as tables, for capacity planning: kernels of many steps are priced at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

from neusight.defaults import words_of
from neusight.devices import DeviceSpec
from neusight.errors import NeusightError
from neusight.estimates import Estimate
from neusight.executors.together import BatchedPricer
from neusight.questions import Step
from neusight.steps.answers import Price, ReadyStep, StepAnswers
from neusight.steps.questions import StepQuestion
from neusight.workers import hired, shared

_TOGETHER = 64
"""Steps of a sweep whose kernels are priced at once, by one worker; beyond that a call's own price no longer shows."""
SWEEP_COLUMNS = (
    *("model", "gpu", "mode", "batch", "seq_len", "dtype", "latency_s", "low_s", "high_s", "bound_s", "limiter"),
    *("samples_per_s", "tokens_per_s", "needed_bytes", "peak_bytes", "fits", "board_energy_j"),
    *("usd_per_million_samples", "price_source", "unit", "assumed", "error"),
)


def sweep_points(grid: Mapping[str, Any], words: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Words of every combination; the last name of the grid changes fastest.

    Args:
        grid: what to combine by name, each a list or one value.
        words: of all steps.
    """
    values = product(*map(_several, grid.values()))
    return [{**words, **dict(zip(grid, combination, strict=True))} for combination in values]


def swept(
    answers: StepAnswers,
    points: Sequence[Mapping[str, Any]],
    *,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    ray: str = "",
) -> list[dict[str, Any]]:
    """A row for each step, with all of ``SWEEP_COLUMNS`` and the other words in which steps differ.

    Args:
        answers: for steps.
        points: keywords of ``Step.of`` for each step.
        progress: called with (done, of) after each row, or, where others do them, after some.
        jobs, ray: who share the work, see ``workers.hired``.

    Raises:
        DeviceError: no such cluster.
    """
    shares = [points[start : start + _TOGETHER] for start in range(0, len(points), _TOGETHER)]
    rows: list[dict[str, Any]] = []
    if jobs == 1 and not ray:
        for row in chain.from_iterable(_rows(answers, share) for share in shares):
            rows.append(row)
            if progress:
                progress(len(rows), len(points))
    else:
        # Others report shares that are done, each of several rows.
        by_share = progress and (lambda done, _: progress(min(done * _TOGETHER, len(points)), len(points)))
        with hired(jobs, ray, _begin, answers) as workers:
            found = shared(workers, _asked, shares, by_share)
        rows = list(chain.from_iterable(found))
    return [dict.fromkeys(SWEEP_COLUMNS) | row for row in rows]


_COLUMNS = SWEEP_COLUMNS[:6]
"""Words of a step."""
_OTHERWISE = ("model", "gpu", "mode", "batch", "usd_per_million_samples", "assumed", "error")
"""Columns that are no attributes of an estimate."""
_ANSWERS: list[StepAnswers] = []
"""Of this process, where it is a worker."""


def _begin(answers: StepAnswers) -> None:
    _ANSWERS[:] = [answers]


def _asked(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return list(_rows(_ANSWERS[0], points))


def _rows(answers: StepAnswers, points: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of steps whose kernels are priced together."""
    steps = [_ready(answers, point) for point in points]
    prices = _prices(answers, [step for step in steps if isinstance(step, ReadyStep)])
    for point, step in zip(points, steps, strict=True):
        gpu = point["gpu"].id if isinstance(point["gpu"], DeviceSpec) else str(point["gpu"])
        columns = {"mode": "inference", "batch": 1, **point, "gpu": gpu}
        yield {name: columns.get(name) for name in _COLUMNS} | _answer(answers, step, prices)


def _ready(answers: StepAnswers, point: Mapping[str, Any]) -> ReadyStep | StepQuestion | NeusightError:
    """A step that waits for its prices, one that several devices share, or why there is none."""
    stepless = {"optimizer": "none"} if point.get("mode", "inference") == "inference" else {}
    try:
        question = Step.of(**{**point, **stepless}).resolve()
        return question if question.shared else answers.ready(question)
    except NeusightError as error:
        return error


def _prices(answers: StepAnswers, steps: Sequence[ReadyStep]) -> dict[int, Price]:
    """Prices of the kernels of all steps on each of their devices, by the identity of the device."""
    devices = {id(step.device): step for step in steps}
    return {
        key: BatchedPricer(
            [batch for step in steps if step.device is one.device for batch, _ in step.program.batches],
            partial(answers.cost, device=one.device, setting=one.setting),
        )
        for key, one in devices.items()
    }


def _answer(
    answers: StepAnswers, step: ReadyStep | StepQuestion | NeusightError, prices: Mapping[int, Price]
) -> dict[str, Any]:
    try:
        if isinstance(step, NeusightError):
            raise step
        if isinstance(step, StepQuestion):
            return _figures(answers.answer(step))
        return _figures(answers.estimate(step, prices[id(step.device)]))
    except NeusightError as error:
        return {"fits": False, "error": str(error)}


def _several(value: Any) -> list[Any]:
    """A list, or one value as a list of it: a name is no list of letters."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | DeviceSpec) else [value]


def _figures(estimate: Estimate) -> dict[str, Any]:
    return {
        **{name: getattr(estimate, name) for name in SWEEP_COLUMNS if name not in _OTHERWISE},
        "assumed": words_of(estimate.assumed),
        "usd_per_million_samples": None if estimate.usd_per_hour is None else estimate.cost_usd(1e6),
        "error": "",
    }
