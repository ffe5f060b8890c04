"""In what a served model's weights, activations and cache are: what a configuration says, and what a user asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import inf
from typing import Any

from neusight.devices.spec import DeviceSpec
from neusight.errors import ModelError, nearest, shown
from neusight.kernels.precision import GGUF_BITS, Precision, dtype_named, stored_bytes
from neusight.quick_dataclasses import dataclass

EVERYWHERE = frozenset({"attention", "feed_forward", "experts"})
"""Kinds of projections that schemes quantise where nothing else is stated: routers and heads stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """How projections are kept and computed.

    ``weights`` is the dtype in which they lie, "" for the model's own; ``activations`` that of the arithmetic, "" for
    the model's own (weight-only). ``scaling`` is as in ``Gemm``. ``dynamic``: activations are scaled as they come.
    ``group`` weights share a scale in weight-only schemes, 0 where that is part of the dtype or there is one a column.
    ``kinds`` of projections are quantised (``layers.Projection``), others are not; experts' weights lie in
    ``expert_weights`` and are computed in the model's own dtype, unless that is "". ``method`` is what it is called.

    Kernels of weight-only products widen weights themselves for up to ``fused_rows`` rows; of more rows a kernel before
    the product does, which writes them wide. ``scale_group`` scales are quantised once more with a scale of their own,
    and widened by a kernel before that; 0 where they are not. ``outliers``: columns of activations with large values
    are found and multiplied in 16 bits beside the others (Dettmers et al. 2022, LLM.int8(), section 3.2).
    ``python_calls``: functions of Python that launch each of its kernels, whose host time counts beside the kernel's.
    Products in 8 bits of fewer than ``least_rows`` rows have no kernel: their weights are widened to 32 bits and
    multiplied there. ``quantised_on_device``: a matrix at a time comes in 16 bits and in float32 to be quantised there.
    """

    method: str = ""
    weights: str = ""
    activations: str = ""
    scaling: str = ""
    dynamic: bool = True
    group: int = 0
    kinds: frozenset[str] = EVERYWHERE
    expert_weights: str = ""
    fused_rows: float = inf
    scale_group: int = 0
    outliers: bool = False
    python_calls: int = 0
    least_rows: int = 1
    quantised_on_device: bool = False

    def __bool__(self) -> bool:
        return bool(self.weights or self.expert_weights)

    def of(self, kind: str) -> Quantisation:
        """What holds for a kind of projections."""
        if kind == "experts" and self.expert_weights:
            return Quantisation(method=self.method, weights=self.expert_weights)
        return self if kind in self.kinds else Quantisation()

    def on(self, device: DeviceSpec, *, mxfp8: bool = False) -> Quantisation:
        """What engines run on a device: weights alone are narrow where it has no 4-bit matrix units (Marlin).

        ``mxfp8``: experts alone in MXFP4 take MXFP8 activations where matrix units apply scales of blocks.
        """
        narrow = self.weights == "mxfp4" and not self.activations and self.kinds == {"experts"}
        if mxfp8 and narrow and device.facts.applies_block_scales:
            return replace(self, activations="float8", scaling="block")
        if self.activations != "float4" or device.multiplies("float4"):
            return self
        return replace(self, activations="", scaling="")

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of a weight with its share of scales, of a model in ``dtype``.

        16-bit scales of groups; float32 ones of blocks of 128x128; those of columns or tensors are not worth counting.
        """
        size = stored_bytes(self.weights or dtype) + (4.0 / (64 * self.scale_group) if self.scale_group else 0.0)
        return size + (2.0 / self.group if self.group else 0.0) + (4.0 / 128**2 if self.scaling == "block" else 0.0)


NONE = Quantisation()
SCHEMES: dict[str, Quantisation] = {
    "none": NONE,
    "fp8": Quantisation(method="fp8", weights="float8", activations="float8", scaling="tensor"),
    "fp8_row": Quantisation(method="fp8_row", weights="float8", activations="float8", scaling="row"),
    "fp8_block": Quantisation(method="fp8_block", weights="float8", activations="float8", scaling="block"),
    "w8a8": Quantisation(method="w8a8", weights="int8", activations="int8", scaling="row"),
    "w8a16": Quantisation(method="w8a16", weights="int8"),
    "w4a16": Quantisation(method="w4a16", weights="int4", group=128),
    "mxfp4": Quantisation(method="mxfp4", weights="mxfp4"),
    "nvfp4": Quantisation(method="nvfp4", weights="nvfp4", activations="float4", scaling="micro"),
}
_EVERY_LINEAR = EVERYWHERE | {"head"}
LLM_INT8: dict[str, dict[str, Any]] = {
    "": {"python_calls": 1},
    "_outliers": {"python_calls": 1, "outliers": True},
    "_turned": {"python_calls": 2},
    "_turned_outliers": {"python_calls": 2, "outliers": True},
}
"""bitsandbytes before 0.45 took statistics of columns as well and turned matrices to ``col32``: twice the functions."""


def _linear(scheme: str, **changes: Any) -> Quantisation:
    """A scheme of every ``nn.Linear``, as torchao has it."""
    return replace(SCHEMES[scheme], kinds=_EVERY_LINEAR, quantised_on_device=True, **changes)


_NF4 = Quantisation(weights="nf4", fused_rows=1, python_calls=1)
SCHEMES |= {
    "nf4": _NF4,
    "nf4_double": replace(_NF4, weights="nf4_double", scale_group=256),
    **{f"llm_int8{how}": replace(SCHEMES["w8a8"], **fields) for how, fields in LLM_INT8.items()},
    "int8_linear": _linear("w8a16", fused_rows=1),
    "int4_linear": _linear("w4a16", group=64),
    "fp8_linear": _linear("w8a16", weights="float8", fused_rows=1),
    "fp8_dynamic": _linear("fp8"),
    "fp8_row_dynamic": _linear("fp8_row"),
    "int8_dynamic": _linear("w8a8", least_rows=17),
    "w4a8": _linear("w8a8", weights="int4"),
    "fp6": _linear("w8a16", weights="fp6"),
    **{f"uint{bits}": _linear("w8a16", weights=f"uint{bits}", group=64, fused_rows=0) for bits in range(1, 8)},
    **{name: Quantisation(weights=name, kinds=_EVERY_LINEAR, fused_rows=64) for name in GGUF_BITS},
}
SCHEMES |= {name: replace(scheme, method=name) for name, scheme in SCHEMES.items() if scheme}
"""By the names that people use. bitsandbytes' kernels multiply one row with weights in NF4, else they are widened first
(``matmul_4bit``, ``gemv_4bit``); it quantises activations and scales results of int8 products by kernels of their own
(``MatMul8bitLt``). torchao quantises every ``nn.Linear``: ``int8_linear`` and ``fp8_linear`` are casts that
``torch.compile`` fuses into products of one row alone, int4 has a kernel (``_weight_int4pack_mm``), other widths
(``uintx``) are unpacked first; ``torch._int_mm`` wants more than 16 rows, or the product is one of 32-bit integers.
llama.cpp quantises the head too, and widens weights before products of more than 64 rows (``MMQ_MAX_BATCH_SIZE``).
MXFP4 weights are computed in 16 bits, as engines do (Marlin, Triton); NVFP4 in 4 bits where a device has such units,
see ``Quantisation.on``."""
_ALIASES = {
    **{"bf16": "none", "bfloat16": "none", "fp16": "none", "float16": "none", "half": "none", "float8": "fp8"},
    **{"awq": "w4a16", "gptq": "w4a16", "int4": "w4a16", "int8": "w8a8", "fp4": "nvfp4", "block": "fp8_block"},
}
_UNQUANTISED_BY_NAME = {
    "attention": ("self_attn", "attention", "q_proj", "qkv_proj", "q_a_proj", "o_proj"),
    "experts": ("experts", "block_sparse_moe"),
    "feed_forward": ("mlp", "gate_proj", "feed_forward", "gate_up_proj"),
}
"""Words in the names of modules that are left out of a scheme, by kind of projection."""


def _named_activations(scheme: Quantisation) -> str:
    """Dtype of activations that a ``Precision`` names with a scheme, none where the weights tell the arithmetic."""
    return "" if scheme.scaling == "micro" else scheme.activations


@dataclass(frozen=True, kw_only=True)
class ServingPrecision:
    """In what a model is served: ``dtype`` of activations and of what is not quantised, ``kv_cache`` that of cached
    keys and values, and the scheme of its projections.
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
            wanted = (precision.weights, precision.activations if narrow else "")
            schemes = (s for s in SCHEMES.values() if (s.weights, _named_activations(s)) == wanted)
            scheme = next(schemes, NONE)
            if not scheme:
                known = "float8, int8, int4, mxfp4, nvfp4"
                raise ModelError(f"weights in {precision.weights} under {dtype} are not served: one of {known}")
        return cls(dtype=dtype, kv_cache=precision.kv_cache, quantisation=scheme)

    @classmethod
    def named(cls, name: str, *, own: Quantisation = NONE, dtype: str = "bfloat16", kv: str = "") -> ServingPrecision:
        """By the name of a scheme; "" is as the configuration has it.

        Args:
            name: of ``SCHEMES``, a usual alias (awq, bf16, …) or "".
            own: what the configuration says.
            dtype: that of the model.
            kv: of the cache; "" for that of the model.

        Raises:
            ModelError: no such scheme. CoverageError: no such dtype.
        """
        plain = name.strip().lower()
        scheme = _ALIASES.get(plain, plain)
        if plain in ("fp16", "float16", "half", "bf16", "bfloat16"):
            dtype = dtype_named(plain)
        if plain and scheme not in SCHEMES:
            known = (*SCHEMES, *_ALIASES)
            raise ModelError(f"unknown precision '{shown(name)}'{nearest(plain, known)}: one of {', '.join(SCHEMES)}")
        chosen = own if not plain else SCHEMES[scheme]
        return cls(dtype=dtype, kv_cache=dtype_named(kv) if kv else dtype, quantisation=chosen)


