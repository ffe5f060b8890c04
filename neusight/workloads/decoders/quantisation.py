"""Dtypes of a served model's weights, activations and cache: from its configuration, and from a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from neusight.errors import ModelError, shown
from neusight.kernels.precision import ALIASES, CACHE_DTYPES, Precision, dtype_named, stored_bytes
from neusight.kernels.schemes import EVERYWHERE, NONE, Quantisation, scheme_named, schemes_by_name
from neusight.quick_dataclasses import dataclass

_PLAIN = ("float16", "bfloat16", "float32")
"""Dtypes of activations that a precision's name may choose."""

_UNQUANTISED_BY_NAME = {
    "attention": ("self_attn", "attention", "q_proj", "qkv_proj", "q_a_proj", "o_proj"),
    "experts": ("experts", "block_sparse_moe"),
    "feed_forward": ("mlp", "gate_proj", "feed_forward", "gate_up_proj", "shared_experts", "shared_expert"),
}
"""Words in the names of modules that are left out of a scheme, by kind of projection."""
_LEFT_OUT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude", "exclude_modules")
"""Keys that list these modules, of transformers, compressed-tensors and ModelOpt, fp8, Quark, TensorRT-LLM."""


def _named_activations(scheme: Quantisation) -> str:
    """Dtype of activations that a ``Precision`` names with a scheme, none where the weights tell the arithmetic."""
    return "" if scheme.scaling == "micro" else scheme.activations


@dataclass(frozen=True, kw_only=True)
class ServingPrecision:
    """Precision of a served model: ``dtype`` of activations and of all that is not quantised, ``kv_cache`` that of
    cached keys and values, and the scheme of its projections.
    """

    dtype: str = "bfloat16"
    kv_cache: str = "bfloat16"
    quantisation: Quantisation = field(default_factory=Quantisation)

    @classmethod
    def of(cls, precision: ServingPrecision | Precision) -> ServingPrecision:
        """The same of a ``Precision``: 8-bit activations mean 8-bit products, narrower weights alone weight-only ones.

        Raises:
            ModelError: weights in a dtype that no scheme has.
        """
        if isinstance(precision, ServingPrecision):
            return precision
        narrow = stored_bytes(precision.activations) < 2
        dtype = "bfloat16" if narrow else precision.activations
        scheme = NONE
        if precision.weights != dtype:
            dtypes = (precision.weights, precision.activations if narrow else "")
            schemes = (s for s in schemes_by_name().values() if (s.weights, _named_activations(s)) == dtypes)
            scheme = next(schemes, NONE)
            if not scheme:
                choices = "float8, int8, int4, mxfp4, nvfp4"
                raise ModelError(f"weights in {precision.weights} under {dtype} are not served: one of {choices}")
        return cls(dtype=dtype, kv_cache=precision.kv_cache, quantisation=scheme)

    @classmethod
    def named(cls, name: str, *, own: Quantisation = NONE, dtype: str = "bfloat16", kv: str = "") -> ServingPrecision:
        """Precision by the name of a scheme; "" is the configuration's.

        Args:
            name: of ``schemes.toml``, a usual alias (awq, bf16, …), a dtype of activations, or "".
            own: what the configuration says.
            dtype: that of the model.
            kv: of the cache; "" for that of the model.

        Raises:
            ModelError: no such scheme. CoverageError: no such dtype.
        """
        chosen, word = scheme_named(name, chosen=own), name.strip().lower()
        dtype = plain if (plain := ALIASES.get(word, word)) in _PLAIN else dtype
        cache = dtype_named(kv, CACHE_DTYPES) if kv else chosen.cache or dtype
        return cls(dtype=dtype, kv_cache=cache, quantisation=chosen)


