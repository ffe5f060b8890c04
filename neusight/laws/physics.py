"""Constants of physics that no datasheet states, by the laws that use them; the same for all devices.

A device enters the laws through its datasheet alone, so that one that nobody measured is treated like those that
taught the numbers. Every constant has a prior (``constants``); ``neusight fit`` estimates them all from measured
kernels, and predictions use what it wrote (``shipped_physics``).
"""

from __future__ import annotations

from neusight.laws.constants import cited, constant, group
from neusight.laws.kernel_constants import AttentionConstants, Convolution, ImplicitGemm, MoeConstants, StreamConstants
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryPhysics:
    """What memories sustain of their peaks."""

    hbm_share: float = constant(
        0.88,
        0.3,
        "gpu-benches, DRAM bandwidth: triad and scale reach 0.80 to 0.90 of the peak on six GPUs of seven",
        scale="share",
    )
    """Sustained share of DRAM bandwidth of HBM."""
    gddr_share: float = constant(0.8, 1.0, "the same, less the check bits", scale="share")
    """That of GDDR, whose boards with ECC keep their check bits in the same memory."""
    plain_gddr_gain: float = constant(
        1.1, 0.07, "check bits are one byte in sixteen; narrow writes under ECC read first"
    )
    """By which GDDR without ECC sustains more of its peak than with ECC in the same memory."""
    controller_gain: float = constant(1.2, 0.2, "magnitude seen in float32 kernels")
    """By which Volta's HBM controller sustains more of the peak than Pascal's: NVIDIA's V100 whitepaper states 1.5
    times the delivered bandwidth, of which the peak is 1.25."""
    l2_share: float = constant(1.0, 0.2, "microbenchmarks read as kernels do")
    """Of what microbenchmarks sustain between SMs and L2, what kernels do."""


@dataclass(frozen=True, kw_only=True)
class CachePhysics:
    """What L2 keeps, and what it misses."""

    miss_slope: float = constant(0.64, 0.3, "magnitude seen in float32 kernels")
    """Steepness with which re-reads between waves miss L2, an octave of panel bytes."""
    miss_centre: float = constant(1.0, 0.3, "magnitude seen in float32 kernels", scale="linear")
    """log2 of (panel bytes / L2) at which half of the re-reads between waves miss."""
    always_missed: float = constant(0.05, 0.5, "magnitude seen in float32 kernels", scale="share")
    """Share of them that misses however small the panels are."""
    drift_slope: float = constant(1.2, 0.3, "magnitude seen in float32 kernels")
    """Steepness with which blocks lose step, an octave of panel bytes."""
    drift_centre: float = constant(7.0, 0.5, "magnitude seen in float32 kernels", scale="linear")
    """log2 of (panel bytes / L2) at which half of the blocks no longer run in step, in the first round."""
    drift_rounds: float = constant(0.25, 0.3, "magnitude seen in float32 kernels")
    """By how much of that each doubling of the rounds brings the point nearer: lost step is not made good."""
    drift: float = constant(3.5, 0.2, "magnitude seen in float32 kernels")
    """Bytes fetched for a byte used by a block that has lost step: its slice of a row is less than a DRAM
    access."""
    drift_unified: float = constant(0.5, 0.4, "magnitude seen in float32 kernels")
    """The same on NVIDIA GPUs from Volta on, whose kernels lose hardly any: the unified L1 holds what a slice
    leaves."""
    row_miss_slope: float = constant(2.1, 0.3, "magnitude seen in float32 kernels")
    """Steepness with which second passes over rows miss L2, an octave of bytes in flight."""
    row_miss_centre: float = constant(-0.8, 0.2, "magnitude seen in float32 kernels", scale="linear")
    """log2 of (bytes of rows in flight / L2) at which half of the second passes over a row miss."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Energies, and what a board does about them."""

    lane_pj: float = constant(12.0, 0.4, "boards of 70 to 75 W hold 3 to 4.5 TFLOP/s of float32 on 12 to 16 nm")
    """Energy of a float32 FLOP of an FMA [pJ] at 7 nm, all of the SM included."""
    lane_node_exponent: float = constant(
        0.8, 0.4, "guess: energy falls with the node's name, or slower", scale="linear"
    )
    """By which it grows with the process node."""
    voltage_exponent: float = constant(1.0, 0.4, "P ~ f V^2 with V between constant and proportional to f: 0 to 2")
    """Of the boost clock over the node's usual one: boards that run below it need less voltage."""
    speed_exponent: float = constant(0.5, 0.2, "P ~ f V^2: between 1/3 (V ~ f) and 1 (V constant)")
    """By which the clock falls with excess power: power goes with clock times voltage squared."""
    static_w: float = constant(20.0, 0.3, "datasheets: boards idle at 10 W (T4) to 70 W (H100)")
    """Power of any board that neither clocks nor work explain [W]."""
    idle_flops: float = constant(
        40.0,
        0.3,
        "gpu-benches, power over bandwidth and arithmetic: A100 66 W, H200 105 W at none, less static",
    )
    """FLOP that switch as much as the clocks, registers and schedulers of an SM in a cycle."""
    core_pj_per_byte: float = constant(
        75.0, 0.15, "gpu-benches, power over bandwidth: A100 118 pJ/B, H200 122 pJ/B, less what memory takes"
    )
    """Energy of a byte between the memory's controller and an SM [pJ/B]: L2, crossbar, load units, at boost clock."""
    hbm_memory_pj_per_byte: float = constant(
        44.0, 0.2, "O'Connor et al. 2017: HBM2 3.9 pJ/bit; a third more for the interface and controller of the GPU"
    )
    """Energy of a byte in HBM [pJ/B], its interface and controller, which have a clock of their own."""
    gddr_memory_pj_per_byte: float = constant(
        60.0, 0.2, "Micron 2020, of chips and interface: 7.5 pJ/bit in GDDR6, 7.25 in GDDR6X"
    )
    """The same in GDDR [pJ/B]."""
    burst_s: float = constant(3e-3, 0.7, "limiters average over milliseconds")
    """Length of a burst [s] after a rest at which half of the limit's slow-down is felt."""


