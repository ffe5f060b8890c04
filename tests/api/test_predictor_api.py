"""``Predictor``: the same answers by every way in, remembered, within physics; nothing that is given is ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight import Estimate, Predictor, load_device
from neusight.devices import to_toml
from neusight.errors import CoverageError, DeviceError, ModelError
from neusight.estimates.report import report
from neusight.kernels import Gemm, KernelBatch
from neusight.questions import KernelCall, Step, Training, WhatIfQuestion
from neusight.requests import Plan, Request


def test_kernel_by_name_and_by_value_agree(predictor: Predictor) -> None:
    kernel = Gemm(m=512, n=256, k=128)
    by_value = predictor.kernel(kernel, "l4")
    assert predictor.kernel("gemm", load_device("l4"), m=512, n=256, k=128) == by_value
    (latency_s,) = predictor.kernels(KernelBatch.of([kernel]), "l4").latency_s
    assert by_value.latency_s == pytest.approx(latency_s)


def test_no_kernel_beats_its_bound(predictor: Predictor) -> None:
    sizes = 2 ** np.random.default_rng(0).integers(0, 14, (3, 200))
    batch = KernelBatch.from_columns("gemm", m=sizes[0], n=sizes[1], k=sizes[2])
    for gpu in ("p4", "l4", "h100-sxm-80gb", "mi300x", "arc-pro-b60"):
        found = predictor.kernels(batch, gpu)
        flops = 2.0 * sizes.astype(float).prod(axis=0)
        assert (found.latency_s >= flops / load_device(gpu).gemm_flops_per_s("float32")).all()


def test_operands_in_device_memory_take_all_bytes_from_there(predictor: Predictor) -> None:
    """By the formula: every compulsory byte at peak bandwidth, whatever L2 would hold."""
    wrong = []
    for gpu in ("p4", "l4", "h100-sxm-80gb"):
        device = load_device(gpu)
        for name, shape, size_bytes in (
            ("gemm", {"m": 64, "n": 4096, "k": 4096}, 4 * (64 * 4096 + 4096 * 4096 + 64 * 4096)),
            ("gemm", {"m": 8192, "n": 8192, "k": 8192}, 4 * 3 * 8192 * 8192),
            ("add", {"elements": 2**20}, 3 * 4 * 2**20),
            ("softmax", {"rows": 2**16, "cols": 2**12}, 2 * 4 * 2**28),
        ):
            resident, cold = (predictor.kernel(name, gpu, operands=o, **shape) for o in ("resident", "cold"))
            moved_s = size_bytes / device.dram_bandwidth_bytes_per_s
            held = (
                cold.bound_s == pytest.approx(max(resident.bound_s, moved_s)),
                resident.bound_s <= resident.latency_s <= cold.latency_s,
                cold.bound_s <= cold.low_s <= cold.latency_s <= cold.high_s,
            )
            if not all(held):
                wrong.append((gpu, name, shape, held))
    assert wrong == []
    with pytest.raises(ModelError, match="operands 'warm' is unknown"):
        predictor.kernel("add", "l4", operands="warm", elements=4)


def test_estimate_by_id_name_file_and_spec_agree(predictor: Predictor, tmp_path: Path) -> None:
    spec = load_device("t4")
    file = tmp_path / "t4.toml"
    file.write_text(to_toml(spec))
    expected = predictor.estimate("gpt2", "t4")
    for gpu in (spec.name, file, str(file), spec):
        assert predictor.estimate("gpt2", gpu) == expected
    assert predictor.estimate("gpt2", "t4", Request.of("gpt2")) == expected
    assert Estimate.from_json(expected.to_json()) == expected


def test_a_changed_device_file_is_read_again(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = to_toml(load_device("l4"))
    file.write_text(text)
    before = predictor.estimate("gpt2", file)
    file.write_text(text.replace('dram_bandwidth = "300 GB/s"', 'dram_bandwidth = "30 GB/s"'))
    assert predictor.estimate("gpt2", file).latency_s > before.latency_s


def test_a_batch_of_four_is_no_faster_than_four_of_one_by_much_and_no_slower(predictor: Predictor) -> None:
    one, four = (predictor.estimate("gpt2-large", "l4", batch=batch) for batch in (1, 4))
    assert one.latency_s < four.latency_s
    assert four.samples_per_s > 0.8 * one.samples_per_s


def test_module_with_inputs(predictor: Predictor) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    step = predictor.estimate(module, "l4", mode="training", inputs=[torch.zeros(32, 64)])
    gemms = {(k.kernel.split()[1], k.phase) for k in step.by_kernel if k.family == "gemm"}
    assert {("32x128x64", "forward"), ("32x10x128", "forward")} <= gemms
    assert step.by_phase["backward"] > 0
    assert (step.batch, step.samples_per_s) == (32, pytest.approx(32 / step.latency_s))
    with pytest.raises(ModelError, match="hold 32 samples where a batch of 8 was asked for"):
        predictor.estimate(module, "l4", batch=8, inputs=[torch.zeros(32, 64)])


FUNCTIONS = """
import torch
def sized(batch):
    return torch.nn.Linear(8, 4), {"input": torch.zeros(batch, 8)}
