"""Fused attention: tiles of queries that walk over tiles of keys, in a prefill and, cut along the keys, in a decode.

A block holds some queries and fetches keys and values tile by tile; scores never leave the SM. Libraries differ in
their tiles, in whether heads that share keys share a block, and in the kernels that they run beside this one.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.matrix import BLOCKS_OF_SM, MatrixUnit, Product, clock_gain, product_energy_j
from neusight.executors.gpu.expected.streams import issue_slots
from neusight.executors.gpu.expected.times import Times, further_kernel_s, hot_share, start_s
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.implementations import Traits, traits_of
from neusight.kernels.work import (
    among,
    attention_keys,
    attention_pairs,
    by_distinct,
    cache_bytes,
    element_bytes,
    value_width,
    work_of,
)
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.waves import rounds
from neusight.quick_dataclasses import dataclass

VECTOR_OPERATIONS = 4.0
"""On ordinary lanes for a score: scale, maximum, sum, conversion (FlashAttention-2, algorithm 1)."""
SHARED_BYTES_PER_CLOCK = 128.0
"""Of an SM's shared memory."""
HOPPER_ROWS = 64.0
"""Rows of a matrix instruction on the GPUs for which traits tell the rows of a block."""
NARROW_HEAD = 64
"""Width of a head up to which blocks have room for more queries."""
LARGE_SHARED_BYTES = 128.0 * 1024
"""Shared memory of an SM that holds two blocks of 128 queries with keys and values."""
NARROW_WIDTHS = (128, 192)
"""Of heads, for which TensorRT-LLM's 8-bit products before Hopper's outrun 16-bit ones (assumption, after L40S and RTX
PRO 6000)."""
ROWS_OF_WARP = 32.0
"""Queries for which a warp fetches keys and values from shared memory once."""
TILE_ELEMENTS = 16384.0
"""Of a tile of keys, roughly, in kernels for long rows: 256 keys of 64, 128 of 128, 64 of 256."""
WIDE_BYTES = 2.0
"""Of an element in 16 bit."""
PARTIAL_BYTES = 8.0
"""Of an element of a part's result [B]: float32, written and read."""
COPIED = 2.0
"""Times that a copy moves a byte: read and written."""
PASSING_TRIPS = 2.0
"""To memory, for a tile of keys that a kernel without a pipeline passes over (assumption; a tile of SGLang's extend
kernel takes 1.8 us beside its arithmetic on three GPUs, one outside of a window 0.9 to 1.4)."""
FLOAT_CACHES = ("float8", "nvfp4")
"""Narrow dtypes of a cache that are no integers."""
SWAP_KERNELS = 2.0
"""With which heads of a group are brought together and apart again."""
NARROWING_BYTES = 1.5
"""Moved for a byte of queries that are made 8-bit: one in 16 bits read, half of it written."""


SUM_KERNELS, SUM_BYTES = 2.0, 5.0
"""Kernels that clear the float32 sums of gradients of queries in 16 bit and convert them, and what they move for
a byte of 16-bit queries: two written, two read, one written (FlashAttention-2, flash_bwd_launch_template.h)."""


