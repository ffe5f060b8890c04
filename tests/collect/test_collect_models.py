"""Whole models measured for real, small and on the CPU: what is timed is what a trace counts, and rows can be used."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neusight import Predictor
from neusight.collect import steps
from neusight.collect.bench import Bench, Timing
from neusight.collect.models import ModelGrid, model_plan
from neusight.collect.steps import ModelTask
from neusight.collect.store import place_of, write_rows
from neusight.devices import load_device
from neusight.devices.write import to_toml
from neusight.errors import ModelError, UnmeasurableError
from neusight.measured import compare, read_table
from neusight.workloads import load_workload

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 32}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 100}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
RESNET = {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [16, 32], "embedding_size": 16, "num_labels": 10}
RESNET |= {"layer_type": "basic", "hidden_act": "relu", "num_channels": 3, "image_size": 32}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configs")
    for name, config in {"small-bert": BERT, "small-gpt2": GPT2, "small-resnet": RESNET}.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder


class Operators(TorchDispatchMode):
    """Counts operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class CountingBench(Bench):
    """The CPU's bench, which counts the operators of every phase; the times that it gives are invented."""

    def timed(self, functions: Sequence[Callable[[], Any]], budget_s: float) -> list[Timing]:
        self.counts = []
        for function in functions:
            with Operators() as operators:
                function()
            self.counts.append(operators.seen)
        return [Timing.of([place + 0.9, place + 1.0, place + 1.2]) for place in range(len(functions))]


@pytest.fixture
def bench() -> CountingBench:
    return CountingBench(load_device("l4"), "cpu")


GRID = ModelGrid(modes=["training"], dtypes=["float32"], batches=[2], optimizer="adamw")


def task(model: str | Path, mode: str = "training", **changes: Any) -> ModelTask:
    (only,) = model_plan([str(model)], replace(GRID, modes=[mode], **changes))
    return only


def row_of(one: ModelTask, bench: Bench) -> dict[str, Any]:
    return {"gpu": bench.device.id, **one.describe(), **one.measure(bench)}


SAME = (
    *("mm", "addmm", "bmm", "convolution", "convolution_backward", "embedding", "embedding_dense_backward", "gelu"),
    *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm_backward", "_softmax", "relu_", "sum"),
    *("_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"),
    *("_foreach_mul_", "_foreach_lerp_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_addcdiv_", "_foreach_add_"),
)
"""Operators that the CPU runs as a GPU does; dropout is another there, and a trace does not look for packed samples."""


def comparable(operators: Counter[str]) -> Counter[str]:
    return Counter({name: n for name, n in operators.items() if name.split(".")[1] in SAME})


def test_what_is_timed_is_what_the_trace_counts(configs: Path, bench: CountingBench) -> None:
    bert, gpt2 = configs / "small-bert.json", configs / "small-gpt2.json"
    small = [(source, mode) for source in (bert, gpt2) for mode in ("inference", "training")]
    for source, mode in (*small, (configs / "small-resnet.json", "training")):
        task(source, mode, batches=[1]).measure(bench)
        names = ["forward"] if mode == "inference" else ["forward", "loss", "backward", "optimizer", "clear"]
        run = dict(zip(names, map(comparable, bench.counts), strict=True))
        optimizer = "adamw" if mode == "training" else "none"
        traced = load_workload(source, mode=mode, optimizer=optimizer, attention="eager", cache=False)
        for phase in {*names} & {*steps.TIMED}:
            expected = comparable(Counter(node.operator for node, _ in traced.expanded() if node.phase == phase))
            assert run[phase] == expected, (source, phase)
            assert expected
        if mode == "training":
            heads = 2 if source == bert else 1
            assert run["loss"] == {"aten._log_softmax.default": heads, "aten.nll_loss_forward.default": heads}
            assert run["backward"]["aten.nll_loss_backward.default"] == heads
            assert not run["clear"]


def test_a_row_is_the_sum_of_its_phases(configs: Path, bench: CountingBench) -> None:
    row = row_of(task(configs / "small-gpt2.json"), bench)
    # The loss lies between forward and backward and does not count.
    assert [row[f"{phase}_ms"] for phase in steps.TIMED] == [1000.0, 3000.0, 4000.0]
    assert row["latency_ms"] == pytest.approx(8000.0)
    assert 0 < row["latency_p10_ms"] <= row["latency_ms"] <= row["latency_p90_ms"]
    assert (row["seq_len"], row["optimizer"], row["launch"], row["peak_allocated_bytes"]) == (32, "adamw", None, None)
    inference = row_of(task(configs / "small-bert.json", "inference"), bench)
    assert inference["latency_ms"] == inference["forward_ms"] and inference["optimizer"] == "none"
    gradients = row_of(task(configs / "small-bert.json", optimizer="none"), bench)
    assert gradients["latency_ms"] == pytest.approx(gradients["forward_ms"] + gradients["backward_ms"])
    assert not {*inference, *gradients} & {"optimizer_ms"} and "backward_ms" not in inference


def test_the_optimizer_moves_no_weight_even_in_half_precision(configs: Path) -> None:
    one = task(configs / "small-gpt2.json", dtypes=["float16"])
    for optimizer in ("sgd", "adam", "adamw"):
        module = steps.real_module(GPT2, one, "cpu")
        before = [p.detach().clone() for p in module.parameters()]
        update = steps.still_optimizer(module, optimizer)
        for _ in range(2):
            module(**steps.real_inputs(GPT2, one, module, "cpu")).logits.float().sum().backward()
            update.step()
        after = list(module.parameters())
        assert all(p.dtype == torch.float16 and torch.equal(p, b) for p, b in zip(after, before, strict=True)), (
            optimizer
        )