def fixed():
    return torch.nn.Linear(8, 4), torch.zeros(32, 8)
def deaf(batch=1):
    return fixed()
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "functions_of_the_api"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    return name


def test_functions_say_the_batch_that_their_inputs_hold(predictor: Predictor, functions: str) -> None:
    for name, options in (("sized", {"batch": 32}), ("fixed", {}), ("deaf", {"batch": 32})):
        step = predictor.estimate(f"{functions}:{name}", "l4", **options)
        assert [k.kernel for k in step.by_kernel if k.family == "gemm"] == ["linear 32x4x8 tn +bias"]
        assert (step.batch, step.samples_per_s) == (32, pytest.approx(32 / step.latency_s)), name
    for name, message in (("deaf", "hold 32 samples where a batch of 8 was asked for"), ("fixed", "takes no batch")):
        with pytest.raises(ModelError, match=message) as caught:
            predictor.estimate(f"{functions}:{name}", "l4", batch=8)
        assert "\n" not in str(caught.value)


def test_nothing_that_is_given_is_ignored(predictor: Predictor) -> None:
    """It counts, or a line says why not."""
    import torch

    l4 = load_device("l4")
    mistakes: list[tuple[type[Exception], str, Any]] = [
        (DeviceError, "l44", lambda: predictor.estimate("gpt2", "l44")),
        (DeviceError, "overrides need the id", lambda: predictor.estimate("gpt2", l4, overrides=["sm_count=3"])),
        (DeviceError, "bfloat16", lambda: predictor.estimate("gpt2", "t4", dtype="bfloat16")),
        (DeviceError, "bfloat16", lambda: predictor.kernel("gemm", "t4", m=1, n=1, k=1, dtype="bfloat16")),
        (CoverageError, "gem", lambda: predictor.kernel("gem", "l4")),
        (ModelError, "gtp2", lambda: predictor.estimate("gtp2", "l4")),
        (ModelError, "inputs", lambda: predictor.estimate("gpt2", "l4", inputs=[torch.zeros(1, 8)])),
        (
            ModelError,
            "batch given as well as a request",
            lambda: predictor.estimate("gpt2", "l4", Request.of("gpt2"), batch=2),
        ),
        *(
            (ModelError, message, lambda options=options: predictor.estimate("gpt2", "l4", **options))
            for message, options in (
                ("batch 0", {"batch": 0}),
                ("batch True", {"batch": True}),
                ("at most 1024", {"seq_len": 10**6}),
                ("mode 'dreaming'", {"mode": "dreaming"}),
                ("'float8' of a whole model", {"dtype": "float8"}),
                ("inference has no optimizer", {"optimizer": "adamw"}),
            )
        ),
    ]
    for kind, message, call in mistakes:
        with pytest.raises(kind) as caught:
            call()
        assert message in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="colour"):
        predictor.estimate("gpt2", "l4", colour="red")


def test_options_without_effect_on_a_device_are_said_in_a_line_each(predictor: Predictor) -> None:
    plain = predictor.estimate("gpt2", "l4")
    for options, words in (
        ({"simulate": True}, "--simulate has no effect on l4"),
        ({"compression": True}, "--compression has no effect on l4"),
        ({"sparsity": "activations=0.5"}, "zeros of tensors change nothing on l4"),
    ):
        found = predictor.estimate("gpt2", "l4", **options)
        (said,) = set(found.warnings) - set(plain.warnings)
        assert words in said and "\n" not in said
        assert (found.latency_s, found.interval) == (plain.latency_s, plain.interval)
        assert words not in " ".join(predictor.estimate("alexnet", "tensordash", **options).warnings)