@dataclass(frozen=True, kw_only=True)
class CudaCores:
    """Products on the ordinary pipelines of an SM."""

    issue_contended: float = constant(
        0.88,
        0.1,
        "CUTLASS, SIMT 128x128x8: 512 FMAs of a thread beside 32 loads, 8 copies, some 30 addresses and tests",
    )
    """Share of peak that an SM of 128 lanes behind four single-issue schedulers can issue as FMAs."""
    issue_dual: float = constant(0.6, 0.3, "RDNA 3 ISA guide: few pairs of instructions issue together")
    """The same where the peak counts two instructions a lane that seldom pair (RDNA 3)."""
    peak_share: float = constant(0.96, 1.0, "sgemm on Volta and Pascal: 0.9 to 1.0 of peak", scale="share")
    """Share of peak FLOP/s that an SM sustains when nothing else limits it."""
    shared_memory_half: float = constant(14.0, 0.2, "magnitude seen in float32 kernels")
    """Tile intensity below which operands from shared memory take as long as the arithmetic, on an SM of 64 lanes."""
    shared_memory_sharpness: float = constant(2.0, 0.3, "magnitude seen in float32 kernels")
    """Exponent of the norm that joins the two."""
    fill_s: float = constant(
        1.5e-6, 0.5, "gpu-benches, latency: two trips to DRAM of 0.5 to 0.8 us, and a barrier each"
    )
    """What a tile waits for before its main loop [s], which other blocks of the SM hide."""
    exposed_write: float = constant(0.4, 0.5, "guess: blocks that began together write their tiles together")
    """Share of the time in which DRAM takes a tile of the result that nothing hides."""
    misaligned_cost: float = constant(0.034, 0.5, "magnitude seen in float32 kernels")
    """Share that products of extents that are no multiples of four take longer."""
    tail_share: float = constant(0.43, 0.2, "magnitude seen in float32 kernels")
    """Share of the quantisation to whole rounds of blocks that remains when several share an SM out of step."""
    idle_cost: float = constant(0.15, 0.5, "magnitude seen in float32 kernels")
    """Slow-down of an SM whose resident blocks hold next to no accumulators."""
    overlap: float = constant(4.0, 0.2, "magnitude seen in float32 kernels")
    """Exponent of the norm that joins resource times of products: infinity would be perfect overlap, 1 none."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a kernel takes before and after its work, by how it was launched."""

    cycles: float = constant(
        4500.0, 0.3, "gpu-benches, small kernels in a graph: 1.7 to 3.3 us on GPUs of 1.4 to 2.5 GHz"
    )
    """Core cycles of a kernel that does next to nothing, inside of a CUDA graph."""
    profiled: float = constant(1.0, 0.5, "guess: a profiler brackets what a graph overlaps")
    """The same as profilers see it, over that of a graph."""
    graph_s: float = constant(1.5e-6, 0.7, "guess: of the magnitude of a launch from the host")
    """Launch of a whole graph [s], shared by the kernels in it."""
    hidden: float = constant(0.3, 0.4, "guess: the second event is recorded while the kernel runs")
    """Share of a lone launch's time that a long kernel hides."""
    stream_s: float = constant(4e-6, 0.7, "guess: of the magnitude of a launch from the host")
    """What a lone launch of a stream adds between two CUDA events [s]."""