@dataclass(frozen=True)
class _Scores:
    """What is computed, on what, by whose kernel; properties are columns of shape (n,)."""

    batch: KernelBatch
    device: GpuSpec
    conditions: Conditions
    physics: Physics

    @cached_property
    def traits(self) -> Traits:
        """What the kernels' implementations are like."""
        return traits_of("attention", self.conditions)

    @cached_property
    def q(self) -> np.ndarray:
        return self.batch["q_len"].astype(float)

    @cached_property
    def decode(self) -> np.ndarray:
        """Whether one query follows on what is cached, or a prompt of one token runs as if it did."""
        return (self.batch["q_len"] == 1) & ((self.batch["kv_len"] > 1) | self.traits["decodes_prompts"])

    @cached_property
    def chosen(self) -> np.ndarray:
        """Whether each query attends to the keys that it chose."""
        return self.batch["selected"] > 0

    @cached_property
    def made(self) -> np.ndarray:
        """Whether keys and values of a prompt are made of a latent cache, before the kernel (DeepSeek-V2, 2.1)."""
        apart = value_width(self.batch) != self.batch["head_dim"]
        return apart & ~self.batch["shared_kv"] & (self.batch["op"] == "forward")

    @cached_property
    def whole(self) -> np.ndarray:
        """Whether the kernel of prompts decodes a latent cache: its block of heads walks over all keys of a request."""
        return self.traits["whole_latent_decode"] & self.decode & self.batch["shared_kv"] & ~self.asynchronous

    @cached_property
    def asynchronous(self) -> np.ndarray:
        """Whether products run beside the rest of a warp's work."""
        if not self.device.facts.reads_shared_memory:
            return np.zeros(len(self.batch), dtype=bool)
        return self.traits["asynchronous"]

    @cached_property
    def cache_size(self) -> np.ndarray:
        """Bytes of an element of keys and values that the kernel reads: of a prompt by itself, maybe as computed."""
        alone = (self.batch["q_len"] == self.batch["kv_len"]) & ~self.decode
        return np.where((self.traits["reads_computed"] & alone) | self.made, self.stored_size, self.written_size)

    @cached_property
    def written_size(self) -> np.ndarray:
        return cache_bytes(self.batch)

    @cached_property
    def stored_size(self) -> np.ndarray:
        return element_bytes(self.batch)

    @cached_property
    def narrowed(self) -> np.ndarray:
        """Whether 16-bit queries are made 8-bit for an 8-bit cache: warpgroup products take one type. A latent cache
        is widened instead.
        """
        able = self.asynchronous & ~self.batch["shared_kv"] & ("float8" in self.device.matrix_flops_per_s)
        return (self.cache_size < 2.0) & (self.stored_size == 2.0) & able

    @cached_property
    def widened(self) -> np.ndarray:
        """Whether 8-bit products run at the rate of 16-bit ones, for want of kernels for a width of a head."""
        wanting = self.traits["widens_heads"] & ~np.isin(self.batch["head_dim"], NARROW_WIDTHS) & ~self.decode
        return wanting & (self.stored_size < WIDE_BYTES) & (not self.device.facts.reads_shared_memory)

    @cached_property
    def size(self) -> np.ndarray:
        """Bytes of an element in arithmetic."""
        return np.where(self.narrowed, self.cache_size, self.stored_size)

    @cached_property
    def flops_per_s(self) -> np.ndarray:
        """Peak in the dtype of the arithmetic [FLOP/s]."""
        rates = self.device.matrix_flops_per_s
        stated = by_distinct(self.batch["dtype"], self.device.gemm_flops_per_s)
        stated = np.where(self.widened, np.minimum(rates.get("float16", np.inf), stated), stated)
        return np.where(self.narrowed, rates.get("float8", np.inf), stated)

    @cached_property
    def product(self) -> Product:
        """A product in the same arithmetic."""
        return Product(self.q, self.q, self.q, self.q, self.size, self.size, self.size, self.flops_per_s)

    @cached_property
    def clock(self) -> float:
        return self.device.boost_clock_hz * clock_gain(self.device, self.physics)

    @cached_property
    def width(self) -> np.ndarray:
        """Elements that lie in memory for a key and its value."""
        head, value = self.batch["head_dim"], value_width(self.batch)
        return np.where(self.batch["shared_kv"], np.maximum(head, value), head + value)

    @cached_property
    def flops(self) -> np.ndarray:
        """Of a score: 2 (d + v) forward, 6 d + 4 v backward, 2 d for an indexer."""
        head, value = self.batch["head_dim"].astype(float), value_width(self.batch)
        return np.where(self.batch["op"] == "backward", 6.0 * head + 4.0 * value, 2.0 * (head + value))

    @cached_property
    def hot(self) -> np.ndarray:
        return hot_share(self.device, self.conditions.cycled_bytes, self.physics)

    @cached_property
    def cold_bytes(self) -> np.ndarray:
        """Of keys, values, queries and results, those that DRAM moves."""
        return work_of(self.batch).bytes * (1.0 - self.hot)

    @cached_property
    def key_value_bytes(self) -> np.ndarray:
        """Of all keys and values that are there."""
        b = self.batch
        return b["batch"] * b["kv_heads"].astype(float) * attention_keys(b) * self.width * self.cache_size

    @cached_property
    def query_bytes(self) -> np.ndarray:
        return self.batch["batch"] * self.batch["heads"] * self.q * self.batch["head_dim"] * self.stored_size

    @cached_property
    def result_elements(self) -> np.ndarray:
        return self.batch["batch"] * self.batch["heads"] * self.q * value_width(self.batch)