def test_sweep_is_the_grid_in_order(predictor: Predictor) -> None:
    seen = []
    table = predictor.sweep(
        ["gpt2"], ["l4", "t4"], [1, 2], seq_lens=[128, 256], progress=lambda done, of: seen.append((done, of))
    )
    assert list(zip(table.gpu, table.batch, table.seq_len, strict=True)) == [
        (gpu, batch, length) for gpu in ("l4", "t4") for batch in (1, 2) for length in (128, 256)
    ]
    assert seen == [(n, 8) for n in range(1, 9)]
    direct = predictor.estimate("gpt2", "t4", batch=2, seq_len=256)
    assert table.latency_s.iloc[-1] == pytest.approx(direct.latency_s)
    assert table.samples_per_s.iloc[-1] == pytest.approx(direct.samples_per_s)


def test_sweep_rows_with_errors_do_not_fit(predictor: Predictor) -> None:
    table = predictor.sweep(["gpt2"], ["l4"], [1, 0])
    assert table.fits.tolist() == [True, False]
    assert "batch 0" in table.error.iloc[1]
    assert len(table[table.fits]) == 1


def test_a_step_given_by_place_is_asked_for_by_name(predictor: Predictor) -> None:
    with pytest.raises(ModelError, match="'training' is not a Request: give the step by name"):
        predictor.estimate("gpt2", "l4", "training")  # type: ignore[arg-type]


def test_what_changes_nothing_is_said_or_refused(predictor: Predictor) -> None:
    plain = predictor.estimate("gpt2", "l4")
    for options, words in (
        ({"layout": "nhwc"}, "layout nhwc has no effect on gpt2"),
        ({"plan": Plan(overlap_grad_reduce=True)}, "overlap_grad_reduce has no effect"),
    ):
        found = predictor.estimate("gpt2", "l4", **options)
        assert found.latency_s == plain.latency_s
        assert words in " ".join(found.warnings)
    both = Plan(dp=2, global_batch_size=2, overlap_grad_reduce=True)
    assert "no effect" not in " ".join(predictor.estimate("gpt2", "l4", mode="training", plan=both).warnings)
    assert "layout" not in " ".join(predictor.estimate("alexnet", "l4", layout="nhwc").warnings)
    with pytest.raises(ModelError, match="reads text alone: leave out --image-size"):
        predictor.estimate("gpt2", "l4", image_size=224)
    with pytest.raises(ModelError, match="no optimizer to fuse"):
        predictor.estimate("gpt2", "l4", mode="training", fused_optimizer=True)


@pytest.mark.parametrize(
    "words",
    [
        {"mode": "training", "batch": 4, "optimizer": "adam", "seq_len": 64},
        {"gpu": "a100-sxm-80gb", "tp": 2, "batch": 2, "tp_plan": {"*.c_fc": "colwise"}},
        {"synchronized": True, "library_factor": 1.25, "overrides": ["dram_bandwidth=250GB/s"]},
    ],
)
def test_ask_of_an_answers_question_gives_the_same_digits(predictor: Predictor, words: dict[str, Any]) -> None:
    first = predictor.estimate("gpt2", **{"gpu": "l4", **words})
    again = predictor.ask(Step.named(json.loads(json.dumps(report(first)))["question"]))
    assert (again.latency_s, again.interval) == (first.latency_s, first.interval)
    assert again.assumed == first.assumed


def test_ask_of_a_kernels_question_gives_the_same_digits(predictor: Predictor) -> None:
    words = {"backend": "vllm", "timer": "cuda_graph", "operands": "rotating", "operand_sets": 3, "burst": 64}
    first = predictor.kernel("gemm", "l4", m=64, n=512, k=256, dtype="bf16", **words)
    assert predictor.ask(KernelCall.named(first.question)) == first
    assert first.latency_s != predictor.kernel("gemm", "l4", m=64, n=512, k=256, dtype="bf16").latency_s


