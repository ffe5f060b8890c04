"""Tables of NCCL's and RCCL's cost models, and the words that choose algorithms."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.devices import cluster_of, load_device
from neusight.errors import CoverageError
from neusight.kernels import KernelBatch
from neusight.laws.fitted import shipped_links
from neusight.laws.links import least_s, nccl_s
from neusight.laws.tuning import ALGORITHMS, algorithms_of, tuning_of

LINKS = shipped_links().physics
SIZES = 2 ** np.arange(8, 35)


def all_reduces(algorithm: str = "", per_node: int = 0, ranks: int = 8) -> KernelBatch:
    return KernelBatch.from_columns(
        "collective", op="all_reduce", ranks=ranks, per_node=per_node, bytes=SIZES, algorithm=algorithm
    )


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("", ALGORITHMS),
        ("ring", ("ring",)),
        (" Tree, ring", ("ring", "tree")),
        ("^nvls", ("ring", "tree", "nvlstree", "collnet")),
        ("^ring,tree", ("nvls", "nvlstree", "collnet")),
    ],
)
def test_algorithms_of_reads_words_as_nccl_does(words: str, allowed: tuple[str, ...]) -> None:
    assert algorithms_of(words) == allowed


def test_algorithms_of_refuses_other_words() -> None:
    with pytest.raises(CoverageError, match="algorithm=pat: 'pat' is none of ring"):
        algorithms_of("pat")


def test_tuning_of_has_ratios_to_nccl() -> None:
    nccl, rccl = tuning_of("nvidia"), tuning_of("amd")
    assert nccl.start == nccl.hop == (1.0, 1.0, 1.0)
    assert nccl.added_hop_s == pytest.approx((0.0, 3.5e-6, 9e-6))
    assert rccl.start == pytest.approx((12.0 / 6.6, 12.0 / 14.0, 17.0 / 8.4))
    assert tuning_of("intel") == nccl


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "b200-sxm-180gb", "a100-sxm-80gb", "l40s"])
def test_nccl_s_of_fewer_algorithms_is_never_faster(gpu: str) -> None:
    cluster = cluster_of(gpu, 8, 4, "8 x 400Gb/s")
    for ranks, within in ((8, 0), (32, 8)):
        every = nccl_s(all_reduces("", within, ranks), cluster, LINKS)
        alone = [nccl_s(all_reduces(name, within, ranks), cluster, LINKS) for name in ALGORITHMS]
        assert all((one >= every).all() for one in alone)
        assert np.min(alone, axis=0) == pytest.approx(every)


def test_nccl_s_falls_back_to_rings_where_no_algorithm_runs() -> None:
    a100 = load_device("a100-sxm-80gb")
    assert nccl_s(all_reduces("nvls"), a100, LINKS) == pytest.approx(nccl_s(all_reduces("ring"), a100, LINKS))


def test_least_s_of_rings_sends_each_byte_twice() -> None:
    h100 = load_device("h100-sxm-80gb")
    once, twice = least_s(all_reduces(), h100), least_s(all_reduces("ring,tree"), h100)
    assert twice[-1] == pytest.approx(1.75 * once[-1])


def test_nccl_s_of_sums_in_switches_follows_their_share_by_generation() -> None:
    h100, b200 = load_device("h100-sxm-80gb"), load_device("b200-sxm-180gb")
    batch = KernelBatch.from_columns("collective", op="all_reduce", ranks=8, bytes=np.array([2**40]))
    rates = [float(1.125 * 2**40 / nccl_s(batch, device, LINKS)[0]) for device in (h100, b200)]
    share = LINKS.rates.switch_share
    assert rates == pytest.approx([0.85 * share * 450e9, 0.74 * share * 900e9], rel=0.01)
