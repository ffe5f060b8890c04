"""Calibrations on disk: one file, or a folder with one a GPU, read when its GPU is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from neusight.errors import ArtifactError
from neusight.executors.gpu.calibration.calibration import Calibration
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.paths import calibrations_dir


def load_calibrations(path: Path, predictor: KernelPredictor) -> Mapping[str, Calibration]:
    """Corrections for ``KernelPredictor.corrections`` by the id of their device.

    Args:
        path: a file of ``Calibration.save``, or a folder of them, each named after its GPU; the user's own folder need
            not be there.
        predictor: with the tile models that they must have been fitted on.

    Raises:
        ArtifactError: the file does not load, or was fitted on other tile models; those of a folder say so when
            their GPU is asked for.
    """
    if path.is_dir() or path == calibrations_dir():
        return CalibrationFolder(path, predictor)
    calibration = _checked(path, predictor)
    return {calibration.gpu: calibration}


class CalibrationFolder(Mapping[str, Calibration]):
    """The calibrations of a folder, ``<gpu>.json``, each read once."""

    def __init__(self, folder: Path, predictor: KernelPredictor) -> None:
        self.folder = folder
        self.predictor = predictor
        self._read: dict[str, Calibration] = {}

    def __getitem__(self, gpu: str) -> Calibration:
        path = self.folder / f"{gpu}.json"
        if gpu not in self._read:
            if not path.is_file():
                raise KeyError(gpu)
            self._read[gpu] = _of(gpu, path, self.predictor)
        return self._read[gpu]

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("*.json")))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of(gpu: str, path: Path, predictor: KernelPredictor) -> Calibration:
    calibration = _checked(path, predictor)
    if calibration.gpu != gpu:
        raise ArtifactError(f"{path} is a calibration of {calibration.gpu}: name the file after its GPU")
    return calibration


def _checked(path: Path, predictor: KernelPredictor) -> Calibration:
    calibration = Calibration.load(path)
    calibration.check_models(predictor, str(path))
    return calibration
