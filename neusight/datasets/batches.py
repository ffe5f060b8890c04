"""Rows as kernels: frames of measurements to the columns that laws, tilings and predictors compute on.

A collected row carries the fields of its kernel. Tables of other origins have a shape, from which the fields follow.
What the columns of serving engines mean is told beside the data: ``kv_len`` of a generation are tokens cached before
the new ones, sizes of a layer of experts are the whole model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.columns import coded, counts, counts_or, dtypes, flags_or, strings, strings_or
from neusight.datasets.load import collected, kernel_columns
from neusight.datasets.schema import TABLE_OF_OP
from neusight.errors import DataError
from neusight.kernels import DTYPE_BYTES, KERNEL_CLASSES, KernelBatch
from neusight.kernels.families import LATER_FIELDS
from neusight.kernels.operators import operator, operator_bytes

if TYPE_CHECKING:
    import pandas as pd

SCALINGS = {
    **{"fp8": "tensor", "fp8_static": "tensor", "fp8_block": "block"},
    **{"sq": "row", "fp8_row": "row", "int8_row": "row", "w4a8_mxfp4_mxfp8": "block", "nvfp4": "micro"},
}
"""How the operands of data sets' dtypes carry their scales; see ``Gemm``."""
WEIGHTS = {"int8_wo": "int8", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4"}
"""Dtypes of weights that are narrower than the arithmetic."""
_QUANTISED = ("fp8", "fp8_block", "nvfp4")
"""Whose activations arrive in 16 bits, where an engine timed its whole linear layer. SmoothQuant's rows are TensorRT's
time of the product alone."""
_BARE = ("deepgemm", "aiter")
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


UNGATED = ((128, 6, 1856), (512, 22, 2688), (512, 22, 5120))
"""Experts, experts of a token and width of layers without a gate: of Nemotron 3 (squared ReLU, ``mlp_hidden_act`` of
their config.json)."""
GATED_ALL = {"sglang": ("0.5.10",), "vllm": ("0.14.0",)}
"""Versions whose benchmarks gave every layer a gate (aiconfigurator, ``collector``, before it knew of such layers)."""


def _gated(rows: pd.DataFrame, shape: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether layers of experts have a gate: by the kernel's name, else by the model whose layer it is."""
    codes, kernels = coded(strings_or(rows, "kernel"))
    named = np.array(["nongated" in name for name in kernels])[codes]
    engine, version = strings_or(rows, "framework"), strings_or(rows, "version")
    old = np.logical_or.reduce([(engine == name) & np.isin(version, those) for name, those in GATED_ALL.items()])
    layers = zip(*(shape[name].tolist() for name in ("num_experts", "top_k", "ffn_size")), strict=True)
    return ~(named | np.array([layer in UNGATED for layer in layers], dtype=bool) & ~old)


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
    scheme = schemes(rows)
    return KernelBatch.from_columns(
        "moe",
        tokens=shape["num_tokens"],
        hidden=shape["hidden_size"],
        ffn=shape["ffn_size"] // shape["moe_tp_size"],
        experts=shape["num_experts"] // shape["moe_ep_size"],
        all_experts=shape["num_experts"],
        top_k=shape["top_k"],
        gated=_gated(rows, shape),
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


REDIRECTED_GPUS = ("l40s",)
"""GPUs whose collectives were measured in a machine that redirects them (assumption: among eight boards 4 % of PCIe are
left, where eight of another machine keep a third; NCCL's guide names access control services as the cause of such)."""
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
        redirected=np.isin(strings_or(rows, "gpu"), REDIRECTED_GPUS),
    )


def to_batches(frame: pd.DataFrame) -> list[tuple[KernelBatch, np.ndarray]]:
    """Rows as kernels, each batch with the positions (int64) that its rows have in ``frame``.

    One batch a family; rows of its collected table and of another of that name are two. Every row lands in exactly one
    batch. Kernels depend on op, shape and dtype alone, never on what was observed.

    Raises:
        DataError: an unknown family, an empty or non-positive shape.
    """
    families = frame["family"] if "family" in frame else frame["op"].map({o: t.name for o, t in TABLE_OF_OP.items()})
    own = collected(frame)
    codes, names = coded(families)
    batches = []
    for code, family in enumerate(names):
        for stated, make in ((True, _as_stated), (False, _from_shape)):
            positions = np.flatnonzero((codes == code) & (own == stated))
            if len(positions):
                batches.append((make(family, frame.iloc[positions]), positions))
    return batches


def single_kernels(frame: pd.DataFrame) -> np.ndarray:
    """The rows that are kernels of one device, by their family, as a mask: all but collectives."""
    return ~frame["family"].isin(COLLECTIVES).to_numpy(dtype=bool)


def _as_stated(family: str, rows: pd.DataFrame) -> KernelBatch:
    """Collected rows: the fields of the kernel as they are, and where later ones are missing their defaults."""
    usual: dict[str, Any] = {f.name: f.default for f in fields(KERNEL_CLASSES[family]) if f.name in LATER_FIELDS}
    of = {kind: [c.name for c in kernel_columns(family) if c.kind == kind] for kind in ("integer", "string", "boolean")}
    counted = counts(rows, *(name for name in of["integer"] if name not in usual))
    counted |= {name: counts_or(rows, name, usual[name]) for name in of["integer"] if name in usual}
    words = {name: strings_or(rows, name) if name in usual else strings(rows[name]) for name in of["string"]}
    flags = {name: flags_or(rows, name, False) for name in of["boolean"]}
    return KernelBatch.from_columns(family, **{**words, "dtype": dtypes(rows)}, **flags, **counted)


def _from_shape(family: str, rows: pd.DataFrame) -> KernelBatch:
    if family not in _MAKERS:
        raise DataError(f"rows of '{family}' are no kernels: keep families {', '.join(_MAKERS)}")
    return _MAKERS[family](rows)


def _gemm(rows: pd.DataFrame) -> KernelBatch:
    """Float32 ``linear`` rows are torch's with bias; those of serving engines have none unless they say so."""
    op, dtype = strings(rows["op"]), dtypes(rows)
    linear = op == "linear"
    return KernelBatch.from_columns(
        "gemm",
        op=op,
        batch=np.where(linear, 1, counts_or(rows, "batch", 1)),
        layout=np.where(linear, "tn", "nn"),
        bias=flags_or(rows, "bias", linear & (dtype == "float32")),
        dtype=dtype,
        **schemes(rows),
        **counts(rows, "m", "n", "k"),
    )


def _elementwise(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    stated = _stated("elementwise", rows, **shape)
    return KernelBatch.from_columns("elementwise", elements=shape["rows"] * shape["cols"], **stated)


def _row_reduction(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    return KernelBatch.from_columns("row_reduction", **_stated("row_reduction", rows, **shape), **shape)


def _memory(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "rows", "cols")
    stated = _stated("memory", rows, **shape)
    own = {name: stated[name] for name in ("op", "dtype", "read_bytes", "write_bytes")}
    return KernelBatch.from_columns("memory", elements=shape["rows"] * shape["cols"], **own)


def _stated(family: str, frame: pd.DataFrame, rows: np.ndarray, cols: np.ndarray) -> dict[str, np.ndarray]:
    """Names, bytes, FLOP and passes of rows, by the table of operators: a lookup for each distinct name and dtype."""
    op, dtype, elements = strings(frame["op"]), dtypes(frame), rows * cols
    work = {name: np.empty(len(frame), np.int64) for name in ("read_bytes", "write_bytes", "flops", "passes")}
    for name, width in {(str(o), str(d)) for o, d in zip(op, dtype, strict=True)}:
        here, form = (op == name) & (dtype == width), operator(family, name)
        extents = (elements[here], rows[here], cols[here])
        work["read_bytes"][here], work["write_bytes"][here] = operator_bytes(form, extents, DTYPE_BYTES[width])
        work["flops"][here], work["passes"][here] = form.flops * elements[here], form.passes
    return {"op": op, "dtype": dtype, **work}


def _conv2d(rows: pd.DataFrame) -> KernelBatch:
    shape = counts(rows, "batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
    kernel, image = shape.pop("kernel_size"), shape.pop("input_size")
    square = {"kernel_height": kernel, "kernel_width": kernel, "height": image, "width": image}
    return KernelBatch.from_columns("conv2d", op="forward", dtype=dtypes(rows), **square, **shape)


COLLECTIVES = ("nccl", "collectives", "allreduce")
"""Tables of what several devices do together."""
_MAKERS: dict[str, Callable[[Any], KernelBatch]] = {
    "gemm": _gemm,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "conv2d": _conv2d,
    "memory": _memory,
    "attention_context": attention,
    "attention_generation": attention,
    "attention_mla": latent_attention,
    "attention_sparse": latent_attention,
    "grouped_gemm": grouped_gemm,
    "moe": experts,
    **dict.fromkeys(COLLECTIVES, collective),
}
