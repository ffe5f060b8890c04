"""What contestants learn from in every fold: tables of kernels, and constants of physics without what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from neusight.lab.baselines import rows_of
from neusight.lab.cache import code_sha256, key_of
from neusight.lab.left_out import constants_without, fit_options
from neusight.lab.targets import StrictModel
from neusight.laws.fitted import FittedPhysics
from neusight.learn import Report
from neusight.learn.evidence import Evidence
from neusight.learn.physics.fit import solve_physics
from neusight.learn.physics.observations import ObservationReader
from neusight.learn.training_data import DeviceRows, load_corpus, thinned
from neusight.measured import files_of
from neusight.measured.folder import hashes
from neusight.paths import cache_dir


class Lessons(StrictModel):
    """What contestants that are trained learn from.

    Attributes:
        files: tables of kernels, patterns below ``NEUSIGHT_DATA``.
        constants: what those of physics are fitted to: rows of these tables (``own``), or all measured rows.
        gpus: devices that may be learned from; default all that have rows.
        split: of rows to learn from, "" for all.
        models: tile models that are trained; none given: all that have rows.
        refits: whether tile models are validated with constants that are fitted again in each of their own folds.
        most_rows: of each GPU and family that baselines learn from.
    """

    files: tuple[str, ...]
    constants: Literal["own", "all"] = "own"
    gpus: tuple[str, ...] = ()
    split: str = ""
    models: tuple[str, ...] = ()
    refits: bool = False
    most_rows: int | None = None

    def tables(self, data: Path) -> tuple[Path, ...]:
        """Their files in a folder of measured rows."""
        return tuple(files_of(data / name for name in self.files))

    def kept(self, left_out: tuple[str, ...]) -> tuple[str, ...]:
        """Devices of ``gpus`` that are not left out."""
        return tuple(gpu for gpu in self.gpus if gpu not in left_out)

    def physics(
        self, data: Path, left_out: tuple[str, ...], quick: bool, report: Report | None = None
    ) -> FittedPhysics:
        """Constants of physics without some devices; from the cache, or fitted and put there."""
        if self.constants == "all":
            return FittedPhysics.load(
                constants_without(left_out, data, ("physics",), quick=quick, report=report) / FittedPhysics.file
            )
        files, gpus = self.tables(data), self.kept(left_out)
        out = () if gpus else tuple(sorted(left_out))
        # These rows have optima and derivatives of their own, other than what ships.
        options = replace(fit_options(data, quick), hold_out=out, again=False)
        fit = [out, options.each, options.steps, options.again, gpus, self.split]
        key = key_of([*fit, hashes(files), code_sha256("neusight.learn.training")])
        path = cache_dir() / "experiments" / f"physics-{key}.json"
        if not path.is_file():
            corpus = load_corpus(files, gpus, out).of_split(self.split)
            parts = ObservationReader(options).lanes_of(corpus)
            solve_physics(Evidence(rows=parts, files=files), options, report).save(path)
        # Read back even when it was just fitted: the same digits in every run.
        return FittedPhysics.load(path)

    def rows(self, data: Path, left_out: tuple[str, ...]) -> list[DeviceRows]:
        """What baselines learn from."""
        rows = rows_of(load_corpus(self.tables(data), self.gpus, left_out).of_split(self.split))
        return thinned(rows, self.most_rows) if self.most_rows else rows
