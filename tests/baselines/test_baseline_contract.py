"""What every baseline must do, on rows whose law is known."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from baselines_toys import GPUS, NAMES, corpus, measured, pointwise, quick, row_wise, seconds

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES, Attention, GroupedGemm, KernelBatch, Memory, Optimizer
from neusight.kernels.families import COMPOSED
from neusight.lab.baselines import Baseline, BaselinePredictor, rows_of
from neusight.learn.training_data import Corpus
from neusight.questions import Step, Training
from neusight.steps.answers import StepAnswers

OTHERS = [
    Memory(op="copy", elements=1000, read_bytes=4000, write_bytes=4000),
    Optimizer(op="adamw_fused", elements=1000, tensors=2, read_bytes=16000, write_bytes=12000, flops=12000),
    Attention(batch=2, heads=4, kv_heads=4, q_len=128, kv_len=128, head_dim=64),
    GroupedGemm(groups=4, tokens=256, n=512, k=512),
]


@pytest.fixture(scope="module")
def fitted() -> dict[str, Baseline]:
    return {name: quick(name).fit(corpus()) for name in NAMES}


def batches() -> list[KernelBatch]:
    return [r.batch for r in corpus(gpus=GPUS[:1])]


def test_every_family_gets_a_time_on_gpus_seen_and_unseen(fitted: dict[str, Baseline]) -> None:
    every = [*batches(), *(KernelBatch.of([kernel]) for kernel in OTHERS), row_wise([64], op="sum")]
    assert {batch.family for batch in every} == set(KERNEL_CLASSES) - COMPOSED
    for name, baseline in fitted.items():
        for gpu in ("t4", "l4", "mi100"):
            for batch in every:
                predicted = seconds(baseline, batch, load_device(gpu))
                assert predicted.shape == (len(batch),), name
                assert (np.isfinite(predicted) & (predicted >= 0)).all(), (name, gpu, batch.family)


def test_kernels_that_no_method_knows_take_the_rooflines_time(fitted: dict[str, Baseline]) -> None:
    device = load_device("l4")
    for name, baseline in fitted.items():
        for batch in (KernelBatch.of([kernel]) for kernel in OTHERS):
            expected = seconds(fitted["roofline"], batch, device)
            assert seconds(baseline, batch, device) == pytest.approx(expected), name


def test_rows_and_seed_decide_what_is_predicted(fitted: dict[str, Baseline]) -> None:
    device, batch = load_device("l4"), batches()[0]
    first, again = (seconds(quick("neusight-paper", seed=3).fit(corpus()), batch, device) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, seconds(fitted["neusight-paper"], batch, device))
    with pytest.raises(DataError, match="learn"):
        quick("neusight-paper").fit([])


def test_rows_that_were_set_aside_are_learned_from() -> None:
    train, slow = measured(pointwise([10, 20]), "t4"), measured(pointwise([40]), "p4")
    made = SimpleNamespace(rows={"stream": [train]}, throttled={"stream": [slow]})
    assert [len(r) for r in rows_of(cast(Corpus, made))] == [2, 1]


def test_a_step_is_the_sum_of_its_kernels(fitted: dict[str, Baseline]) -> None:
    question = Step(model="gpt2", gpu="l4", batch=1, seq_len=64, dtype="float32")
    program = StepAnswers({}).ready(question.resolve()).program
    for baseline in fitted.values():
        parts = [seconds(baseline, b, load_device("l4")) @ program.counts[where] for b, where in program.batches]
        assert BaselinePredictor(baseline).ask(question).latency_s == pytest.approx(sum(parts))
    with pytest.raises(DataError, match="one device"):
        BaselinePredictor(fitted["roofline"]).ask(Training(model="gpt2", gpu="l4"))
