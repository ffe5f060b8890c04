"""The tile model of TensorDash: expected cycles of a tile from what is known of it before it is simulated.

A backend of ``neusight.executors.gpu.tile_models`` learns ``logit(u) - prior`` of a pass, u being its bound over its
cycles; the law is applied here, outside of the model: a pass of T steps takes at least ``max(⌈T / 3⌉, T · density)``
cycles and at most T, whatever the model says. A tile takes as many passes as its streams fill (see ``dataset``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from neusight.errors import DataError, DeviceError, nearest
from neusight.executors.gpu.features import FeatureContract, load_contract
from neusight.executors.gpu.tile_models import Artifact, TrainingSet, load_artifact
from neusight.executors.gpu.tile_models.protocol import utilisation
from neusight.executors.tensordash.features import FORMULAS, Passes, feature_matrix, prior
from neusight.executors.tensordash.masks import CLUSTERS
from neusight.executors.tensordash.options import DEPTH, LANES, OPTION_LISTS
from neusight.paths import tile_models_dir

NAME = "tensordash"
OPTIONS = "oldest-row"
"""The option list that was simulated for training."""

MOST_ROWS = 16
"""PE rows of a tile in training."""

TILE = ("taps", "channels", "row_streams", "column_streams", "rows", "columns", "sparsity", "clustering", "cluster")
"""Columns that a tile is predicted from, as ``sample_configs`` names them."""

_COUNTS, _SHARES = TILE[:6], TILE[6:8]


@lru_cache(maxsize=4)
def load_tile_model(folder: Path | None = None) -> Artifact:
    """The tile model in a folder, or the one that ships; read once.

    Raises:
        ArtifactError: missing, malformed, or with other features than those of the declared contract.
    """
    return load_artifact(folder or tile_models_dir() / NAME, tensordash_contract())


def tensordash_contract() -> FeatureContract:
    """What the tile model sees, as ``features/tensordash.toml`` declares it.

    Raises:
        ArtifactError: no such file, or it is malformed.
    """
    return load_contract(NAME, known=FORMULAS)


def predict_cycles(
    model: Artifact,
    columns: Mapping[str, np.ndarray],
    options: str = OPTIONS,
    depth: int = DEPTH,
    lanes: int = LANES,
) -> np.ndarray:
    """Expected cycles of tiles, mean over draws of their zeros, shape (n,); never less than the sparse law allows.

    Args:
        model: of ``load_tile_model``.
        columns: ``TILE``, of shape (n,) or scalars: ``taps`` and ``channels`` of the reduction, ``row_streams`` and
            ``column_streams`` of the scheduled and of the other operand, ``rows`` and ``columns`` of the tile,
            ``sparsity`` and ``clustering`` of the scheduled operand's values and what keeps together (``cluster``, a
            name of ``CLUSTERS``). Others are left alone, but a ``length`` has to be the reduction's.
        options: the option list; any but the trained one has to be simulated.
        depth: rows of the staging buffer; the same.
        lanes: of a processing element; the same.

    Raises:
        DataError: a missing column, or one with values that no tile has.
        DeviceError: an option list, depth, lanes or PE rows that the model was not trained on.
    """
    _check_trained(options, depth, lanes)
    tiles = _checked(columns)
    full, rest = np.divmod(tiles["row_streams"], tiles["rows"])
    repeats = -(-tiles["column_streams"] // tiles["columns"])
    cycles = np.zeros(len(full))
    for times, rows in ((full, tiles["rows"]), (np.minimum(rest, 1), rest)):
        some = np.flatnonzero(times > 0)
        passes = Passes.of({name: tiles[name][some] for name in Passes.__dataclass_fields__} | {"rows": rows[some]})
        cycles[some] += times[some] * pass_cycles(model, passes)
    return repeats * cycles


def pass_cycles(model: Artifact, passes: Passes) -> np.ndarray:
    """Expected cycles of single passes, shape (n,), within the law."""
    if not len(passes.taps):
        return np.zeros(0)
    logits = model.model.logits(feature_matrix(passes, model.manifest.contract.features), prior(passes))
    bound = passes.bound_share * passes.length
    return np.clip(bound / utilisation(logits), bound, passes.length)


def training_set(columns: Mapping[str, np.ndarray], contract: FeatureContract) -> TrainingSet:
    """Simulated passes as a tile model sees them; a cycle stands for a second.

    Args:
        columns: of ``simulate_passes``.
        contract: of ``tensordash_contract``.
    """
    passes = Passes.of(columns)
    cycles = np.asarray(columns["cycles"], dtype=float)
    error = np.asarray(columns["scatter"]) / np.sqrt(np.asarray(columns["draws"]))
    return TrainingSet(
        features=feature_matrix(passes, contract.features),
        prior=prior(passes),
        bound_s=passes.bound_share * passes.length,
        # Nothing is launched; the backends take logarithms of it.
        floor_s=np.full(len(cycles), 1e-9),
        latency_s=cycles,
        weight=1 / (1 + (error / _LEARNED) ** 2),
        group=np.zeros(len(cycles), dtype=np.int64),
    )


_LEARNED = 0.02
"""Standard error of a pass's mean, relative, at which it counts half: about what the model leaves unexplained."""


def _check_trained(options: str, depth: int, lanes: int) -> None:
    given = {"option list": (options, OPTIONS), "depth": (depth, DEPTH), "lanes": (lanes, LANES)}
    for what, (value, trained) in given.items():
        if value != trained:
            hint = nearest(str(value), OPTION_LISTS) if what == "option list" and value not in OPTION_LISTS else ""
            raise DeviceError(
                f"the tile model of TensorDash knows {what} {trained} alone, not {value!r}{hint}: simulate it instead"
            )


def _checked(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if missing := [name for name in TILE if name not in columns]:
        raise DataError(f"a tile is predicted from {', '.join(TILE)}: '{missing[0]}' is missing")
    arrays = [np.atleast_1d(np.asarray(columns[name])) for name in TILE]
    try:
        tiles = dict(zip(TILE, np.broadcast_arrays(*arrays), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip(TILE, arrays, strict=True))
        raise DataError(f"columns of tiles have one length, not {shapes}") from None
    for name in _COUNTS:
        tiles[name] = _counts(name, tiles[name])
    for name in _SHARES:
        if not ((tiles[name] >= 0) & (tiles[name] <= 1)).all():
            raise DataError(f"{name} of a tile lies between 0 and 1")
    _check_clusters(tiles["cluster"])
    if (tiles["rows"] > MOST_ROWS).any():
        raise DeviceError(f"the tile model of TensorDash knows up to {MOST_ROWS} PE rows: simulate wider tiles instead")
    if "length" in columns and (tiles["taps"] * -(-tiles["channels"] // LANES) != columns["length"]).any():
        raise DataError(f"length of a tile is taps · ⌈channels / {LANES}⌉ steps: leave it out, or give those lanes")
    return tiles


def _counts(name: str, values: np.ndarray) -> np.ndarray:
    whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and (values == np.rint(values)).all())
    if not whole or (values < 1).any():
        raise DataError(f"{name} of a tile are whole numbers, 1 or more")
    return values.astype(np.int64)


def _check_clusters(clusters: np.ndarray) -> None:
    known = np.zeros(len(clusters), dtype=bool)
    for name in CLUSTERS:
        known |= clusters == name
    if not known.all():
        other = str(clusters[~known][0])
        raise DataError(f"unknown cluster '{other}': one of {', '.join(CLUSTERS)}{nearest(other, CLUSTERS)}")