def quantisation_of(config: Mapping[str, Any], where: str) -> Quantisation:
    """Quantisation that ``quantization_config`` specifies, ``NONE`` where it is missing.

    Raises:
        ModelError: a method that is not read.
    """
    experts = "mxfp4" if config.get("expert_dtype") == "fp4" else ""
    fields = config.get("quantization_config")
    if not fields:
        return Quantisation(method="fp4 experts", expert_weights=experts) if experts else NONE
    method = str(fields.get("quant_method") or fields.get("quant_algo") or "").lower()
    readers = {
        "fp8": _fp8, "fbgemm_fp8": lambda _: scheme_named("fp8_row"), "awq": _weight_only, "gptq": _weight_only,
        "compressed-tensors": _compressed_tensors, "mxfp4": lambda _: scheme_named("mxfp4"), "modelopt": _modelopt,
        "nvfp4": lambda _: scheme_named("nvfp4"), "quark": lambda _: scheme_named("mxfp4"),
    }  # fmt: skip
    if method not in readers:
        raise ModelError(
            f"{where}: quant_method '{shown(method)}' is not read: one of {', '.join(readers)}, or leave "
            "quantization_config out and name a precision"
        )
    kinds = _kinds(fields, method, int(config.get("num_hidden_layers") or 0))
    scheme, cached = replace(readers[method](fields), kinds=kinds), fields.get("kv_cache_scheme") or {}
    narrow = fields.get("kv_cache_quant_algo") == "FP8" or (cached.get("num_bits"), cached.get("type")) == (8, "float")
    return replace(scheme, expert_weights=experts, cache="float8" if narrow else "")


def _kinds(stated: Mapping[str, Any], method: str, layers: int) -> frozenset[str]:
    """Kinds of projections that are quantised: all but those whose modules the configuration leaves out, by names for
    all layers, or by the numbers (``model.layers.0.self_attn``) of half of them at least: few layers change little.
    """
    if method == "mxfp4":  # gpt-oss keeps all but its experts in 16 bits, and its list does not say so
        return frozenset({"experts"})
    names = [str(name) for key in _LEFT_OUT for name in stated.get(key) or ()]
    out = set()
    for kind, words in _UNQUANTISED_BY_NAME.items():
        numbers = {next(filter(str.isdigit, name.split(".")), "") for name in names if _means(name, words)}
        if "" in numbers or (numbers and 2 * len(numbers) >= layers):
            out.add(kind)
    return frozenset(EVERYWHERE - out)


def _means(name: str, words: tuple[str, ...]) -> bool:
    """Tell whether a pattern ends in one of the words: ``re:.*self_attn.*`` does, ``mlp.gate`` (a router) does not."""
    last = name.replace("re:", "").replace("\\", "").strip(".*$^").split(".")[-1].strip("*")
    return last in words


def _fp8(stated: Mapping[str, Any]) -> Quantisation:
    scheme = scheme_named("fp8_block" if stated.get("weight_block_size") else "fp8")
    return replace(scheme, dynamic=stated.get("activation_scheme", "dynamic") == "dynamic")


def _weight_only(stated: Mapping[str, Any]) -> Quantisation:
    bits = stated.get("bits") or stated.get("w_bit") or 4
    scheme = scheme_named("w8a16" if bits == 8 else "w4a16")
    return replace(scheme, group=max(0, int(stated.get("group_size") or stated.get("q_group_size") or 128)))


def _compressed_tensors(stated: Mapping[str, Any]) -> Quantisation:
    """Scheme of the first group of compressed-tensors: bits and kind of weights and of activations."""
    groups = stated.get("config_groups") or {}
    first: Mapping[str, Any] = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights, inputs = first.get("weights") or {}, first.get("input_activations")
    bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
    if bits == 4 and kind == "float":
        scheme = scheme_named("nvfp4" if weights.get("group_size") == 16 else "mxfp4")
        return scheme if inputs else replace(scheme, activations="", scaling="")
    if not inputs:
        name = {(4, "int"): "w4a16", (8, "int"): "w8a16"}.get((bits, kind))
        scheme = scheme_named(name) if name else Quantisation(method="fp8 weights", weights="float8")
        return replace(scheme, group=int(weights.get("group_size") or 0))
    if kind == "float":
        strategy = weights.get("strategy", "tensor")
        scheme = scheme_named({"block": "fp8_block", "channel": "fp8_row"}.get(strategy, "fp8"))
        return replace(scheme, dynamic=bool(inputs.get("dynamic", True)))
    return scheme_named("w8a8")


def _modelopt(stated: Mapping[str, Any]) -> Quantisation:
    """NVIDIA's: FP8 with static scales of tensors, or NVFP4."""
    if "FP4" in str(stated.get("quant_algo", "")).upper():
        return scheme_named("nvfp4")
    return replace(scheme_named("fp8"), dynamic=False)
