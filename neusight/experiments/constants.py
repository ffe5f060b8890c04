"""Constants of physics for the folds of an experiment: fitted without what a fold holds out, kept in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neusight.datasets.load import parquet_files, sets_in, tables_in
from neusight.datasets.schema import read_parquet
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.laws.fitted import FittedPhysics
from neusight.learn import Report
from neusight.learn.physics.fit import FitOptions, all_parts, fit_parts, tables_read
from neusight.learn.physics.observations import ProblemPart
from neusight.learn.training import CONSTANT_ROWS, CONSTANT_STEPS
from neusight.paths import cache_dir

QUICK_EACH, QUICK_STEPS = 10, 1
"""Of a quick run, which learns next to nothing."""


@dataclass
class Constants:
    """Fits of an experiment.

    Args:
        data: a folder of data sets, all of which count; or with ``training`` one data set's folder of kernels.
        code: hash of the code that decides what is fitted.
        quick: fit to next to nothing.
        split: of one data set: rows to fit to, "" for all.
        each: rows of a group.
        steps: of the fit.
    """

    data: Path
    code: str
    quick: bool = False
    split: str = ""
    each: int = CONSTANT_ROWS
    steps: int = CONSTANT_STEPS
    _read: dict[tuple[str, ...], list[ProblemPart]] = field(default_factory=dict)

    def without(self, held_out: Collection[str], report: Report | None = None) -> FittedPhysics:
        """Fitted to all data sets but for devices that are held out."""
        options = self._options(held_out)

        def parts() -> list[ProblemPart]:
            if () not in self._read:
                self._read[()] = all_parts(self._options(()), report)
            return self._read[()]

        return self._kept({"held_out": sorted(held_out)}, options, parts, report)

    def of(self, training: Collection[str], report: Report | None = None) -> FittedPhysics:
        """Fitted to the kernels of one data set on these devices alone."""
        others = set(_gpus(self.data)) - set(training)
        options = self._options(others)
        request = {"training": sorted(training), "split": self.split}
        return self._kept(request, options, lambda: _own_parts(options, self.split), report)

    def _options(self, held_out: Collection[str]) -> FitOptions:
        each, steps = (QUICK_EACH, QUICK_STEPS) if self.quick else (self.each, self.steps)
        return FitOptions(data=self.data, hold_out=tuple(sorted(held_out)), each=each, steps=steps)

    def _kept(
        self,
        request: Mapping[str, Any],
        options: FitOptions,
        parts: Callable[[], list[ProblemPart]],
        report: Report | None,
    ) -> FittedPhysics:
        """From the cache, or fitted and put there."""
        key = json.dumps([dict(request), options.each, options.steps, self._data(), self.code], sort_keys=True)
        path = cache_dir() / "experiments" / f"physics-{sha256(key.encode()).hexdigest()[:24]}.json"
        if not path.is_file():
            fit_parts(parts(), options, report=report).save(path)
        # Read back even when it was just fitted: the same digits in every run.
        return FittedPhysics.load(path)

    def _data(self) -> list[tuple[str, str]]:
        """Hash of every table that may be read."""
        tables = (file for folder in sets_in(self.data) for file in tables_in(folder))
        files = sorted({*self.data.glob("*.parquet"), *tables, *tables_read(self.data)})
        return [(f"{file.parent.name}/{file.name}", file_sha256(file)) for file in files]


def _gpus(source: Path) -> set[str]:
    return {gpu for file in parquet_files(source) for gpu in read_parquet(file)["gpu"].unique().to_pylist()}


def _own_parts(options: FitOptions, split: str) -> list[ProblemPart]:
    """Parts of one data set, of its rows of a split where one is given."""
    if not split:
        return options.reading().lanes()
    import pandas as pd

    with TemporaryDirectory(prefix="neusight-") as scratch:
        for file in parquet_files(options.data):
            rows = pd.read_parquet(file)
            rows[rows["split"] == split].to_parquet(Path(scratch) / file.name)
        return replace(options, data=Path(scratch)).reading().lanes()
