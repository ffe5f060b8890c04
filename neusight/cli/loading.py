"""The predictor that a command's options ask for, and what it says of the corrections that it takes up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neusight.api import Predictor


def loaded(tile_models: Path | None, calibration: str) -> Predictor:
    """Tile models, and calibrations: those of a file or folder, none with ``none``, with '' those of the user."""
    from neusight.api import Predictor
    from neusight.paths import calibrations_dir

    chosen = None if calibration == "none" else Path(calibration or calibrations_dir())
    return Predictor.load(tile_models, chosen)


def note_corrections(predictor: Predictor, gpus: Iterable[str]) -> None:
    """A line on stderr for each GPU (by id) whose estimates are corrected by measurements of its own."""
    from neusight.cli.output import note

    for gpu in dict.fromkeys(gpus):
        if (correction := predictor.kernel_predictor.corrections.get(gpu)) is not None:
            note(f"note: corrected by {correction.described()}; --calibration none leaves that out")
