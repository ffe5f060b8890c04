"""Equal layers are found by what they run and how they are wired, stored once, and given back exactly."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from small_models import Recording, recording, storages, traced

from neusight.kernels import Gemm
from neusight.workloads import Workload
from neusight.workloads.trace.recorder import RawNode
from neusight.workloads.trace.structure import find_repeats
from neusight.workloads.workload import KEPT, MEMORY_PARTS

TRAINING = {"mode": "training", "optimizer": "adamw"}


def chain(widths: list[int], layer: str = "") -> list[RawNode]:
    """Nodes in a row, each reading the one before; equal widths make equal nodes."""
    return [
        RawNode(operator="aten.mm.default", phase="forward", kernels=(Gemm(m=1, n=w, k=1),), reads=(), writes=(),
                inputs=(i - 1,) if i else (), layer=f"{layer}{i}", code=w)
        for i, w in enumerate(widths)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "repeats"),
    [
        ([90, 91, *[1, 2, 3, 4, 5] * 7, 92], [(2, 5, 7)]),
        ([90, *[1, 2, 3, 4] * 3, 91, *[5, 6, 7, 8, 9] * 4], [(1, 4, 3), (14, 5, 4)]),
        ([90, *[1, 2, 3, 4] * 6], [(1, 4, 6)]),  # which is also three times eight
        (list(range(40)), []),
        ([], []),
    ],
)
def test_start_period_and_count_of_known_patterns(widths: list[int], repeats: list[tuple[int, int, int]]) -> None:
    stretches = find_repeats(chain(widths))
    assert [(r.start, r.length, r.count) for r in stretches] == repeats
    assert find_repeats(chain(widths, layer="elsewhere.")) == stretches


def test_other_wiring_is_another_layer() -> None:
    nodes = chain([90, *[1, 2, 3, 4, 5] * 3])
    assert find_repeats(nodes)[0].count == 3
    # In the last stretch the fourth node reads the first instead of the third.
    nodes[14] = replace(nodes[14], inputs=(11,))
    assert find_repeats(nodes)[0].count == 2


CASES: list[tuple[str, int, dict[str, Any]]] = [
    *(("gpt2", layers, TRAINING) for layers in (3, 4, 5, 12)),
    *(("gpt2", 12, TRAINING | more) for more in ({"attention": "sdpa", "dtype": "bfloat16"}, {"form": "fused"})),
    ("gpt2", 12, {"batch": 1}),
    *(("t5", 0, options) for options in ({}, TRAINING)),
    *(("switch", 0, options) for options in ({}, TRAINING)),
    *(("resnet", 0, options) for options in ({}, {"mode": "training", "optimizer": "sgd"})),
]


def raw_steps(raw: Recording) -> list[Any]:
    return [(n.operator, n.phase, n.kernels, n.layer) for n in raw.nodes]


def raw_storages(raw: Recording) -> Counter[Any]:
    """Every storage by what it is, when it lives, and which nodes read and write it."""
    uses: dict[int, list[Any]] = {id(one): [] for one in raw.allocations}
    for place, node in enumerate(raw.nodes):
        for one in node.reads:
            uses[id(one)].append((place, "reads"))
        for one in node.writes:
            uses[id(one)].append((place, "writes"))
    return Counter(
        (a.shape, a.dtype, a.kind, a.nbytes, a.touched_bytes, a.born, KEPT if a.died is None else a.died, a.layer,
         tuple(uses[id(a)]))
        for a in raw.allocations
    )  # fmt: skip


def stored_storages(workload: Workload) -> Counter[Any]:
    """As ``raw_storages``, of a workload: one storage a copy of a tensor."""
    every = ((number, copy) for number, t in enumerate(workload.tensors) for copy in range(t.copies))
    uses: dict[tuple[int, int], list[Any]] = {storage: [] for storage in every}
    for place, (node, copy) in enumerate(workload.expanded()):
        for what, of in (("reads", node.reads), ("writes", node.writes)):
            for storage in storages(workload, node, copy, of):
                uses[storage].append((place, what))
    return Counter(described(workload, tensor, copy, used) for (tensor, copy), used in uses.items())


def described(workload: Workload, tensor: int, copy: int, used: list[Any]) -> Any:
    t = workload.tensors[tensor]
    life = t.born + copy * t.born_step, t.died + copy * t.died_step
    return (t.shape, t.dtype, t.kind, t.nbytes, t.touched_bytes, *life, t.layer.name(copy), tuple(used))


def test_a_workload_gives_back_every_operator_and_every_storage_as_recorded() -> None:
    wrong = []
    for name, layers, options in CASES:
        raw = recording(name, layers, **options)
        steps = [(n.operator, n.phase, n.kernels, n.layer.name(copy)) for n, copy in raw.workload.expanded()]
        same = steps == raw_steps(raw), stored_storages(raw.workload) == raw_storages(raw)
        places = [node.id + copy * node.stride for node, copy in raw.workload.expanded()]
        if same != (True, True) or places != list(range(raw.workload.length)):
            wrong.append((name, layers, options, same))
    assert wrong == []


def alive_bytes(raw: Recording) -> Iterator[dict[str, int]]:
    """By brute force: what lies in memory before the step and during each of its nodes, by part."""
    training = raw.workload.request.mode == "training"
    forward_end = max(i for i, n in enumerate(raw.nodes) if n.phase == "forward") if training else KEPT
    named = {"weight": "weights", "gradient": "gradients", "state": "optimizer"}
    for now in range(-1, len(raw.nodes)):
        parts = dict.fromkeys(MEMORY_PARTS, 0)
        for one in raw.allocations:
            died = KEPT if one.died is None else one.died
            saved = one.born <= forward_end < died and training
            if one.born <= now <= died:
                parts[named.get(one.kind, "activations" if saved else "temporary")] += one.nbytes
        yield parts


def test_memory_is_the_sum_over_all_storages_at_every_moment() -> None:
    for name, layers, options in (("gpt2", 5, TRAINING), ("gpt2", 4, {}), ("resnet", 0, {"mode": "training"})):
        raw = recording(name, layers, **options)
        moments = list(alive_bytes(raw))
        assert np.array_equal(raw.workload.alive, [list(parts.values()) for parts in moments]), (name, options)
        peak = max(moments, key=lambda parts: sum(parts.values()))
        assert {part: getattr(raw.workload.memory, part) for part in MEMORY_PARTS} == peak, (name, options)


def test_repeats_are_layers_in_both_directions_and_blocks_of_stages() -> None:
    gpt2, resnet, t5 = recording("gpt2", 12, **TRAINING), recording("resnet"), recording("t5")
    phases = {gpt2.nodes[r.start].phase: r.count for r in find_repeats(gpt2.nodes)}
    assert phases == {"forward": 12, "backward": 12}
    # The first block of a stage changes the shape, so 3-4-6-3 repeat 2, 3, 5 and 2 times.
    assert [r.count for r in find_repeats(resnet.nodes)] == [2, 3, 5, 2]
    # The first layer of each stack also computes the position bias that the others reuse.
    assert [r.count for r in find_repeats(t5.nodes)] == [4, 4]
    for raw in (gpt2, resnet, t5):
        ends = [(r.start, r.start + r.length * r.count) for r in raw.workload.repeats]
        assert ends
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_a_step_of_96_layers_is_as_small_as_one_of_12() -> None:
    """Training of a decoder as deep as GPT-3 175B."""
    twelve, deep = (traced("gpt2", layers, **TRAINING) for layers in (12, 96))
    assert (len(deep.nodes), len(deep.tensors)) == (len(twelve.nodes), len(twelve.tensors))
    assert deep.length - twelve.length == 84 * sum(repeat.length for repeat in twelve.repeats)
    stored = pickle.dumps(deep)
    tracemalloc.start()
    again = pickle.loads(stored)
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert again == deep
    assert size_bytes < 4e6, f"{size_bytes / 1e6:.1f} MB"