@dataclass(frozen=True)
class _AttentionBlocks:
    """How scores are cut: ``count`` blocks of ``rows`` queries, each over ``tiles`` tiles of ``keys``, the longest
    over ``longest``, and passes over ``passed`` of them; ``small`` are those of which many share an SM, ``parts``
    may cut them along the keys up to ``tiles``."""

    rows: np.ndarray
    keys: np.ndarray
    count: np.ndarray
    tiles: np.ndarray
    longest: np.ndarray
    passed: tuple[np.ndarray, np.ndarray]
    small: np.ndarray
    divisible: np.ndarray

    @classmethod
    def of(cls, s: _Scores) -> _AttentionBlocks:
        """Tiles as libraries choose them by width of a head and by rows at hand."""
        b, traits = s.batch, s.traits
        heads, kv_heads = b["heads"].astype(float), b["kv_heads"].astype(float)
        group, windowed = heads / kv_heads, b["window"] > 0
        chosen = s.chosen
        packed = s.decode | chosen | (traits["packs_prefill"] & (traits["packs_tall"] | ~_tall(s)))
        packed &= ~windowed | traits["packs_windows"]
        packed &= b["shared_kv"] | (group <= traits["most_packed_group"])
        together = np.where(packed, group, 1.0)
        at_hand = np.where(chosen, together, s.q * together)
        # FlashMLA, flash_mla_sparse_fwd: heads of a query fill the rows of matrix units.
        full = np.ceil(together / s.device.facts.matrix_rows) * s.device.facts.matrix_rows
        at_hand = np.where(chosen & ~s.decode, full, at_hand)
        rows, keys = _tile_rows(s, at_hand), _tile_keys(s)
        down = np.where(chosen, s.q, 1.0) * np.ceil(at_hand / rows)
        queries = np.where(chosen, 1.0, np.maximum(1.0, np.floor(rows / together)))
        tiles, longest = _key_tiles(b, queries, keys)
        everything = KernelBatch(b.family, {**b.columns, "window": np.zeros_like(b["window"])})
        light = s.narrowed | ~packed | (group == 1.0)
        small, cuts = traits["small_decode_blocks"], traits["cuts_prefill"]
        # Queries that choose their keys, and those that score all of them, walk over these by themselves.
        alone = chosen | (b["op"] == "indexer")
        return cls(
            rows=rows,
            keys=keys,
            count=b["batch"] * np.where(packed, kv_heads, heads) * down,
            tiles=tiles,
            longest=longest,
            passed=_key_tiles(everything, queries, keys),
            small=s.decode & ((small == "always") | ((small == "light") & light)),
            divisible=np.where(
                s.decode,
                ~s.whole,
                ~alone & ((cuts == "always") | ((at_hand <= 2 * s.device.facts.matrix_rows) & (cuts == "short"))),
            ),
        )


def _tile_rows(s: _Scores, at_hand: np.ndarray) -> np.ndarray:
    """Rows of a block: the fewest that a kernel is compiled for and that hold what is at hand."""
    traits, head = s.traits, s.batch["head_dim"]
    narrow_head = (head <= NARROW_HEAD) & (traits["narrow_head_rows"] > 0.0)
    most = np.where(narrow_head, traits["narrow_head_rows"], traits["most_rows"])
    if s.device.shared_memory_per_sm_bytes < LARGE_SHARED_BYTES:
        most = np.minimum(most, traits["small_sm_rows"])
    alone = s.chosen | (s.batch["op"] == "indexer")
    taller = np.where(s.asynchronous & ~alone, s.device.facts.matrix_rows / HOPPER_ROWS, 1.0)
    most = most * taller
    least = np.select([at_hand <= 16, at_hand <= 32, at_hand <= 64, at_hand <= 128], [16.0, 32.0, 64.0, 128.0], most)
    fits = (traits["fits_rows"] & ~s.chosen) | s.decode
    most = np.where(s.decode, np.minimum(most, traits["most_decode_rows"]), most)
    rows = np.where(fits & ~s.whole, np.minimum(least, most), most)
    return np.where(head > traits["wide_head"], np.minimum(rows, traits["wide_head_rows"] * taller), rows)


