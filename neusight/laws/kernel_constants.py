"""Constants of kernels by their law: fused attention, convolutions, mixtures of experts, streams."""

from __future__ import annotations

from neusight.laws.constants import cited, constant
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AttentionConstants:
    """Costs of a score, of a block of queries and its keys, and of the passes before and after them."""

    synchronous: float = constant(1.2, 0.2, "Luo et al. 2024: mma.sync reaches 62 % of the peak of wgmma on H100")
    """16-bit FLOP a clock of an SM's matrix units, over an A100's, that warps' own instructions reach where these
    read shared memory by themselves."""
    narrow: float = constant(0.8, 0.1, "Shah et al. 2024: 1.2 of 1.98 PFLOP/s in fp8, 0.74 of 0.99 in fp16")
    """The same for 8-bit arithmetic, whose values are transposed on the way."""
    promoted: float = constant(1.5, 0.4, "guess: vLLM's FlashAttention-3 adds 8-bit products up in float32 registers")
    """By how much longer 8-bit products take with sums that are promoted."""
    backward: float = constant(1.3, 0.1, "FlashAttention-3 (Shah et al. 2024): 740 TFLOP/s forward, some 550 backward")
    """Time of a FLOP of the backward pass over one forward, where matrix units read shared memory by themselves: its
    probabilities pass shared memory, and blocks add up the gradients of queries in L2."""
    exposed: float = constant(0.5, 0.5, "guess: other blocks of the SM hide about half of the softmax")
    """Share of the softmax that nothing hides."""
    latency_cycles: float = constant(500.0, 0.5, "guess: product, softmax, product, each of some hundred cycles")
    """Of a tile of keys, which the longest block waits for [cycles]."""
    prologue_tiles: float = constant(1.0, 0.5, "guess: the first keys arrive while nothing is computed")
    """Tiles of keys whose time a block spends filling its pipeline and writing its result."""
    prologue_asynchronous: float = constant(1.5, 0.5, "guess: one block an SM hides less than two")
    """The same where one block has an SM for itself."""
    resident_small: float = constant(6.0, 0.5, "guess: blocks of few rows and little shared memory")
    """Blocks of single queries of few heads whose waiting an SM overlaps."""
    chain_s: float = constant(1e-6, 1.0, "guess: one or two accesses of 0.6 us that depend on each other")
    """What a block that follows another waits for beside its keys [s]."""
    entry_s: float = constant(1e-6, 1.0, "guess: lengths and pages, one after the other")
    """What the first blocks wait for before their keys [s]."""
    entry_asynchronous: float = constant(3.0, 0.7, "guess: barriers, descriptors of copies, roles of warps come first")
    """By which that is longer for kernels whose warps have roles of their own."""
    stream_bytes_per_s: float = constant(30e9, 0.5, "Little's law: 16 to 32 KiB in flight, 0.7 us of latency")
    """At which one block streams keys and values from DRAM [B/s]."""
    l2_share: float = constant(1.0, 0.2, "microbenchmarks read as kernels do")
    """Of what microbenchmarks sustain between SMs and L2, what attention does."""
    widening: float = constant(2.0, 1.0, "guess: some instructions for a few elements that share a register")
    """Operations by which an element of a float8 cache is widened for 16-bit arithmetic."""
    widening_integers: float = constant(
        2.0,
        0.7,
        "counted in Kim et al. 2022, Who Says Elephants Can't Run, section 4: permuted bytes are floats whose exponent "
        "a subtraction takes off, two at once, and are scaled",
        moved_by="attention over an int8 cache",
    )
    """The same of integers."""
    passing_trips: float = constant(
        2.0,
        0.5,
        "a tile of SGLang's extend kernel takes 1.8 us beside its arithmetic on three GPUs, one outside of a window "
        "0.9 to 1.4",
        moved_by="windowed attention of SGLang's extend kernel, by length",
    )
    """Trips to memory for a tile of keys that a kernel without a pipeline passes over."""
    passes: float = constant(2.0, 0.3, "a tensor is read and written")
    """Times that new keys and values, and in TensorRT-LLM queries, move before the kernel."""
    context_kernels: float = constant(2.0, 0.5, "TensorRT-LLM: one for positions and cache, one for lengths")
    """Further starts in TensorRT-LLM's context phase."""
    trtllm: float = constant(1.0, 0.15, "15 to 20 % between libraries")
    """Time of a score in TensorRT-LLM, over that in FlashAttention."""
    flashinfer: float = constant(1.0, 0.15, "15 to 20 % between libraries")
    """The same in FlashInfer."""
    triton: float = constant(1.2, 0.3, "guess: Triton reaches most of the rate")
    """The same in Triton."""
    contiguous: float = constant(0.85, 0.2, "guess: no table of pages, and more queries for keys that a warp fetches")
    """Time of a score with keys in a row over that with keys in pages, in FlashAttention-2."""
    scalar_loads: float = constant(2.0, 0.5, "guess: an element a thread is loaded instead of eight, and shows in part")
    """Time of a score of heads whose columns are loaded one by one, over that of others."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """How convolutions in float32 run: as implicit products or by minimal filtering, fused or in three steps."""

    implicit_share: float = constant(0.8, 0.3, "guess: implicit products reach somewhat less than plain ones")
    """Share of peak that implicit products sustain with tiles without end."""
    fused_share: float = constant(0.8, 0.3, "guess: transforms and products share the pipelines")
    """The same of fused Winograd with its own tiles."""
    steps_share: float = constant(0.8, 0.3, "guess: batched products of small tiles")
    """The same of the products of Winograd in three steps."""
    narrow: float = constant(4.0, 0.3, "guess: as for plain products")
    """By how much a tile of intensity 1 is slower than one without end."""
    fused_depth: float = constant(16.0, 0.7, "guess: fill of the pipeline and transform of the outputs")
    """Channels whose time a block of fused Winograd spends before and after its main loop."""
    ampere: float = constant(1.0, 0.15, "guess: kernels that were compiled anew rather than tuned by hand")
    """Factor on all shares for the library's kernels from Ampere on."""
    transform_passes: float = constant(1.0, 0.5, "every value is read once and written once")
    """The same of the kernels that transform inputs and outputs of Winograd in three steps."""


