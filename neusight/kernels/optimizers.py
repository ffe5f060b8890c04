"""``optimizer_named``: how weights are stepped, from the one table of optimizers that every kind of step shares."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from neusight.errors import ModelError, nearest
from neusight.quick_dataclasses import dataclass

_FILE = Path(__file__).with_name("optimizers.toml")
READS_ONLY = "norm"
"""The operator of a pass that writes no list."""
NEWTON_SCHULZ = 5
"""Iterations that make a momentum orthogonal (cited: Jordan et al. 2024, Muon; five in its code)."""
ITERATED_DTYPE = "bfloat16"
"""Dtype in which PyTorch multiplies these iterations for weights of every dtype (``torch/optim/_muon.py``,
``_zeropower_via_newtonschulz``)."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A row of ``optimizers.toml``, which says what its fields mean; "" and 0 where it has none."""

    moments: int
    matrix_moments: int = -1
    moment_bytes: float = 0.0
    sparse_moments: int = -1
    fused: str = ""
    passes: tuple[tuple[str, int], ...] = ()
    traced: str = "none"
    described: bool = False
    source: str = ""

    @property
    def orthogonalises(self) -> bool:
        """Tell whether the step of layers' matrices is their orthogonalised momentum."""
        return self.matrix_moments >= 0

    @property
    def moments_of_rows(self) -> int:
        """Moments of a parameter in a table whose rows are stepped where they were read."""
        return self.moments if self.sparse_moments < 0 else self.sparse_moments

    def states(self, parameters: float, in_matrices: float) -> float:
        """Number of moments of ``parameters``, of which ``in_matrices`` belong to matrices of layers."""
        fewer = self.moments - self.matrix_moments if self.orthogonalises else 0
        return self.moments * parameters - fewer * in_matrices


@cache
def algorithms() -> dict[str, Algorithm]:
    """All of them by name."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: Algorithm(**{**row, "passes": _passes(row.get("passes", ()))}) for name, row in table.items()}


def _passes(rows: list[list[object]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(op), int(str(lists))) for op, lists in rows)


def optimizer_named(name: str) -> Algorithm:
    """The optimizer of a name.

    Raises:
        ModelError: an unknown one.
    """
    if name not in algorithms():
        raise ModelError(f"unknown optimizer '{name}'{nearest(name, algorithms())}: one of {', '.join(algorithms())}")
    return algorithms()[name]
