from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from neusight.errors import DataError
from neusight.workloads import list_workloads, load_graph, parametric
from neusight.workloads.build_traces import build, main
from neusight.workloads.catalogue import catalogue_config
from neusight.workloads.deepening import at_depth, deepened, depth
from neusight.workloads.fitting import Fit, possible_maxima
from neusight.workloads.load import Step
from neusight.workloads.parametric import ParametricTrace, monomials, polynomial_value, shipped_trace
from neusight.workloads.sampling import sample
from neusight.workloads.tables import NotPolynomialError, Tables

POINTS = [*product((2, 3), (72, 80, 104)), (5, 448)]
ALL = (0, 1, 2, 3, 4, 5)


def live(name, **options):
    return load_graph(name, cache=False, **options)


def test_a_fit_finds_the_polynomial_and_its_denominator():
    def value(b, s):
        return b * s * (s + 1) // 2 + 7 * b + 3

    found = Fit(POINTS, ALL).coefficients([value(*p) for p in POINTS])
    assert found == [2, 6, 14, 0, 1, 0, 1]
    for b, s in ((1, 1), (9, 33), (64, 2048)):
        assert polynomial_value(found, monomials(b, s)) == value(b, s)


def test_a_fit_refuses_what_is_no_polynomial():
    assert Fit(POINTS, ALL).coefficients([b * s**3 for b, s in POINTS]) is None
    with pytest.raises(NotPolynomialError, match="rows of x is no polynomial"):
        Tables().polynomial(Fit(POINTS, ALL), [b * s**3 for b, s in POINTS], "rows of x")


