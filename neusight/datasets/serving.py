"""Rows of what serving engines run, as kernels: products of narrow dtypes, attention over a cache, experts.

What the columns mean is told beside the data: ``kv_len`` of a generation are tokens cached before the new ones, sizes
of a layer of experts are the whole model's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets.columns import coded, counts, counts_or, dtypes, flags_or, strings, strings_or
from neusight.errors import DataError
from neusight.kernels import KernelBatch

if TYPE_CHECKING:
    import pandas as pd

SCALINGS = {
    **{"fp8": "tensor", "fp8_static": "tensor", "fp8_block": "block"},
    **{"sq": "row", "w4a8_mxfp4_mxfp8": "block"},
}
"""How the operands of data sets' dtypes carry their scales; see ``Gemm``."""
WEIGHTS = {"int8_wo": "int8", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4"}
"""Dtypes of weights that are narrower than the arithmetic."""
_QUANTISED = ("fp8", "fp8_block")
"""Whose activations arrive in 16 bits, where an engine timed its whole linear layer. SmoothQuant's rows are TensorRT's
time of the product alone."""
_BARE = ("deepgemm",)
"""Libraries that are given what is quantised already."""


def schemes(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """``weight_dtype``, ``scaling`` and ``quantised`` of products, by the name of their dtype and by who ran them.

    Frontier's 8-bit rows have a scale a token.
    """
    codes, names = coded(rows["dtype"])
    framework = strings_or(rows, "framework")
    scaling = np.array([SCALINGS.get(n, "") for n in names])[codes]
    return {
        "weight_dtype": np.array([WEIGHTS.get(n, "") for n in names])[codes],
        "scaling": np.where((scaling == "tensor") & (framework == "frontier"), "row", scaling),
        "quantised": np.array([n in _QUANTISED for n in names])[codes] & ~np.isin(framework, _BARE),
    }


def attention(rows: pd.DataFrame) -> KernelBatch:
    """Context: new tokens, causal over themselves and a prefix. Generation: one query over the cached tokens and
    itself.
    """
    shape = counts(rows, "batch", "num_heads", "num_kv_heads", "head_dim", "window")
    if (rows["family"] == "attention_context").all():
        q_len = counts(rows, "seq_len")["seq_len"]
        kv_len = q_len + counts_or(rows, "prefix_len", 0)
    else:
        q_len, kv_len = np.ones(len(rows), np.int64), counts(rows, "kv_len")["kv_len"] + 1
    return KernelBatch.from_columns(
        "attention",
        batch=shape["batch"],
        heads=shape["num_heads"],
        kv_heads=shape["num_kv_heads"],
        q_len=q_len,
        kv_len=kv_len,
        head_dim=shape["head_dim"],
        window=shape["window"],
        causal=True,
        shared_kv=flags_or(rows, "shared_kv", False),
        **_cached(rows),
    )


def _cached(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Dtypes of arithmetic and cache."""
    dtype, cache = dtypes(rows), dtypes(rows, "kv_cache_dtype")
    return {"dtype": dtype, "kv_dtype": np.where(cache == dtype, "", cache)}


LATENT_DIM = 576
"""Width of a latent key of multi-head latent attention, which all heads share: 512 and 64 of rope (DeepSeek-V2)."""


def latent_attention(rows: pd.DataFrame) -> KernelBatch:
    """Multi-head latent attention, whole or sparse: over its compressed cache one key for all heads, whose first
    ``v_dim`` are the value; in a prefill with keys of each head as usual. An indexer has keys alone, one for all heads.
    """
    shape = counts(rows, "batch", "q_len", "kv_len", "num_heads", "qk_dim", "v_dim")
    indexer = strings(rows["op"]) == "indexer_logits"
    latent = (shape["qk_dim"] == LATENT_DIM) & ~indexer
    cached = strings(rows["phase"]) == "generation"
    return KernelBatch.from_columns(
        "attention",
        op=np.where(indexer, "indexer", "forward"),
        batch=shape["batch"],
        heads=shape["num_heads"],
        kv_heads=np.where(latent | indexer, 1, shape["num_heads"]),
        q_len=shape["q_len"],
        kv_len=shape["kv_len"] + np.where(cached, shape["q_len"], 0),
        head_dim=shape["qk_dim"],
        value_dim=np.where(indexer, 0, shape["v_dim"]),
        shared_kv=latent,
        selected=counts_or(rows, "top_k", 0),
        causal=True,
        **_cached(rows),
    )


def experts(rows: pd.DataFrame) -> KernelBatch:
    """One GPU's share: all tokens come, experts are split over ``moe_ep_size`` and their width over ``moe_tp_size``.

    Raises:
        DataError: sizes that do not divide.
    """
    shape = counts(rows, "hidden_size", "ffn_size", "top_k", "num_experts", "moe_tp_size", "moe_ep_size", "num_tokens")
    for whole, parts in (("ffn_size", "moe_tp_size"), ("num_experts", "moe_ep_size")):
        if (uneven := shape[whole] % shape[parts] != 0).any():
            row = int(uneven.argmax())
            fault = f"{parts} {shape[parts][row]} does not divide {whole} {shape[whole][row]}"
            raise DataError(f"row {rows.index[row]}: {fault}: fix or drop the row")
    codes, kernels = coded(strings_or(rows, "kernel"))
    scheme = schemes(rows)
    return KernelBatch.from_columns(
        "moe",
        tokens=shape["num_tokens"],
        hidden=shape["hidden_size"],
        ffn=shape["ffn_size"] // shape["moe_tp_size"],
        experts=shape["num_experts"] // shape["moe_ep_size"],
        all_experts=shape["num_experts"],
        top_k=shape["top_k"],
        gated=np.array(["nongated" not in name for name in kernels])[codes],
        distribution=strings(rows["distribution"]),
        dtype=dtypes(rows),
        weight_dtype=scheme["weight_dtype"],
        scaling=scheme["scaling"],
    )


UNEVEN = 0.3
"""DeepGEMM's benchmarks draw the rows of a group between 0.7 and 1.3 of what is planned (``tests/generators.py``)."""


def grouped_gemm(rows: pd.DataFrame) -> KernelBatch:
    """A grouped product whose fullest group is the expected largest of random ones: of G numbers drawn evenly between
    1 - u and 1 + u of what is planned ``1 + u (G - 1) / (G + 1)``.
    """
    shape = counts(rows, "num_groups", "tokens", "n", "k")
    groups, even = shape["num_groups"], shape["tokens"] / shape["num_groups"]
    planned = counts_or(rows, "tokens_per_group", 0)
    largest = np.where(planned > 0, planned, even) * (1.0 + UNEVEN * (groups - 1) / (groups + 1))
    return KernelBatch.from_columns(
        "grouped_gemm",
        groups=groups,
        tokens=shape["tokens"],
        largest=np.clip(np.rint(largest), np.ceil(even), shape["tokens"]).astype(np.int64),
        n=shape["n"],
        k=shape["k"],
        dtype=dtypes(rows),
        scaling=schemes(rows)["scaling"],
    )


_COLLECTIVE_NAMES = {"alltoall": "all_to_all"}


def collective(rows: pd.DataFrame) -> KernelBatch:
    """What several devices do together; of engines' own tables an all-reduce of 16-bit activations."""
    shape = counts(rows, "num_gpus", "bytes")
    codes, names = coded(strings_or(rows, "collective", "all_reduce"))
    has_dtype = "dtype" in rows and (strings_or(rows, "dtype") != "").all()
    return KernelBatch.from_columns(
        "collective",
        op=np.array([_COLLECTIVE_NAMES.get(name, name) for name in names])[codes],
        ranks=shape["num_gpus"],
        per_node=counts_or(rows, "devices_per_node", 0),
        bytes=shape["bytes"],
        dtype=dtypes(rows) if has_dtype else "bfloat16",
    )
