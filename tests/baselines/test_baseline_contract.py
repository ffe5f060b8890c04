"""What every baseline must do, on rows whose law is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from baselines_toys import GPUS, corpus, measured, pointwise, quick, row_wise

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments.baselines import NAMES, Baseline, new_baseline, rows_of, whole_model_s
from neusight.experiments.baselines.habitat import RECIPE, Habitat
from neusight.experiments.baselines.neusight_paper import RECIPES, NeusightPaper
from neusight.kernels import KERNEL_CLASSES, Attention, GroupedGemm, Kernel, KernelBatch, Memory, Optimizer
from neusight.kernels.families import COMPOSED
from neusight.learn.training_data import Corpus
from neusight.plans import TracedStep, single
from neusight.requests import Request
from neusight.workloads import Node, Workload
from neusight.workloads.workload import Phase

LEARNING = [name for name in NAMES if name != "roofline"]
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
                predicted = baseline.predict_s(batch, load_device(gpu))
                assert predicted.shape == (len(batch),), name
                assert (np.isfinite(predicted) & (predicted >= 0)).all(), (name, gpu, batch.family)


def test_kernels_that_no_method_knows_take_the_rooflines_time(fitted: dict[str, Baseline]) -> None:
    device = load_device("l4")
    for name, baseline in fitted.items():
        for batch in (KernelBatch.of([kernel]) for kernel in OTHERS):
            expected = fitted["roofline"].predict_s(batch, device)
            assert baseline.predict_s(batch, device) == pytest.approx(expected), name


def test_a_kernel_is_predicted_alike_alone_and_in_a_batch(fitted: dict[str, Baseline]) -> None:
    device = load_device("l4")
    for name, baseline in fitted.items():
        for batch in batches():
            alone = baseline.predict_s(batch.take(np.array([7])), device)
            assert alone == pytest.approx(baseline.predict_s(batch, device)[7], rel=1e-4), name


def test_rows_and_seed_decide_what_is_predicted(fitted: dict[str, Baseline]) -> None:
    device = load_device("l4")
    for name in LEARNING:
        first, again = (quick(name, seed=3).fit(corpus()) for _ in range(2))
        same = [np.array_equal(first.predict_s(b, device), again.predict_s(b, device)) for b in batches()]
        assert all(same), name
        if name in ("habitat", "neusight-paper"):
            other = fitted[name].predict_s(batches()[0], device)
            assert not np.array_equal(first.predict_s(batches()[0], device), other), name
        with pytest.raises(DataError, match="learn"):
            quick(name).fit([])


def test_names_make_the_baselines_as_they_are_to_be_trained() -> None:
    made = [new_baseline(name, seed=5) for name in NAMES]
    assert [baseline.name for baseline in made] == list(NAMES)
    habitat, paper = cast(Habitat, made[1]), cast(NeusightPaper, made[3])
    assert (habitat.seed, habitat.recipe) == (5, RECIPE)
    assert (paper.seed, paper.recipes) == (5, RECIPES)
    with pytest.raises(DataError, match=r"no baseline 'habitatt'.*did you mean habitat"):
        new_baseline("habitatt")


def step() -> TracedStep:
    copy = Memory(op="copy", elements=1000, read_bytes=4000, write_bytes=4000)
    add, softmax = pointwise([5000]).kernel(0), row_wise([200]).kernel(0)
    told: list[tuple[Kernel, Phase, int]] = [
        (add, "forward", 3),
        (copy, "backward", 2),
        (softmax, "forward", 1),
        (add, "backward", 4),
    ]
    starts = np.cumsum([0, *(copies for *_, copies in told)])
    nodes = tuple(
        Node(id=int(at), operator="toy", phase=phase, kernels=(kernel,), copies=copies, stride=1)
        for at, (kernel, phase, copies) in zip(starts, told, strict=False)
    )
    return single(Workload(request=Request(model="toy"), nodes=nodes, tensors=(), parameters=0))


def test_a_model_is_the_sum_of_its_kernels_by_phase(fitted: dict[str, Baseline]) -> None:
    device = load_device("l4")
    copy_s = 8000 / device.dram_bandwidth_bytes_per_s
    for baseline in fitted.values():
        one = {b.family: baseline.predict_s(b, device)[0] for b in (pointwise([5000]), row_wise([200]))}
        totals = whole_model_s(baseline, step(), device)
        assert list(totals) == ["forward", "backward"]
        assert totals["forward"] == pytest.approx(3 * one["elementwise"] + one["row_reduction"], rel=1e-4)
        assert totals["backward"] == pytest.approx(4 * one["elementwise"] + 2 * copy_s, rel=1e-4)


def test_rows_that_were_set_aside_are_learned_from() -> None:
    train, slow = measured(pointwise([10, 20]), "t4"), measured(pointwise([40]), "p4")
    made = SimpleNamespace(rows={"stream": [train]}, throttled={"stream": [slow]}, files=[Path("here/x.parquet")])
    assert [len(r) for r in rows_of(cast(Corpus, made))] == [2, 1]
    with pytest.raises(DataError, match="here has no rows that a baseline learns from"):
        rows_of(cast(Corpus, SimpleNamespace(rows={}, throttled={}, files=[Path("here/x.parquet")])))