def quantisation_of(config: Mapping[str, Any], where: str) -> Quantisation:
    """What ``quantization_config`` says, nothing where there is none.

    Raises:
        ModelError: a method that is not read.
    """
    experts = "mxfp4" if config.get("expert_dtype") == "fp4" else ""
    stated = config.get("quantization_config")
    if not stated:
        return Quantisation(method="fp4 experts", expert_weights=experts) if experts else NONE
    method = str(stated.get("quant_method") or stated.get("quant_algo") or "").lower()
    readers = {
        "fp8": _fp8, "fbgemm_fp8": lambda _: SCHEMES["fp8_row"], "awq": _weight_only, "gptq": _weight_only,
        "compressed-tensors": _compressed, "mxfp4": lambda _: SCHEMES["mxfp4"], "modelopt": _modelopt,
        "nvfp4": lambda _: SCHEMES["nvfp4"], "quark": lambda _: SCHEMES["mxfp4"],
    }  # fmt: skip
    if method not in readers:
        raise ModelError(
            f"{where}: quant_method '{shown(method)}' is not read: one of {', '.join(readers)}, or leave "
            "quantization_config out and name a precision"
        )
    return replace(readers[method](stated), kinds=_kinds(stated, method), expert_weights=experts)


def _kinds(stated: Mapping[str, Any], method: str) -> frozenset[str]:
    """Kinds of projections that are quantised: all but those whose modules the configuration leaves out.

    Lists name modules of single layers too (``model.layers.0.self_attn``): a kind counts as left out where it stands
    for half of the names at least, since few exempt layers change little.
    """
    names = stated.get("modules_to_not_convert") or stated.get("ignore") or stated.get("ignored_layers") or []
    if method == "mxfp4":  # gpt-oss keeps all but its experts in 16 bits, whatever the list says of them
        return frozenset({"experts"})
    generic = [name for name in names if not any(part.isdigit() for part in str(name).split("."))]
    out = {kind for kind, words in _UNQUANTISED_BY_NAME.items() for name in generic if _means(str(name), words)}
    return frozenset(EVERYWHERE - out)


