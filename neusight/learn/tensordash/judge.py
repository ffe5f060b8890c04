"""How far the tile model that ships is from the simulator on passes that it has never seen.

    python -m neusight.learn.tensordash.judge --count 10000 --seed 977

Passes are drawn from the ranges of ``TileRanges`` like those of the data set, by another seed; the truth is the mean
over many draws of their zeros. 10,000 passes take some minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from neusight.executors.tensordash.features import Passes
from neusight.executors.tensordash.passes import SHORT
from neusight.executors.tensordash.tile_model import load_tile_model, pass_cycles
from neusight.learn.tensordash.dataset import simulate_passes


def judged(count: int, seed: int) -> dict[str, dict[str, float]]:
    """Errors in percent: of all passes, and of those that a device asks the tile model for (streams beyond ``SHORT``).

    Returns:
        By name ``count``, ``mean``, ``p99``, ``worst`` and ``above_10`` (how many).

    Raises:
        DataError: a negative count or seed.
    """
    passes = simulate_passes(count, seed)
    error = 100 * np.abs(pass_cycles(load_tile_model(), Passes.of(passes)) / passes["cycles"] - 1)
    priced = passes["length"] > SHORT
    return {"all": _figures(error), f"beyond {SHORT} steps": _figures(error[priced])}


def _figures(error: np.ndarray) -> dict[str, float]:
    points = {"mean": error.mean(), "p99": np.quantile(error, 0.99), "worst": error.max()}
    return {"count": len(error), **points, "above_10": int((error > 10).sum())}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of the module."""
    parser = argparse.ArgumentParser(prog="python -m neusight.learn.tensordash.judge", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=977)
    given = parser.parse_args(arguments)
    for name, figures in judged(given.count, given.seed).items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
