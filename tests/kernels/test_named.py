"""Kernels as people ask for them: what may be left out, and what must be given."""

from typing import Any

import pytest

from neusight.errors import CoverageError
from neusight.kernels.named import kernel_named


@pytest.mark.parametrize(
    ("name", "given", "defaults"),
    [
        ("attention", {"batch": 1, "heads": 32, "q_len": 128, "kv_len": 128, "head_dim": 64}, {"kv_heads": 32}),
        (
            "attention",
            {"heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 9, "head_dim": 64},
            {"batch": 1, "kv_heads": 8},
        ),
        ("attention", {"heads": 4, "q_len": 128, "head_dim": 64}, {"kv_len": 128, "kv_heads": 4}),
        (
            "conv2d",
            {"in_channels": 3, "out_channels": 8, "size": 9, "kernel": 3},
            {"batch": 1, "width": 9, "groups": 1},
        ),
        ("gemm", {"m": 1, "n": 2, "k": 3}, {"batch": 1, "layout": "tn"}),
        ("moe", {"tokens": 8, "hidden": 8, "ffn": 8, "experts": 4, "top_k": 2}, {"all_experts": 4}),
        ("send_recv", {"bytes": 1024}, {"ranks": 2}),
    ],
)
def test_requested_fills_obvious_fields(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    batch = kernel_named(name, given)
    assert {field: batch[field][0] for field in defaults} == defaults


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("attention", {"heads": 32, "head_dim": 64}, "needs q_len:"),
        ("attention", {"q_len": 32, "head_dim": 64}, "needs heads:"),
        ("conv2d", {"in_channels": 3, "size": 9, "kernel": 3}, "needs out_channels"),
        ("moe", {"tokens": 8, "hidden": 8, "ffn": 8, "experts": 4}, "needs top_k:"),
    ],
)
def test_requested_names_missing_fields(name: str, given: dict[str, Any], missing: str) -> None:
    with pytest.raises(CoverageError, match=missing):
        kernel_named(name, given)