def _means(name: str, words: tuple[str, ...]) -> bool:
    """Whether a pattern ends in one of the words: ``re:.*self_attn.*`` does, ``mlp.gate`` (a router) does not."""
    last = name.replace("re:", "").replace("\\", "").strip(".*$^").split(".")[-1].strip("*")
    return last in words


def _fp8(stated: Mapping[str, Any]) -> Quantisation:
    scheme = SCHEMES["fp8_block" if stated.get("weight_block_size") else "fp8"]
    return replace(scheme, dynamic=stated.get("activation_scheme", "dynamic") == "dynamic")


def _weight_only(stated: Mapping[str, Any]) -> Quantisation:
    bits = stated.get("bits") or stated.get("w_bit") or 4
    scheme = SCHEMES["w8a16" if bits == 8 else "w4a16"]
    return replace(scheme, group=max(0, int(stated.get("group_size") or stated.get("q_group_size") or 128)))


def _compressed(stated: Mapping[str, Any]) -> Quantisation:
    """The first group of compressed-tensors: bits and kind of weights and of activations."""
    groups = stated.get("config_groups") or {}
    first: Mapping[str, Any] = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights, inputs = first.get("weights") or {}, first.get("input_activations")
    bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
    if bits == 4 and kind == "float":
        scheme = SCHEMES["nvfp4" if weights.get("group_size") == 16 else "mxfp4"]
        return scheme if inputs else replace(scheme, activations="", scaling="")
    if not inputs:
        name = {(4, "int"): "w4a16", (8, "int"): "w8a16"}.get((bits, kind))
        scheme = SCHEMES[name] if name else Quantisation(method="fp8 weights", weights="float8")
        return replace(scheme, group=int(weights.get("group_size") or 0))
    if kind == "float":
        strategy = weights.get("strategy", "tensor")
        scheme = SCHEMES[{"block": "fp8_block", "channel": "fp8_row"}.get(strategy, "fp8")]
        return replace(scheme, dynamic=bool(inputs.get("dynamic", True)))
    return SCHEMES["w8a8"]


def _modelopt(stated: Mapping[str, Any]) -> Quantisation:
    """NVIDIA's: FP8 with static scales of tensors, or NVFP4."""
    if "FP4" in str(stated.get("quant_algo", "")).upper():
        return SCHEMES["nvfp4"]
    return replace(SCHEMES["fp8"], dynamic=False)
