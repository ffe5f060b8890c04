"""The doubt of gains is found again where it is known."""

from __future__ import annotations

import numpy as np

from neusight.learn.gains import Residual, fitted
from neusight.what_if.gain import Unexplained


def test_nine_of_ten_lie_inside_and_the_shape_is_found() -> None:
    draw = np.random.default_rng(0)
    known = Unexplained(effect=0.3, floor=0.05)
    pairs = []
    for at in range(600):
        ratio, sources = float(np.exp(draw.normal(0.4, 0.5))), float(draw.uniform(0.02, 0.2))
        error = draw.normal(0.0, np.hypot(sources, known.deviation(ratio)))
        pairs.append(Residual(f"set {at % 3}", "time", error, sources, ratio))
    found = fitted(pairs)
    inside = [abs(p.error) <= 1.645 * np.hypot(p.sources, found.deviation(p.ratio)) for p in pairs]
    assert 0.88 < np.mean(inside) < 0.92
    assert 0.2 < found.effect < 0.4
