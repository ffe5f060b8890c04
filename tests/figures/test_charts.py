"""Charts hold the figures of what they are of, and are the same as rows, as a picture and in a browser."""

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neusight import Estimate, Predictor
from neusight.devices import load_cluster
from neusight.distributed.figures import CHARTS as TRAINED
from neusight.errors import DataError
from neusight.estimates.figures import CHARTS, difference, memory, modules, timeline, waterfall
from neusight.figures import Bar, Chart, Dot, Line, Scale, stacked
from neusight.figures.palette import COLOURS, PLAIN
from neusight.questions import Training
from neusight.questions.step import step_question
from neusight.serving import Closed
from neusight.serving.figures import CHARTS as SERVED
from neusight.workloads.functions import module_sources

SECONDS = Scale(name="time", unit="s")


@pytest.fixture(scope="module")
def step(predictor: Predictor) -> Estimate:
    return predictor.estimate("gpt2-large", "h100-sxm-80gb", mode="training", optimizer="adamw", batch=2)


def test_bars_of_a_stack_follow_each_other_and_end_in_the_sum() -> None:
    first, second = stacked(0, [("a", 1.0), ("none", 0.0), ("b", 2.0)], (2.5, 4.0))
    assert (first.start, first.end, second.start, second.end) == (0.0, 1.0, 1.0, 3.0)
    assert (first.interval, second.interval) == (None, (2.5, 4.0))
    assert stacked(0, []) == ()


def test_colours_are_by_series_and_grey_without() -> None:
    marks = (Dot(x=1, y=1, series="b"), Dot(x=2, y=1, series="a"))
    chart = Chart(name="c", title="t", x=SECONDS, y=SECONDS, dots=marks, lines=(Line(xs=(1,), ys=(1,)),), series=("a",))
    assert chart.colours == {"a": COLOURS[0], "b": COLOURS[1], "": PLAIN}


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_of_a_step_is_a_picture_rows_and_options(step: Estimate, name: str, tmp_path: Path) -> None:
    chart = step.figure(name)
    for ending, first in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        chart.save(tmp_path / f"chart{ending}")
        assert (tmp_path / f"chart{ending}").read_bytes().startswith(first)
    rows = list(csv.DictReader(io.StringIO(chart.to_csv())))
    assert len(rows) == len(chart.rows) == len(json.loads(chart.to_json())) > 0
    series = json.loads(json.dumps(chart.echarts()))["series"]
    assert sum(len(one["data"]) for one in series if one.get(":renderItem") == "neusight.bar") == len(chart.bars)
    assert sum(len(one["data"]) for one in series if one["type"] == "scatter") == len(chart.dots)


def test_wrong_names_say_what_there_is(step: Estimate, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean roofline"):
        step.figure("rooflines")
    with pytest.raises(DataError, match="does not end in"):
        step.figure("memory").save(tmp_path / "chart.gif")


def test_served_models_and_clusters_have_figures_too(predictor: Predictor) -> None:
    served = predictor.serving("llama-3.1-8b", "h100-sxm-80gb", Closed(concurrency=4, num_prompts=8, isl=128, osl=16))
    run = Training.named(
        {"model": "gpt2-xl", "cluster": load_cluster("dgx-h100", 1), "dp": 8, "global_batch_size": 16}
    ).resolve()
    trained = predictor.training(run)
    for answer, charts in ((served, SERVED), (trained, TRAINED)):
        for name in charts:
            assert len(answer.figure(name).bars) > 1
            assert answer.figure(name).picture().startswith(b"\x89PNG")
        with pytest.raises(DataError, match="unknown figure 'roofline'"):
            answer.figure("roofline")


def test_modules_hold_all_of_the_time(step: Estimate) -> None:
    assert sum(step.by_module.values()) == pytest.approx(step.latency_s)
    chart = step.figure("modules")
    assert chart.bars[0].end == pytest.approx(step.latency_s)
    below = [bar for bar in chart.bars if bar.lane == 1]
    assert 0.9 * step.latency_s < sum(bar.end - bar.start for bar in below) <= step.latency_s * (1 + 1e-9)
    assert sum((step + step).by_module.values()) == pytest.approx(2 * step.latency_s)


def test_a_difference_goes_from_one_time_to_the_other(predictor: Predictor, step: Estimate) -> None:
    other = predictor.estimate("gpt2-large", "l4", mode="training", optimizer="adamw", batch=2)
    bars = difference(step, other).bars
    assert bars[0].end == step.latency_s
    assert bars[-2].end == pytest.approx(other.latency_s)
    assert bars[-1].end == other.latency_s
    for one, next_ in pairwise(bars[:-1]):
        assert next_.start == pytest.approx(one.end)


def test_a_waterfall_tells_faster_from_slower(step: Estimate) -> None:
    bars = waterfall("w", ("a", step), ("b", step), {"up": 1.0, "down": -1.0}, {"up": (0.5, 2.0)}).bars
    assert [bar.series for bar in bars] == ["", "slower", "faster", ""]
    assert bars[1].interval == (0.5, 2.0)


def test_memory_ends_where_the_fit_does(step: Estimate) -> None:
    bars: list[Bar] = [bar for bar in memory([step]).bars if bar.series != "capacity"]
    assert bars[-1].end * 2**30 == pytest.approx(step.fit.needed_bytes)
    assert bars[-1].interval == pytest.approx([end / 2**30 for end in step.fit.interval])


def test_a_timeline_takes_as_long_as_its_kernels(predictor: Predictor, step: Estimate) -> None:
    """Kernels that are described alike count alike."""
    question = step_question("gpt2-large", "h100-sxm-80gb", mode="training", optimizer="adamw", batch=2)
    chart = timeline(predictor.workload(question), step)
    kernels_s = sum(row.total_s for row in step.by_kernel if row.source)
    assert sum(bar.end - bar.start for bar in chart.bars) == pytest.approx(kernels_s, rel=1e-4)
    events: list[dict[str, Any]] = json.loads(chart.trace())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["forward", "backward", "optimizer"]
    assert sum(event["dur"] for event in events if event["ph"] == "X") == pytest.approx(1e6 * kernels_s, rel=1e-4)


MODULE = """from torch import nn, ones


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return self.inner(x)


def build(batch=1):
    return nn.Sequential(nn.Linear(64, 64), Block()), (ones(batch, 64),)
"""


def test_a_module_in_python_has_its_source_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predictor: Predictor
) -> None:
    (tmp_path / "charted_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    sources = module_sources("charted_model:build")
    assert sources["{}.inner"].rpartition("/")[2].startswith("linear.py:")
    step = predictor.estimate("charted_model:build", "l4")
    notes = [bar.note for bar in modules(step, sources).bars]
    assert any(f"{tmp_path / 'charted_model.py'}:4" in note for note in notes), (sources, notes)
