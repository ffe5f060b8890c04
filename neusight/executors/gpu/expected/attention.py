"""Fused attention: tiles of queries that walk over tiles of keys, in a prefill and, cut along the keys, in a decode.

A block holds some queries and fetches keys and values tile by tile; scores never leave the SM. Libraries differ in
their tiles, in whether heads that share keys share a block, and in the kernels that they run beside this one.
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.attention_blocks import NARROW_HEAD, AttentionBlocks, key_tiles
from neusight.executors.gpu.expected.attention_scores import HOPPER_ROWS, Scores, padding
from neusight.executors.gpu.expected.matrix import WIDE_BYTES, MatrixUnit, product_energy_j
from neusight.executors.gpu.expected.streams import issue_slots
from neusight.executors.gpu.expected.times import Times, further_kernel_s, start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import among, attention_keys, attention_pairs, value_width
from neusight.laws.bounds import overlapped_s
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.waves import rounds

VECTOR_OPERATIONS = 4.0
"""On ordinary lanes for a score: scale, maximum, sum, conversion (cited: FlashAttention-2, algorithm 1)."""
SHARED_BYTES_PER_CLOCK = 128.0
"""Of an SM's shared memory (datasheet: CUDA C++ Programming Guide, 32 banks of 4 bytes)."""
ROWS_OF_WARP = 32.0
"""Queries for which a warp fetches keys and values from shared memory once (cited: FlashAttention-2,
flash_fwd_launch_template.h: four warps share 128 rows)."""
PARTIAL_BYTES = 8.0
"""Of an element of a part's result [B] (definition: float32, written and read)."""
COPIED = 2.0
"""Times that a copy moves a byte (definition: read and written)."""
FLOAT_CACHES = ("float8", "nvfp4")
"""Narrow dtypes of a cache that are no integers."""
SWAP_KERNELS = 2.0
"""With which heads of a group are brought together and apart again (cited: FlashAttention, flash_api.cpp,
``seqlenq_ngroups_swapped``)."""
NARROWING_BYTES = 1.5
"""Moved for a byte of queries that are made 8-bit (definition: one in 16 bits read, half of it written)."""
SUM_KERNELS, SUM_BYTES = 2.0, 5.0
"""Kernels that clear the float32 sums of gradients of queries in 16 bit and convert them, and what they move for a byte
of 16-bit queries: two written, two read, one written (cited: FlashAttention-2, flash_bwd_launch_template.h)."""


