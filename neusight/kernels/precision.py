"""Precisions: the dtypes of kernels with their bytes, the names by which people know them, and what a model runs in."""

from __future__ import annotations

from neusight.errors import CoverageError, nearest
from neusight.quick_dataclasses import dataclass

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "int64": 8,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element as it lies in memory (definition). A tf32 product reads and writes float32."""

GGUF_BITS = {
    "q2_k": 3.35, "q3_k_s": 3.50, "q3_k_m": 3.91, "q3_k_l": 4.27, "q4_0": 4.50, "q4_1": 5.00, "q4_k_s": 4.58,
    "q4_k_m": 4.85, "q5_0": 5.50, "q5_1": 6.00, "q5_k_s": 5.54, "q5_k_m": 5.69, "q6_k": 6.59, "q8_0": 8.50,
}  # fmt: skip
"""Bits of a weight with its scales in files of llama.cpp, mean over a model (cited:
``examples/quantize/README.md``)."""
EXL2_BITS = {f"exl2_{bits:g}": bits for bits in (2.0, 2.4, 2.5, 3.0, 3.5, 4.0, 4.25, 4.5, 4.65, 5.0, 6.0, 6.5, 8.0)}
"""The same in files of ExLlamaV2, which are named by them (definition)."""

STORED_BYTES: dict[str, float] = {
    **DTYPE_BYTES,
    "float4": 0.5,
    "int4": 0.5,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "nf4": 0.5 + 4 / 64,
    "nf4_double": 0.5 + 1 / 64,
    "fp6": 0.75,
    **{f"uint{bits}": bits / 8 for bits in range(1, 8)},
    **{name: bits / 8 for name, bits in (GGUF_BITS | EXL2_BITS).items()},
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **{"int16": 2, "uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4, "complex64": 8, "complex128": 16},
}
"""The same, with those that tensors have beside: a kernel moves them, and of them computes products in float4 alone,
whose scales ``Gemm.scaling`` tells. Two int4 values lie in a byte; of 4-bit floats 32 values (cited: mxfp4, OCP
Microscaling Formats 1.0) or 16 (nvfp4) share one more byte, of NF4 64 a float32, or a byte once those are quantised too
(Dettmers et al. 2023, QLoRA, section 3)."""

PRODUCT_DTYPES = (*DTYPE_BYTES, "float4")
"""Dtypes that a kernel may compute in."""
CACHE_DTYPES = ("float32", "float16", "bfloat16", "float8", "int8", "int4", "nvfp4", "q4_0", "q5_0", "q5_1", "q8_0")
"""Dtypes of cached keys and values: of 4 bits vLLM's and LMDeploy's int4, TensorRT-LLM's NVFP4, llama.cpp's and
ExLlamaV2's blocks with scales."""

ALIASES: dict[str, str] = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "fp4": "float4",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
    "e4m3": "float8",
    "e5m2": "float8",
    "i8": "int8",
}
"""What people, configurations and PyTorch call them."""


def stored_bytes(dtype: str) -> float:
    """Bytes of one element of a dtype as it lies in memory.

    Raises:
        CoverageError: a dtype without a size.
    """
    if dtype not in STORED_BYTES:
        hint = nearest(dtype[:40], STORED_BYTES)
        raise CoverageError(f"unknown dtype '{dtype[:40]}'{hint}: one of {', '.join(STORED_BYTES)}")
    return STORED_BYTES[dtype]


def dtype_named(name: str, known: tuple[str, ...] = PRODUCT_DTYPES) -> str:
    """The dtype that a name stands for: ``bf16``, ``torch.bfloat16`` and ``BFloat16`` are ``bfloat16``.

    Args:
        name: of a dtype or one of its aliases.
        known: dtypes of which it is one.

    Raises:
        CoverageError: no dtype has this name.
    """
    plain = name.strip().lower().removeprefix("torch.")
    plain = ALIASES.get(plain, plain)
    if plain not in known:
        hint = nearest(plain, (*known, *ALIASES))
        raise CoverageError(f"unknown dtype '{name[:40]}'{hint}: one of {', '.join(known)}")
    return plain


MIXED = {
    "amp": "float16",
    "amp_float16": "float16",
    "amp_fp16": "float16",
    "amp_bfloat16": "bfloat16",
    "amp_bf16": "bfloat16",
}
"""Names of float32 weights under ``torch.autocast``, with the dtype that it casts to; ``amp`` is what PyTorch takes on
CUDA unless told."""


STRICT = ("float32_ieee", "fp32_ieee", "ieee")
"""Names of float32 whose products and convolutions are in float32 too, as PyTorch 2.9 calls it
(``torch.backends.cudnn.conv.fp32_precision = "ieee"``)."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes in which a model's numbers are stored and computed: keys of ``DTYPE_BYTES``.

    ``accumulate`` is that of products' sums, ``kv_cache`` that of cached keys and values. ``autocast`` is the dtype
    that ``torch.autocast`` casts operands of products to while the model runs forward, '' without it. ``products`` and
    ``convolutions`` are ``tf32`` where those of float32 run so on devices that have it, '' where they run in the dtype
    of their operands. PyTorch's defaults are ``torch.backends.cudnn.allow_tf32 = True`` for convolutions and
    ``torch.backends.cuda.matmul.allow_tf32 = False`` for products.
    """

    weights: str = "float32"
    activations: str = "float32"
    accumulate: str = "float32"
    kv_cache: str = "float32"
    autocast: str = ""
    products: str = ""
    convolutions: str = "tf32"

    @classmethod
    def named(cls, name: str) -> Precision:
        """Weights, activations and cache all in one dtype, by any of its names; sums are kept in float32 at least.
        ``float32`` is what PyTorch makes of it: products in float32, convolutions in TF32; ``float32_ieee`` has both
        in float32, ``tf32`` both in TF32; ``amp`` and ``amp_bf16`` are float32 weights under autocast.

        Raises:
            CoverageError: no dtype has this name.
        """
        plain = name.strip().lower().removeprefix("torch.")
        if plain in STRICT:
            return cls(convolutions="")
        if plain in MIXED:
            return cls(autocast=MIXED[plain])
        if (dtype := dtype_named(name)) == "tf32":
            return cls(products="tf32")
        return cls(
            weights=dtype,
            activations=dtype,
            accumulate="float64" if dtype == "float64" else "float32",
            kv_cache=dtype,
        )

    @property
    def of_products(self) -> str:
        """The dtype that most of a step's products run in."""
        return self.autocast or self.products or self.activations

    def __str__(self) -> str:
        if self.autocast:
            return f"amp_{self.autocast}"
        parts = dict.fromkeys((self.weights, self.activations, self.kv_cache))
        strict = self.weights == "float32" and not self.convolutions
        return self.products or (STRICT[0] if strict else "/".join(parts))


OWN_PRECISION = Precision(weights="", activations="", kv_cache="")
"""Precision of a model before it is known: that of a module's parameters, or the one recorded in its file."""
