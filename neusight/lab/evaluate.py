"""Measured rows of any files as ``neusight evaluate`` compares them, as if the device or source of each were new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.lab.contestants import ids_of
from neusight.lab.left_out import boards_of, constants_without, is_fitted_without, trait_of
from neusight.measured import Evaluation, RowChoice, evaluate
from neusight.measured.table import read_frame
from neusight.paths import tile_models_from

if TYPE_CHECKING:
    from neusight.measured.compare import Progress

LEAVE_OUT = {"die": "die", "device": "gpu", "generation": "generation", "vendor": "vendor"}
"""What ``neusight evaluate --leave-out`` takes beside ``source``, and the trait of devices that it is."""


def evaluate_left_out(
    files: Sequence[Path],
    by: str,
    data: Path,
    choice: RowChoice,
    progress: Progress | None = None,
    *,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Evaluation:
    """As ``neusight.measured.evaluate``, with the device of each row, and all that share a trait, left out of all fits,
    or its source of those of engines.

    Args:
        files: tables of measured rows.
        by: one of ``LEAVE_OUT``, or ``source``.
        data: folder of measured rows that constants are fitted to.
        choice: which rows.
        progress: called with (done, of) parts of the work.
        note: called with a line before a fit that is not kept yet.
        options: further ones of ``neusight.measured.evaluate``.

    Raises:
        DataError: no rows of known devices.
    """
    names, found = () if by in LEAVE_OUT else ("engines",), Evaluation()
    for value, left_out, rows in _parts(files, by, choice):
        if not is_fitted_without(left_out, data, names):
            note(f"fitting constants without {value}, which takes minutes and is kept for the next time")
        folder = constants_without(left_out, data, names)
        with tile_models_from(folder):
            part = evaluate(files, Predictor.load(), rows, progress, **options)
        found.tables.extend(table for table in part.tables if len(table))
        found.skipped.extend(part.skipped)
    if not found.tables:
        raise DataError(f"no row of {', '.join(map(str, files))[:200]} has a known {by} to leave out")
    return found


def _parts(files: Sequence[Path], by: str, choice: RowChoice) -> list[tuple[str, tuple[str, ...], RowChoice]]:
    """What is left out in turn: its name, the source or devices that it is, and the choice of its rows."""
    column = "gpu" if by in LEAVE_OUT else by
    frames = (read_frame(file) for file in files)
    cells = sorted({str(cell) for frame in frames if column in frame for cell in frame[column].dropna().unique()})
    if by not in LEAVE_OUT:
        return [(cell, (cell,), replace(choice, source=cell)) for cell in cells if choice.source in ("", cell)]
    gpus = [gpu for gpu in sorted(set(ids_of(cells).values())) if not choice.gpus or gpu in choice.gpus]
    values = sorted({trait_of(gpu, LEAVE_OUT[by]) for gpu in gpus} - {""})
    folds = [(value, boards_of(value, LEAVE_OUT[by], gpus)) for value in values]
    return [(value, boards, replace(choice, gpus=boards)) for value, boards in folds]