def test_kernel_over_an_unknown_network_spans_those_that_people_have(predictor: Predictor) -> None:
    shape = {"ranks": 32, "per_node": 8, "bytes": 2**30}
    unknown = predictor.kernel("all_reduce", "h100-sxm-80gb", **shape)
    named = [
        predictor.kernel("all_reduce", "h100-sxm-80gb", **shape, network=words) for words in ("8 x 400Gb/s", "100Gb/s")
    ]
    assert unknown.low_s <= named[0].low_s and unknown.high_s >= named[0].high_s
    assert "network" in unknown.assumed and "network between nodes is unknown" in unknown.warnings[0]
    assert not named[0].assumed and not named[0].warnings
    assert named[0].latency_s < named[1].latency_s
    with_nodes = predictor.kernel("all_reduce", "h100-sxm-80gb", ranks=32, bytes=2**30, nodes=4, network="8 x 400Gb/s")
    assert with_nodes == named[0]


def test_ask_of_a_step_on_a_cluster_is_that_of_a_training_step(predictor: Predictor) -> None:
    words = {"cluster": "dgx-a100", "tp": 2, "seq_len": 256}
    step = predictor.ask(Step(model="llama-3.2-1b", mode="training", batch=16, **words))
    run = predictor.ask(Training(model="llama-3.2-1b", global_batch_size=16, **words))
    assert (step.latency_s, step.interval) == (run.latency_s, run.interval)
    with pytest.raises(ModelError, match="layout has no meaning with a cluster"):
        predictor.ask(Step(model="gpt2", mode="training", layout="nhwc", **words))


def test_ask_of_a_what_if_compares_a_question_with_its_change(predictor: Predictor) -> None:
    step = Step(model="gpt2", gpu="l4", seq_len=64)
    ladder = predictor.ask(WhatIfQuestion(question=step, apply=("compile",)))
    assert ladder.gain() == predictor.what_if(step.resolve(), ["compile"]).gain()
    doubled = predictor.ask(WhatIfQuestion(question=step, apply=("compile",), then=(("batch", 2),)))
    assert doubled.before.latency_s == ladder.before.latency_s
    assert doubled.after.latency_s == predictor.estimate("gpt2", "l4", batch=2, seq_len=64, launch="compiled").latency_s
    alone = predictor.ask(WhatIfQuestion(question=step, then=(("batch", 2),)))
    assert alone.after.latency_s == predictor.estimate("gpt2", "l4", batch=2, seq_len=64).latency_s


def test_words_of_pytorch_and_single_values_are_taken(predictor: Predictor) -> None:
    import torch

    half = predictor.estimate("gpt2", "l4", dtype="float16")
    assert predictor.estimate("gpt2", "l4", dtype=torch.float16) == half
    (row,) = predictor.sweep("gpt2", "l4", dtypes=torch.float16).to_dict("records")
    assert (row["model"], row["gpu"], row["dtype"], row["error"]) == ("gpt2", "l4", "float16", "")
    assert row["latency_s"] == pytest.approx(half.latency_s)
    with pytest.raises(ModelError, match="batch_size is no field of a Step question; did you mean batch"):
        predictor.estimate("gpt2", "l4", batch_size=4)


def test_a_sweep_says_the_same_whoever_does_it(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neusight.api.sweeps._TOGETHER", 2)
    grid: dict[str, Any] = {"models": ["gpt2", "gtp2"], "gpus": ["l4", "t4"], "batches": [1, 4]}
    done: list[tuple[int, int]] = []
    two = predictor.shared(jobs=2).sweep(**grid, progress=lambda *each: done.append(each))
    pd.testing.assert_frame_equal(two, predictor.sweep(**grid))
    assert sorted(done) == [(2, 8), (4, 8), (6, 8), (8, 8)]


def test_estimate_runs_the_step_of_a_named_model(predictor: Predictor) -> None:
    def forward_alone(model: Any, _: Any, **inputs: Any) -> None:
        model(**inputs)

    words = {"mode": "training", "optimizer": "sgd", "batch": 1, "seq_len": 64}
    own, usual = (predictor.estimate("gpt2", "l4", **words, **more) for more in ({"step": forward_alone}, {}))
    assert {"backward", "optimizer"}.isdisjoint(own.by_phase)
    assert {"backward", "optimizer"} <= {*usual.by_phase}


@pytest.mark.parametrize("step", [3, "learn"])
def test_estimate_refuses_a_step_that_is_no_function(predictor: Predictor, step: Any) -> None:
    with pytest.raises(ModelError, match="is no function: give one of the module, optimizer and inputs"):
        predictor.estimate("gpt2", "l4", mode="training", step=step)
