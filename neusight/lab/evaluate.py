"""Measured rows of any files as ``neusight evaluate`` compares them, each predicted as if its device were unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import DataError
from neusight.lab.contestants import ids_of
from neusight.lab.left_out import boards_of, is_fitted_without, predictor_without, trait_of
from neusight.measured import Evaluation, RowChoice, evaluate
from neusight.measured.table import read_frame
from neusight.paths import tile_models_from

if TYPE_CHECKING:
    from neusight.measured.compare import Progress

LEAVE_OUT = {"die": "die", "device": "gpu", "generation": "generation", "vendor": "vendor"}
"""What ``neusight evaluate --leave-out`` takes, and the trait of devices that it is."""


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
    """As ``neusight.measured.evaluate``, with the device of each row, and all that share a trait, left out of all fits.

    Args:
        files: tables of measured rows.
        by: one of ``LEAVE_OUT``.
        data: folder of measured rows that constants are fitted to.
        choice: which rows.
        progress: called with (done, of) parts of the work.
        note: called with a line before a fit that is not kept yet.
        options: further ones of ``neusight.measured.evaluate``.

    Raises:
        DataError: no rows of known devices.
    """
    trait, found = LEAVE_OUT[by], Evaluation()
    frames = (read_frame(file) for file in files)
    gpus = sorted({str(gpu) for frame in frames if "gpu" in frame for gpu in frame["gpu"].dropna().unique()})
    wanted = [gpu for gpu in sorted(set(ids_of(gpus).values())) if not choice.gpus or gpu in choice.gpus]
    for value in sorted({trait_of(gpu, trait) for gpu in wanted} - {""}):
        boards = boards_of(value, trait, wanted)
        if not is_fitted_without(boards, data):
            note(f"fitting constants without {value}, which takes minutes and is kept for the next time")
        predictor, folder = predictor_without(boards, data)
        with tile_models_from(folder):
            part = evaluate(files, predictor, replace(choice, gpus=tuple(boards)), progress, **options)
        found.tables.extend(table for table in part.tables if len(table))
        found.skipped.extend(part.skipped)
    if not found.tables:
        raise DataError(f"no row of {', '.join(map(str, files))[:200]} has a known device to leave out")
    return found
