"""Constants of mixtures of experts: grouped products, and the small kernels that an engine runs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.laws.constants import constant


@dataclass(frozen=True, kw_only=True)
class MoeConstants:
    """What grouped products reach of the rates of single ones, and what sorting and passing tokens on costs."""

    cutlass_rate: float = constant(0.85, 0.3, "guess: a scheduler and pointers of each group cost some of the rate")
    """Share of a single product's rate that CUTLASS's grouped kernels reach."""
    triton_rate: float = constant(0.8, 0.3, "guess: Triton reaches most of the rate of CUTLASS")
    """The same of Triton's, with tiles tuned for the shape."""
    usual_rate: float = constant(0.4, 0.5, "guess: three stages of 32 elements hide less than half of the latency")
    """The same of Triton's with the tiles that SGLang takes for shapes that nobody tuned."""
    fallback_rate: float = constant(0.3, 0.7, "guess: FlashInfer that was not tuned runs the first kernel of its list")
    """The same of CUTLASS's kernels where FlashInfer chooses without tuning."""
    block_rate: float = constant(0.7, 0.4, "DeepSeek-V3 report, 3.3.2: sums go to ordinary pipelines each 128 elements")
    """Share of the rate that is left where blocks of 128 values carry scales of their own."""
    tail_share: float = constant(0.7, 0.3, "guess: blocks of many groups are uneven, so that whole rounds count more")
    """Share of the quantisation to whole rounds of blocks that remains."""
    padded_share: float = constant(
        0.1, 1.0, "guess: groups padded towards the fullest, whose blocks mostly end at once"
    )
    """Of the blocks that padding all groups to the fullest would add, those that cost as much as a full one; scaled
    by block outside of Triton."""
    empty_cycles: float = constant(500.0, 1.0, "guess: a block that reads one word from DRAM and ends")
    """Core cycles of a block of Triton's grid, which is sized for the worst routing, that finds nothing to do."""
    triton_kernels: float = constant(8.0, 0.5, "kernels of vLLM's fused_moe: sort, twice product and pass, sum")
    """Starts that a layer in Triton holds with few tokens, products included."""
    cutlass_kernels: float = constant(8.0, 0.5, "kernels of TensorRT-LLM's MOE plugin: sort, permute, products, passes")
    """The same in CUTLASS."""
    sort_kernels: float = constant(3.0, 0.5, "vLLM and TensorRT-LLM sort many tokens in three kernels instead of one")
    """Starts that many tokens add."""
    scale_kernels: float = constant(1.5, 0.5, "guess: one pass that quantises tokens, often another before the second")
    """Starts that 8-bit products add."""
    pair_cycles: float = constant(2.0, 1.0, "guess: one block of 1,024 threads sorts, with some memory accesses a pair")
    """Core cycles of sorting a token-expert pair."""
    triton_passes: float = constant(1.0, 0.5, "counted bytes")
    """Bytes of the passes beside the products in Triton, over those counted."""
    cutlass_passes: float = constant(1.0, 0.5, "counted bytes")
    """The same in CUTLASS."""
