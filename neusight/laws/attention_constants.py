"""Constants of fused attention: what tiles of scores cost, and what engines run beside the kernel itself."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.laws.constants import constant


@dataclass(frozen=True, kw_only=True)
class AttentionConstants:
    """Costs of a score, of a block of queries and its keys, and of the passes before and after them."""

    share: float = constant(0.95, 0.05, "as for products: what matrix units sustain when operands are there")
    """Of the matrix units' peak that both products of a score sustain."""
    synchronous: float = constant(0.65, 0.1, "Luo et al. 2024: mma.sync reaches 62 % of the peak of wgmma on H100")
    """Share of that for kernels that issue warps' own instructions where matrix units read shared memory."""
    narrow: float = constant(
        0.8, 0.1, "FlashAttention-3 (Shah et al. 2024): 1.2 of 1.98 PFLOP/s in fp8, 0.74 of 0.99 in fp16"
    )
    """The same for 8-bit arithmetic, whose values are transposed on the way."""
    promoted: float = constant(1.5, 0.4, "guess: vLLM's FlashAttention-3 adds 8-bit products up in float32 registers")
    """By how much longer 8-bit products take with sums that are promoted."""
    shared_memory: float = constant(1.0, 0.2, "128 bytes a clock; each warp reads all keys and values once")
    """Share of the reads of keys and values from shared memory that nothing hides."""
    exposed: float = constant(0.5, 0.5, "guess: other blocks of the SM hide about half of the softmax")
    """Share of the softmax that nothing hides."""
    exposed_asynchronous: float = constant(0.5, 0.5, "guess: FlashAttention-3 lets two warpgroups take turns")
    """The same for kernels whose products run beside it."""
    latency_cycles: float = constant(500.0, 0.5, "guess: product, softmax, product, each of some hundred cycles")
    """Of a tile of keys, which the longest block waits for [cycles]."""
    prologue_tiles: float = constant(1.0, 0.5, "guess: the first keys arrive while nothing is computed")
    """Tiles of keys whose time a block spends filling its pipeline and writing its result."""
    prologue_asynchronous: float = constant(1.5, 0.5, "guess: one block an SM hides less than two")
    """The same where one block has an SM for itself."""
    tail_share: float = constant(0.5, 0.5, "guess: between even shares and whole rounds")
    """Share of the quantisation to whole rounds of blocks that remains."""
    resident: float = constant(2.0, 0.3, "shared memory of an SM over that of a block of 64 to 128 queries")
    """Blocks whose waiting an SM overlaps."""
    resident_small: float = constant(6.0, 0.5, "guess: blocks of few rows and little shared memory")
    """The same of kernels for single queries of few heads."""
    chain_s: float = constant(1e-6, 1.0, "guess: one or two accesses of 0.6 us that depend on each other")
    """What a block waits for beside its keys [s]."""
    plain_chain: float = constant(0.5, 0.7, "guess: without pages and lengths, half of the accesses")
    """Share of it where keys and values lie in one piece."""
    stream_bytes_per_s: float = constant(30e9, 0.5, "Little's law: 16 to 32 KiB in flight, 0.7 us of latency")
    """At which one block streams keys and values from DRAM [B/s]."""
    l2_share: float = constant(0.6, 0.2, "gpu-benches, L2 bandwidth: 0.4 to 0.6 of the ports")
    """Sustained share of the ports between SMs and L2."""
    widening: float = constant(2.0, 1.0, "guess: some instructions for a few elements that share a register")
    """Operations by which an element of an 8-bit cache is widened for 16-bit arithmetic."""
    passes: float = constant(2.0, 0.3, "a tensor is read and written")
    """Times that new keys and values, and in TensorRT-LLM queries, move before the kernel."""
    context_kernels: float = constant(2.0, 0.5, "TensorRT-LLM: one for positions and cache, one for lengths")
    """Further starts in TensorRT-LLM's context phase."""
    query_kernels: float = constant(1.0, 0.5, "one kernel makes queries 8-bit")
    """Further starts where queries are narrowed for an 8-bit cache."""
    trtllm: float = constant(1.0, 0.15, "15 to 20 % between libraries")
    """Time of a score in TensorRT-LLM, over that in FlashAttention."""
    flashinfer: float = constant(1.0, 0.15, "15 to 20 % between libraries")
    """The same in FlashInfer."""
    triton: float = constant(1.2, 0.3, "guess: Triton reaches most of the rate")
    """The same in Triton."""
    energy: float = constant(1.0, 0.2, "as for products")
    """Energy of a FLOP, softmax included, over that of products."""
    overlap: float = constant(4.0, 0.1, "guess: resources overlap well, not perfectly")
    """Exponent of the norm that joins the times of resources."""