@dataclass(frozen=True, kw_only=True)
class Residency:
    """When operands that are used again are still in L2."""

    slope: float = constant(3.0, 0.3, "gpu-benches, L2 bandwidth over the data read again: falls within an octave")
    """Steepness with which they are lost, an octave of the bytes touched between two uses."""
    centre: float = constant(-0.3, 0.2, "the same", scale="linear")
    """log2 of (bytes touched between two uses / L2 that all SMs share) at which half of them is lost."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Products on matrix units."""

    share: float = constant(
        0.93, 0.7, "cuBLAS on A100 and H100: 0.8 to 0.95 of peak before a power limit acts", scale="share"
    )
    """Of their peak rate that tiles without end sustain."""
    narrow_share: float = constant(
        0.9,
        0.5,
        "cuBLAS on H100: 0.8 of peak in 16 bit, 0.7 in 8 bit; what surrounds arithmetic does not halve",
        scale="share",
    )
    """The same of operands of less than 16 bits, over that of wide ones."""
    half: float = constant(16.0, 0.5, "guess: operands of a 128x128 tile cost about a tenth of its arithmetic")
    """Tile intensity below which operands from shared memory take as long as the arithmetic, on an SM of 2048 FLOP
    a clock."""
    asynchronous: float = constant(0.5, 0.3, "guess: warpgroup instructions read shared memory by themselves")
    """Factor on it for Hopper and datacentre Blackwell, whose matrix units read shared memory."""
    pair_half: float = cited(0.5, "PTX ISA 8.6: tcgen05 takes 128 rows and more at once, pairs of SMs share an operand")
    """Factor beside that for datacentre Blackwell."""
    mfma_half: float = constant(
        5.0,
        0.25,
        "CDNA 3 ISA guide: operands pass through registers into shared memory and out of it; four waves move 12 bytes "
        "for each element of a tile's edge and step, at 128 bytes a clock: ``half`` is 48 where nothing hides it",
    )
    """Factor on ``half`` for AMD's matrix units."""
    untuned_share: float = constant(
        0.8,
        0.2,
        'guess; PyTorch, pull request 120480: rocBLAS "is pretty bad for MI300", where hipBLASLt became the default',
        moved_by="the same products by rocBLAS and hipBLASLt on one device",
    )
    """Share of the rate of a vendor's tuned library that kernels sustain of those that nobody tuned for a device."""
    mfma_prologue: float = constant(1.5, 0.5, "guess: fewer waves hide the fill of the pipeline")
    """Factor on ``prologue_depth`` for them."""
    prologue_depth: float = constant(64.0, 0.7, "guess: one to two steps of a main loop")
    """Inner extent whose time a tile spends filling its pipeline and writing its result."""
    overlap: float = constant(3.0, 0.4, "guess: resources overlap well, not perfectly")
    """Exponent of the norm that joins the times of resources."""
    l2_share: float = constant(1.2, 0.3, "panels that neighbouring blocks read at once cross fewer ports")
    """The same of products, for panels that neighbouring blocks share."""
    cluster_gain: float = constant(
        2.0**0.5,
        0.1,
        "CUTLASS, TMA multicast: as many blocks share rows of A as share columns of B, each panel fetched once",
        moved_by="large products by cluster size, on Hopper and datacentre Blackwell",
    )
    """By which each doubling of the blocks of a cluster lessens what crosses their ports."""
    blocks_of_sm: float = constant(2.0, 0.6, "the registers of an SM hold two blocks of 128x128 accumulators", "count")
    """Blocks of small tiles that share an SM, and wait for memory at a time."""
    idle_rounds: float = constant(
        1.5, 0.3, "grids of measured kernels", moved_by="names and grids of products with few tiles and a long extent"
    )
    """Blocks an SM from which no cut along the depth pays."""
    least_depth: float = constant(
        128.0, 0.7, "guess: what the stages of a main loop hold", moved_by="grids of products that are cut"
    )
    """Inner extent [elements] that is left to a part of a product that is cut, at least."""
    least_cut_extent: float = constant(
        2048.0,
        0.5,
        "products of 8 to 256 rows: the chain of smaller ones grows with it on every GPU",
        moved_by="grids of products of 8 to 256 rows, by inner extent",
    )
    """Inner extent [elements] from which products are cut."""
    least_stage_bytes: float = constant(
        1.0, 0.3, "guess: 4-bit elements come with scales", moved_by="short products of 4-bit operands"
    )
    """Of an element in a stage of a main loop, at least."""
    step_s: float = constant(4e-9, 0.5, "CUTLASS for Ampere: three to five stages of 32 elements, a latency of 0.6 us")
    """Latency that a block waits for an element of its inner extent [s]."""
    step_asynchronous: float = constant(
        0.3, 0.4, "CUTLASS for Hopper: a producer warp fills shared memory, four to eight stages of 64 elements"
    )
    """Factor on it where matrix units read shared memory."""
    step_hot: float = constant(0.5, 0.3, "gpu-benches, latency: L2 about half of DRAM")
    """The same where operands lie in L2, over that from DRAM."""
    copy_cycles: float = constant(0.21, 0.2, "products of rows at multiples of 2 and 4 bytes on one H100")
    """Core cycles of an SM for a copy of a thread to shared memory, addresses and tests included."""
    register_steps: float = constant(5.0, 0.4, "CUTLASS: three to six stages, of which one is copied by registers")
    """Latency of an element of the inner extent whose copies pass registers, over that of asynchronous ones."""
    compiler_start: float = constant(1.3, 0.3, "guess: a compiler's products hold what prepares their operands")
    """Start of a product that a compiler runs, over that of a library's kernel by itself."""
    promotion_cycles: float = constant(
        2.0, 0.5, "DeepSeek-V3 report, 3.3.2: each 128 elements partial sums are scaled and added on ordinary pipelines"
    )
    """Lane cycles of a partial sum of products whose 8-bit operands carry a scale for each block; none where matrix
    units apply scales themselves."""
    promotion_exposed: float = constant(
        0.5, 0.4, "DeepSeek-V3 report, 3.3.2: on Hopper one warpgroup adds up while another one multiplies"
    )
    """Share of it that nothing hides where matrix units read operands from shared memory by themselves."""
    group_cycles: float = constant(
        8.0,
        0.5,
        "counted in ggml-cuda, mmq.cuh, vec_dot_*_q8_1_mma: it becomes float32, two scales and a minimum are loaded "
        "and multiplied, and two products added",
        moved_by="kernels of llama.cpp for prompts, by format of weights",
    )
    """Lane cycles of a partial sum of 32 products of integers."""
    widening: float = constant(
        4.0,
        0.5,
        "counted in ggml-cuda, mmq.cuh, load_tiles_*: some thirty instructions for eight weights of 4 bits, with their "
        "scales and copies to shared memory",
        moved_by="kernels of llama.cpp for prompts, by format of weights",
    )
    """Lane cycles in which a weight of few bits is made one that is multiplied."""
    unpacking: float = constant(
        1.0,
        0.5,
        "counted in ggml-cuda, vecdotq.cuh, vec_dot_q4_K_q8_1: a load, a shift and a mask for four weights; in "
        "exllamav2_ext, qdq_4.cuh: for two",
        moved_by="kernels of llama.cpp and ExLlamaV2 for single tokens, by format of weights",
    )
    """Instructions of a lane for a weight of few bits that it multiplies itself."""
    unpack_cost: float = constant(0.3, 0.7, "guess: weights of 8 or 4 bits are widened before they are multiplied")
    """Share that products with narrow weights take longer."""
    quantise_start: float = constant(0.5, 0.5, "guess: a small kernel between others")
    """Start of the kernel that makes activations 8-bit, over that of a kernel by itself."""
    quantise_cost: float = constant(0.7, 0.5, "guess: what it reads was just written, and partly lies in L2")
    """Its time over that of its bytes from DRAM."""
    quantise_row_cycles: float = constant(2000.0, 0.4, "as for rows of streams: two reductions over a block")
    """Core cycles that a block takes for a row where each row has a block of its own."""
    search_s: float = constant(5e-6, 1.0, "guess: further small kernels make a scale of the largest value")
    """What engines that look for the largest value of a tensor take beside reading it [s]."""
    pj_per_flop: float = constant(1.2, 0.3, "H100 SXM: 700 W at about 730 TFLOP/s of dense bf16, most of it arithmetic")
    """Energy of a 16-bit FLOP [pJ] at 7 nm on an SM of 2048 FLOP a clock, all of the SM included."""
    node_exponent: float = constant(0.6, 0.2, "guess: energy falls slower than the node's name", scale="linear")
    """By which it grows with the process node."""
    unit_exponent: float = constant(0.4, 0.2, "guess: larger matrix units move fewer operands a FLOP", scale="linear")
    """By which it falls with an SM's FLOP a clock."""
    narrow_energy: float = constant(0.6, 0.3, "guess: half the bits, most of half the energy")
    """Energy of an 8-bit FLOP over that of a 16-bit one."""
    quiet_energy: float = constant(
        0.85,
        0.1,
        "large products are 12 to 28 % faster where operands are not random",
        moved_by="board power of large products of constant and of random operands",
    )
    """Energy with operands that are not random, over that with random ones."""
    boost_gain: float = constant(1.08, 0.05, "GeForce boards run above their datasheet's boost clock by some percent")
    """By which consumer boards exceed the boost clock of their datasheet while no power limit acts."""


