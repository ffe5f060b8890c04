"""What ships: numbers as exact polynomials of batch and length, equal to a trace at points that made none of them."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from neusight.errors import DataError
from neusight.requests import Request
from neusight.workloads import Workload, WorkloadSource, list_workloads, shipped, shipped_step
from neusight.workloads.build_traces import build, main
from neusight.workloads.catalogue import catalogue_config
from neusight.workloads.depths import NotAlikeError, at_depth, deepen, depth
from neusight.workloads.load import trace_source
from neusight.workloads.packing import pack, split, unpack
from neusight.workloads.serialise import content_of
from neusight.workloads.shipped import Fit, ShippedWorkload, monomials, polynomial_value, shipped_workload
from neusight.workloads.symbolic import _BETWEEN, _DEPTHS
from neusight.workloads.workload import KEPT

POINTS = [*product((2, 3), (72, 80, 104)), (5, 448)]
ALL = (0, 1, 2, 3, 4, 5)


def live(name: str, **options: Any) -> Workload:
    """Traced now, of the configuration, so that nothing shipped or stored answers."""
    return trace_source(WorkloadSource(name=name, config=catalogue_config(name)), plain_request(name, **options))


def plain_request(name: str, **options: Any) -> Request:
    """Plain float32, attention written out, unless stated."""
    return Request.of(name, **{"dtype": "float32", "attention": "eager"} | options)


def test_a_fit_finds_the_polynomial_and_its_denominator_or_refuses() -> None:
    def value(b: int, s: int) -> int:
        return b * s * (s + 1) // 2 + 7 * b + 3

    coefficients = Fit(POINTS, ALL).coefficients([value(*p) for p in POINTS])
    assert coefficients == [2, 6, 14, 0, 1, 0, 1]
    assert all(polynomial_value(coefficients, monomials(b, s)) == value(b, s) for b, s in ((1, 1), (9, 33), (64, 2048)))
    assert Fit(POINTS, ALL).coefficients([b * s**3 for b, s in POINTS]) is None


def test_a_padded_length_is_a_term_of_its_own() -> None:
    points = [*product((2, 3), (72, 80, 104, 120)), (5, 448)]
    coefficients = Fit(points, (*ALL, 6, 7)).coefficients([b * -(-s // 32) * 32 for b, s in points])
    assert coefficients == [1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_arithmetic_is_exact() -> None:
    fit = Fit([(2, 3), (3, 3)], (0, 1))
    assert [[Fraction(int(c), fit.denominator) for c in row] for row in fit.scaled] == [[3, -2], [-1, 1]]
    with pytest.raises(DataError, match="no whole number at batch 1"):
        polynomial_value([2, 1], monomials(1, 8))


def test_a_file_built_now_equals_live_traces_at_fresh_points() -> None:
    sizes = ({"batch": 1, "seq_len": 129}, {"batch": 4, "seq_len": 37}, {"batch": 2, "seq_len": 2})
    points: dict[str, list[dict[str, Any]]] = {
        "opt-one-layer": [size | {"attention": attention} for size in sizes for attention in ("eager", "sdpa")],
        "alexnet": [{"batch": 1}, {"batch": 7}],
    }
    steps = [{"mode": "inference"}, *({"mode": "training", "optimizer": o} for o in ("sgd", "adamw"))]
    wrong = []
    for name in points:
        content, left_out = build(name, {"float32": ("eager", "sdpa")})
        assert left_out == []
        file = ShippedWorkload.read(name, pack(content))
        for point, step in product(points[name], steps):
            options = point | step
            # Inputs are described by who loads a step.
            if file.evaluate(plain_request(name, **options)) != replace(live(name, **options), inputs=(), unit=""):
                wrong.append((name, options))
        assert file.evaluate(plain_request(name, **points[name][0], dtype="bfloat16")) is None
    assert wrong == []


def test_every_ready_workload_ships() -> None:
    assert [info.name for info in list_workloads() if shipped_workload(info.name) is None] == []


def test_what_ships_equals_live_traces() -> None:
    training, inference, half = {"mode": "training"}, {"mode": "inference"}, {"dtype": "bfloat16", "attention": "sdpa"}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("gpt2", training | {"optimizer": "adamw", "batch": 3, "seq_len": 200}),
        ("gpt2", training | half | {"batch": 1, "seq_len": 1000, "dtype": "float16"}),
        ("bert-base", inference | {"batch": 16, "seq_len": 512}),
        ("llama-3.2-1b", inference | half | {"batch": 1, "seq_len": 3000}),
        ("switch-xl-4", inference | {"batch": 2, "seq_len": 512}),
        ("t5-small", inference | {"batch": 3, "seq_len": 130, "attention": "sdpa"}),
        ("resnet-50", training | {"optimizer": "sgd", "batch": 32}),
        ("vit-base", training | {"batch": 1, "attention": "sdpa"}),
    ]
    wrong = []
    for name, options in cases:
        options = {"attention": "eager"} | options
        stored, now = shipped_step(name, **options), live(name, **options)
        if stored is None or run(stored) != run(now):
            wrong.append((name, options))
    assert wrong == []


def run(workload: Workload) -> Workload:
    """The workload with views alike: where nothing is cut off, a slice is called an alias."""
    nodes = (node if node.kernels else replace(node, operator="view") for node in workload.nodes)
    return replace(workload, nodes=tuple(nodes), unit="")


def test_what_ships_holds_plain_float32_with_every_optimizer() -> None:
    steps = [("inference", "none"), *(("training", optimizer) for optimizer in ("none", "sgd", "adamw"))]
    wrong = []
    for info, (mode, optimizer) in product(list_workloads(), steps):
        seq_len = None if info.kind == "image" else 100
        step = {"mode": mode, "batch": 2, "seq_len": seq_len, "optimizer": optimizer, "attention": "eager"}
        step["dtype"] = "float32"
        shipped_now = shipped_step(info.name, **step)
        phases = {launch.phase for launch in shipped_now.launches} if shipped_now else set()
        wanted = {"forward", *(["backward"] if mode == "training" else []), *(["optimizer"] * (optimizer != "none"))}
        if shipped_now is None or phases != wanted or shipped_now.memory.peak <= 4 * shipped_now.parameters:
            wrong.append((info.name, mode, optimizer))
    assert wrong == []


def test_below_the_shortest_length_nothing_ships() -> None:
    file = shipped_workload("gpt2")
    assert file is not None
    assert file.evaluate(plain_request("gpt2", seq_len=1)) is None
    assert file.evaluate(plain_request("gpt2", seq_len=2)) is not None


def test_shallow_models_give_the_step_of_the_deep_one() -> None:
    def content(name: str, config: dict[str, Any], options: dict[str, Any]) -> Any:
        request = plain_request(name, **options)
        return json.loads(json.dumps(content_of(trace_source(WorkloadSource(name=name, config=config), request))))

    wrong = []
    for name, options in (
        ("gpt2-medium", {"batch": 2, "seq_len": 40, "mode": "training", "optimizer": "sgd"}),
        ("gpt2-medium", {"batch": 1, "seq_len": 40}),
        ("vit-large", {"batch": 3, "mode": "training", "optimizer": "adamw"}),
        ("t5-large", {"batch": 1, "seq_len": 40, "mode": "training"}),
    ):
        config = catalogue_config(name)
        assert depth(at_depth(config, _BETWEEN)) == _BETWEEN
        shallow, deeper, real = (content(name, at_depth(config, n), options) for n in (*_DEPTHS, _BETWEEN))
        if deepen(shallow, deeper, times=_BETWEEN - _DEPTHS[1]) != real:
            wrong.append((name, options))
    assert wrong == []
    with pytest.raises(NotAlikeError, match="depth changes more than numbers"):
        deepen({"a": "x"}, {"a": "y"}, 1)


def test_the_command_writes_the_same_file_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one", "two"):
        assert main(["alexnet", "--output", str(tmp_path / folder)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("[1/1] alexnet: ")
    first, second = (tmp_path / folder / "alexnet.json.gz" for folder in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


PIECE = {
    "min_batch": 1,
    "parameters": 7,
    "tensors": [
        [0, "float32", 0, 0, "3", "3", -1, KEPT, 2, 0, 0],
        [1, "model", 4, 1, 8, 4, 5, 9, 1, 0, 0],
        [1, "model", 4, 1, 8, 8, 4, 4, 1, 0, 0],
    ],
    "nodes": [
        [0, 0, [], 0, 0, [[0, 1, 2, [0, 2, 1], [3, 0, 0]], [2, 0, 0]], [], "4", 5],
        [1, 0, [0, 1], 1, 6, [], [[1, -1, 0]], 1, 0],
    ],
}
EMPTY = {"tensors": [], "nodes": []}


@pytest.mark.parametrize(
    "variants",
    [
        {"a": [PIECE], "b": "a"},
        {"a": [PIECE, PIECE | {"min_batch": 2, "tensors": [], "nodes": []}]},
        {"a": [PIECE | {"updates": {"none": EMPTY, "adamw": {key: PIECE[key] for key in EMPTY}}}]},
        {},
    ],
)
def test_unpack_gives_what_was_packed(variants: dict[str, Any]) -> None:
    content = {"version": 1, "polynomials": [[1, 2]], "variants": variants}
    head, pieces = split(pack(content))
    assert [head[key] for key in ("version", "polynomials")] == [1, [[1, 2]]]
    for name, variant in variants.items():
        if isinstance(variant, str):
            assert head["variants"][name] == variant
        else:
            wanted = [(piece["min_batch"], {"updates": {}} | piece) for piece in variant]
            assert [(least, unpack(pieces[place])) for least, place in head["variants"][name]] == wanted


@pytest.mark.parametrize("damaged", [b"not gzip", b"", pack({"variants": {}})[:-9], pack({"variants": {}})[:-1] + b"x"])
def test_a_damaged_file_is_named(damaged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alexnet.json.gz").write_bytes(damaged)
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    with pytest.raises(DataError, match="the shipped trace of alexnet is damaged"):
        shipped_workload.__wrapped__("alexnet")


def test_a_damaged_piece_is_named() -> None:
    variants = {"float32/eager/inference": [PIECE]}
    data = pack({"variants": variants, "dtypes": {"float32": "float32"}, "min_seq_len": 2})
    with pytest.raises(DataError, match="the shipped trace of gpt2 is damaged"):
        ShippedWorkload.read("gpt2", data[:-40]).evaluate(plain_request("gpt2", seq_len=8))
