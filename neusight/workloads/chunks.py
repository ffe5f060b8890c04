"""Linear recurrences over tokens in chunks, as products: how wide and deep those of one chunk and head are together."""

from __future__ import annotations

DELTA_CHUNK = 64
"""Tokens of a chunk of gated DeltaNet (flash-linear-attention, ``chunk_gated_delta_rule``)."""
SCAN_CHUNK = 256
"""Tokens of a chunk of Mamba-2 (mamba_ssm's default; Nemotron-H states 128)."""
SCAN_FLOPS = 9
"""FLOP of an element of the state in a step: exp(step x decay), its product with the state, step x input x input matrix
and their sum, and the output with the sum over the state (Gu and Dao 2023, algorithm 2)."""
Product = tuple[int, int, int]
"""m, n and k: tokens of a chunk, values of a head, and the depth at which one product has the FLOP of all."""


def delta_rule_product(key_dim: int, value_dim: int) -> Product:
    """The products of a chunk of the gated delta rule.

    Yang et al. 2025, section 3.3: a chunk of C tokens multiplies C² (3 d_k + 2 d_v) + 3 C d_k d_v times a head: two
    products of keys, two through the triangular inverse, one with the scores, and three with the state.
    """
    depth = (DELTA_CHUNK * (3 * key_dim + 2 * value_dim) + 3 * key_dim * value_dim) / value_dim
    return DELTA_CHUNK, value_dim, round(depth)


def scan_product(head_dim: int, state: int, grouped_share: float, chunk: int = SCAN_CHUNK) -> Product:
    """The products of a chunk of Mamba-2's scan.

    Dao and Gu 2024, section 6: a chunk of C tokens multiplies C² p + 2 C p s times a head of p values with a state of
    s, and C² s times a group; ``grouped_share`` is the width of all groups' states over that of all heads' values.
    """
    return chunk, head_dim, round(chunk + 2 * state + chunk * grouped_share)
