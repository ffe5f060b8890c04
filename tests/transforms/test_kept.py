"""What waits for the backward pass in another form: its bytes, its kernels, and what they move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Memory
from neusight.requests import Request
from neusight.transforms.kept import ZEROS, gist, on_host
from neusight.transforms.tempo import tempo
from neusight.transforms.unrolled import unroll
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

IMAGES, CHANNELS, EDGE = 8, 32, 64
VALUES = IMAGES * CHANNELS * EDGE * EDGE
TOKENS, HIDDEN = 2048, 512


class Layer(nn.Module):
    """Attention that is written out with its dropout, GELU and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.up = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.drop, self.norm, self.last = nn.Dropout(0.1), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        scores = self.drop(torch.softmax(query @ query.T, -1))
        return self.last(self.norm(nn.functional.gelu(self.up(scores @ query)) + x))


def traced(module: nn.Module, *inputs: Tensor, mode: str = "training") -> Workload:
    return load_workload(module, Request.of(mode=mode), inputs=inputs)


@pytest.fixture(scope="module")
def images() -> Workload:
    """A ReLU whose result a convolution takes back, and one that only a pool does."""
    first, second = (nn.Conv2d(size, CHANNELS, 3, padding=1) for size in (3, CHANNELS))
    head = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * EDGE * EDGE // 4, 1))
    return traced(nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), head),
                  torch.zeros(IMAGES, 3, EDGE, EDGE))  # fmt: skip


@pytest.fixture(scope="module")
def layer() -> Workload:
    return traced(Layer(), torch.zeros(TOKENS, HIDDEN))


def kept_bytes(workload: Workload) -> int:
    """Of all that lives from a forward node on to a backward node."""
    step = unroll(workload)
    last = max(node.id for node in step.nodes if node.phase == "forward")
    return sum(t.nbytes for t in step.tensors if t.kind == "intermediate" and 0 <= t.born <= last < t.died)


def test_what_relus_give_is_one_bit_or_has_no_zeros(images: Workload) -> None:
    after = gist(images, 4.0)
    copies = [(k.read_bytes, k.write_bytes) for n in after.nodes if n.operator == "kept.encode" for k in n.kernels
              if isinstance(k, Memory)]  # fmt: skip
    sparse, bits, places = int((1 - ZEROS) * VALUES * 5), VALUES // 8, VALUES // 4
    assert sorted(copies) == [(8 * places, places // 2), (4 * VALUES, bits), (4 * VALUES, sparse)]
    assert kept_bytes(images) - kept_bytes(after) == pytest.approx(
        2 * 4 * VALUES - sparse - bits + 7.5 * places, rel=1e-3
    )
    # Kernels that read bits read so many bytes less; the others are brought back.
    decoded = [
        k.write_bytes for n in after.nodes if n.operator == "kept.decode" for k in n.kernels if isinstance(k, Memory)
    ]
    assert sorted(decoded) == [8 * places, 4 * VALUES]


def test_all_else_waits_in_sixteen_bits(layer: Workload) -> None:
    with pytest.raises(InapplicableError, match="nothing of the kind"):
        gist(layer, 4.0)
    after = gist(layer, 2.0)
    large = kept_bytes(layer) - kept_bytes(after)
    floats = [
        t for t in unroll(layer).tensors if t.kind == "intermediate" and t.dtype == "float32" and t.nbytes >= 2**20
    ]
    assert 0 < large <= sum(t.nbytes for t in floats) / 2
    assert after.memory.peak < layer.memory.peak


def test_what_waits_on_the_host_crosses_the_link_twice(layer: Workload) -> None:
    after = on_host(layer)
    moved = [k.bytes for node in after.nodes for k in node.kernels if isinstance(k, Collective) and k.op == "host_copy"]
    assert sum(moved) == pytest.approx(2 * kept_bytes(layer), rel=0.02)
    assert kept_bytes(after) < 0.02 * kept_bytes(layer)


def test_tempo_drops_inputs_and_what_dropout_left(layer: Workload) -> None:
    after = tempo(layer)
    values, scores = TOKENS * HIDDEN, TOKENS * TOKENS
    # Inputs of GELU and norm and what dropout left of scores go; GELU's result and mask come, the norm's was kept.
    assert kept_bytes(layer) - kept_bytes(after) == pytest.approx(
        4 * (values + values + scores) - 4 * values - values, rel=2e-3
    )
    again = [n for n in after.nodes if n.operator == "aten.native_dropout_backward.default"]
    assert len(again) == 1 + sum(n.operator == again[0].operator for n in layer.nodes)


@pytest.mark.parametrize("change", [lambda w: gist(w, 2.0), on_host, tempo])
def test_inference_keeps_nothing(change: Callable[[Workload], Workload]) -> None:
    with pytest.raises(InapplicableError, match="inference keeps nothing"):
        change(traced(nn.Linear(8, 8), torch.zeros(4, 8), mode="inference"))


def test_a_model_without_such_layers_is_told_so(images: Workload) -> None:
    with pytest.raises(InapplicableError, match="neither GELU nor layer norm"):
        tempo(images)
