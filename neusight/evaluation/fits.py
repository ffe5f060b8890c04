"""``FITS``: constants that are fitted to measured tables, each with what a person reads of the fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.executors.gpu.tile_models.artifact import file_sha256

if TYPE_CHECKING:
    from neusight.laws.fitted import FittedToDevices
    from neusight.learn import Report


@dataclass(frozen=True, kw_only=True)
class FitChoice:
    """Rows that a fit reads: ids of devices to leave out, most rows of a device and kind of kernel, and a seed."""

    hold_out: tuple[str, ...] = ()
    rows: int = 100
    seed: int = 0


Fitted = tuple[Any, list[dict[str, Any]], list[str]]
"""What a fit prints: as JSON, as rows of a table, and in lines."""


def _links(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.learn.links import fit_links

    fitted = fit_links(folder, seed=choice.seed, report=report)
    fitted.save(out)
    return fitted.values, fitted.errors, _constants_lines(out, fitted)


def _arrays(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.learn.arrays import fit_arrays

    fitted = fit_arrays(folder, seed=choice.seed, report=report)
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} rows of {', '.join(fitted.gpus)}"
    lines = [
        f"{e['fit']}: {e['gpu']} {e['family']}, mean {e['mean']} %, median {e['median']} %"
        + (f", inside {e['inside']} %" if "inside" in e else "")
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines]


SERVING_TABLES = ("serving/cells.parquet", "serving-more/cells.parquet")
"""Tables of served models that constants of engines are fitted to, below the folder of data sets."""


def _engines(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.evaluation.serving import deployed_cells
    from neusight.learn.engines import fit_engines

    predictor, hashes = Predictor.load(), {name: file_sha256(folder / name) for name in SERVING_TABLES}
    fitted = fit_engines(
        lambda: chain.from_iterable(deployed_cells(folder / name, predictor) for name in hashes), report=report
    )
    fitted.save(out, hashes)
    rows = [{"engine": era, **each.values} for era, each in fitted.engines.items()]
    lines = [
        f"{era}: mean error {each.error:.1%} on {each.cells:,} cells of {', '.join(each.gpus)}"
        for era, each in fitted.engines.items()
    ]
    return rows, rows, [*lines, *_left_out_lines("cells", fitted.left_out)]


def _boards(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.evaluation.serving import deployed_cells
    from neusight.learn.boards import STEADY, fit_boards, served_observations, steady_observations
    from neusight.measured.folder import hashes, measured_in

    predictor, left_out = Predictor.load(), Counter[str]()
    files = hashes([measured_in(folder) / STEADY]) | {name: file_sha256(folder / name) for name in SERVING_TABLES}
    cells = chain.from_iterable(deployed_cells(folder / name, predictor) for name in SERVING_TABLES)
    observations = [*steady_observations(folder), *served_observations(cells, left_out)]
    fitted = fit_boards(observations, files, left_out)
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} readings of {', '.join(fitted.gpus)}"
    lines = [
        f"{e['fit']}: {e['gpu']} {e['source']}, mean {e['mean']} %, median {e['median']} %, bias {e['bias']:+} %"
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines, *_left_out_lines("cells", fitted.skipped)]


def _microcontrollers(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.learn.microcontrollers import fit_microcontrollers

    fitted = fit_microcontrollers(folder)
    fitted.save(out)
    head = f"{out}: {len(fitted.values)} constants from {fitted.rows:,} inferences on {', '.join(fitted.gpus)}"
    lines = [
        f"without {e['core']}: {e['model']}, {e['rows']} rows, mean error {e['law']} %"
        + (f", of a line through the multiply-adds {e['line']} %" if "line" in e else "")
        for e in fitted.errors
    ]
    return fitted.values, fitted.errors, [head, *lines]


STEP_TABLES = ("training-runs/runs.parquet", "training-throughput/a100_training.csv")
"""Tables of training steps that factors are fitted to, below the folder of data sets."""


def _training(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.evaluation.training import measured_steps
    from neusight.learn.training_steps import fit_training

    predictor, hashes = Predictor.load(), {name: file_sha256(folder / name) for name in STEP_TABLES}
    steps, skipped = measured_steps(folder / name for name in STEP_TABLES)
    fitted = fit_training(steps, predictor.timed, hashes, report, Counter(row["reason"] for row in skipped))
    fitted.save(out)
    rows = [{"factor": name, "value": v, "deviation": fitted.deviations[name]} for name, v in fitted.values.items()]
    lines = [f"{fitted.rows} steps of {', '.join(fitted.gpus)}: mean error {fitted.error:.1%}"]
    lines += [
        f"without steps of {gpu}: {errors['mean']:.1%}, worst source {errors['worst_source']:.1%}"
        for gpu, errors in fitted.left_out.items()
    ]
    return rows, rows, [*lines, *_left_out_lines("steps", fitted.skipped)]


def _left_out_lines(what: str, left_out: Mapping[str, int]) -> list[str]:
    """How many rows a fit did not read, and why, in a line; none where all were read."""
    from neusight.learn.sums import most_common

    counted = Counter(left_out)
    return [f"{counted.total():,} {what} were left out: {most_common(counted)}"] if counted else []


def _physics(folder: Path, out: Path, report: Report, choice: FitChoice) -> Fitted:
    from neusight.learn.physics.fit import FitOptions, fit_physics

    fitted = fit_physics(
        FitOptions(data=folder, hold_out=choice.hold_out, each=choice.rows, seed=choice.seed), report=report
    )
    fitted.save(out)
    constants = [{"constant": name, "value": value} for name, value in fitted.values.items()]
    return fitted.values, constants, _constants_lines(out, fitted)


def _constants_lines(out: Path, fitted: FittedToDevices) -> list[str]:
    return [
        f"{out}: {len(fitted.values)} constants from {fitted.rows:,} rows of {len(fitted.gpus)} devices, ",
        f"mean error {fitted.error:.1%} with what each device has of its own",
        *_left_out_lines("rows", fitted.skipped),
    ]


FITS = {
    "physics": _physics, "links": _links, "arrays": _arrays, "engines": _engines, "boards": _boards,
    "microcontrollers": _microcontrollers, "training": _training,
}  # fmt: skip
"""By the name of their constants; each takes the folder of data sets, the file to write, a report and a choice."""