@dataclass(frozen=True, kw_only=True)
class ImplicitGemm:
    """How convolutions in TF32 run on matrix units: as products whose operands are gathered tap by tap."""

    share: float = constant(
        0.75, 0.7, "guess: addresses and masks of every tap take issue slots that plain products have", scale="share"
    )
    """Of a plain product's rate that implicit ones sustain."""
    synchronous: float = cited(0.62, "Luo et al. 2024: mma.sync reaches 62 % of the peak of wgmma on H100")
    """Share of that where matrix units read shared memory, which kernels compiled for Ampere do not use."""
    fill: float = constant(
        0.7, 1.0, "CUTLASS, IteratorAlgorithm: kernels for few channels fill a step from several taps", scale="share"
    )
    """Exponent of what steps of the main loop hold more than the channels of a tap: 0 where all of it is filled
    from other taps, 1 where it is computed in vain."""
    zeros: float = constant(
        0.5, 1.0, "CUTLASS, StrideSupport: strided gradients skip all zeros, others none", scale="share"
    )
    """Exponent of what a gradient holds more for the zeros of its stride: 0 where all are skipped."""


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
    """The same of CUTLASS's kernels where FlashInfer chooses without tuning, on GPUs where that matters."""
    block_rate: float = constant(0.7, 0.4, "DeepSeek-V3 report, 3.3.2: sums go to ordinary pipelines each 128 elements")
    """Share of the rate that is left where blocks of 128 values carry scales of their own."""
    promoted_rate: float = constant(
        0.5, 0.4, "CUDA Guide, tcgen05: sums lie in tensor memory, from where they are loaded to be scaled and added"
    )
    """The same of kernels that scale and add sums themselves, on units that keep sums in memory of their own."""
    routed_rate: float = constant(0.8, 0.3, "guess: tuned kernels of one fused launch reach most of the rate")
    """The same of kernels that route, gather and activate within one launch."""
    widened_rate: float = constant(0.6, 0.5, "guess: a weight of 4 bits takes lanes a few instructions to widen")
    """Share of the rate that is left where weights are widened to 16 bits before they are multiplied."""
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
    routed_kernels: float = constant(
        3.0, 0.5, "FlashInfer's TRTLLM-Gen layer: two products and a sum, each started before the last ends"
    )
    """The same of one fused launch."""
    sort_kernels: float = constant(3.0, 0.5, "vLLM and TensorRT-LLM sort many tokens in three kernels instead of one")
    """Starts that many tokens add."""
    scale_kernels: float = constant(1.5, 0.5, "guess: one pass that quantises tokens, often another before the second")
    """Starts that 8-bit products add."""
    micro_kernels: float = constant(
        4.0, 0.5, "TensorRT-LLM's moe_kernels.cu for NVFP4: scales of each expert are laid out before both products"
    )
    """Starts that operands of which few values share a scale add in a chain of kernels."""
    pair_cycles: float = constant(2.0, 1.0, "guess: one block of 1,024 threads sorts, with some memory accesses a pair")
    """Core cycles of sorting a token-expert pair."""
    triton_passes: float = constant(1.0, 0.5, "counted bytes")
    """Bytes of the passes beside the products in Triton, over those counted."""
    cutlass_passes: float = constant(1.0, 0.5, "counted bytes")
    """The same in CUTLASS."""
    routed_passes: float = constant(1.0, 0.5, "counted bytes")
    """The same of one fused launch."""