@dataclass(frozen=True, kw_only=True)
class Physics:
    """All constants, in groups."""

    memory: MemoryPhysics = group(MemoryPhysics, "copies of large tensors on each kind of memory, with and without ECC")
    cache: CachePhysics = group(CachePhysics, "products and reductions whose operands are larger than L2, in float32")
    power: Power = group(Power, "power and clocks of boards at several limits, of arithmetic and of traffic alone")
    cuda_cores: CudaCores = group(CudaCores, "products in float32 by tile (kernel names), of all depths")
    convolution: Convolution = group(Convolution, "convolutions in float32, timed by algorithm")
    implicit: ImplicitGemm = group(ImplicitGemm, "convolutions in TF32 with strides and few channels")
    start: Start = group(Start, "empty kernels by themselves, in graphs and under a profiler")
    residency: Residency = group(Residency, "streams over operands of 0.5 to 4 times L2, used again and again")
    matrix: Matrix = group(Matrix, "products by tile and cut (kernel names), on each kind of matrix unit")
    attention: AttentionConstants = group(AttentionConstants, "attention by library, dtype of its cache and pass")
    moe: MoeConstants = group(MoeConstants, "layers of experts by engine, with each of their kernels timed")
    stream: StreamConstants = group(StreamConstants, "pointwise kernels and reductions, by layout of their operands")


PRIOR = Physics()
"""The centres of the priors."""
