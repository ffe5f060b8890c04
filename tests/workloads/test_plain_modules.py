"""Modules of this package have the parameters that the catalogue states, and the shapes that their docstrings say."""

from __future__ import annotations

import pytest
import torch

from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.catalogue import list_traced, traced_config
from neusight.workloads.models.language import AdaptiveWords
from neusight.workloads.sources.plain_models import PlainModel


@pytest.mark.parametrize(
    "name", ["jasper-10x5-dr", "quartznet-15x5", "nnu-net-3d", "u-net", "transformer-xl-base", "gnmt-v2", "hifi-gan"]
)
def test_parameters_are_those_of_the_catalogue(name: str) -> None:
    stated = {info.name: info.parameters for info in list_traced()}[name]
    model = PlainModel(name=name, config=traced_config(name))
    with torch.device("meta"):
        module = model.build(Request.of(name))
    assert sum(p.numel() for p in module.parameters()) == stated


def test_recurrent_layers_are_narrow_under_autocast() -> None:
    step = load_workload("gnmt-v2", mode="training", dtype="amp", cache=False)
    products = [k for node in step.nodes if "_cudnn_rnn" in node.operator for k in node.kernels if k.family == "gemm"]
    assert {k.dtype for k in products} == {"float16"}


def test_a_mask_writes_no_more_places_than_there_are() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x.index_put((mask,), torch.zeros(16))

    step = load_workload(Masked(), inputs=(torch.zeros(4, 8, 16), torch.ones(4, 8, dtype=torch.bool)))
    assert [k.elements for n in step.nodes for k in n.kernels if getattr(k, "op", "") == "scatter"] == [4 * 8 * 16]


def test_a_sound_is_as_long_as_asked_for() -> None:
    model = PlainModel(name="quartznet-15x5", config=traced_config("quartznet-15x5"))
    inputs = model.inputs(Request.of("quartznet-15x5", batch=2, seconds=2.0))
    assert inputs["spectrogram"].shape == (2, 64, 208)  # type: ignore[call-overload]


def test_a_vocoder_is_judged_in_training_alone() -> None:
    counts = {}
    for mode in ("inference", "training"):
        step = load_workload("hifi-gan", mode=mode, cache=False)
        forward = [node for node in step.nodes if node.phase == "forward"]
        counts[mode] = sum(n.copies * sum(k.family == "conv2d" for k in n.kernels) for n in forward)
    generator = 1 + 4 * (1 + 3 * 6) + 1
    judges = 4 * (5 * 6 + 3 * 8)
    assert counts == {"inference": generator, "training": generator + judges}


def test_clusters_of_words_take_all_tokens_once() -> None:
    words = AdaptiveWords(8, (4, 12, 40), divided=2)
    assert sum(words.shares) == pytest.approx(1.0)
    ids = torch.zeros(2, 32, dtype=torch.long)
    assert words.embed(ids).shape == (2, 32, 8)
    assert [one.shape[1] for one in words(torch.zeros(2, 32, 8))] == [4 + 2, 8, 28]