@dataclass(frozen=True, kw_only=True)
class StreamConstants:
    """What limits a stream beside the bandwidth of its memory."""

    start_cycles: float = constant(
        2100.0, 0.2, "gpu-benches, small kernels in a graph: 1,900 to 2,550 cycles of 4 GPUs"
    )
    """Core cycles of a kernel that does next to nothing; it has no prologue to fill as products have."""
    overlap: float = constant(3.0, 0.3, "guess: resources overlap well, not perfectly")
    """Exponent of the norm that joins the times of resources."""
    hot_centre: float = constant(
        0.3, 0.3, "gpu-benches, small kernels: half are lost at 1 to 1.3 times L2", scale="linear"
    )
    """log2 of (bytes touched between two uses / L2) at which half of a stream is lost: no byte of it is shared, so
    that partitions of L2 keep no copies."""
    follow: float = constant(1.5, 0.3, "guess: between writing and reading a tensor its kernels touch little else")
    """Bytes touched between a kernel's operands being written and read, over those that the kernel itself touches."""
    plain_instructions: float = cited(6.0, "PyTorch, vectorized_elementwise_kernel: four elements a load")
    """Instructions an element of vectorised kernels, beside the arithmetic."""
    strided_instructions: float = constant(
        40.0, 0.4, "PyTorch, OffsetCalculator: a division by multiplication for each dimension of each tensor"
    )
    """The same where tensors do not lie in one piece."""
    flop_instructions: float = constant(1.0, 0.5, "counts of the table of operators")
    """Instructions an operation of the arithmetic."""
    tap_instructions: float = cited(
        8.0, "PyTorch, DepthwiseConv2d.cu: two comparisons, two sums, two loads, two conversions"
    )
    """Instructions for each value of a window that a depthwise convolution reads, beside the arithmetic."""
    input_tap_instructions: float = cited(
        16.0, "PyTorch, DepthwiseConv2d.cu: four comparisons, and what the stride leaves over, in each direction"
    )
    """The same of its gradient of the input."""
    weight_tap_instructions: float = cited(
        40.0, "PyTorch, DepthwiseConv2d.cu: the place of a value follows from a division by the width, 20 instructions"
    )
    """The same of its gradient of the filters."""
    window_instructions: float = constant(
        100.0, 0.7, "PyTorch, DepthwiseConv2d.cu: four divisions of integers, each of 20 to 30 instructions"
    )
    """Instructions for the place of a value that PyTorch's depthwise convolution writes; cuDNN has none in float32."""
    norm_instructions: float = constant(40.0, 0.7, "guess: Welford's update has a division an element")
    """Instructions an element of normalisations beside the arithmetic."""
    step_cycles: float = constant(1000.0, 0.5, "a trip to memory of some 600 cycles, and as much in the pipelines")
    """Core cycles of a thread's step along its row, or of one element where a thread has one at a time."""
    crowding: float = constant(
        0.3, 0.3, "guess: a queue grows with those in it, less than in proportion", scale="linear"
    )
    """Exponent by which a step lengthens with the threads of the SM, over 2,048."""
    gather_steps: float = constant(2.0, 0.5, "guess: an index, then what it points to")
    """Steps an element of PyTorch's gathers by an index."""
    gate_steps: float = constant(1.5, 0.5, "guess: two operands and an exponential")
    """Steps an element of activations with a gate as engines wrote them, one element a thread at a time."""
    rope_steps: float = constant(1.5, 0.5, "guess: two operands, their sines and cosines")
    """The same of rotary embeddings."""
    row_cycles: float = constant(3000.0, 0.5, "guess: two reductions over a block, and a second trip to memory")
    """Core cycles that a block takes for a row beside its steps along it."""
    dram_gain: float = constant(1.03, 0.04, "gpu-benches, DRAM bandwidth: simple streams leave a tenth of the peak")
    """By which streams sustain more of DRAM than the panels and pages that products and attention gather."""
    latency_s: float = cited(
        6e-7, "gpu-benches, DRAM bandwidth by occupancy: 0.46 to 0.77 us by Little's law on nine GPUs"
    )
    """Latency of DRAM [s] while others use it."""
    channel_loads: float = constant(
        2.0, 1.0, "guess: of one tensor or more", "count", "batch normalisation in training in NCHW, by size of images"
    )
    """Loads that a thread of cuDNN's batch normalisation in training has under way."""
