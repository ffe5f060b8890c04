"""Blocks of fused attention: tiles of queries that walk over tiles of keys, as libraries cut them."""

from __future__ import annotations

import numpy as np

from neusight.executors.gpu.expected.attention_scores import HOPPER_ROWS, Scores
from neusight.kernels import KernelBatch
from neusight.kernels.work import attention_keys, attention_pairs
from neusight.quick_dataclasses import dataclass

NARROW_HEAD = 64
"""Width of a head up to which blocks have room for more queries (cited: FlashAttention-3, tile_size.h)."""
LARGE_SHARED_BYTES = 128.0 * 1024
"""Shared memory of an SM that holds two blocks of 128 queries with keys and values (cited: FlashAttention-2,
flash_fwd_launch_template.h, ``is_sm8x``: 100 KB an SM against 164)."""
TILE_ELEMENTS = 16384.0
"""Of a tile of keys, roughly, in kernels for long rows: 256 keys of 64, 128 of 128, 64 of 256 (cited: FlashAttention-2,
run_mha_fwd_splitkv_dispatch)."""


@dataclass(frozen=True)
class AttentionBlocks:
    """Cut of scores: ``count`` blocks of ``rows``, which are heads of ``queries`` tokens, each over ``tiles`` tiles of
    ``keys``, the longest over ``longest``; of ``small`` ones many share an SM, ``divisible`` ones may be cut along the
    keys into as many parts as they have tiles.
    """

    rows: np.ndarray
    keys: np.ndarray
    count: np.ndarray
    tiles: np.ndarray
    longest: np.ndarray
    queries: np.ndarray
    small: np.ndarray
    divisible: np.ndarray
    launched_parts: np.ndarray

    @classmethod
    def of(cls, s: Scores) -> AttentionBlocks:
        """Tiles as libraries choose them by width of a head and by rows at hand."""
        b, traits = s.batch, s.traits
        heads, kv_heads = b["heads"].astype(float), b["kv_heads"].astype(float)
        group, windowed = heads / kv_heads, b["window"] > 0
        packed = s.decode | s.chosen | (traits["packs_prefill"] & (traits["packs_tall"] | ~s.tall))
        packed &= (~windowed | traits["packs_windows"]) & (b["shared_kv"] | (group <= traits["most_packed_group"]))
        together = np.where(packed, group, 1.0)
        # FlashMLA, flash_mla_sparse_fwd: heads of a query fill the rows of matrix units.
        full = np.ceil(together / s.device.facts.matrix_rows) * s.device.facts.matrix_rows
        at_hand = np.where(s.chosen, np.where(s.decode, together, full), s.q * together)
        rows, keys = _tile_rows(s, at_hand), _tile_keys(s)
        down = np.where(s.chosen, s.q, 1.0) * np.ceil(at_hand / rows)
        queries = np.where(s.chosen, 1.0, np.maximum(1.0, np.floor(rows / together)))
        tiles, longest = key_tiles(b, queries, keys)
        light = s.narrowed | ~packed | (group == 1.0)
        small, cuts = traits["small_decode_blocks"], traits["cuts_prefill"]
        short = (at_hand <= 2 * s.device.facts.matrix_rows) & (cuts == "short")
        cut = short | ((cuts == "synchronous") & ~s.asynchronous)
        sms = 2.0 ** np.ceil(np.log2(s.device.sm_count))
        return cls(
            rows=rows,
            keys=keys,
            count=b["batch"] * np.where(packed, kv_heads, heads) * down,
            tiles=tiles,
            longest=longest,
            queries=queries,
            small=s.decode & ((small == "always") | ((small == "light") & light)),
            divisible=np.where(s.decode, ~s.whole, cut & ~s.sparse),
            launched_parts=np.where(s.decode & b["shared_kv"] & traits["latent_grid_by_sms"], sms, 0.0),
        )


def _tile_rows(s: Scores, at_hand: np.ndarray) -> np.ndarray:
    """Rows of a block: the fewest that a kernel is compiled for and that hold what is at hand."""
    traits, head = s.traits, s.batch["head_dim"]
    most = traits["most_rows"]
    if s.device.shared_memory_per_sm_bytes < LARGE_SHARED_BYTES:
        most = np.minimum(most, traits["small_sm_rows"])
    taller = np.where(s.asynchronous & ~s.sparse, s.device.facts.matrix_rows / HOPPER_ROWS, 1.0)
    most = np.minimum(most * taller, np.where(s.decode, traits["most_decode_rows"], np.inf))
    most = np.where(s.encoder & (traits["encoder_rows"] > 0.0), traits["encoder_rows"], most)
    least = np.select([at_hand <= 16, at_hand <= 32, at_hand <= 64, at_hand <= 128], [16.0, 32.0, 64.0, 128.0], most)
    rows = np.where(((traits["fits_rows"] & ~s.chosen) | s.decode) & ~s.whole, np.minimum(least, most), most)
    return np.where(head > traits["wide_head"], np.minimum(rows, traits["wide_head_rows"] * taller), rows)


def _tile_keys(s: Scores) -> np.ndarray:
    """Keys of a tile."""
    traits, widest = s.traits, s.traits["widest_key_tile"]
    least = np.where(s.device.shared_memory_per_sm_bytes < LARGE_SHARED_BYTES, traits["small_sm_least_keys"], 64.0)
    wide = np.clip(2.0 ** np.floor(np.log2(TILE_ELEMENTS / s.batch["head_dim"])), least, 256.0)
    able = (traits["wide_tiles"] == "always") | (~s.decode & s.asynchronous)
    return np.where(able & (widest > 0.0), np.minimum(wide, widest), traits["key_tile"])


def key_tiles(b: KernelBatch, queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tiles of keys that a block walks over, on average; of the longest). Queries of a block see, taken together,
    the keys of their mean and of half of the block's length, or all of it where a window moves along."""
    touched, q = attention_keys(b), b["q_len"].astype(float)
    kv, window = b["kv_len"].astype(float), b["window"]
    apart = np.where(window > 0, queries - 1.0, (queries - 1.0) / 2.0)
    alone = q <= queries
    union = np.where(alone, touched, np.minimum(attention_pairs(b) / q + apart, touched))
    tiles = np.where(alone, np.ceil(union / keys), np.minimum(union / keys + 0.5, np.ceil(kv / keys)))
    most = np.select([b["selected"] > 0, window > 0], [np.minimum(b["selected"], kv), np.minimum(window, kv)], kv)
    widest = np.minimum(np.where(b["selected"] > 0, most, touched), most + np.where(window > 0, queries, 0.0))
    longest = np.where(alone, tiles, np.ceil(widest / keys))
    return np.maximum(tiles, 1.0), np.maximum(np.maximum(longest, tiles), 1.0)
