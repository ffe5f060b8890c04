"""Traces that ship: every number of a step's graph as a polynomial in batch and sequence length.

For a fixed model and fixed options a step always runs the same kernels; their sizes are polynomials of the batch b
and the sequence length s in the monomials 1, b, s, bs, s² and bs² (attention's scores are bs²), and r and br, where
r is s rounded up to a multiple of 32, as memory-efficient attention pads its row sums. So are the bytes alive at each
moment; the peak is the largest of a few such sums, one for each moment that can be the peak.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES, Kernel
from neusight.workloads.graph import FoldedGraph, FoldedKernel, MemoryProfile, Phase

if TYPE_CHECKING:
    from neusight.workloads.load import Step

VERSION = 1
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")


def monomials(batch: int, seq_len: int) -> tuple[int, ...]:
    """1, b, s, bs, s², bs², r and br; with ``seq_len`` 0, for images, only the first two are not zero."""
    square, padded = seq_len * seq_len, -(-seq_len // 32) * 32
    return 1, batch, seq_len, batch * seq_len, square, batch * square, padded, batch * padded


def polynomial_value(coefficients: Sequence[int], powers: Sequence[int]) -> int:
    """A polynomial with integer coefficients over a common denominator, at one point.

    Args:
        coefficients: the denominator, then one coefficient a monomial; zeros at the end may be missing.
        powers: the monomials' values.

    Raises:
        DataError: the value is no integer, so that the point lies outside what the polynomial describes.
    """
    value, rest = divmod(sum(c * p for c, p in zip(coefficients[1:], powers, strict=False)), coefficients[0])
    if rest:
        raise DataError(f"a shipped trace gives no whole number at batch {powers[1]}, sequence length {powers[2]}")
    return value


@dataclass(frozen=True)
class ParametricTrace:
    """The shipped traces of one workload; ``content`` is what its file holds.

    ``variants`` maps ``dtype/attention/mode`` to a variant, or to the name of an equal one. A variant is in pieces,
    since a batch of one needs fewer copies than a larger one. A piece has its kernels (the optimizer's apart, one
    list a choice of optimizer) and the moments that can be the peak of memory.
    """

    content: Mapping[str, Any]

    def evaluate(self, name: str, step: Step) -> FoldedGraph | None:
        """The graph of a step, or None when this trace does not hold for it."""
        found = self._piece(step)
        if found is None:
            return None
        piece, dtype = found
        powers = monomials(step.batch, step.seq_len or 0)
        values: dict[int, int] = {}
        launches = piece["kernels"]
        moments, operators = piece["moments"], piece["host_operators"]
        if step.mode == "training":
            update = piece["optimizers"][step.optimizer]
            launches = launches + update["kernels"]
            operators += update["host_operators"]
            moments = self._with_state(moments, update)
        return FoldedGraph(
            model=name,
            mode=step.mode,
            batch=step.batch,
            seq_len=step.seq_len,
            dtype=step.dtype,
            optimizer=step.optimizer,
            attention=step.attention,
            parameters=self.content["parameters"][step.mode],
            kernels=self._folded(launches, powers, values, (dtype, step.dtype)),
            memory=self._peak(moments, powers, values),
            host_operators=operators,
        )

    def _piece(self, step: Step) -> tuple[Mapping[str, Any], str] | None:
        """The piece for a step and the dtype it was traced with; None outside of their domain."""
        variants = self.content["variants"]
        dtype = self.content["dtypes"].get(step.dtype)
        variant = variants.get(f"{dtype}/{step.attention}/{step.mode}")
        if isinstance(variant, str):
            variant = variants[variant]
        if variant is None or (step.seq_len is not None and step.seq_len < self.content["min_seq_len"]):
            return None
        piece = next(p for p in reversed(variant) if p["min_batch"] <= step.batch)
        if step.mode == "training" and step.optimizer not in piece["optimizers"]:
            return None
        return piece, dtype

    def _with_state(self, moments: list[list[int]], update: Mapping[str, Any]) -> list[list[Any]]:
        """Every moment has the optimizer's state beside it; the update has moments of its own."""
        state = update["state_bytes"]
        return [[w, g, (o, state), a, t] for w, g, o, a, t in moments] + update["moments"]

    def _value(self, reference: Any, powers: Sequence[int], values: dict[int, int]) -> int:
        if isinstance(reference, tuple):
            return self._value(reference[0], powers, values) + reference[1]
        known = values.get(reference)
        if known is None:
            known = values[reference] = polynomial_value(self.content["polynomials"][reference], powers)
        return known

    def _folded(
        self, entries: Sequence[Any], powers: Sequence[int], values: dict[int, int], dtypes: tuple[str, str]
    ) -> tuple[FoldedKernel, ...]:
        """Kernels at one point, those that coincide there put together, in order of first occurrence."""
        counts: dict[tuple[Kernel, str, Phase], int] = {}
        for template, operator, phase, count, references in entries:
            sizes = [self._value(r, powers, values) for r in references]
            kernel = self._kernel(template, sizes, dtypes)
            key = kernel, self.content["operators"][operator], cast(Phase, phase)
            counts[key] = counts.get(key, 0) + count
        return tuple(FoldedKernel(kernel=k, operator=o, phase=p, count=c) for (k, o, p), c in counts.items())

    def _kernel(self, template: int, sizes: Sequence[int], dtypes: tuple[str, str]) -> Kernel:
        family, fixed, varying = self.content["templates"][template]
        traced, wanted = dtypes
        if traced != wanted and fixed.get("dtype") == traced:
            fixed = fixed | {"dtype": wanted}
        return KERNEL_CLASSES[family](**fixed, **dict(zip(varying, sizes, strict=True)))

    def _peak(self, moments: Sequence[Any], powers: Sequence[int], values: dict[int, int]) -> MemoryProfile:
        """The first of the largest moments, as the trace itself would find it."""
        sums = ([self._value(r, powers, values) for r in moment] for moment in moments)
        return MemoryProfile(**dict(zip(MEMORY_PARTS, max(sums, key=sum), strict=True)))


@lru_cache(maxsize=64)
def shipped_trace(name: str) -> ParametricTrace | None:
    """The shipped trace of a ready workload, or None when it has none.

    Raises:
        DataError: the file is damaged or of another version.
    """
    file = files("neusight.workloads") / "traces" / f"{name}.json.gz"
    if not file.is_file():
        return None
    try:
        content = json.loads(gzip.decompress(file.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"the shipped trace of {name} is damaged ({error}): reinstall neusight") from None
    return ParametricTrace(content) if content.get("version") == VERSION else None
