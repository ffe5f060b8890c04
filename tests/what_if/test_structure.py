"""Other structures of the same model, and shares of a GPU."""

from __future__ import annotations

import pytest

from neusight import Predictor
from neusight.devices import cluster_of
from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError
from neusight.kernels.families import Attention, Conv2d, Gemm
from neusight.questions.step import step_question
from neusight.steps.answers import traced_training
from neusight.steps.questions import StepQuestion, workload_of
from neusight.what_if import applied
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import Workload


def traced(step: StepQuestion) -> Workload:
    return workload_of(step.model, step.request, step.setting, TargetDevice())


def test_a_window_bounds_the_keys_of_each_query() -> None:
    step = step_question("llama-3.2-1b", "h100-sxm-80gb", seq_len=4096, dtype="bfloat16")
    (after,) = applied(step, ["sliding-window"])
    windows = {
        kernel.window for node in traced(after).nodes for kernel in node.kernels if isinstance(kernel, Attention)
    }
    assert windows == {1024}
    with pytest.raises(InapplicableError, match="1024 tokens"):
        traced(applied(step_question("llama-3.2-1b", "h100-sxm-80gb", seq_len=512), ["sliding-window"])[-1])


def test_products_and_convolutions_of_one_operand_are_one() -> None:
    def widths(step: StepQuestion) -> tuple[int, int, int]:
        kernels = [k for node in traced(step).nodes for k in node.kernels for _ in range(node.copies)]
        convolutions = [k for k in kernels if isinstance(k, Conv2d)]
        columns = sum(k.n for k in kernels if isinstance(k, Gemm))
        return len(convolutions), sum(k.out_channels for k in convolutions), columns

    step = step_question("torchvision:googlenet", "l4", batch=4)
    before, after = widths(step), widths(applied(step, ["metaflow"])[-1])
    # Nine modules, each with three convolutions of one point on its input.
    assert before[0] - after[0] == 9 * 2
    assert before[1:] == after[1:]


def test_replicas_of_a_factored_model_exchange_less(predictor: Predictor) -> None:
    words = {"global_batch_size": 32, "dtype": "float32", "optimizer": "sgd"}
    cluster = cluster_of("v100-sxm2-16gb", 1, 4, "10Gb/s ethernet")
    run = traced_training("torchvision:resnet18", cluster, words, "torch-eager")
    (after,) = applied(run, ["pufferfish"])
    assert isinstance(after, TrainingRun)
    assert predictor.training(after).latency_s < predictor.training(run).latency_s
    assert applied(run, ["low-rank"])[-1].decoder.name == run.decoder.name


def test_half_of_a_gpu_is_no_faster_than_the_whole(predictor: Predictor) -> None:
    step = step_question("gpt2", "a100-sxm-80gb", batch=8, seq_len=256)
    (half,) = applied(step, ["packing"])
    assert half.device.sm_count == step.device.sm_count // 2
    gain = predictor.what_if(step, ["half-by-mps"]).gain("throughput").ratio
    assert 0.4 < gain <= 1.0
