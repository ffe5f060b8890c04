"""The caching allocator: what it reserves for what is allocated."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from neusight.plans import single
from neusight.plans.allocator import (
    CONTEXT_BYTES,
    LARGE_ROUND,
    MIDDLE_SEGMENT,
    ROUND,
    SMALL_SEGMENT,
    CachingAllocator,
    reserve_bytes,
    reserved_bytes,
)
from neusight.requests import Request
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

MIB = 2**20


def test_small_requests_share_a_segment_and_large_ones_have_their_own() -> None:
    allocator = CachingAllocator(float("inf"))
    allocator.allocate(1)
    allocator.allocate(SMALL_SEGMENT - ROUND)
    assert allocator.reserved_bytes == SMALL_SEGMENT + MIDDLE_SEGMENT
    allocator.allocate(100 * MIB + 1)
    assert allocator.reserved_bytes == SMALL_SEGMENT + MIDDLE_SEGMENT + 100 * MIB + LARGE_ROUND


def test_freed_neighbours_become_one_block_again() -> None:
    allocator = CachingAllocator(float("inf"))
    whole = allocator.allocate(96 * MIB)
    assert whole is not None
    allocator.release(whole)
    thirds = [allocator.allocate(32 * MIB) for _ in range(3)]
    assert allocator.reserved_bytes == 96 * MIB
    for at in (1, 0, 2):
        allocator.release(thirds[at])
    assert allocator.allocate(96 * MIB) is not None
    assert allocator.reserved_bytes == 96 * MIB


def test_a_request_takes_the_smallest_block_that_holds_it() -> None:
    allocator = CachingAllocator(float("inf"))
    blocks = [allocator.allocate(size * MIB) for size in (100, 60, 80)]
    for block in blocks:
        allocator.release(block)
    assert allocator.allocate(60 * MIB) is blocks[1]


def test_segments_go_back_before_memory_runs_out_but_not_those_in_use() -> None:
    allocator = CachingAllocator(100 * MIB)
    held = allocator.allocate(60 * MIB)
    assert held is not None
    assert allocator.allocate(60 * MIB) is None
    allocator.release(held)
    assert allocator.allocate(80 * MIB) is not None
    assert allocator.reserved_bytes == 80 * MIB


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_step_reserves_no_less_than_it_allocates(mode: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(512 * (1 + n % 3), 512 * (1 + (n + 1) % 3)) for n in range(6)))

    found = trace(build, (TensorSpec((4096, 512)),), Request.of("chain", mode=mode))
    reserved = reserved_bytes(found)
    assert reserved is not None
    assert found.memory.peak <= reserved
    assert reserved_bytes(found, reserved) == reserved
    assert reserved_bytes(found, found.memory.peak / 2) is None


def test_a_program_replays_its_step_once_for_each_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    workload = trace(module, {"input": TensorSpec((4096, 64))}, Request.of("mlp", mode="training"))
    program, peak = single(workload), workload.memory.peak
    capacities = (1.1 * peak + CONTEXT_BYTES, 4.0 * peak + CONTEXT_BYTES)
    found = [program.reserve_bytes(capacity) for capacity in capacities]
    assert found == [reserve_bytes(workload, capacity) for capacity in capacities]
    monkeypatch.setattr("neusight.plans.program.reserve_bytes", lambda *_: pytest.fail("replayed again"))
    assert [program.reserve_bytes(capacity) for capacity in capacities] == found


def test_lives_are_those_of_all_copies() -> None:
    found = trace(lambda: nn.Linear(8, 8), (TensorSpec((2, 8)),), Request.of("one"))
    assert found.lives["nbytes"].sum() >= 4 * (8 * 8 + 8 + 2 * 8)
    assert (np.asarray(found.lives["born"]) <= found.length).all()