def _tall(s: _Scores) -> np.ndarray:
    """Whether two tiles of more rows than Hopper's take turns between products and softmax."""
    return s.asynchronous & (s.device.facts.matrix_rows > HOPPER_ROWS)


def _tile_keys(s: _Scores) -> np.ndarray:
    """Keys of a tile."""
    traits = s.traits
    least = np.where(s.device.shared_memory_per_sm_bytes < LARGE_SHARED_BYTES, traits["small_sm_least_keys"], 64.0)
    wide = np.clip(2.0 ** np.floor(np.log2(TILE_ELEMENTS / s.batch["head_dim"])), least, 256.0)
    gain = np.where(s.size < 2.0, traits["narrow_tile_gain"], 1.0)
    able = (traits["wide_tiles"] == "always") | (~s.decode & s.asynchronous)
    widest = traits["widest_key_tile"]
    return np.where(able & (widest > 0.0), np.minimum(wide, widest) * gain, traits["key_tile"])


def _key_tiles(b: KernelBatch, queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tiles of keys that a block walks over, on average; of the longest). Queries of a block see, taken together,
    the keys of their mean and of half of the block's length, or all of it where a window moves along."""
    touched, q = attention_keys(b), b["q_len"].astype(float)
    kv, window = b["kv_len"].astype(float), b["window"]
    seen = attention_pairs(b) / q
    apart = np.where(window > 0, queries - 1.0, (queries - 1.0) / 2.0)
    alone = q <= queries
    union = np.where(alone, touched, np.minimum(seen + apart, touched))
    tiles = np.where(alone, np.ceil(union / keys), np.minimum(union / keys + 0.5, np.ceil(kv / keys)))
    most = np.where(window > 0, np.minimum(window, kv), kv)
    most = np.where(b["selected"] > 0, np.minimum(b["selected"], most), most)
    widest = np.minimum(np.where(b["selected"] > 0, most, touched), most + np.where(window > 0, queries, 0.0))
    longest = np.where(alone, tiles, np.ceil(widest / keys))
    return np.maximum(tiles, 1.0), np.maximum(np.maximum(longest, tiles), 1.0)


