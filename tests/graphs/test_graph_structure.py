"""Repeated layers are found by what they run and how they are wired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neusight.kernels import Gemm
from neusight.workloads.graph import Graph, Node
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.structure import find_repeats
from neusight.workloads.trace.tracing import trace


def chain(widths: list[int], layer: str = "") -> list[Node]:
    """Nodes in a row, each reading the one before; equal widths make equal nodes."""
    return [
        Node(
            id=i, operator="aten.mm.default", phase="forward", kernels=(Gemm(m=1, n=w, k=1),),
            inputs=(i - 1,) if i else (), shapes=((w,),), dtypes=("float32",), strides=((1,),), layer=f"{layer}{i}",
        )
        for i, w in enumerate(widths)
    ]  # fmt: skip


def test_period_start_and_count_of_a_known_pattern() -> None:
    nodes = chain([90, 91, *[1, 2, 3, 4, 5] * 7, 92])
    (repeat,) = find_repeats(nodes)
    assert (repeat.start, repeat.length, repeat.count) == (2, 5, 7)


def test_two_stacks_are_found_apart() -> None:
    nodes = chain([90, *[1, 2, 3, 4] * 3, 91, *[5, 6, 7, 8, 9] * 4])
    assert [(r.start, r.length, r.count) for r in find_repeats(nodes)] == [(1, 4, 3), (14, 5, 4)]


def test_the_widest_period_with_the_same_coverage_is_not_preferred() -> None:
    # Six times four nodes is also three times eight.
    (repeat,) = find_repeats(chain([90, *[1, 2, 3, 4] * 6]))
    assert (repeat.length, repeat.count) == (4, 6)


def test_other_wiring_is_another_layer() -> None:
    nodes = chain([90, *[1, 2, 3, 4, 5] * 3])
    assert find_repeats(nodes)[0].count == 3
    # In the last stretch the fourth node reads the first instead of the third.
    nodes[14] = replace(nodes[14], inputs=(11,))
    assert find_repeats(nodes)[0].count == 2


def test_names_do_not_matter() -> None:
    widths = [90, *[1, 2, 3, 4, 5] * 3]
    assert find_repeats(chain(widths)) == find_repeats(chain(widths, layer="elsewhere."))


def test_nothing_repeats_in_a_graph_without_layers() -> None:
    assert find_repeats(chain(list(range(40)))) == ()
    assert find_repeats([]) == ()


@pytest.mark.parametrize("layers", [4, 12])
def test_gpt2_repeats_its_layers_in_both_directions(gpt2: Callable[..., Graph], layers: int) -> None:
    graph = gpt2(layers=layers, mode="training")
    phases = {graph.nodes[r.start].phase: r.count for r in graph.repeats}
    assert phases == {"forward": layers, "backward": layers}


def test_repeats_do_not_overlap_and_hold_the_same_kernels(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(layers=12, mode="training")
    end = 0
    for repeat in graph.repeats:
        assert repeat.start >= end
        end = repeat.start + repeat.length * repeat.count
        blocks = [
            [n.kernels for n in graph.nodes[start : start + repeat.length]]
            for start in range(repeat.start, end, repeat.length)
        ]
        assert all(block == blocks[0] for block in blocks)


def test_resnet_repeats_the_equal_blocks_of_each_stage() -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[3, 4, 6, 3])
    graph = trace(
        lambda: ResNetForImageClassification._from_config(config),
        {"pixel_values": TensorSpec((2, 3, 64, 64))},
        name="r",
    )
    # The first block of a stage changes the shape, so 3-4-6-3 repeat 2, 3, 5 and 2 times.
    assert [r.count for r in graph.repeats] == [2, 3, 5, 2]
