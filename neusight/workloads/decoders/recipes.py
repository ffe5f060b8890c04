"""Recipes of a training step: in how many bits its large products run, and whether adapters alone are trained."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.errors import ModelError, nearest, shown
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import NONE, Quantisation, scheme_named
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProductRecipe:
    """Precision of large products inside layers, forward and for both gradients; kernels around them stay wide.

    ``method`` names the scheme that has the dtype and the scales of their operands. Of each operand ``searches``
    passes look for the largest value before those that write it: ``passes`` that write it once each, or one that
    writes all ``copies``. Products for gradients take it along its other dimension: a transposed copy where matrix
    units want all operands along their depth, or one ``rescaled`` with scales of its own. ``normed``: norms write
    their result in few bits at once; ``gathered``: ranks that gather inputs do so in few bits. ``held`` are the
    dtypes in which weights are kept between steps, beside the optimizer's copy.
    """

    name: str = ""
    method: str = ""
    searches: int = 0
    passes: int = 1
    rescaled: bool = False
    normed: bool = False
    gathered: bool = True
    held: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.method)

    @property
    def scheme(self) -> Quantisation:
        """Dtype and scales of operands."""
        return scheme_named(self.method, chosen=NONE)

    @property
    def dtype(self) -> str:
        """Dtype of the arithmetic."""
        return self.scheme.activations

    @property
    def value_bytes(self) -> float:
        """Bytes of an operand's value, with its share of scales that belong to blocks."""
        return stored_bytes("nvfp4" if self.dtype == "float4" else self.dtype)

    def copies(self, transposes: bool) -> int:
        """Number of copies of an operand; ``transposes``: matrix units read it along its depth alone."""
        return 2 if self.rescaled or transposes else 1


_TWICE = ("float8", "float8")
RECIPES: dict[str, ProductRecipe] = {
    recipe.name: recipe
    for recipe in (
        ProductRecipe(),
        ProductRecipe(name="fp8", method="fp8", normed=True, held=_TWICE),
        ProductRecipe(name="fp8_current", method="fp8", searches=1, held=_TWICE),
        ProductRecipe(
            name="fp8_row", method="fp8_row", searches=2, passes=2, rescaled=True, gathered=False,
            held=_TWICE,
        ),
        ProductRecipe(name="fp8_block", method="fp8_block", rescaled=True, held=_TWICE),
        ProductRecipe(name="mxfp8", method="mxfp8", rescaled=True, held=_TWICE),
        ProductRecipe(
            name="nvfp4", method="nvfp4", searches=1, passes=2, rescaled=True,
            held=("bfloat16", "nvfp4", "nvfp4"),
        ),
    )
}  # fmt: skip
"""Recipes by name. ``fp8``: one scale a tensor, from the steps before (Transformer Engine, ``DelayedScaling``);
``fp8_current``: from the tensor itself, which is read for it first (``Float8CurrentScaling``; torchao's
``tensorwise``); ``fp8_row``: one a row, searched for along both dimensions (torchao's ``rowwise``, whose gathers stay
wide); ``fp8_block``: of 128 values of activations and 128x128 of weights (DeepSeek-AI 2024, section 3.3.2;
``Float8BlockScaling``); ``mxfp8``: of 32, along both dimensions in one pass (``MXFP8BlockScaling``); ``nvfp4``: of 16
and of the tensor, a Hadamard transform before the other dimension (``NVFP4BlockScaling``; NVIDIA 2025, arXiv
2509.25149, section 4)."""
_ALIASES = {
    **{
        "float8": "fp8",
        "fp8_delayed": "fp8",
        "fp8_ds": "fp8",
        "fp8_cs": "fp8_current",
        "fp8_tensorwise": "fp8_current",
    },
    **{"fp8_rowwise": "fp8_row", "fp8_blockwise": "fp8_block", "fp8_sc": "fp8_block", "fp8_mx": "mxfp8"},
}


def is_recipe(name: str) -> bool:
    """Tell whether a word names a recipe."""
    plain = name.strip().lower().replace("-", "_")
    return bool(plain) and _ALIASES.get(plain, plain) in RECIPES


def recipe_named(name: str) -> ProductRecipe:
    """The recipe of a name, such as mxfp8 or FP8-CS.

    Raises:
        ModelError: none has it.
    """
    plain = name.strip().lower().replace("-", "_")
    if not is_recipe(plain) and plain:
        names = tuple(word for word in RECIPES if word)
        raise ModelError(f"products in '{shown(name)}' are not built{nearest(plain, names)}: one of {', '.join(names)}")
    return RECIPES[_ALIASES.get(plain, plain)]


METHODS = ("lora", "qlora", "dora", "loha", "ia3", "prompt")
PLACES = {"query": 0, "key": 1, "value": 2}
"""Places in ``qkv`` of the parts that take adapters by themselves."""
TARGETS = {
    "attention": ("qkv", "output"), "feed_forward": ("up", "down"),
    **{name: (name,) for name in ("qkv", "output", "up", "down")}, **dict.fromkeys(PLACES, ("qkv",)),
}  # fmt: skip
"""Projections that take adapters, by the words for them: not those of routers, of experts among which tokens choose,
and of the head. ``up`` is the gate too."""
ADAPTED = ("attention", "feed_forward")
"""Kinds of projections that do."""
QLORA = "nf4_double"
"""Scheme of QLoRA's weights: four bits, and for 64 of them a scale in 8 bits, for 256 of which one is in 32 (Dettmers
et al. 2023, section 3: double quantisation)."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Trained parameters of a model whose other weights are frozen: two products of ``rank`` in addition to each
    projection of ``targets``.

    ``qlora`` keeps projections in NF4, which every pass makes wide first (Dettmers et al. 2023); ``dora`` scales the
    columns of what frozen and adapted weights are together (Liu et al. 2024, section 4). ``loha`` makes a whole matrix
    of the elements of two such products, and multiplies with it beside the frozen one (Hyeon-Woo et al. 2022; PEFT,
    ``LoHaLayer``); ``ia3`` scales columns alone (Liu et al. 2022, section 3.3), and ``prompt`` trains ``rank`` tokens
    that each sequence has already (Lester et al. 2021). ``rank`` 0: all is trained.

    Raises:
        ModelError: an unknown method or target, or a rank below 0.
    """

    rank: int = 0
    method: str = "lora"
    targets: tuple[str, ...] = ADAPTED

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 0:
            raise ModelError(f"lora {shown(self.rank)}: give the rank of adapters, a whole number of at least 1")
        for word, words in ((self.method, METHODS), *((target, TARGETS) for target in self.targets)):
            if word not in words:
                raise ModelError(f"adapters '{shown(word)}'{nearest(word, words)}: one of {', '.join(words)}")

    def __bool__(self) -> bool:
        return self.rank > 0

    def columns(self, name: str, kind: str, parts: Mapping[int, int]) -> int:
        """Columns of a projection that have adapters, by its name, its kind, and the columns of each of its parts by
        their places.
        """
        words = [target for target in self.targets if kind in ADAPTED and name.endswith(TARGETS[target])]
        places = parts.keys() if any(word not in PLACES for word in words) else {PLACES[word] for word in words}
        return sum(columns for place, columns in parts.items() if place in places)

    def frozen_bytes(self, wide: float, *, projection: bool) -> float:
        """Bytes of a frozen weight, ``wide`` where nothing is quantised; where projections are, norms, embedding and
        head are made float32 (PEFT, ``prepare_model_for_kbit_training``).
        """
        if self.method != "qlora":
            return wide
        return scheme_named(QLORA).weight_bytes("") if projection else stored_bytes("float32")
