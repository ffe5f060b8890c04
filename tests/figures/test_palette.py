"""One colour for one thing: palettes share no colour, and every chart takes its names from one of them."""

from itertools import combinations

import pytest

from neusight import Predictor
from neusight.devices import load_cluster
from neusight.distributed.figures import timeline as ranks
from neusight.estimates import figures
from neusight.figures import Bar, Chart, Scale
from neusight.figures.palette import COLOURS, GAIN, GREY, LIMITER, MEMORY, PART, PHASE, PLAIN
from neusight.plans.margins import SOURCES
from neusight.questions import Training
from neusight.schedule.tasks import KINDS
from neusight.schedule.trace import BUBBLE
from neusight.serving import closed
from neusight.serving.figures import memory, passes
from neusight.workloads.workload import MEMORY_PARTS, PHASES

PALETTES = {"limiter": LIMITER, "phase": PHASE, "memory": MEMORY, "part": PART, "gain": GAIN}
_LEAST = 0.045
"""Between colours of two palettes, in OKLab (Ottosson 2020): what few people take for another."""


def oklab(colour: str) -> tuple[float, float, float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    long, middle, short = (
        (x * r + y * g + z * b) ** (1 / 3)
        for x, y, z in (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        )
    )
    return (
        0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short,
    )


def test_colours_mean_one_thing_and_are_told_apart() -> None:
    host = LIMITER["host"]
    colours = [c for palette in PALETTES.values() for c in palette.values() if c != host]
    for one, other in combinations([*colours, host, *COLOURS, GREY, PLAIN], 2):
        distance = sum((a - b) ** 2 for a, b in zip(oklab(one), oklab(other), strict=True)) ** 0.5
        assert distance > _LEAST, (one, other)


def test_palettes_name_all_that_there_is() -> None:
    assert set(figures.LIMITERS) == set(LIMITER)
    assert {kind.replace("_", " ") for kind in (*KINDS, *PHASES, BUBBLE)} <= set(PHASE)
    assert {name for _, names in SOURCES.values() for name in names} | set(MEMORY_PARTS) <= set(MEMORY)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_charts_of_a_step_take_their_colours_from_palettes(predictor: Predictor, mode: str) -> None:
    step = predictor.estimate("gpt2", "l4", mode=mode, optimizer="adamw" if mode == "training" else "none")
    charts = [step.figure(name) for name in figures.CHARTS]
    assert {chart.name: set(chart.colours) - set(chart.palette) - {""} for chart in charts} == {
        chart.name: set() for chart in charts
    }
    assert step.figure("time").colours["dram"] == step.figure("roofline").colours["dram"] == LIMITER["dram"]


def test_charts_of_ranks_and_of_served_models_take_their_colours_from_palettes(predictor: Predictor) -> None:
    run = Training.named(
        {"model": "gpt2", "cluster": load_cluster("dgx-h100", 1), "tp": 2, "pp": 2, "dp": 2, "global_batch_size": 16}
    ).resolve()
    trained = predictor.training(run)
    served = predictor.serving("gpt2", "l4", closed(4, 128, 16), tp=2)
    for chart in (ranks(trained), figures.memory([trained]), memory([served]), passes(served)):
        assert set(chart.colours) <= {*chart.palette, ""}, chart.name
    assert ranks(trained).colours["backward"] == PHASE["backward"]


def test_memory_of_a_served_model_fills_its_device(predictor: Predictor) -> None:
    served = predictor.serving("llama-3.1-8b", "h100-sxm-80gb", closed(16, 1024, 256))
    bars = memory([served]).bars
    sizes = {bar.series: (bar.end - bar.start) * 2**30 for bar in bars}
    assert bars[-1].series == "capacity"
    assert bars[-1].end == pytest.approx(bars[-2].end)
    assert sizes["KV cache"] == pytest.approx(served.memory.kv_cache)
    assert sizes["kept free"] == pytest.approx(served.memory.reserve)
    terms, room = served.memory_lines
    assert "KV cache" in terms
    assert "kept free" in terms
    assert room.startswith("fits in 79.1")


def test_names_outside_of_a_palette_have_colours_of_series() -> None:
    bars = (Bar(lane=0, start=0, end=1, series="dram"), Bar(lane=0, start=1, end=2, series="l4"))
    chart = Chart(name="c", title="t", x=Scale(name="time"), lanes=("a",), bars=bars, palette=LIMITER)
    assert chart.colours == {"dram": LIMITER["dram"], "l4": COLOURS[0]}
