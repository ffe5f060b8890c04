"""What recomputation by operators keeps, of a segment by hand."""

from dataclasses import replace

import pytest

from neusight.engines import ENGINES
from neusight.kernels.families import Collective, Conv2d, Elementwise, Gemm, Kernel, KernelBatch
from neusight.transforms.recompute import is_product, recomputed
from neusight.workloads.program import Part, Segment

LINEAR = Gemm(op="linear", m=4, n=8, k=16)
BATCHED = Gemm(op="bmm", batch=2, m=4, n=8, k=16, layout="nn")
POINTWISE = Elementwise(op="gelu", elements=64, read_bytes=256, write_bytes=256, flops=64)
CONVOLUTION = Conv2d(batch=1, in_channels=4, out_channels=4, height=8, width=8, kernel_height=3, kernel_width=3)


@pytest.mark.parametrize(
    ("kernel", "multiplies_weights"),
    [(LINEAR, True), (BATCHED, False), (POINTWISE, False), (replace(POINTWISE, op="linear"), False),
     (CONVOLUTION, False)],
)  # fmt: skip
def test_is_product_is_true_of_products_with_weights_alone(kernel: Kernel, multiplies_weights: bool) -> None:
    assert is_product(kernel) is multiplies_weights


def part(name: str, kernel: Kernel, *, modules: tuple[str, ...] = (), group: str = "") -> Part:
    return Part(name=name, phase="forward", batch=KernelBatch.of([kernel]), modules=modules, group=group)


LAYER = Segment(
    name="layer",
    layer=0,
    parts=(
        part("norm", POINTWISE),
        part("qkv", LINEAR),
        part("scores", BATCHED, modules=("core_attn",)),
        part("output", LINEAR),
        part("scatter", Collective(op="reduce_scatter", ranks=2, bytes=64), group="tp"),
        part("gather", Collective(op="all_gather", ranks=2, bytes=64), group="tp"),
        part("router", BATCHED),
        part("exchange", Collective(op="all_to_all", ranks=2, bytes=64), group="ep"),
        part("up", LINEAR),
        part("gelu", POINTWISE),
        part("down", LINEAR),
        part("add", POINTWISE),
    ),
)


@pytest.mark.parametrize(
    ("how", "stops_early", "again"),
    [
        ("operators", False, ["norm", "output", "gather", "router", "gelu", "down", "add"]),
        ("operators", True, ["norm", "output", "gather", "router", "gelu"]),
        ("full", True, [one.name for one in LAYER.parts[:-2]]),
        ("full", False, [one.name for one in LAYER.parts]),
        ("selective", False, ["scores"]),
        ("core_attn+mlp", True, ["scores"]),
        ("none", False, []),
    ],
)
def test_recomputed_runs_again_what_is_not_kept(how: str, stops_early: bool, again: list[str]) -> None:
    """By operators the first and third product stay, with sums that were scattered and tokens that travelled."""
    engine = replace(ENGINES["torchtitan"], stops_early=stops_early)
    assert [one.name for one in recomputed(LAYER, how, engine)] == again
