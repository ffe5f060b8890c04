"""The content of a workload's file in the making: sample, fit, and check every variant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np

from neusight.errors import ModelError
from neusight.workloads.catalogue import is_image_config
from neusight.workloads.deepening import at_depth, deepened, depth
from neusight.workloads.fitting import Fit, possible_maxima
from neusight.workloads.load import Step
from neusight.workloads.parametric import VERSION, ParametricTrace
from neusight.workloads.sampling import Launch, Sample, sample
from neusight.workloads.tables import NotPolynomialError, Tables

MODES = ("inference", "training")
STEPPED = "adamw"
"""The optimizer in the traces of training; of the others only the update itself is traced."""
OTHERS = ("sgd",)
_SEQ_LENS = (72, 80, 104)
_ALSO_PADDED = 120
"""A fourth length tells apart the padded length, which only fused attention in training has."""
_LONG = 448
_FIRST = (2, 72)
_DEPTHS = (3, 4)
"""Repeating units of the shallow models that stand for a deep one."""
_SHALLOW = 12
"""Up to so many units in all stacks, tracing the model itself is as fast."""


class TraceBuilder:
    """One workload's file in the making; ``left_out`` says which variants it cannot have, and why."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name, self.config = name, config
        self.image = is_image_config(config)
        self.min_seq_len: int = config.get("expert_capacity", 2)
        self.tables = Tables()
        self.variants: dict[str, Any] = {}
        self.parameters: dict[str, int] = {}
        self.updates: dict[tuple[str, str], list[Sample]] = {}
        self.sketches: dict[str, Sample] = {}
        self.left_out: list[str] = []
        self.deepens = False

    @property
    def content(self) -> dict[str, Any]:
        """What the file holds."""
        dtypes = {key.split("/")[0]: key.split("/")[0] for key in self.variants}
        if "bfloat16" in dtypes and self._half_is_half():
            dtypes["float16"] = "bfloat16"
        return {
            "version": VERSION,
            "parameters": self.parameters,
            "min_seq_len": 0 if self.image else self.min_seq_len,
            "dtypes": dtypes,
            **self.tables.content(),
            "variants": self.variants,
        }

    @property
    def _deep(self) -> bool:
        """Whether few layers are traced faster than all; encoder-decoders have each unit twice."""
        units = depth(self.config)
        return units > sum(_DEPTHS) and units * (2 if self.config.get("is_encoder_decoder") else 1) > _SHALLOW

    def has(self, dtype: str) -> bool:
        """Whether anything is there for a dtype."""
        return any(key.startswith(f"{dtype}/") for key in self.variants)

    def add(self, dtype: str, attention: str) -> None:
        """Both modes of one dtype and one form of attention, left out together if the model cannot have them."""
        try:
            found = {mode: self._variant(dtype, attention, mode) for mode in MODES}
        except ModelError as error:
            self.left_out.append(f"{dtype}/{attention}: {error}")
            return
        self.variants |= {f"{dtype}/{attention}/{mode}": variant for mode, variant in found.items()}

    def _variant(self, dtype: str, attention: str, mode: str) -> Any:
        """Trace, fit and check; the name of an equal variant if there is one."""
        options = {"mode": mode, "dtype": dtype, "attention": attention, "optimizer": STEPPED}
        for other, pieces in self.variants.items():
            same = other.startswith(f"{dtype}/") and other.endswith(f"/{mode}") and not isinstance(pieces, str)
            if same and self._sketch(options).same_as(self._sketch(options | {"attention": other.split("/")[1]})):
                return other
        return self._pieces(options)

    def _sketch(self, options: dict[str, Any]) -> Sample:
        """A trace to compare variants by; few layers of a deep model are enough for that."""
        key = json.dumps(options, sort_keys=True)
        if key not in self.sketches:
            config = at_depth(self.config, _DEPTHS[0]) if self._deep else self.config
            self.sketches[key] = sample(self.name, config, _step_at(self._point(*_FIRST), options))
        return self.sketches[key]

    def _pieces(self, options: dict[str, Any]) -> list[Any]:
        samples = self._samples(options)
        self.parameters[options["mode"]] = samples[0].parameters
        single, several = [s for s in samples if s.step.batch == 1], [s for s in samples if s.step.batch > 1]
        groups = [(1, [*several, *single])] if _alike([*several, *single]) else [(1, single), (2, several)]
        pieces = [self._piece(options, least, group) for least, group in groups]
        for one in samples:
            if self._evaluate({"x": pieces}, one.folded, "x") != one.folded:
                raise NotPolynomialError(f"the fit of {options} differs from the trace at batch {one.step.batch}")
        return pieces

    def _samples(self, options: dict[str, Any]) -> list[Sample]:
        """At every point; of a deep model from shallow ones, if those give the whole one at two of the points."""
        real: dict[tuple[int, int | None], Sample] = {}
        if self._deep:
            real = {p: self._sample(p, options) for p in (self._point(*_FIRST), self._point(1, _SEQ_LENS[0]))}
            made = {p: self._deepened(p, options) for p in real}
            self.deepens = all(one is not None and one.same_as(real[p]) for p, one in made.items())
        return [real[p] if p in real else self._quick(p, options) for p in self._points(options)]

    def _sample(self, point: tuple[int, int | None], options: dict[str, Any]) -> Sample:
        return sample(self.name, self.config, _step_at(point, options))

    def _quick(self, point: tuple[int, int | None], options: dict[str, Any]) -> Sample:
        """The same sample, from shallow models where that has been found to hold."""
        return (self._deepened(point, options) if self.deepens else None) or self._sample(point, options)

    def _deepened(self, point: tuple[int, int | None], options: dict[str, Any]) -> Sample | None:
        step = _step_at(point, options)
        shallow, deeper = (sample(self.name, at_depth(self.config, units), step) for units in _DEPTHS)
        return deepened(shallow, deeper, times=depth(self.config) - _DEPTHS[1])

    def _points(self, options: dict[str, Any]) -> list[tuple[int, int | None]]:
        """Those that determine the polynomials of batches above one, one to check them, and the same for one."""
        if self.image:
            return [(2, None), (3, None), (5, None), (1, None)]
        lengths = (*_SEQ_LENS, _ALSO_PADDED) if _pads(options) else _SEQ_LENS
        return [*product((2, 3), lengths), (5, _LONG), *((1, s) for s in lengths), (1, self.min_seq_len)]

    def _point(self, batch: int, seq_len: int) -> tuple[int, int | None]:
        return batch, None if self.image else seq_len

    def _piece(self, options: dict[str, Any], min_batch: int, samples: list[Sample]) -> dict[str, Any]:
        if not _alike(samples):
            raise NotPolynomialError(f"{options} runs other kernels at other sizes")
        fit = Fit([(s.step.batch, s.step.seq_len or 0) for s in samples], self._terms(samples, options))
        step_end = _before_update(samples[0])
        piece = {
            "min_batch": min_batch,
            "host_operators": step_end,
            "kernels": self._launches(fit, samples, ("forward", "backward")),
            "moments": self._moments(fit, samples, slice(0, step_end + 1), state=False),
        }
        if options["mode"] == "training":
            piece["optimizers"] = self._optimizers(fit, samples, options, step_end)
        return piece

    def _terms(self, samples: list[Sample], options: dict[str, Any]) -> tuple[int, ...]:
        """The monomials that the samples can tell apart: of a batch of one, only the powers of the length."""
        single = all(s.step.batch == 1 for s in samples)
        if self.image:
            return (0,) if single else (0, 1)
        terms = (0, 2, 4) if single else (0, 1, 2, 3, 4, 5)
        return (*terms, *((6,) if single else (6, 7))) if _pads(options) else terms

    def _launches(self, fit: Fit, samples: list[Sample], phases: Sequence[str]) -> list[Any]:
        """Entries (template, operator, phase, count, sizes), one for kernels that are equal at every point."""
        groups: dict[tuple[Launch, ...], int] = {}
        for row in zip(*(s.launches for s in samples), strict=True):
            if row[0][2] in phases:
                groups[row] = groups.get(row, 0) + 1
        return [self._entry(fit, row, count) for row, count in groups.items()]

    def _entry(self, fit: Fit, row: Sequence[Launch], count: int) -> list[Any]:
        kernels = [kernel for kernel, _, _ in row]
        fixed, varying, sizes = {}, [], []
        for field in fields(kernels[0]):
            values = [getattr(k, field.name) for k in kernels]
            if len(set(values)) == 1:
                if values[0] != field.default:
                    fixed[field.name] = values[0]
            else:
                varying.append(field.name)
                sizes.append(self.tables.polynomial(fit, values, f"{field.name} of {kernels[0].op} in {self.name}"))
        template = json.dumps([kernels[0].family, fixed, varying])
        number = self.tables.templates.setdefault(template, len(self.tables.templates))
        operator = self.tables.operators.setdefault(row[0][1], len(self.tables.operators))
        return [number, operator, row[0][2], count, sizes]

    def _moments(self, fit: Fit, samples: list[Sample], nodes: slice, *, state: bool) -> list[list[int]]:
        """The moments that can be the peak, each as five polynomials; without the optimizer's state unless asked."""
        alive = np.stack([s.alive[nodes] for s in samples], axis=1)
        if not state:
            alive[:, :, 2] = 0
        totals = alive.sum(axis=2)
        distinct = np.sort(np.unique(totals, axis=0, return_index=True)[1])
        largest = distinct[possible_maxima(fit.many(totals[distinct]))]
        return [
            [self.tables.polynomial(fit, alive[m, :, p].tolist(), f"memory of {self.name}") for p in range(5)]
            for m in largest
        ]

    def _optimizers(self, fit: Fit, samples: list[Sample], options: dict[str, Any], step_end: int) -> dict[str, Any]:
        """The update of each optimizer; gradients, weights and inputs lie there whichever it is."""
        after = slice(step_end + 1, None)
        updates = {
            "none": {"host_operators": 0, "state_bytes": 0, "kernels": [], "moments": []},
            STEPPED: {
                "host_operators": len(samples[0].operators) - step_end,
                "state_bytes": int(samples[0].alive[0, 2]),
                "kernels": self._launches(fit, samples, ("optimizer",)),
                "moments": self._moments(fit, samples, after, state=True),
            },
        }
        inputs = self.tables.polynomial(fit, [int(s.alive[-1, 3]) for s in samples], f"inputs of {self.name}")
        for optimizer in OTHERS:
            updates[optimizer] = self._other_update(optimizer, options, inputs, samples)
        return updates

    def _other_update(
        self, optimizer: str, options: dict[str, Any], inputs: int, samples: list[Sample]
    ) -> dict[str, Any]:
        one, other = self._update_samples(optimizer, options)
        before = _before_update(one)
        if one.operators[before:] != other.operators[_before_update(other) :]:
            raise NotPolynomialError(f"the update of {optimizer} in {self.name} depends on the batch")
        alive = one.alive[before + 1 :]
        moment = alive[alive.sum(axis=1).argmax()]
        known = {s.step: int(s.alive[-1, 3]) for s in samples}
        if known.get(replace(one.step, optimizer=STEPPED), int(moment[3])) != moment[3]:
            raise NotPolynomialError(
                f"what is alive in the update of {optimizer} in {self.name} depends on the optimizer"
            )
        rest = [self.tables.constant(int(moment[part])) for part in (0, 1, 2, 4)]
        return {
            "host_operators": len(one.operators) - before,
            "state_bytes": int(one.alive[0, 2]),
            "kernels": self._launches(Fit([(1, 0)], (0,)), [one], ("optimizer",)),
            "moments": [[rest[0], rest[1], rest[2], inputs, rest[3]]],
        }

    def _update_samples(self, optimizer: str, options: dict[str, Any]) -> list[Sample]:
        """An update does not depend on the form of attention, so that one pair of traces serves a dtype."""
        key = options["dtype"], optimizer
        if key not in self.updates:
            chosen = options | {"optimizer": optimizer}
            points = (_FIRST, (1, _SEQ_LENS[1]))
            self.updates[key] = [self._quick(self._point(*p), chosen) for p in points]
        return self.updates[key]

    def _evaluate(self, variants: dict[str, Any], like: Any, key: str) -> Any:
        """The graph of the step of ``like`` by a variant."""
        step = _step(like)
        content = {
            "parameters": {like.mode: like.parameters},
            "min_seq_len": 0,
            "dtypes": {step.dtype: step.dtype},
            "variants": {f"{step.dtype}/{step.attention}/{step.mode}": variants[key]},
            **self.tables.content(),
        }
        return ParametricTrace(content).evaluate(like.model, step)

    def _half_is_half(self) -> bool:
        """Whether float16 runs what bfloat16 does; some models clamp it."""
        attention = next(key for key in self.variants if key.startswith("bfloat16/")).split("/")[1]
        options = {"mode": "training", "attention": attention, "optimizer": STEPPED}
        halves = [options | {"dtype": dtype} for dtype in ("bfloat16", "float16")]
        pair = [self._sketch(half).folded for half in halves]
        return _as_dtype(pair[0], "float16") == pair[1]


