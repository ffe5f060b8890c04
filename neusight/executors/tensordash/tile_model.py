"""The tile model of TensorDash: expected cycles of a pass from what is known of it before it is simulated.

A pass has ``rows`` streams of T steps that advance together. What is known of it: which slots of a stream hold a value
at all (its last block of channels may fill some lanes only), the share of zeros in these, and how zeros keep together
(``masks``). The prior follows from order statistics: in three steps of a stream, what a staging buffer holds, the
effectual share scatters around the density d with variance ``d (1 - d) / (3 · lanes)`` for independent zeros and more
for those that keep together; the pass waits for the fullest of its streams, ``E[max of R normal variables]`` standard
deviations above the mean (Blom 1958). Names and order of the features are declared in ``features/tensordash.toml``.

A backend of ``neusight.executors.gpu.tile_models`` learns ``logit(u) - prior`` of a pass, u being its bound over its
cycles; the law is applied here, outside of the model: a pass of T steps takes at least ``max(⌈T / 3⌉, T · density)``
cycles and at most T, whatever the model says. A tile takes as many passes as its streams fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from neusight.errors import DeviceError
from neusight.executors.gpu.features import FeatureContract, feature_matrix, load_contract
from neusight.executors.gpu.tile_models import Artifact, TrainingSet, load_artifact
from neusight.executors.gpu.tile_models.protocol import utilisation
from neusight.executors.tensordash.machine import Columns, Machine, simulated
from neusight.executors.tensordash.masks import CLUSTERS
from neusight.executors.tensordash.schedule import DEPTH, LANES, moves_of
from neusight.executors.tensordash.streams import dense_cycles
from neusight.paths import tile_models_dir

NAME = "tensordash"
MOST_ROWS = 16
"""PE rows of a tile in training (numerics)."""
SHORT = 8
"""Steps up to which streams are simulated (numerics)."""
TILE = ("taps", "channels", "row_streams", "column_streams", "rows", "columns", "sparsity", "clustering", "cluster")
"""What a tile is predicted from: ``taps`` and ``channels`` of the reduction, streams of the scheduled and of the
other operand, rows and columns of PEs, zeros of the scheduled operand and what of them keeps together."""
_LEARNED = 0.02
"""Standard error of a pass's mean, relative, at which it counts half: about what the model leaves unexplained (fitted:
by ``neusight train``)."""


@dataclass(frozen=True, eq=False)
class Passes:
    """Passes before they are simulated, columns of shape (n,).

    ``taps``, ``channels``: the reduction, 1 or more each. ``rows``: PE rows that have a stream. ``sparsity`` and
    ``clustering`` in [0, 1], ``cluster`` of ``CLUSTERS``: the zeros, see ``masks.random_mask``.
    """

    taps: np.ndarray
    channels: np.ndarray
    rows: np.ndarray
    sparsity: np.ndarray
    clustering: np.ndarray
    cluster: np.ndarray

    @staticmethod
    def of(columns: Mapping[str, np.ndarray]) -> Passes:
        """From columns by name; others that are there are left alone."""
        return Passes(*(np.asarray(columns[name]) for name in Passes.__dataclass_fields__))

    @cached_property
    def blocks(self) -> np.ndarray:
        """Steps a tap: blocks of as many channels as there are lanes."""
        return -(-self.channels // LANES)

    @cached_property
    def length(self) -> np.ndarray:
        """Steps T of a stream: the cycles of the dense machine."""
        return self.taps * self.blocks

    @cached_property
    def last_lanes(self) -> np.ndarray:
        """Lanes that the last block of channels fills."""
        return self.channels - (self.blocks - 1) * LANES

    @cached_property
    def fill(self) -> np.ndarray:
        """Share of a stream's slots that hold a value."""
        return self.channels / (self.blocks * LANES)

    @cached_property
    def density(self) -> np.ndarray:
        """Expected effectual share of all slots."""
        return (1 - self.sparsity) * self.fill

    @cached_property
    def bound_share(self) -> np.ndarray:
        """Least cycles over T: as many steps as the buffer is deep a cycle, or all multipliers busy."""
        return np.maximum(-(-self.length // DEPTH) / self.length, self.density)

    @cached_property
    def independent(self) -> np.ndarray:
        """Variance of one value: ``s (1 - s)``, scaled to all slots."""
        return self.sparsity * (1 - self.sparsity) * self.fill**2

    def together(self, cluster: str) -> np.ndarray:
        """Clustering of the passes whose zeros keep together in this way; 0 for others, and without zeros or values."""
        return np.where((self.cluster == cluster) & (self.independent > 0), self.clustering, 0.0)


def expected_maximum(rows: np.ndarray) -> np.ndarray:
    """Mean of the largest of ``rows`` independent standard normal variables (Blom 1958; 0 for one), within 6 %."""
    from scipy.special import ndtri

    counts = np.arange(int(rows.max(initial=1)) + 1)
    # One row a count: there are few of them and many passes.
    table = np.maximum(ndtri((np.maximum(counts, 1) - 0.375) / (np.maximum(counts, 1) + 0.25)), 0.0)
    return table[rows]


def slowest_share(passes: Passes) -> np.ndarray:
    """Effectual share of the fullest stream's next steps, between the bound and 1: cycles over T that physics expects.

    A window of 3 steps has 48 slots. Independent zeros average out over all of them; those of a step over 3 steps, of
    a lane over 16 lanes, of a stream not at all; those that all streams share set no stream apart from another.
    """
    steps = np.minimum(passes.length, DEPTH)
    apart = 1 / (steps * LANES * passes.fill)
    own = np.where(passes.cluster == "slot", 0.0, passes.clustering)
    alike = passes.together("stream") + passes.together("step") / steps + passes.together("lane") / LANES / passes.fill
    variance = passes.independent * (alike + (1 - own) * apart)
    fullest = passes.density + expected_maximum(passes.rows) * np.sqrt(variance)
    return np.clip(fullest, passes.bound_share, 1.0)


def prior(passes: Passes) -> np.ndarray:
    """logit of the utilisation (bound over cycles) that physics expects, shape (n,)."""
    share = np.clip(passes.bound_share / slowest_share(passes), 0.02, 0.97)
    return np.log(share / (1 - share))


def empty_step(passes: Passes) -> np.ndarray:
    """Probability that no stream has an effectual value in a step whose block of channels is the last one.

    Values of a group of m are all zero with ``prod_{i<m} (s (1 - c) + i c) / (1 - c + i c)`` (Skellam 1948).
    """
    filled, rows, slot = passes.last_lanes, passes.rows, passes.cluster == "slot"
    scattered = passes.cluster == "lane"
    size = np.where(slot, rows, np.where(scattered, 1, filled))
    s, c = passes.sparsity, np.minimum(passes.clustering, 0.999)
    together = np.ones(len(s))
    for i in range(int(size.max(initial=0))):
        together *= np.where(i < size, (s * (1 - c) + i * c) / (1 - c + i * c), 1.0)
    return together ** (rows * filled / size)


def stuck_values(passes: Passes) -> np.ndarray:
    """Expected values of a step, of all streams, that no lane is free to take a step ahead: all that could are busy."""
    takers, crowded = _next_step_takers()
    busy = 1 - passes.sparsity
    return passes.rows * crowded[passes.last_lanes] * busy ** (takers + 1)


def root_together(passes: Passes, cluster: str) -> np.ndarray:
    """What clustering adds to a standard deviation, up to the value's own: its root."""
    return np.sqrt(passes.together(cluster))


@lru_cache(maxsize=1)
def _next_step_takers() -> tuple[int, np.ndarray]:
    """Lanes that can take a value one step ahead, and for how many of 0 … 16 filled lanes all of those are filled."""
    moves = moves_of(LANES, DEPTH)
    source = moves.source[moves.ahead == 1]
    takers = [np.nonzero(source == lane)[1] for lane in range(LANES)]
    crowded = [sum(bool((takers[lane] < filled).all()) for lane in range(filled)) for filled in range(LANES + 1)]
    return len(source), np.array(crowded)


Formula = Callable[[Passes], np.ndarray]

FORMULAS: dict[str, Formula] = {
    "log2_steps": lambda p: np.minimum(np.log2(p.length), 12.0),
    "inverse_steps": lambda p: 1 / p.length,
    "rounded_steps": lambda p: -(-p.length // DEPTH) * DEPTH / p.length,
    "log2_rows": lambda p: np.log2(p.rows),
    "inverse_blocks": lambda p: 1 / p.blocks,
    "last_block_fill": lambda p: p.last_lanes / LANES,
    "fill": lambda p: p.fill,
    "sparsity": lambda p: p.sparsity,
    "log2_density": lambda p: np.log2(np.maximum(p.density, 2.0**-7)),
    "bound_share": lambda p: p.bound_share,
    "slowest_share": slowest_share,
    "prior": prior,
    "empty_step": empty_step,
    "log2_empty_step": lambda p: np.log2(np.maximum(empty_step(p), 2.0**-20)),
    "none_stuck": lambda p: np.exp(-stuck_values(p)),
    "log2_stuck_values": lambda p: np.log2(np.clip(stuck_values(p), 2.0**-12, 2.0**8)),
    **{f"clustering_of_{name}": partial(Passes.together, cluster=name) for name in CLUSTERS},
    **{f"root_clustering_of_{name}": partial(root_together, cluster=name) for name in CLUSTERS},
}


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


def modelled(columns: Columns, machine: Machine) -> np.ndarray:
    """Mean cycles of a pass of each line, shape (lines,), as ``PassCycles`` asks for; short streams are simulated.

    Raises:
        DeviceError: a machine of another depth, other lanes or more rows than the tile model has learned.
    """
    if (machine.depth, machine.lanes) != (DEPTH, LANES) or machine.rows > MOST_ROWS:
        raise DeviceError(
            f"the tile model of TensorDash knows depth {DEPTH}, {LANES} lanes and up to {MOST_ROWS} PE rows, not depth "
            f"{machine.depth}, {machine.lanes} lanes and {machine.rows} rows: simulate it instead"
        )
    short = columns["length"] <= SHORT
    per_pass = np.empty(len(short))
    for lines, pass_cycles_of in ((short, simulated), (~short, _learned)):
        if lines.any():
            per_pass[lines] = pass_cycles_of({name: column[lines] for name, column in columns.items()}, machine)
    return per_pass


def _learned(columns: Columns, machine: Machine) -> np.ndarray:
    cycles = predict_cycles(load_tile_model(), columns)
    streams = columns["row_streams"], columns["column_streams"]
    return cycles / dense_cycles(*streams, np.ones(len(cycles)), machine.rows, machine.columns)


def predict_cycles(model: Artifact, columns: Columns) -> np.ndarray:
    """Expected cycles of tiles, mean over draws of their zeros, shape (n,); never less than the sparse law allows.

    Args:
        model: of ``load_tile_model``.
        columns: ``TILE``, of shape (n,) or scalars; others are left alone.
    """
    arrays = np.broadcast_arrays(*(np.atleast_1d(columns[name]) for name in TILE))
    tiles = dict(zip(TILE, arrays, strict=True))
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
    logits = model.model.logits(feature_matrix(passes, model.manifest.contract.features, FORMULAS), prior(passes))
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
        features=feature_matrix(passes, contract.features, FORMULAS),
        prior=prior(passes),
        bound_s=passes.bound_share * passes.length,
        # Nothing is launched; the backends take logarithms of it.
        floor_s=np.full(len(cycles), 1e-9),
        latency_s=cycles,
        weight=1 / (1 + (error / _LEARNED) ** 2),
        group=np.zeros(len(cycles), dtype=np.int64),
    )