def test_a_padded_length_is_a_term_of_its_own():
    points = [*product((2, 3), (72, 80, 104, 120)), (5, 448)]
    found = Fit(points, (*ALL, 6, 7)).coefficients([b * -(-s // 32) * 32 for b, s in points])
    assert found == [1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_value_that_is_no_whole_number_is_an_error():
    with pytest.raises(DataError, match="no whole number at batch 1"):
        polynomial_value([2, 1], monomials(1, 8))


def test_possible_maxima_keep_the_largest_at_every_point():
    random = np.random.default_rng(7)
    rows = random.integers(0, 50, size=(200, 6))
    kept = possible_maxima(rows)
    assert len(kept) < len(rows)
    for b, s in product((1, 2, 7, 64, 1000), (1, 5, 77, 900, 10000)):
        values = rows @ np.array(monomials(b, s)[:6], dtype=object)
        assert max(values[kept]) == max(values)


def test_possible_maxima_drop_mixtures_and_later_equals():
    rows = np.array([[4, 0], [0, 4], [2, 2], [1, 3], [4, 0]])
    assert possible_maxima(rows) == [0, 1]


def test_exact_fractions_survive_the_inverse():
    fit = Fit([(2, 3), (3, 3)], (0, 1))
    assert [[Fraction(int(c), fit.denominator) for c in row] for row in fit.scaled] == [[3, -2], [-1, 1]]


@pytest.mark.parametrize("name", ["opt-one-layer", "vgg16"])
def test_a_trace_built_now_equals_live_traces_at_fresh_points(name):
    content, left_out = build(name, {"float32": ("eager", "sdpa")})
    assert left_out == []
    trace = ParametricTrace(content)
    points = ((1, None), (7, None)) if name == "vgg16" else ((1, 129), (4, 37), (2, 2))
    cases = product(points, ("eager", "sdpa"), (("inference", "none"), ("training", "sgd"), ("training", "none")))
    for (batch, seq_len), attention, (mode, optimizer) in cases:
        step = Step(mode=mode, batch=batch, seq_len=seq_len, optimizer=optimizer, attention=attention)
        options = {"mode": mode, "optimizer": optimizer, "attention": attention}
        assert trace.evaluate(name, step) == live(name, batch=batch, seq_len=seq_len, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {"mode": "training", "optimizer": "adamw", "batch": 3, "seq_len": 200}),
        ("gpt2", {"mode": "training", "attention": "sdpa", "batch": 1, "seq_len": 1000, "dtype": "float16"}),
        ("gpt2", {"mode": "inference", "batch": 17, "seq_len": 3, "dtype": "bfloat16", "attention": "flash"}),
        ("bert-large", {"mode": "training", "batch": 2, "seq_len": 512}),
        ("bert-large", {"mode": "inference", "batch": 16, "seq_len": 512}),
        ("opt-1.3b", {"mode": "inference", "batch": 2, "seq_len": 2048}),
        ("llama-3-8b", {"mode": "inference", "batch": 1, "seq_len": 3000, "dtype": "bfloat16", "attention": "sdpa"}),
        ("switch-xl-4", {"mode": "inference", "batch": 2, "seq_len": 512}),
        ("resnet-50", {"mode": "training", "optimizer": "sgd", "batch": 32}),
        ("vit-base", {"mode": "training", "batch": 1, "attention": "sdpa"}),
    ],
)
def test_what_ships_equals_live_traces(name, options):
    shipped = load_graph(name, **options)
    assert shipped_trace(name) is not None
    assert shipped == live(name, **options)


@pytest.mark.parametrize("name", [info.name for info in list_workloads()])
def test_what_ships_holds_plain_float32_with_every_optimizer(name):
    trace = shipped_trace(name)
    if trace is None:
        pytest.skip("this workload is traced when it is used")
    seq_len = None if trace.content["min_seq_len"] == 0 else 100
    for mode, optimizer in (("inference", "none"), ("training", "none"), ("training", "sgd"), ("training", "adamw")):
        graph = trace.evaluate(name, Step(mode=mode, batch=2, seq_len=seq_len, optimizer=optimizer))
        assert graph.memory.peak > 4 * graph.parameters
        assert {f.phase for f in graph.kernels} <= {"forward", "backward", "optimizer"}
        assert any(f.phase == "optimizer" for f in graph.kernels) == (optimizer != "none")


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("name", "batch"), [("gpt2-medium", 2), ("gpt2-medium", 1), ("vit-large", 3), ("t5-large", 1)])
def test_shallow_models_give_the_step_of_the_deep_one(name, batch, mode):
    config = catalogue_config(name) | ({"num_layers": 9, "num_decoder_layers": 9} if name == "t5-large" else {})
    optimizer = "sgd" if mode == "training" else "none"
    seq_len = None if "image_size" in config else 40
    step = Step(mode=mode, batch=batch, seq_len=seq_len, optimizer=optimizer)
    shallow, deeper = (sample(name, at_depth(config, units), step) for units in (3, 4))
    made = deepened(shallow, deeper, times=depth(config) - 4)
    assert made.same_as(sample(name, config, step))


def test_the_command_writes_the_same_file_twice(tmp_path, capsys):
    for folder in ("one", "two"):
        assert main(["alexnet", "--output", str(tmp_path / folder)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("[1/1] alexnet: ")
    files = [tmp_path / folder / "alexnet.json.gz" for folder in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_damaged_shipped_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "alexnet.json.gz").write_bytes(b"not gzip")
    monkeypatch.setattr(parametric, "files", lambda _: tmp_path)
    with pytest.raises(DataError, match="the shipped trace of alexnet is damaged"):
        parametric.shipped_trace.__wrapped__("alexnet")


def test_the_measured_models_ship():
    names = ("bert-large", "gpt2-large", "gpt3-xl", "gpt3-2.7b", "opt-1.3b", "switch-xl-4")
    assert all(shipped_trace(name) for name in names)


def test_below_the_shortest_length_nothing_ships():
    assert shipped_trace("gpt2").evaluate("gpt2", Step(mode="inference", batch=1, seq_len=1)) is None


def test_memory_of_gpt2_large_in_training_lies_between_32_and_80_gb():
    peak = load_graph("gpt2-large", mode="training", optimizer="adamw", batch=4, seq_len=1024).memory.peak
    assert 32e9 < peak < 80e9