def attention_times(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Times:
    r"""What fused attention asks of each resource.

    .. math::
        t_c = \frac{(r (K + K_0) + K_{max} - K) B_q B_k c + K_{max} l}{f} + r \left(\frac{K b}{W} + 2 P t_D\right),\quad
        c = \lambda \left(\frac{F}{\eta F_{SM}} + \frac{F e}{2 \cdot 128\, R} + \xi (1 / 16 + 4 / L)\right)

    Rounds r of the busiest SM, K tiles of B_k keys for B_q queries, c cycles a score: products, keys and values from
    shared memory once for R rows, which matrix units that read it do beside their products, and what is exposed of
    the softmax, exponentials and operations on L lanes. Kernels without a pipeline wait for the b bytes of a tile at
    the rate W of one block and, where there is a window, for DRAM's latency t_D over P tiles that they pass. Kernels
    whose blocks fetch their work begin with the longest: the even share, or the longest alone. Few queries are cut
    along their keys into 1 part or as many as fill the SMs once or twice, whichever takes the least.

    Args:
        batch: attention over keys and values of one or several heads, with windows, latent caches or selected keys.
        device: F_SM FLOP a clock of an SM, L its lanes, f clock [Hz], ports to L2, DRAM.
        conditions: what caches hold, how the kernel was launched, and whose kernel it is.
        physics: ξ, l, K_0, λ and the rest, group ``attention``; η of products, rounds of lanes, t_D of streams.

    Source: FlashAttention-2 (Dao 2023) and -3 (Shah et al. 2024), their tiles; Little's law; constants fitted.
    Validity: forward on NVIDIA GPUs from Ampere on in 16 and 8 bit; windows, grouped and latent heads. Other dtypes
    and older GPUs by the same law at their own peak rates, on the ordinary pipelines where there are no matrix units.
    """
    s = Scores(batch, device, conditions, physics)
    blocks = AttentionBlocks.of(s)
    score_cycles = _score_cycles(s, blocks)
    parts = _pick_parts(s, blocks, score_cycles)
    compute_s, l2_s, serial_s = _shared_times(s, blocks, score_cycles, parts)
    scores = blocks.count * blocks.rows * blocks.tiles * blocks.keys
    # The first blocks wait for lengths and pages; those that score have no pages.
    longer = np.where(batch["op"] == "indexer", 1.0, physics.attention.entry_asynchronous)
    entry_s = physics.attention.entry_s * np.where(s.asynchronous, longer, 1.0)
    return Times(
        compute_s=compute_s,
        dram_s=s.cold_bytes / sustained_dram_bytes_per_s(device, physics),
        l2_s=l2_s,
        serial_s=serial_s,
        fixed_overhead_s=start_s(device, conditions, physics) + entry_s + _auxiliary_kernel_s(s, parts),
        switching_j=s.flops * scores * product_energy_j(s.product, batch["dtype"], device, physics),
        dram_bytes=s.cold_bytes,
        overlap=physics.cuda_cores.overlap,
    )


def _score_cycles(s: Scores, blocks: AttentionBlocks) -> np.ndarray:
    """Cycles of an SM for one score."""
    law, traits, device = s.physics.attention, s.traits, s.device
    # Kernels for latent attention are compiled for its widths.
    widths = np.where(s.tall & (traits["tall_widths"] != ""), traits["tall_widths"], traits["head_widths"])
    widths = np.where(s.made | s.batch["shared_kv"], "", widths)
    narrow, flops = s.size < WIDE_BYTES, s.flops * padding(s.batch["head_dim"], widths)
    share = np.where(narrow & (s.batch["op"] != "indexer"), law.narrow, 1.0)
    share = np.where(narrow & traits["promotes_sums"], share / law.promoted, share)
    # Instructions that read shared memory by themselves take 64 rows and more.
    able = device.facts.reads_shared_memory & ~s.decode & (blocks.rows >= HOPPER_ROWS)
    reads = s.asynchronous | (~traits["pipelined"] & able)
    unit = MatrixUnit(device, s.physics)
    share = share * np.where(reads, 1.0, unit.synchronous_share(s.product))
    products = flops * s.clock * device.sm_count / (unit.sustained(s.product) * share)
    # Matrix units that read shared memory do so beside their products.
    readers = np.where(reads, np.inf, np.minimum(blocks.rows, ROWS_OF_WARP))
    fetched = flops / 2.0 * s.size / (SHARED_BYTES_PER_CLOCK * readers)
    slow = (s.batch["op"] == "backward") & device.facts.reads_shared_memory
    longer = traits.constants("time_constant", law) * np.where(slow, law.backward, 1.0)
    longer *= np.where(s.encoder, traits.constants("encoder_constant", law), 1.0)
    longer *= np.where(s.batch["head_dim"] % traits["vector_columns"] == 0.0, 1.0, law.scalar_loads)
    # An indexer has no exponential; where nothing is under way meanwhile, nothing hides the softmax.
    exponential = np.where(s.batch["op"] == "indexer", 0.0, 1.0 / device.facts.exponentials_per_clock)
    exposed = np.where(traits["pipelined"] | s.decode, law.exposed, 1.0)
    return longer * (products + fetched + exposed * (exponential + VECTOR_OPERATIONS / device.cuda_cores_per_sm))


def _shared_times(
    s: Scores, blocks: AttentionBlocks, score_cycles: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(arithmetic, L2, waiting) [s] of blocks that are cut into so many parts."""
    law, device, b = s.physics.attention, s.device, s.batch
    tiles, longest, count = np.ceil(blocks.tiles / parts), np.ceil(blocks.longest / parts), blocks.count * parts
    tiles = np.where(parts > 1.0, tiles, blocks.tiles)
    tile_bytes = blocks.keys * s.width * s.cache_size
    tile_cycles = blocks.rows * blocks.keys * score_cycles + _widening_cycles(s) * blocks.keys * s.width
    share = count / device.sm_count
    # Tiles of scores alone wait for no tile before them.
    chain_cycles = np.where(b["op"] == "indexer", 0.0, law.latency_cycles * longest)
    compute_s = (_busiest_tiles(s, share, tiles, longest) * tile_cycles + chain_cycles) / s.clock
    partial = np.where(parts > 1.0, PARTIAL_BYTES * s.result_elements * parts, 0.0)
    port = law.l2_share * device.sustained_l2_bytes_per_s / device.sm_count
    # A pair of blocks that share a query's heads share the keys that it chose (PTX ISA, tcgen05, cta_group::2).
    sharing = np.where(s.chosen & s.asynchronous & ~s.decode, device.facts.matrix_rows / HOPPER_ROWS, 1.0)
    moved = count * tiles * tile_bytes / sharing + s.query_bytes + 2.0 * s.result_elements + partial
    alone = ~s.traits["pipelined"] & ~s.decode
    # Blocks for narrow heads have half of the warps, so that two share an SM; more do where queries are single.
    wide = s.whole | (alone & (b["head_dim"] > NARROW_HEAD))
    resident = np.select([blocks.small, wide], [law.resident_small, 1.0], s.physics.matrix.blocks_of_sm)
    turns = rounds(share / resident, 1, s.physics.cuda_cores.tail_share)
    under_way = law.stream_bytes_per_s / np.where(s.asynchronous, s.physics.matrix.step_asynchronous, 1.0)
    # What another block of the same heads has brought is in L2.
    first = np.minimum(b["batch"] * b["kv_heads"] * attention_keys(b) / (count * tiles * blocks.keys), 1.0)
    stream_s = tile_bytes / under_way * (1.0 - (1.0 - s.physics.matrix.step_hot) * (1.0 - first * (1.0 - s.hot)))
    # Persistent kernels of scores alone fetch the next queries meanwhile (DeepGEMM, fp8_mqa_logits, kNumQStages).
    following = np.where(alone | (b["op"] == "indexer"), 0.0, turns - np.minimum(turns, 1.0))
    # Blocks without keys still wait for the lengths.
    empty = blocks.count * np.maximum(blocks.launched_parts - parts, 0.0)
    empty_s = empty / (device.sm_count * s.physics.matrix.blocks_of_sm) * s.physics.stream.latency_s
    waiting_s = following * law.chain_s + turns * tiles * stream_s + empty_s
    compute_s = compute_s + np.where(alone, waiting_s + _passing_s(s, blocks, share), 0.0)
    return compute_s, moved / (port * np.minimum(count, device.sm_count)), np.where(alone, 0.0, waiting_s)


def _passing_s(s: Scores, blocks: AttentionBlocks, share: np.ndarray) -> np.ndarray:
    """Time [s] for which blocks without a pipeline agree, tile by tile of all keys, on whether a window holds any of
    it."""
    everything = KernelBatch(s.batch.family, {**s.batch.columns, "window": np.zeros_like(s.batch["window"])})
    reach = key_tiles(everything, blocks.queries, blocks.keys)
    passed = _busiest_tiles(s, share / s.physics.matrix.blocks_of_sm, *reach)
    return np.where(s.batch["window"] > 0, s.physics.attention.passing_trips * passed * s.physics.stream.latency_s, 0.0)


def _busiest_tiles(s: Scores, share: np.ndarray, tiles: np.ndarray, longest: np.ndarray) -> np.ndarray:
    """Tiles that the busiest SM works through, of ``share`` blocks an SM, and what it spends before them; blocks
    that fetch their work take the longest rows of queries first."""
    law = s.physics.attention
    prologue = np.where(s.asynchronous, law.prologue_asynchronous * (s.batch["op"] != "indexer"), law.prologue_tiles)
    in_order = rounds(share, 1, s.physics.cuda_cores.tail_share) * (tiles + prologue) + longest - tiles
    longest_first = np.maximum(share * (tiles + prologue), longest + prologue)
    return np.where(s.asynchronous & (longest > tiles), longest_first, in_order)


def _widening_cycles(s: Scores) -> np.ndarray:
    """Cycles of an SM for an element of a narrower cache that 16-bit arithmetic works on: what its schedulers issue
    counts, since integer lanes and pairs of 16-bit values share the conversion whatever the lanes for float32.
    """
    law, floats = s.physics.attention, among(s.batch["kv_dtype"], FLOAT_CACHES)
    operations = np.where(floats, law.widening, law.widening_integers)
    return np.where((s.cache_size < s.size) | s.widened, operations / issue_slots(s.device), 0.0)


def _pick_parts(s: Scores, blocks: AttentionBlocks, score_cycles: np.ndarray) -> np.ndarray:
    """Parts of least time: 1, or as many as let all blocks run at once, one or two on an SM."""
    most = np.minimum(blocks.tiles, np.maximum(blocks.launched_parts, s.traits["most_parts"]))
    filled = [np.clip(blocks_of_sm * s.device.sm_count / blocks.count, 1.0, most) for blocks_of_sm in (0.0, 1.0, 2.0)]
    candidates = [np.where(blocks.divisible, np.floor(parts), 1.0) for parts in filled]
    times_s = [_unlimited_s(s, blocks, score_cycles, parts) for parts in candidates]
    return np.choose(np.argmin(times_s, axis=0), candidates)


def _unlimited_s(s: Scores, blocks: AttentionBlocks, score_cycles: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Time at full clock [s]: near enough to choose by."""
    dram_s = s.cold_bytes / sustained_dram_bytes_per_s(s.device, s.physics)
    merge_s = np.where(parts > 1.0, further_kernel_s(s.device, s.physics), 0.0) + _merging_s(s, parts)
    times_s = (*_shared_times(s, blocks, score_cycles, parts), dram_s)
    return merge_s + overlapped_s(times_s, s.physics.cuda_cores.overlap)


def _auxiliary_kernel_s(s: Scores, parts: np.ndarray) -> np.ndarray:
    """Time [s] of what runs before and after the kernel: the write of new keys and values, queries that are made
    8-bit, heads that are swapped, parts that are put together.
    """
    law, traits, b = s.physics.attention, s.traits, s.batch
    # Keys and values that are made of a latent cache have their rotated columns moved alone.
    rotated = b["head_dim"] - value_width(b)
    new = b["batch"] * b["kv_heads"] * np.minimum(s.q, b["kv_len"]) * s.written_size
    new = new * np.where(s.made, rotated, s.width)
    queries = s.query_bytes * np.where(s.made, rotated / b["head_dim"], 1.0)
    context = traits["context_kernels"] & ~s.decode
    cast = (s.written_size < 2.0) & ((s.stored_size == 2.0) | traits["casts_narrow"])
    merged = (parts > 1.0) | (traits["merges_always"] & s.decode)
    grouped = (b["heads"] > b["kv_heads"]) & (b["kv_heads"] > 1) & (b["batch"] > 1) & (b["window"] == 0)
    swapped = traits["swaps_heads"] & s.decode & grouped
    # No cache holds the keys of an encoder.
    written = traits["writes_cache"] & ~s.encoder
    before = np.maximum(traits["cache_kernels"] - traits["overlapped_start"], 0.0) * (written | ~traits["writes_cache"])
    kernels = np.where(merged, 1.0, 0.0) + before + np.where(context, law.context_kernels, 0.0)
    # One kernel turns and quantises queries and keys of a latent cache (FlashInfer, mla_rope_quantize_fp8).
    casts = np.where(b["shared_kv"], np.minimum(traits["cast_kernels"], 1.0), traits["cast_kernels"])
    kernels += np.where(cast, casts, 0.0) + SWAP_KERNELS * swapped
    moved = np.where(context, law.passes * (new + queries), np.where(written, COPIED * new, 0.0))
    narrows = cast & (traits["cast_kernels"] > 0.0) & (s.narrowed | traits["casts_narrow"])
    moved += np.where(narrows, NARROWING_BYTES * s.query_bytes, 0.0)
    summed = np.where((b["op"] == "backward") & (s.stored_size == WIDE_BYTES), 1.0, 0.0)
    kernels, moved = kernels + SUM_KERNELS * summed, moved + SUM_BYTES * s.query_bytes * summed
    ports = law.l2_share * s.device.sustained_l2_bytes_per_s
    each = (1.0 - s.hot) / sustained_dram_bytes_per_s(s.device, s.physics) + s.hot / ports
    return kernels * further_kernel_s(s.device, s.physics) + moved * each + _merging_s(s, parts)


def _merging_s(s: Scores, parts: np.ndarray) -> np.ndarray:
    """Time [s] for which blocks that put parts together wait for memory, one row of a head after the other
    (FlashInfer, cascade.cuh); scores have no parts to put together."""
    rows = np.where((parts > 1.0) & (s.batch["op"] != "indexer"), s.batch["batch"] * s.batch["heads"] * s.q, 0.0)
    return rows / (s.device.sm_count * s.physics.matrix.blocks_of_sm) * s.physics.stream.latency_s


def attention_shape(
    batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics
) -> dict[str, np.ndarray]:
    """Dimensionless inputs of a correction: how full blocks, rounds and tiles are, how large the problem is, and
    what was cached."""
    s = Scores(batch, device, conditions, physics)
    blocks = AttentionBlocks.of(s)
    parts = _pick_parts(s, blocks, _score_cycles(s, blocks))
    share = blocks.count * parts / device.sm_count
    scores = batch["batch"] * batch["heads"] * attention_pairs(batch)
    return {
        "log2_blocks_per_sm": np.log2(share),
        "round_fill": share / np.ceil(share),
        "tile_fill": scores / (blocks.count * blocks.rows * blocks.tiles * blocks.keys),
        "log2_key_tiles": np.log2(blocks.tiles),
        "log2_parts": np.log2(parts),
        "log2_rows": np.log2(blocks.rows),
        "log2_queries": np.log2(s.q),
        "log2_keys": np.log2(batch["kv_len"]),
        "log2_group": np.log2(batch["heads"] / batch["kv_heads"]),
        "log2_width": np.log2(s.width),
        "cache_size": s.cache_size,
        "window_share": np.where(batch["window"] > 0, np.minimum(batch["window"] / batch["kv_len"], 1.0), 1.0),
    }