def attention_times(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Times:
    r"""What fused attention asks of each resource.

    .. math::
        t_c = \frac{(r (K + K_0) + K_{max} - K) B_q B_k c + K_{max} l}{f} + r (2 P + K) t_D,\quad
        c = \lambda \left(\frac{F}{\eta F_{SM}} + \frac{F e}{2 \cdot 128\, R} + \xi (1 / 16 + 4 / L)\right)

    Rounds r of the busiest SM, K tiles of B_k keys for B_q queries, c cycles a score: products, keys and values from
    shared memory once for R rows, which matrix units that read it do beside their products, and what is exposed of the
    softmax, exponentials and operations on L lanes. Kernels without a pipeline wait for DRAM's latency t_D on the way,
    over P tiles that they pass. Kernels whose blocks fetch their work begin with the
    longest: the even share, or the longest alone. Few queries are cut along their keys into 1 part or as many as fill
    the SMs once or twice, whichever takes the least.

    Args:
        batch: attention over keys and values of one or several heads, with windows, latent caches or selected keys.
        device: F_SM FLOP a clock of an SM, L its lanes, f clock [Hz], ports to L2, DRAM.
        conditions: what caches hold, how the kernel was launched, and whose kernel it is.
        physics: ξ, l, K_0, λ and the rest, group ``attention``; η of products, rounds of lanes, t_D of streams.

    Source: FlashAttention-2 (Dao 2023) and -3 (Shah et al. 2024), their tiles; Little's law; constants fitted.
    Validity: forward on NVIDIA GPUs from Ampere on in 16 and 8 bit; windows, grouped and latent heads. Other dtypes
    and older GPUs by the same law at their own peak rates, on the ordinary pipelines where there are no matrix units.
    """
    s = _Scores(batch, device, conditions, physics)
    blocks = _AttentionBlocks.of(s)
    score_cycles = _score_cycles(s, blocks)
    parts = _pick_parts(s, blocks, score_cycles)
    compute_s, l2_s, serial_s = _shared_times(s, blocks, score_cycles, parts)
    scores = blocks.count * blocks.rows * blocks.tiles * blocks.keys
    return Times(
        compute_s=compute_s,
        dram_s=s.cold_bytes / sustained_dram_bytes_per_s(device, physics),
        l2_s=l2_s,
        serial_s=serial_s,
        fixed_overhead_s=start_s(device, conditions, physics) + _entry_s(s) + _auxiliary_kernel_s(s, parts),
        switching_j=s.flops * scores * product_energy_j(s.product, batch["dtype"], device, physics),
        dram_bytes=s.cold_bytes,
        overlap=physics.cuda_cores.overlap,
    )


def _score_cycles(s: _Scores, blocks: _AttentionBlocks) -> np.ndarray:
    """Cycles of an SM for one score."""
    law, traits, device = s.physics.attention, s.traits, s.device
    # Kernels for latent attention are compiled for its widths.
    widths = np.where(s.made | s.batch["shared_kv"], "", traits["head_widths"])
    narrow, flops = s.size < WIDE_BYTES, s.flops * _padding(s.batch["head_dim"], widths)
    share = np.where(narrow & (s.batch["op"] != "indexer"), law.narrow, 1.0)
    share = np.where(narrow & traits["promotes_sums"], share / law.promoted, share)
    reads = _reads_shared_memory(s, blocks)
    unit = MatrixUnit(device, s.physics)
    share = share * np.where(reads, 1.0, unit.synchronous_share(s.product))
    rate = unit.sustained(s.product) / device.sm_count * share
    products = flops * s.clock / rate
    # Matrix units that read shared memory do so beside their products.
    readers = np.where(reads, np.inf, np.minimum(blocks.rows, ROWS_OF_WARP))
    fetched = flops / 2.0 * s.size / (SHARED_BYTES_PER_CLOCK * readers)
    slow = (s.batch["op"] == "backward") & device.facts.reads_shared_memory
    longer = traits.constants("time_constant", law) * np.where(slow, law.backward, 1.0)
    return longer * (products + fetched + _softmax_cycles(s))


def _padding(head_dim: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Columns that are computed over those of a head: of the narrowest kernel of those ``widths`` that takes it."""
    padded = head_dim.astype(float)
    for listed in np.unique(widths):
        compiled = np.array([*map(float, str(listed).split()), np.inf])
        narrowest = compiled[np.searchsorted(compiled, head_dim)]
        padded = np.where((widths == listed) & np.isfinite(narrowest), narrowest, padded)
    return padded / head_dim


def _reads_shared_memory(s: _Scores, blocks: _AttentionBlocks) -> np.ndarray:
    """Whether products run on instructions that read shared memory by themselves: they take 64 rows and more."""
    able = s.device.facts.reads_shared_memory & ~s.decode & (blocks.rows >= HOPPER_ROWS)
    return s.asynchronous | (~s.traits["pipelined"] & able)


def _softmax_cycles(s: _Scores) -> np.ndarray:
    """Cycles of an SM for the softmax of a score, as far as nothing hides them; an indexer has no exponential."""
    law = s.physics.attention
    exponential = np.where(s.batch["op"] == "indexer", 0.0, 1.0 / s.device.facts.exponentials_per_clock)
    # Where nothing is under way meanwhile, nothing hides it.
    exposed = np.where(s.traits["pipelined"] | s.decode, law.exposed, 1.0)
    return exposed * (exponential + VECTOR_OPERATIONS / s.device.cuda_cores_per_sm)


def _shared_times(
    s: _Scores, blocks: _AttentionBlocks, score_cycles: np.ndarray, parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(arithmetic, L2, waiting) [s] of blocks that are cut into so many parts."""
    law, device = s.physics.attention, s.device
    tiles, longest, count = np.ceil(blocks.tiles / parts), np.ceil(blocks.longest / parts), blocks.count * parts
    tiles = np.where(parts > 1.0, tiles, blocks.tiles)
    tile_bytes = blocks.keys * s.width * s.cache_size
    tile_cycles = blocks.rows * blocks.keys * score_cycles + _widening_cycles(s) * blocks.keys * s.width
    share = count / device.sm_count
    # Tiles of scores alone wait for no tile before them.
    chain_cycles = np.where(s.batch["op"] == "indexer", 0.0, law.latency_cycles * longest)
    compute_s = (_busiest_tiles(s, share, tiles, longest) * tile_cycles + chain_cycles) / s.clock
    partial = np.where(parts > 1.0, PARTIAL_BYTES * s.result_elements * parts, 0.0)
    port = law.l2_share * device.sustained_l2_bytes_per_s / device.sm_count
    # A pair of blocks that share a query's heads share the keys that it chose (PTX ISA, tcgen05, cta_group::2).
    sharing = np.where(s.chosen & s.asynchronous & ~s.decode, device.facts.matrix_rows / HOPPER_ROWS, 1.0)
    moved = count * tiles * tile_bytes / sharing + s.query_bytes + 2.0 * s.result_elements + partial
    turns = rounds(share / np.where(blocks.small, law.resident_small, BLOCKS_OF_SM), 1, s.physics.cuda_cores.tail_share)
    under_way = law.stream_bytes_per_s / np.where(s.asynchronous, s.physics.matrix.step_asynchronous, 1.0)
    # What another block of the same heads has brought is in L2.
    first = np.minimum(s.key_value_bytes / (count * tiles * tile_bytes), 1.0)
    stream_s = tile_bytes / under_way * (1.0 - (1.0 - s.physics.matrix.step_hot) * (1.0 - first * (1.0 - s.hot)))
    waiting_s = (turns - np.minimum(turns, 1.0)) * law.chain_s + turns * tiles * stream_s
    alone = ~s.traits["pipelined"] & ~s.decode
    compute_s = compute_s + np.where(alone, _fetching_s(s, blocks, share), 0.0)
    return compute_s, moved / (port * np.minimum(count, device.sm_count)), np.where(alone, 0.0, waiting_s)


def _fetching_s(s: _Scores, blocks: _AttentionBlocks, share: np.ndarray) -> np.ndarray:
    """Time [s] that blocks without a pipeline wait for memory: for the page of every tile that they pass over and
    to agree on whether a window holds any of it, and then for keys and values one after the other."""
    # Blocks for narrow heads have half of the warps, so that two share an SM.
    share = share / np.where(s.batch["head_dim"] <= NARROW_HEAD, BLOCKS_OF_SM, 1.0)
    trips = PASSING_TRIPS * _busiest_tiles(s, share, *blocks.passed)
    return (trips + _busiest_tiles(s, share, blocks.tiles, blocks.longest)) * s.physics.stream.latency_s


def _busiest_tiles(s: _Scores, share: np.ndarray, tiles: np.ndarray, longest: np.ndarray) -> np.ndarray:
    """Tiles that the busiest SM works through, of ``share`` blocks an SM, and what it spends before them; blocks
    that fetch their work take the longest rows of queries first."""
    law = s.physics.attention
    prologue = np.where(s.asynchronous, law.prologue_asynchronous, law.prologue_tiles)
    in_order = rounds(share, 1, s.physics.cuda_cores.tail_share) * (tiles + prologue) + longest - tiles
    longest_first = np.maximum(share * (tiles + prologue), longest + prologue)
    return np.where(s.asynchronous & (longest > tiles), longest_first, in_order)


def _widening_cycles(s: _Scores) -> np.ndarray:
    """Cycles of an SM for an element of a narrower cache that 16-bit arithmetic works on: what its schedulers issue
    counts, since integer lanes and pairs of 16-bit values share the conversion whatever the lanes for float32.
    """
    law, floats = s.physics.attention, among(s.batch["kv_dtype"], FLOAT_CACHES)
    operations = np.where(floats, law.widening, law.widening_integers)
    return np.where(s.cache_size < s.size, operations / issue_slots(s.device), 0.0)


def _entry_s(s: _Scores) -> np.ndarray:
    """What the first blocks wait for before they begin [s]."""
    law = s.physics.attention
    return law.entry_s * np.where(s.asynchronous & (s.batch["op"] != "indexer"), law.entry_asynchronous, 1.0)


def _pick_parts(s: _Scores, blocks: _AttentionBlocks, score_cycles: np.ndarray) -> np.ndarray:
    """Parts of least time: 1, or as many as let all blocks run at once, one or two on an SM."""
    best = np.ones(len(s.batch))
    least = _unlimited_s(s, blocks, score_cycles, best)
    most = np.minimum(blocks.tiles, s.traits["most_parts"])
    for filled in (1.0, 2.0):
        parts = np.clip(np.floor(filled * s.device.sm_count / blocks.count), 1.0, most)
        parts = np.where(blocks.divisible, np.floor(parts), 1.0)
        time_s = _unlimited_s(s, blocks, score_cycles, parts) + np.where(
            parts > 1.0, further_kernel_s(s.device, s.physics), 0.0
        )
        better = time_s < least
        best, least = np.where(better, parts, best), np.where(better, time_s, least)
    return best


def _unlimited_s(s: _Scores, blocks: _AttentionBlocks, score_cycles: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Time at full clock [s], with the usual ``overlap`` of four: near enough to choose by."""
    compute_s, l2_s, serial_s = _shared_times(s, blocks, score_cycles, parts)
    dram_s = s.cold_bytes / sustained_dram_bytes_per_s(s.device, s.physics)
    return np.sqrt(np.sqrt(sum(np.square(np.square(time_s)) for time_s in (compute_s, l2_s, serial_s, dram_s))))


def _auxiliary_kernel_s(s: _Scores, parts: np.ndarray) -> np.ndarray:
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
    before = np.maximum(traits["cache_kernels"] - traits["overlapped_start"], 0.0)
    kernels = np.where(merged, 1.0, 0.0) + before + np.where(context, law.context_kernels, 0.0)
    kernels += np.where(cast, traits["cast_kernels"], 0.0) + SWAP_KERNELS * _swapped(s)
    moved = np.where(context, law.passes * (new + queries), np.where(traits["writes_cache"], COPIED * new, 0.0))
    moved += np.where(cast & (traits["cast_kernels"] > 0.0), NARROWING_BYTES * s.query_bytes, 0.0)
    summed = np.where((b["op"] == "backward") & (s.stored_size == WIDE_BYTES), 1.0, 0.0)
    kernels, moved = kernels + SUM_KERNELS * summed, moved + SUM_BYTES * s.query_bytes * summed
    ports = law.l2_share * s.device.sustained_l2_bytes_per_s
    each = (1.0 - s.hot) / sustained_dram_bytes_per_s(s.device, s.physics) + s.hot / ports
    return kernels * further_kernel_s(s.device, s.physics) + moved * each


def _swapped(s: _Scores) -> np.ndarray:
    """Whether heads of a group have to be brought together by kernels of their own."""
    b = s.batch
    grouped = (b["heads"] > b["kv_heads"]) & (b["kv_heads"] > 1) & (b["batch"] > 1)
    return s.traits["swaps_heads"] & s.decode & grouped & (b["window"] == 0)


def attention_shape(
    batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics
) -> dict[str, np.ndarray]:
    """Dimensionless inputs of a correction: how full blocks, rounds and tiles are, how large the problem is, and
    what was cached."""
    s = _Scores(batch, device, conditions, physics)
    blocks = _AttentionBlocks.of(s)
    parts = _pick_parts(s, blocks, _score_cycles(s, blocks))
    share = blocks.count * parts / device.sm_count
    scores = batch["batch"] * batch["heads"] * attention_pairs(s.batch)
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
        "hot_share": s.hot,
    }
