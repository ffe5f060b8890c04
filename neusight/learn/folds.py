"""Folds that leave out a kind of SM, a board beside its siblings, or rows of all boards: each trained without them and
measured on them. They choose the shrinkage and, by ``doubts``, the intervals.

Rows that were left out are kept on disk fold by fold, so that an interrupted training can resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import list_gpus
from neusight.devices.kinship import Silicon
from neusight.executors.gpu.features import FeatureContract
from neusight.executors.gpu.tile_models.artifact import implementations, kernel_kinds, sm_kind
from neusight.executors.gpu.tile_models.doubts import Kinship, doubt_names
from neusight.executors.gpu.tile_models.protocol import device_effects, new_model, utilisation
from neusight.kernels.work import by_distinct
from neusight.laws.effects import Effects
from neusight.learn import Report
from neusight.learn.doubts import Residuals
from neusight.learn.evidence import grouped
from neusight.learn.sums import weighted_quantiles
from neusight.learn.training_data import Corpus, DeviceRows, thinned
from neusight.learn.training_sets import Knowledge, group_names, training_set

if TYPE_CHECKING:
    import pandas as pd

LEAST_REAL = 40
"""Rows of an op that say more of a device than all of its rows, if they have the shapes of real models (assumption)."""

OWN_FOLD = 5
"""One in so many rows is left out to see how well the GPUs are known that were learned from."""
FOLD_ROWS = 4000
"""Of each GPU and family that a fold learns from and is measured on: there are many folds."""
PERCENT = np.linspace(0.0, 1.0, 101)
SHRINKAGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of what was learned that are tried on devices of kinds that were left out."""
COLUMNS = (
    *("gpu", "die", "family", "kind", "name", "real", "weight"),
    *("learned", "prior", "bound_s", "floor_s", "latency_s"),
)
"""Of rows that were left out: their device and kind of SM, family, ``kernel_kinds`` and ``doubt_names``, whether they
count as shapes of real models, what was learned (a logit, with the effect that counts), fields of a training set."""