def _pads(options: dict[str, Any]) -> bool:
    return (options["dtype"], options["mode"]) == ("float32", "training") and options["attention"] != "eager"


def _before_update(one: Sample) -> int:
    return sum(phase != "optimizer" for phase, _, _ in one.operators)


def _step_at(point: tuple[int, int | None], options: dict[str, Any]) -> Step:
    """The step of ``load_graph``: no optimizer in inference."""
    optimizer = options["optimizer"] if options["mode"] == "training" else "none"
    return Step(batch=point[0], seq_len=point[1], **(options | {"optimizer": optimizer}))


def _step(graph: Any) -> Step:
    return Step(**{f.name: getattr(graph, f.name) for f in fields(Step)})


def _as_dtype(graph: Any, dtype: str) -> Any:
    kernels = tuple(
        replace(f, kernel=replace(f.kernel, dtype=dtype)) if f.kernel.dtype == graph.dtype else f for f in graph.kernels
    )
    return replace(graph, dtype=dtype, kernels=kernels)


def _alike(samples: Sequence[Sample]) -> bool:
    """Whether all run the same operators on kernels that differ in nothing but sizes."""
    return len({_signature(s) for s in samples}) == 1


def _signature(one: Sample) -> int:
    kinds = (
        (k.family, operator, phase, *(v for f in fields(k) if type(v := getattr(k, f.name)) is not int))
        for k, operator, phase in one.launches
    )
    return hash((tuple(operator[:2] for operator in one.operators), tuple(kinds)))
