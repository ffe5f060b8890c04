"""Who predicts measured rows: what ships or is trained, predictions of others, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.lab.declare import NOTHING, Contestant, Declaration, LeftOut
from neusight.lab.left_out import constants_without, trait_of
from neusight.laws.constants import with_values
from neusight.measured import SOUGHT, MeasuredTable, compare, files_of, peers_of
from neusight.measured.compare import Compared, Progress
from neusight.paths import tile_models_from

if TYPE_CHECKING:
    import pandas as pd

    from neusight.executors.gpu.tile_models.artifact import Artifact
    from neusight.learn import Report


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is left out at once, and whose rows are then predicted; ``NOTHING`` of the first round.

    Attributes:
        left_out: label of ``declared``.
        fold, group: columns of the rows.
        held_out: ids of devices, of rows to predict and to forget; none: all rows.
        host: of rows to predict, whose hosts are taken from others.
    """

    left_out: str = NOTHING
    fold: str = ""
    group: str = ""
    held_out: tuple[str, ...] = ()
    host: str = ""
    declared: LeftOut | None = None


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Where an experiment runs.

    Attributes:
        data: folder of measured rows.
        folder: of the experiment.
        tables: rows by ``set``, those of all rounds.
        quick: learn next to nothing.
    """

    declared: Declaration
    data: Path
    folder: Path
    tables: Sequence[tuple[str, MeasuredTable]]
    quick: bool = False
    report: Report | None = None


Entrant = Callable[..., Compared]
"""A contestant in a round: predictions beside what was measured, as ``neusight.measured.compare``, of a table and with
``progress``; it can be sent to another process."""
Maker = Callable[[Contestant, int, Round, Lab], Entrant | None]
"""Makes an entrant with a seed for a round; None where it takes no part."""


def of_predictor(predictor: Any, folder: Path | None = None) -> Entrant:
    """A predictor, with the folder of constants that stands for what ships."""
    return partial(_predicted, predictor=predictor, folder=folder)


def _predicted(
    table: MeasuredTable, progress: Progress | None = None, *, predictor: Any, folder: Path | None
) -> Compared:
    with tile_models_from(folder):
        return compare(table, predictor, progress)


def changed(predictor: Predictor, contestant: Contestant) -> Predictor:
    """The same with the constants of physics and the share of learning that a contestant declares."""
    kernels = predictor.kernel_predictor
    if contestant.physics:
        kernels = replace(kernels, physics=with_values(kernels.physics, contestant.physics))
    if contestant.shrinkage is not None:
        artifacts = {name: _shrunk(artifact, contestant.shrinkage) for name, artifact in kernels.artifacts.items()}
        kernels = replace(kernels, artifacts=artifacts)
    return predictor if kernels is predictor.kernel_predictor else Predictor(kernels)


def _shrunk(artifact: Artifact, share: float) -> Artifact:
    shares = artifact.manifest.shares | {"sibling": share, "stranger": share}
    return replace(artifact, manifest=replace(artifact.manifest, shares=shares))


def make_shipped(contestant: Contestant, _: int, turn: Round, lab: Lab) -> Entrant | None:
    """What ships, or the same as if boards of a fold had never been measured."""
    if not turn.held_out or turn.declared is None:
        return of_predictor(changed(Predictor.load(), contestant))
    folder = constants_without(turn.held_out, lab.data, turn.declared.constants, quick=lab.quick, report=lab.report)
    with tile_models_from(folder):
        return of_predictor(changed(Predictor.load(), contestant), folder)


def _said_by_peer(table: MeasuredTable, progress: Progress | None = None, *, peers: pd.DataFrame) -> Compared:
    """Predictions of others, in files."""
    frame, names = table.frame, list(SOUGHT)
    if not {*names} <= {*frame}:
        return _without_interval([], "", [], []), []
    keys = dict.fromkeys(names, object)
    both = frame.assign(place=frame.index).astype(keys).merge(peers.astype(keys), on=names)
    measured = np.array([row.get(row["quantity"], np.nan) for row in both.to_dict("records")], dtype=float)
    kept = both[measured > 0.0]
    return _without_interval(kept["place"], kept["quantity"], kept["theirs"], measured[measured > 0.0]), []


def _without_interval(place: Any, quantity: Any, predicted: Any, measured: Any) -> pd.DataFrame:
    import pandas as pd

    figures = {"predicted": np.array(predicted, dtype=float), "measured": np.array(measured, dtype=float)}
    return pd.DataFrame({"place": np.array(place), "quantity": quantity, **figures}).assign(low=np.nan, high=np.nan)


def make_peer(contestant: Contestant, _: int, turn: Round, lab: Lab) -> Entrant | None:
    """The predictions of a contestant's files, or of its name among them."""
    import pandas as pd

    if turn.left_out != NOTHING:
        return None
    known = pd.concat([peers_of(file) for file in files_of(lab.data / name for name in contestant.files)])
    return partial(_said_by_peer, peers=known[known["peer"].eq(contestant.name)])


def _said_in_column(table: MeasuredTable, progress: Progress | None = None, *, prefix: str) -> Compared:
    """Predictions in a column of the rows, or in those that begin with a word: ``dense_cycles`` beside ``cycles``."""
    import pandas as pd

    parts = [_without_interval([], "", [], [])]
    for quantity in table.quantities:
        column = prefix if prefix in table.frame else f"{prefix}_{quantity}"
        rows = table.frame.reindex(columns=[*{*table.frame, column}]).dropna(subset=[quantity, column])
        parts.append(_without_interval(rows.index, quantity, rows[column], rows[quantity]))
    return pd.concat(parts, ignore_index=True), []


def make_column(contestant: Contestant, _: int, turn: Round, lab: Lab) -> Entrant | None:
    """The predictions in a contestant's column, once: they are the same whatever is left out."""
    return partial(_said_in_column, prefix=contestant.options["column"]) if turn.left_out == NOTHING else None


MAKERS: dict[str, Maker] = {
    "column": make_column,
    "shipped": make_shipped,
    "peer": make_peer,
    "published": lambda *_: None,
}
"""By the kind of a contestant."""


def ids_of(names: Sequence[str]) -> Mapping[str, str]:
    """Ids of devices by the names that rows have; those that are unknown keep theirs."""
    return {name: trait_of(name, "gpu") or name for name in names}