@dataclass(frozen=True)
class LeftOutRows:
    """Rows that are left out at once, ``held``, or where there are none some of ``others``, which are learned from.

    ``without`` are devices that constants are fitted without, ``siblings`` those of the one that is left out.
    """

    name: str
    others: Sequence[DeviceRows]
    held: Sequence[DeviceRows] = ()
    without: frozenset[str] = frozenset()
    siblings: Sequence[str] = ()

    def chosen(self, most: int) -> tuple[list[DeviceRows], list[np.ndarray]]:
        """So many rows of each device and family, and which of them are left out, as masks."""
        others, held = thinned(self.others, most), thinned(self.held, most)
        if held:
            return [*others, *held], [np.full(len(r), at >= len(others)) for at, r in enumerate([*others, *held])]
        return others, [np.random.default_rng(1).permutation(len(r)) < len(r) // OWN_FOLD for r in others]


@dataclass(frozen=True, kw_only=True)
class FoldRun:
    """Folds of one tile model, learning from ``corpus``, measured on all rows of the GPUs that are left out: ``most``
    of each GPU and family. ``knowledge`` gives what is known without some devices, ``kept`` is the folder of folds.
    """

    model: str
    contract: FeatureContract
    corpus: Corpus
    whole: Corpus
    knowledge: Callable[[frozenset[str], Sequence[DeviceRows]], Knowledge]
    backend: str
    parameters: Mapping[str, Any]
    kept: Path
    report: Report | None
    most: int

    def measured(self) -> dict[Kinship, pd.DataFrame]:
        """Rows that were left out with ``COLUMNS``, by what their devices are to those that were learned from."""
        import pandas as pd

        folds: dict[Kinship, Iterator[LeftOutRows]]
        folds = {"stranger": self._kinds(), "sibling": self._siblings(), "own": iter([self._own()])}
        parts = {kinship: [self._finished(kinship, fold) for fold in of] for kinship, of in folds.items()}
        empty = pd.DataFrame(columns=list(COLUMNS))
        return {kinship: pd.concat(tables, ignore_index=True) if tables else empty for kinship, tables in parts.items()}

    def _rows(self) -> list[DeviceRows]:
        """All rows of GPUs that are learned from."""
        known = set(self.corpus.gpus(self.model))
        return [rows for rows in self.whole.rows[self.model] if rows.device.id in known]

    def _others(self, gpus: frozenset[str]) -> list[DeviceRows]:
        return [r for r in self.corpus.rows[self.model] if r.device.id not in gpus]

    def _own(self) -> LeftOutRows:
        """Rows of every GPU, each of which is known with its own effect."""
        return LeftOutRows("some rows", self.corpus.rows[self.model])

    def _kinds(self) -> Iterator[LeftOutRows]:
        """Each kind of SM, unless there is only one: constants are learned without all boards of that kind, whichever
        table has them.
        """
        held = grouped(self._rows(), lambda rows: sm_kind(rows.device))
        for kind, several in held.items() if len(held) > 1 else ():
            gpus = frozenset(r.device.id for r in several)
            boards = gpus.union(device.id for device in list_gpus() if sm_kind(device) == kind)
            yield LeftOutRows(kind, self._others(gpus), several, boards)

    def _siblings(self) -> Iterator[LeftOutRows]:
        """Each GPU of which siblings are learned from: rows whose implementations these ran too."""
        rows = self._rows()
        silicon = {r.device.id: Silicon.of(r.device) for r in rows}
        for gpu, own in sorted(silicon.items()):
            siblings = sorted(other for other in silicon if other != gpu and own.is_sibling_of(silicon[other]))
            ran = ran_by([r for r in self.corpus.rows[self.model] if r.device.id in siblings])
            names = sorted({name for several in ran.values() for name in several})
            held = [r.take(np.isin(implementations(r.batch, r.conditions), names)) for r in rows if r.device.id == gpu]
            if parts := [r for r in held if len(r)]:
                only = frozenset({gpu})
                yield LeftOutRows(gpu, self._others(only), parts, only, siblings)

    def _finished(self, kinship: Kinship, fold: LeftOutRows) -> pd.DataFrame:
        """A fold that an earlier run finished, or that is made now; written beside and renamed, so that a file is whole
        or absent.
        """
        import pandas as pd

        name = f"{self.model}-{self.backend}-{self.most}-{kinship}-{fold.name}".replace("/", "_")
        path = self.kept / f"{name}.parquet"
        if not path.is_file():
            table = self._table(fold)
            self.kept.mkdir(parents=True, exist_ok=True)
            table.to_parquet(path.with_suffix(".partial"))
            path.with_suffix(".partial").replace(path)
        return pd.read_parquet(path)

    def _table(self, fold: LeftOutRows) -> pd.DataFrame:
        """Train without the rows that are held; constants, tile choice and launches are learned without them too, but
        where they are some of all GPUs' from all: a fifth of them tells less of how launches drift.
        """
        import pandas as pd

        known = self.knowledge(fold.without, fold.others)
        rows, masks = fold.chosen(self.most)
        data, held = training_set(rows, self.contract, known), np.concatenate(masks)
        learning, own = data.take(~held), data.take(held)
        model = new_model(self.backend, **self.parameters)
        model.fit(learning, None, progress(self.report, f"{self.model}: without {fold.name}"))
        effects = Effects(level=device_effects(model, learning, group_names(rows)), same_die=1.0)
        parts = [r.take(mask) for r, mask in zip(rows, masks, strict=True) if mask.any()]
        learned = model.logits(own.features, own.prior).mean(axis=0) - own.prior
        learned = learned + np.concatenate([_effects(r, effects, fold.siblings) for r in parts])
        words = pd.concat([_words(r, known) for r in parts], ignore_index=True)
        columns = {name: getattr(own, name) for name in ("weight", "prior", "bound_s", "floor_s", "latency_s")}
        return words.assign(learned=learned, **columns)


def _effects(r: DeviceRows, effects: Effects, siblings: Sequence[str]) -> np.ndarray:
    """The effect of the device of each row, where it was not learned from as on its siblings."""
    return by_distinct(kernel_kinds(r.batch), lambda kind: effects.of(kind, r.device, siblings).mean)


def _words(r: DeviceRows, known: Knowledge) -> pd.DataFrame:
    import pandas as pd

    situation, kinds = known.situation(r), kernel_kinds(r.batch)
    named = {"gpu": r.device.id, "die": sm_kind(r.device), "family": r.batch.family}
    return pd.DataFrame({"kind": kinds, "name": doubt_names(kinds, situation), "real": real_shapes(r)}).assign(**named)


def real_shapes(held: DeviceRows) -> np.ndarray:
    """Rows with the shapes of real models where the data mark enough of their op (as the test split), else all; a
    mask.
    """
    test, ops = held.split == "test", held.batch["op"].astype(str)
    marked, counts = np.unique(ops[test], return_counts=True)
    return np.where(np.isin(ops, marked[counts >= LEAST_REAL]), test, True)


def with_share(rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """Rows that were left out with log errors where so much of what was learned counts: ``off`` of the whole time,
    predicted over measured, and ``ratio`` of the execution, measured over predicted.
    """
    prior, bound_s, floor_s, latency_s = (
        rows[name].to_numpy(float) for name in ("prior", "bound_s", "floor_s", "latency_s")
    )
    added = share * rows["learned"].to_numpy(float) if share else 0.0
    execution_s = bound_s / utilisation((prior + added)[None])
    ratio = np.log(np.maximum(latency_s - floor_s, bound_s) / execution_s)
    return rows.assign(off=np.log((floor_s + execution_s) / latency_s), ratio=ratio)


def percent_by_kind(rows: pd.DataFrame, share: float) -> dict[str, dict[str, float]]:
    """Mean errors in percent by device and kind of kernel, with a share of what was learned."""
    scored = with_share(rows, share)
    errors = 100.0 * np.abs(np.expm1(scored["off"].astype(float))).groupby([scored["gpu"], scored["kind"]]).mean()
    found: dict[str, dict[str, float]] = {gpu: {} for gpu in dict.fromkeys(rows["gpu"])}
    for (gpu, kind), error in errors.items():
        found[gpu][kind] = round(float(error), 2)
    return found


def residuals_of(rows: pd.DataFrame, share: float) -> list[Residuals]:
    """What predictions missed by with a share of what was learned, in rows that count as shapes of real models."""
    scored = with_share(rows, share)
    residuals = []
    for (gpu, name), part in scored[scored["real"].astype(bool)].groupby(["gpu", "name"]):
        ratio, weight = (part[column].to_numpy(float) for column in ("ratio", "weight"))
        words = {"gpu": gpu, "die": part["die"].iloc[0], "family": part["family"].iloc[0], "name": name}
        quantiles = weighted_quantiles(ratio, weight, PERCENT).tolist()
        residuals.append(Residuals(**words, rows=len(part), quantiles=quantiles))
    return residuals


def best_share(rows: pd.DataFrame) -> float:
    """The least share of what was learned whose error on devices left out is not clearly above the best one's.

    Clearly: by more than one standard error of the differences, device by device (Hastie et al. 2009, section 7.10). A
    few devices cannot tell neighbouring shares apart, and the less of it counts, the more physics holds.
    """
    gpus, weight = rows["gpu"], (rows["weight"] * rows["real"]).astype(float)
    if gpus.nunique() < 2:
        return 1.0
    sizes = [np.abs(with_share(rows, share)["off"].astype(float)) for share in SHRINKAGES]
    totals = weight.groupby(gpus, sort=False).sum()
    errors = np.column_stack([(size * weight).groupby(gpus, sort=False).sum() / totals for size in sizes])
    above = errors - errors[:, [int(np.argmin(errors.mean(axis=0)))]]
    doubt = above.std(axis=0, ddof=1) / np.sqrt(len(errors))
    return SHRINKAGES[int(np.argmax(above.mean(axis=0) <= doubt))]


def ran_by(rows: Sequence[DeviceRows]) -> dict[str, list[str]]:
    """The ``implementations`` that each GPU ran."""
    names: dict[str, set[str]] = {}
    for r in rows:
        names.setdefault(r.device.id, set()).update(np.unique(implementations(r.batch, r.conditions)).tolist())
    return {gpu: sorted(own) for gpu, own in sorted(names.items())}


def with_kin(left_out: pd.DataFrame, rows: Sequence[DeviceRows]) -> pd.DataFrame:
    """Rows of kinds that were left out while another one of their vendor stayed; all where there are none.

    The others tell how wrong a model is across vendors; devices of vendors with fewer than two in training count as
    outside of it.
    """
    kinds = {(r.device.vendor, sm_kind(r.device)) for r in rows}
    several = {vendor for vendor, n in Counter(vendor for vendor, _ in kinds).items() if n > 1}
    kin = left_out[left_out["gpu"].isin({r.device.id for r in rows if r.device.vendor in several})]
    return left_out if kin.empty else kin


def progress(report: Report | None, task: str) -> Callable[[int, int, float], None]:
    """What a backend calls, for ``report``."""

    def update(done: int, of: int, error: float) -> None:
        if report:
            report(task, done, of, error)

    return update
