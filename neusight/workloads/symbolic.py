"""A workload's file in the making: trace a step at several sizes, make every number that varies a polynomial, check.

A step is described up to the optimizer's update, which no batch changes: the update of each optimizer is traced once a
variant. Deep models are extrapolated from shallow ones, which is checked at a depth between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads.catalogue import is_image_config
from neusight.workloads.depths import NotAlikeError, at_depth, deepen, depth
from neusight.workloads.load import trace_source
from neusight.workloads.resolve import WorkloadSource
from neusight.workloads.serialise import MODEL_DTYPE, VERSION, content_of, deduplicate
from neusight.workloads.shipped import Fit
from neusight.workloads.workload import PHASES

MODES = ("inference", "training")
STEPPED = "adamw"
"""The optimizer in the traces of training; of the others only the update is taken."""
OTHERS = ("sgd",)
_SEQ_LENS = (72, 80, 104)
_ALSO_PADDED = 120
"""A fourth length tells apart the padded length, which only fused attention in training has."""
_LONG = 448
_FIRST = (2, 72)
_DEPTHS = (6, 7)
"""Repeating units of the shallow models that stand for a deep one: stacks of fewer are no series in T5's training."""
_BETWEEN = 9
"""Units of the model that the extrapolation is checked on."""
_SHALLOW = 11
"""Most units in all stacks for which tracing the model itself is as fast."""
_UPDATE = PHASES.index("optimizer")

Point = tuple[int, int | None]


class NotPolynomialError(ModelError):
    """A workload that no polynomials describe."""


class WorkloadFile:
    """One ready workload's file; ``left_out`` says which variants it cannot have, and why."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name, self.config = name, config
        self.image = is_image_config(config)
        self.min_seq_len: int = config.get("expert_capacity", 2)
        self.polynomials: dict[tuple[int, ...], int] = {}
        self.variants: dict[str, Any] = {}
        self.left_out: list[str] = []
        units = depth(config)
        self.deep = units * (2 if config.get("is_encoder_decoder") else 1) > _SHALLOW and units > _BETWEEN

    @property
    def content(self) -> dict[str, Any]:
        """Content of the file: variants that refer to shared tables."""
        dtypes = {key.split("/")[0]: key.split("/")[0] for key in self.variants}
        if "bfloat16" in dtypes and self._half_is_half():
            dtypes["float16"] = "bfloat16"
        return {
            "version": VERSION,
            "min_seq_len": 0 if self.image else self.min_seq_len,
            "dtypes": dtypes,
            "polynomials": [list(p) for p in self.polynomials],
            **_with_tables(self.variants),
        }

    def has(self, dtype: str) -> bool:
        """Tell whether both modes are present for a dtype."""
        return all(any(key.startswith(f"{dtype}/") and key.endswith(mode) for key in self.variants) for mode in MODES)

    def add(self, dtype: str, attention: str) -> None:
        """Both modes of one dtype and one form of attention; one that the model cannot have is left out."""
        for mode in MODES:
            try:
                self.variants[f"{dtype}/{attention}/{mode}"] = self._variant(dtype, attention, mode)
            except ModelError as error:
                self.left_out.append(f"{dtype}/{attention}/{mode}: {error}")

    def _variant(self, dtype: str, attention: str, mode: str) -> Any:
        """Trace, fit and check; the name of an equal variant if there is one."""
        request = Request.of(self.name, dtype=dtype, attention=attention, mode=mode)
        if mode == "training":
            request = replace(request, optimizer=STEPPED)
        sketch = self._sketch(request)
        for other, pieces in self.variants.items():
            same = other.startswith(f"{dtype}/") and other.endswith(f"/{mode}") and not isinstance(pieces, str)
            if same and sketch == self._sketch(_with_attention(request, other.split("/")[1])):
                return other
        return self._pieces(request)

    def _sketch(self, request: Request) -> Any:
        """A trace to compare variants by; few layers of a deep model are enough for that."""
        config = at_depth(self.config, 2) if self.deep else self.config
        return self._trace(config, _at(request, self._point(*_FIRST)))

    def _pieces(self, request: Request) -> list[Any]:
        points = self._points(request)
        contents = {point: self._sample(_at(request, point)) for point in points}
        single = [p for p in points if p[0] == 1]
        several = [p for p in points if p[0] > 1]
        try:
            groups = {1: self._piece(request, [*several, *single], contents)}
        except NotPolynomialError:
            groups = {1: self._piece(request, single, contents), 2: self._piece(request, several, contents)}
        return [{"min_batch": least, **piece} for least, piece in groups.items()]

    def _piece(self, request: Request, points: Sequence[Point], contents: dict[Point, Any]) -> dict[str, Any]:
        fit = Fit([(b, s or 0) for b, s in points], self._terms(request, points))
        merged = self._merge(fit, [contents[p] for p in points])
        cut, update = _cut(merged)
        if request.mode == "inference":
            return cut
        updates = {"none": {"tensors": [], "nodes": []}, STEPPED: update}
        for optimizer in OTHERS:
            other = self._sample(_at(replace(request, optimizer=optimizer), points[0]))
            updates[optimizer] = self._other_update(other, contents[points[0]])
        return {**cut, "updates": updates}

    def _other_update(self, other: Any, stepped: Any) -> Any:
        cut, update = _cut(other)
        if cut != _cut(stepped)[0]:
            raise NotPolynomialError(f"the optimizer of {self.name} changes more than the update")
        return update

    def _merge(self, fit: Fit, values: Sequence[Any]) -> Any:
        """Merge equal parts unchanged, and differing numbers into the name of their polynomial."""
        first = values[0]
        if all(v == first for v in values[1:]):
            return first
        if all(type(v) is int for v in values):
            return self._polynomial(fit, values)
        if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
            return {key: self._merge(fit, [v[key] for v in values]) for key in first}
        if isinstance(first, list) and all(isinstance(v, list) and len(v) == len(first) for v in values):
            return [self._merge(fit, parts) for parts in zip(*values, strict=True)]
        raise NotPolynomialError(f"{self.name} runs other operators at other sizes")

    def _polynomial(self, fit: Fit, values: Sequence[int]) -> str:
        coefficients = fit.coefficients(values)
        if coefficients is None:
            raise NotPolynomialError(f"a size of {self.name} is no polynomial of batch and length: {list(values)}")
        return str(self.polynomials.setdefault(tuple(coefficients), len(self.polynomials)))

    def _sample(self, request: Request) -> Any:
        """The step's content at one size, of a deep model from two shallow ones."""
        if not self.deep:
            return self._trace(self.config, request)
        shallow, deeper = (self._trace(at_depth(self.config, units), request) for units in _DEPTHS)
        if (request.batch, request.seq_len) == self._point(*_FIRST):
            between = self._trace(at_depth(self.config, _BETWEEN), request)
            if deepen(shallow, deeper, _BETWEEN - _DEPTHS[1]) != between:
                raise NotAlikeError(f"the layers of {self.name} are not alike")
        return deepen(shallow, deeper, depth(self.config) - _DEPTHS[1])

    def _trace(self, config: dict[str, Any], request: Request) -> Any:
        workload = trace_source(WorkloadSource(name=self.name, config=config), request)
        return json.loads(json.dumps(content_of(workload)))

    def _points(self, request: Request) -> list[Point]:
        """Points that determine the polynomials of batches above one, one to check them, and the same for one."""
        if self.image:
            return [(2, None), (3, None), (5, None), (1, None)]
        lengths = (*_SEQ_LENS, _ALSO_PADDED) if _pads(request) else _SEQ_LENS
        return [*product((2, 3), lengths), (5, _LONG), *((1, s) for s in lengths), (1, self.min_seq_len)]

    def _point(self, batch: int, seq_len: int) -> Point:
        return batch, None if self.image else seq_len

    def _terms(self, request: Request, points: Sequence[Point]) -> tuple[int, ...]:
        """The monomials that the points can tell apart: of a batch of one, only the powers of the length."""
        single = all(batch == 1 for batch, _ in points)
        if self.image:
            return (0,) if single else (0, 1)
        terms = (0, 2, 4) if single else (0, 1, 2, 3, 4, 5)
        return (*terms, *((6,) if single else (6, 7))) if _pads(request) else terms

    def _half_is_half(self) -> bool:
        """Tell whether float16 runs the same operators as bfloat16; some models clamp it."""
        attention = next(key for key in self.variants if key.startswith("bfloat16/")).split("/")[1]
        halves = (Request.of(self.name, mode="training", dtype=d, attention=attention) for d in ("bfloat16", "float16"))
        bfloat, other = (_generic(self._sketch(half), half.dtype) for half in halves)
        return bfloat == other


