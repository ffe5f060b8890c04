"""Convolutions of long filters as products of spectra."""

import pytest
import torch
from torch import nn

from neusight.errors import InapplicableError
from neusight.questions.step import step_question
from neusight.transforms.spectra import TILE, with_spectra
from neusight.what_if import applied
from neusight.workloads import load_workload

SOUNDS, GIVEN, MADE, WINDOWS, LONG = 2, 8, 16, 1024, 25
SLOW, FAST = (1e9, 1e12), (1e18, 1e9)
"""Rates at which arithmetic takes all of the time, and traffic."""


def step(mode="inference", windows=WINDOWS, **options):
    module = nn.Conv1d(GIVEN, MADE, LONG, padding=LONG // 2, bias=False, **options)
    sounds = torch.zeros(SOUNDS, GIVEN, windows)
    return load_workload(nn.Sequential(nn.Tanh(), module), inputs=(sounds,), mode=mode, dtype="float32_ieee")


def kernels(workload, family):
    return [k for node in workload.nodes for k in node.kernels if k.family == family]


def test_a_tile_holds_what_its_filter_leaves_and_every_frequency_is_a_product():
    changed = with_spectra(step(), *SLOW)
    assert not kernels(changed, "conv2d")
    (product,) = kernels(changed, "gemm")
    tiles = SOUNDS * -(-WINDOWS // (TILE - LONG + 1))
    assert product.batch == TILE // 2 + 1
    assert product.m * product.n * product.k == 4 * tiles * GIVEN * MADE
    moved = kernels(changed, "memory")
    read, written = (sum(getattr(k, name) for k in moved) for name in ("read_bytes", "write_bytes"))
    spectra = 8 * (TILE // 2 + 1) * (tiles * (GIVEN + MADE) + GIVEN * MADE)
    inputs, filters, outputs = 4 * SOUNDS * GIVEN * WINDOWS, 4 * GIVEN * MADE * LONG, 4 * SOUNDS * MADE * WINDOWS
    assert read == spectra + inputs + filters + 8 * (TILE // 2 + 1) * tiles * MADE
    assert read + written == 3 * spectra + inputs + filters + outputs


def test_a_convolution_stays_where_its_spectra_would_take_longer():
    assert with_spectra(step(), *FAST).nodes == step().nodes


@pytest.mark.parametrize(("windows", "left"), [(WINDOWS, {"weight_grad"}), (TILE - LONG, set())])
def test_gradients_of_filters_need_a_row_in_one_tile(windows, left):
    trained = with_spectra(step("training", windows), *SLOW)
    assert {k.op for k in kernels(trained, "conv2d")} == left


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"groups": 2}])
def test_tiles_are_of_plain_filters(options):
    with pytest.raises(InapplicableError, match="long filter"):
        with_spectra(step(**options), *SLOW)


def test_matrix_units_multiply_faster():
    question = step_question("jasper-10x5-dr", "a100-sxm-80gb", dtype="float32")
    with pytest.raises(InapplicableError, match="TF32"):
        applied(question, ["fft-convolutions"])
    wide = step_question("jasper-10x5-dr", "v100-sxm2-32gb", dtype="float32")
    assert applied(wide, ["fft-convolutions"])[-1].setting.passes
