"""Pareto front of designs in throughput, area and power, and its chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from neusight.design.space import Designs
from neusight.figures import Chart, Dot, Line, Scale

if TYPE_CHECKING:
    from neusight.design.report import BestDesign


def limits(designs: Designs, row: int, count: int) -> list[np.ndarray]:
    """Masks of designs admitted by ever lower limits, in even steps from the best design's area and power to the least.

    Args:
        designs: designs of the space.
        row: the best design without a limit.
        count: number of limits of area, and of power.

    Returns:
        A mask for each limit, shape (n,).
    """
    shares = np.arange(1, count + 1) / (count + 1)
    return [
        column <= column[row] - share * (column[row] - column.min())
        for column in (designs.area_mm2, designs.power_w)
        for share in shares
    ]


def pareto_front(found: Sequence[BestDesign]) -> list[BestDesign]:
    """Designs not dominated in speed-up, area and power, sorted by area."""
    once = {answer.optimum.row: answer for answer in found}
    scores = {row: np.array([-a.gain.ratio, a.area_mm2, a.power_w]) for row, a in once.items()}
    front = [
        answer
        for row, answer in once.items()
        if not any((scores[other] <= scores[row]).all() and other != row for other in scores)
    ]
    return sorted(front, key=lambda answer: answer.area_mm2)


def chart(found: Sequence[BestDesign], beside: str, area_mm2: float | None = None) -> Chart:
    """Throughput over that of another device, by area; the larger a dot, the more power.

    Args:
        found: designs of one workload or several, each in its colour.
        beside: name of the other device.
        area_mm2: its area, where the space's law gives it.
    """
    most_w = max(answer.power_w for answer in found)
    lines, dots = [], []
    for name in dict.fromkeys(answer.workload.name for answer in found):
        points = sorted((a for a in found if a.workload.name == name), key=lambda a: (a.area_mm2, a.gain.ratio))
        lines.append(
            Line(series=name, xs=tuple(a.area_mm2 for a in points), ys=tuple(a.gain.ratio for a in points), dashed=True)
        )
        dots += [
            Dot(
                x=a.area_mm2,
                y=a.gain.ratio,
                series=name,
                note=f"{a.design_words}, {a.power_w:.0f} W",
                y_interval=(a.gain.low, a.gain.high),
                size=a.power_w / most_w,
            )
            for a in points
        ]
    if area_mm2 is not None:
        dots.append(Dot(x=area_mm2, y=1.0, series="", note=beside))
    return Chart(
        name="designs",
        title="Designs that no other beats in throughput, area and power (size of a dot)",
        x=Scale(name="area [mm2]"),
        y=Scale(name=f"throughput over that of {beside}"),
        lines=tuple(lines),
        dots=tuple(dots),
        rows=tuple(answer.to_dict() for answer in found),
    )