class GpuLike(CountingBench):
    """The CPU in the guise of a GPU of compute capability 8.0."""

    on_gpu = True


def test_peak_memory_and_tf32_of_a_gpu(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resets, allowed, flags = [], [], (torch.backends.cuda.matmul, torch.backends.cudnn)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1234)
    monkeypatch.setattr(GpuLike, "synchronise", lambda self: allowed.append([f.allow_tf32 for f in flags]))
    monkeypatch.setattr(GpuLike, "conditions", lambda self: {"throttle": "sw_thermal_slowdown", "board_power_w": 70.0})
    before = [f.allow_tf32 for f in flags]
    for dtype in ("tf32", "float32"):
        one = task(configs / "small-bert.json", "inference", dtypes=[dtype])
        row = one.measure(GpuLike(load_device("l4"), "cpu"))
        assert (row["peak_allocated_bytes"], row["board_power_w"]) == (1234, 70.0)
        assert row["suspect"].startswith("throttled")
    assert allowed == [[True, True], [False, False]]
    assert resets == ["cpu", "cpu"]
    assert [f.allow_tf32 for f in flags] == before


def test_what_the_device_cannot_do_says_so(configs: Path, bench: CountingBench) -> None:
    with pytest.raises(UnmeasurableError, match="tf32 needs tensor cores"):
        task(configs / "small-gpt2.json", dtypes=["tf32"]).measure(CountingBench(load_device("t4"), "cpu"))
    # PyTorch's flash attention on the CPU has no dropout.
    with pytest.raises(UnmeasurableError, match="no flash attention in float32"):
        task(configs / "small-gpt2.json", attention="flash").measure(bench)
    task(configs / "small-gpt2.json", "inference", attention="flash").measure(bench)
    assert bench.counts[0]["aten._scaled_dot_product_flash_attention_for_cpu.default"] == 2


def test_rows_are_evaluated_on_the_device_beside_them(configs: Path, bench: CountingBench, tmp_path: Path) -> None:
    planned = [
        task(configs / "small-gpt2.json", attention="sdpa"),
        task(configs / "small-resnet.json", "inference", batches=[1]),
        task(configs / "small-gpt2.json", attention="sdpa", compiled=True),
    ]
    rows = [row_of(one, bench) | {"gpu": "mine"} for one in planned]
    write_rows(tmp_path / place_of("steps"), [*rows, rows[0] | {"dtype": "float23"}])
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "mine.toml").write_text(to_toml(load_device("l4").model_copy(update={"id": "mine"})))

    predictor = Predictor.load()
    scored, skipped = compare(read_table(tmp_path / place_of("steps")), predictor)
    assert scored["place"].to_list() == [0, 1, 2]
    assert {*scored["quantity"]} == {"latency_ms"}
    like = {"mode": "training", "batch": 2, "seq_len": 32, "optimizer": "adamw", "attention": "sdpa"}
    step = predictor.estimate(configs / "small-gpt2.json", tmp_path / "devices" / "mine.toml", **like)
    assert scored.predicted[0] == pytest.approx(1e3 * step.latency_s)
    assert scored.measured[0] == rows[0]["latency_ms"]
    assert scored.predicted[2] < scored.predicted[0]
    assert "float23" in skipped[0][0]


def plan(models: Sequence[str], **changes: Any) -> list[ModelTask]:
    return model_plan(models, replace(GRID, **{"modes": ["inference", "training"], "batches": [1], **changes}))


def test_a_plan_has_every_step_once_and_the_cheapest_first() -> None:
    tasks = plan(["gpt2-large", "resnet-50", "bert-large", "bert-large-uncased"], seq_lens=[128, 512])
    assert [t.model for t in tasks[:2]] == ["resnet-50", "resnet-50"]
    assert len(tasks) == len({t.sample for t in tasks}) == 2 + 4 + 4
    words = {"model": "gpt2-large", "mode": "training", "dtype": "float32_ieee", "batch": 1, "seq_len": 512}
    words |= {"attention": "eager", "optimizer": "adamw", "launch": None, "config": tasks[-1].config}
    assert tasks[-1].describe() == {"sample": tasks[-1].sample, **words}
    assert {t.optimizer for t in tasks if t.mode == "inference"} == {"none"}
    assert plan(["gpt2"], compiled=True)[0].describe()["launch"] == "compiled"
    assert plan(["gpt2"])[0].seq_len == 1024


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("bert-larg", {}, "unknown model 'bert-larg'; did you mean bert-large"),
        ("gpt2", {"dtypes": ["float23"]}, "unknown dtype 'float23'; did you mean float32"),
        ("gpt2", {"modes": ["train"]}, "mode 'train' .*did you mean training"),
        ("gpt2", {"attention": "fast"}, "attention 'fast' .*one of eager"),
        ("gpt2", {"optimizer": "shampoo"}, "optimizer 'shampoo' .*one of none"),
        ("gpt2", {"batches": [0]}, "batch 0 of gpt2"),
        ("bert-large", {"seq_lens": [1024]}, "longer than bert-large allows: at most 512"),
        ("json:loads", {}, "json:loads cannot be kept as a configuration"),
        ("switch-base-4", {}, "switch-base-4 has no fixed step"),
    ],
)
def test_a_plan_refuses_in_one_line(model: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan([model], **changes)


def test_a_plan_refuses_two_models_of_one_name(configs: Path, tmp_path: Path) -> None:
    (tmp_path / "small-bert.json").write_text(json.dumps(BERT | {"num_hidden_layers": 1}))
    with pytest.raises(ModelError, match="two models are called small-bert"):
        plan([str(folder / "small-bert.json") for folder in (configs, tmp_path)])
