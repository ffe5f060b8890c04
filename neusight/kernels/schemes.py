"""Schemes of few bits: in what weights lie and products are computed, from one table for models of all kinds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.kernels.precision import stored_bytes
from neusight.quick_dataclasses import dataclass

_FILE = Path(__file__).with_name("schemes.toml")
EVERYWHERE = frozenset({"attention", "feed_forward", "experts"})
"""Kinds of projections that schemes quantise where nothing else is stated: routers and heads stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """Storage and arithmetic of projections in a quantisation scheme.

    What lies in memory:
        weights: dtype in which they lie, "" for the model's own.
        group: weights that share a scale in weight-only schemes, of ``group_bytes`` with its zero; 0 where that is part
            of the dtype or there is one a column.
        scale_group: scales that are quantised once more with a scale of their own, and widened by a kernel before the
            product; 0 where they are not.
        kinds: of projections that are quantised (``layers.Projection``), and ``table``, of what is looked up.
        expert_weights: dtype of experts' weights, which are computed in the model's own, unless that is "".
        two_of_four: two of four weights are zero and not there.
        cache: dtype in which keys and values are cached, "" for the model's own.
        quantised_on_device: a matrix at a time comes in 16 bits and in float32 to be quantised there.

    Arithmetic:
        activations: dtype of it, "" for the model's own (weight-only); ``scaling`` as in ``Gemm``.
        dynamic: activations are scaled as they come.
        simulated: they are rounded as though they were narrow, and made wide again for a product in the model's dtype.
        outliers: columns of activations with large values are found and multiplied in 16 bits beside the others
            (Dettmers et al. 2022, LLM.int8(), section 3.2).
        scaled_after: kernels of their own multiply results with scales.
        least_rows: products in 8 bits of fewer rows have no kernel: weights are widened to 32 bits and multiplied so.

    Kernels:
        method: what it is called; ``format``: files that hold it, for rules of engines.
        fused_rows: rows up to which a kernel widens weights within a weight-only product; of more rows a kernel before
            the product does, which writes them wide.
        block_rows: rows of blocks that each widen all weights of their columns; 0 where the library's tile decides.
        widening: eager passes that widen weights, as bytes read and written a value: a cast, or one to float32, a
            multiplication with the scale, and a cast.
        python_calls: functions of Python that launch each of its kernels, whose host time counts beside the kernel's.
    """

    method: str = ""
    format: str = ""
    weights: str = ""
    activations: str = ""
    scaling: str = ""
    dynamic: bool = True
    group: int = 0
    group_bytes: float = 2.0
    kinds: frozenset[str] = EVERYWHERE
    expert_weights: str = ""
    cache: str = ""
    fused_rows: float = inf
    block_rows: int = 0
    scale_group: int = 0
    outliers: bool = False
    python_calls: int = 0
    least_rows: int = 1
    quantised_on_device: bool = False
    widening: tuple[tuple[int, int], ...] = ()
    scaled_after: bool = False
    simulated: bool = False
    two_of_four: bool = False

    def __bool__(self) -> bool:
        return bool(self.weights or self.expert_weights)

    def of(self, kind: str) -> Quantisation:
        """The part of the scheme that a kind of projections is in."""
        if kind == "experts" and self.expert_weights:
            return Quantisation(method=self.method, weights=self.expert_weights)
        return self if kind in self.kinds else NONE

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of a weight with its share of scales, of a model in ``dtype``.

        16-bit scales of groups; float32 ones of blocks of 128x128; those of columns or tensors are not worth counting.
        """
        size = stored_bytes(self.weights or dtype) + (4.0 / (64 * self.scale_group) if self.scale_group else 0.0)
        size = size / 2 + 1 / 8 if self.two_of_four else size
        grouped = self.group_bytes / self.group if self.group else 0.0
        return size + grouped + (4.0 / 128**2 if self.scaling == "block" else 0.0)


NONE = Quantisation()


def scheme_named(name: str, *, chosen: Quantisation | None = None) -> Quantisation:
    """The scheme of a name or of one of its aliases (awq, int8wo, …).

    Args:
        name: in any case, with spaces around it.
        chosen: scheme where the name is empty.

    Raises:
        ModelError: no scheme has it.
    """
    plain = name.strip().lower().removesuffix(".0")
    if not plain and chosen is not None:
        return chosen
    schemes, aliases = schemes_by_name(), _table()["aliases"]
    if (scheme := schemes.get(aliases.get(plain, plain))) is None:
        hint = nearest(plain, (*schemes, *aliases))
        raise ModelError(f"unknown precision '{shown(name)}'{hint}: one of {', '.join(schemes)}")
    return scheme


def with_kernels_for(scheme: Quantisation) -> str:
    """Name of the scheme of nearest width whose products read weights as they lie, for a scheme that is unpacked before
    each product; "" where it has kernels of its own.
    """
    if not scheme.weights or scheme.fused_rows > 0:
        return ""
    able = (s for s in schemes_by_name().values() if s.fused_rows > 0 and s.weights and not s.activations)
    size = stored_bytes(scheme.weights)
    return min(able, key=lambda s: (abs(stored_bytes(s.weights) - size), s.method)).method


@cache
def schemes_by_name() -> Mapping[str, Quantisation]:
    """All schemes of ``schemes.toml``, in its order."""
    schemes: dict[str, Quantisation] = {"none": NONE}
    for name, fields in _table().items():
        if name in ("none", "aliases"):
            continue
        names = fields.get("names", (name,))
        for method in names:
            weights = {"weights": method} if "names" in fields else {}
            schemes[method] = _scheme({"method": method, **weights, **fields}, schemes)
    return schemes


def _scheme(fields: Mapping[str, Any], known: Mapping[str, Quantisation]) -> Quantisation:
    changes = {name: value for name, value in fields.items() if name not in ("like", "names", "linear")}
    if fields.get("linear"):
        changes |= {"kinds": EVERYWHERE | {"head"}, "quantised_on_device": True}
    if "kinds" in fields:
        changes["kinds"] = frozenset(fields["kinds"])
    if "widening" in fields:
        changes["widening"] = tuple(map(tuple, fields["widening"]))
    return replace(known[fields.get("like", "none")], **changes)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
