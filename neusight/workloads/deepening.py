"""The step of a deep model from the steps of two shallow ones: tracing few layers is faster than tracing all.

What a layer adds to a step is a block of operators in each phase, and to the bytes alive at any moment an amount that
is affine in the layer's position and in the number of layers. The block and the amounts are read off two depths one
layer apart; whether they give the real depth is for the caller to check, at one batch and sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.workloads.sampling import Operator, Sample

_DEPTHS = ("n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers")
_SPARSE = ("num_sparse_encoder_layers", "num_sparse_decoder_layers")
_WINDOW = 200
"""Operators that must agree behind an inserted block."""


def depth(config: dict[str, Any]) -> int:
    """Repeating units of a configuration: layers, or pairs of a dense and a sparse layer; 0 if it has none."""
    layers = {config[key] for key in _DEPTHS if key in config}
    if len(layers) != 1:
        return 0
    return layers.pop() // (2 if _SPARSE[0] in config else 1)


def at_depth(config: dict[str, Any], units: int) -> dict[str, Any]:
    """The configuration with another number of repeating units."""
    layers = units * (2 if _SPARSE[0] in config else 1)
    changed = {key: layers for key in _DEPTHS if key in config} | {key: units for key in _SPARSE if key in config}
    return config | changed


def deepened(shallow: Sample, deeper: Sample, *, times: int) -> Sample | None:
    """The step with the block that ``deeper`` has more than ``shallow`` repeated ``times`` more; None if unclear."""
    found = list(_blocks(shallow.operators, deeper.operators))
    if len(deeper.operators) - len(shallow.operators) != sum(length for _, _, length in found):
        return None
    operators: list[Operator] = []
    rows = [_further(shallow.alive[:1], deeper.alive[:1], times)]
    i = j = 0
    for at, there, length in [*found, (len(shallow.operators), len(deeper.operators), 0)]:
        matched = zip(shallow.operators[i:at], deeper.operators[j:there], strict=True)
        operators += [_grown(a, b, times) for a, b in matched]
        rows.append(_further(shallow.alive[i + 1 : at + 1], deeper.alive[j + 1 : there + 1], times))
        if length > at:
            return None
        operators += deeper.operators[there : there + length] * (times + 1)
        rows += _repeated(shallow.alive[1:], deeper.alive[1:], at, there, length, times) if length else []
        i, j = at, there + length
    parameters = deeper.parameters + times * (deeper.parameters - shallow.parameters)
    return replace(deeper, operators=tuple(operators), alive=np.concatenate(rows), parameters=parameters)


def _blocks(shallow: tuple[Operator, ...], deeper: tuple[Operator, ...]) -> Iterator[tuple[int, int, int]]:
    """Where ``deeper`` has a block more: positions in both and the block's length."""
    a, b = ([_shape_of(o) for o in operators] for operators in (shallow, deeper))
    i = j = 0
    while i < len(a):
        if j < len(b) and a[i] == b[j]:
            i, j = i + 1, j + 1
            continue
        window = a[i : i + _WINDOW]
        length = next((d for d in range(1, len(b) - j) if b[j + d : j + d + len(window)] == window), None)
        if length is None:
            return
        yield _inside(a, b, i, j, length)
        j += length
    if j < len(b):
        yield _inside(a, b, i, j, len(b) - j)


def _inside(a: list[Any], b: list[Any], i: int, j: int, length: int) -> tuple[int, int, int]:
    """The same block begun half a layer earlier: what follows the last layer may begin like one more layer."""
    earlier = length // 2
    same = i >= earlier and a[i - earlier : i] == b[j - earlier + length : j + length]
    return (i - earlier, j - earlier, length) if same else (i, j, length)


def _shape_of(operator: Operator) -> Any:
    """An update works on all layers at once, so that the sizes of its kernels grow with the depth."""
    phase, name, kernels = operator
    return (phase, name, len(kernels)) if phase == "optimizer" else operator


def _grown(a: Operator, b: Operator, times: int) -> Operator:
    """An operator whose kernels' sizes grow from one depth to the next."""
    phase, name, kernels = b
    if a == b:
        return b
    grown = []
    for small, large in zip(a[2], kernels, strict=True):
        sizes = {k: v + times * (v - getattr(small, k)) for k, v in vars(large).items() if type(v) is int}
        grown.append(replace(large, **sizes))
    return phase, name, tuple(grown)


def _further(a: np.ndarray, b: np.ndarray, times: int) -> np.ndarray:
    return b + times * (b - a)


def _repeated(a: np.ndarray, b: np.ndarray, at: int, there: int, length: int, times: int) -> list[np.ndarray]:
    """Moments of the block's copies: affine in the copy's number and in the number of layers."""
    block, before = b[there : there + length], b[there - length : there]
    deeper = times * (before - a[at - length : at])
    return [block + copy * (block - before) + deeper for copy in range(times + 1)]