def _with_attention(request: Request, attention: str) -> Request:
    return replace(request, engine=replace(request.engine, attention=attention))


def _at(request: Request, point: Point) -> Request:
    return replace(request, batch=point[0], seq_len=point[1])


def _pads(request: Request) -> bool:
    return (request.dtype, request.mode) == ("float32", "training") and request.attention != "eager"


def _cut(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cut a step into the operators before the optimizer's update, and the update: its nodes, and the tensors that it
    is first to use, which stand behind all others, since tensors are sorted by their first use.
    """
    nodes = content["nodes"]
    before = [n for n in nodes if n[1] != _UPDATE]
    used = [r[0] for node in before for references in node[5:7] for r in references]
    used += [edge[1] for node in before for references in node[5:7] for r in references for edge in r[3:]]
    count = max(used, default=-1) + 1
    rest = {"tensors": content["tensors"][:count], "nodes": before, "parameters": content["parameters"]}
    return rest, {"tensors": content["tensors"][count:], "nodes": nodes[len(before) :]}


def _generic(content: Any, dtype: str) -> Any:
    """The content with the model's dtype written as such."""
    if isinstance(content, dict):
        return {key: _generic(value, dtype) for key, value in content.items()}
    if isinstance(content, list):
        return [_generic(value, dtype) for value in content]
    return MODEL_DTYPE if content == dtype else content


def _with_tables(variants: dict[str, Any]) -> dict[str, Any]:
    """Variants whose equal parts stand in tables, those of 16-bit dtypes with the request's dtype for their own."""
    parts = []
    for key, variant in variants.items():
        for piece in variant if isinstance(variant, list) else ():
            for part in (piece, *piece.get("updates", {}).values()):
                parts.append((part, _generic(part, "bfloat16") if key.startswith("bfloat16/") else part))
    whole = {name: [row for _, part in parts for row in part[name]] for name in ("tensors", "nodes")}
    tables = deduplicate({**whole})
    rows = {name: iter(tables.pop(name)) for name in ("tensors", "nodes")}
    placed = {id(first): {n: [next(rows[n]) for _ in part[n]] for n in ("tensors", "nodes")} for first, part in parts}
    return {**tables, "variants": {key: _place(variant, placed) for key, variant in variants.items()}}


def _place(variant: Any, placed: dict[int, Any]) -> Any:
    if isinstance(variant, str):
        return variant
    out = []
    for piece in variant:
        updates = {name: placed[id(update)] for name, update in piece.get("updates", {}).items()}
        out.append({**piece, **placed[id(piece)], **({"updates": updates} if updates else {})})
    return out
