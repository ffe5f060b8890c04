"""What kernels are like by who runs them: a table, and nothing of it in laws or executors."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import neusight
from neusight.devices import load_device
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import VARIANTS, Conditions
from neusight.kernels.implementations import trait_names, traits_of
from neusight.laws.physics import PRIOR

PACKAGE = Path(neusight.__file__).parent


def conditions(*pairs: tuple[str, str]) -> Conditions:
    engines, variants = zip(*pairs, strict=True)
    return Conditions.of(len(pairs), engine=np.array(engines), variant=np.array(variants))


def test_later_rules_hold_over_earlier_ones() -> None:
    many = conditions(
        ("torch", ""), ("vllm", "fa2"), ("sglang", "fa2"), ("vllm", "fa3"), ("sglang", "triton"), ("", "")
    )
    traits = traits_of("attention", many)
    assert traits["asynchronous"].tolist() == [False, False, True, True, False, True]
    assert traits["most_rows"].tolist() == [128, 64, 128, 128, 128, 128]
    assert traits["writes_cache"].tolist() == [False, True, True, True, True, False]
    assert traits["promotes_sums"].tolist() == [False, False, False, True, False, False]
    assert traits["pipelined"].tolist() == [True, True, True, True, False, True]


@pytest.mark.parametrize("family", ["attention", "moe", "matrix", "stream", "collective", "inputs"])
def test_one_implementation_or_many_give_each_kernel_the_same_traits(family: str) -> None:
    pairs = [("torch", ""), ("vllm", "fa3"), ("sglang", "triton"), ("trtllm", "trtllm"), ("vllm", "cutlass")]
    together = traits_of(family, conditions(*pairs))
    for name in trait_names(family):
        alone = [traits_of(family, conditions(pair))[name][0] for pair in pairs]
        assert together[name].tolist() == alone, name


def test_a_question_may_name_every_variant_of_the_rules() -> None:
    table = tomllib.loads((PACKAGE / "kernels/implementations.toml").read_text())
    rules = [rule for entry in table.values() for rule in entry["rules"]]
    assert {variant for rule in rules for variant in rule.get("variant", ())} - {""} <= set(VARIANTS)


def test_constants_are_those_that_traits_name() -> None:
    class Law:
        compiler_start = 3.0

    traits = traits_of("matrix", conditions(("vllm", ""), ("torch", ""), ("xla", "")))
    assert traits.constants("start_constant", Law).tolist() == [1.0, 1.0, 3.0]
    assert traits.constants("start_constant", Law, 0.0).tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize("variant", ["ck", "rocblas"])
def test_kernels_that_nobody_tuned_sustain_less_than_the_vendors_tuned_ones(variant: str) -> None:
    batch = KernelBatch.from_columns("gemm", m=[4096], n=[4096], k=[4096], dtype="bfloat16")
    tuned, own = (
        situate(batch, load_device("mi300x"), shipped_choice(), physics=PRIOR, conditions=known).unlimited_s[0]
        for known in (conditions(("torch", "")), conditions(("torch", variant)))
    )
    assert tuned < own <= tuned / PRIOR.matrix.untuned_share


def test_laws_and_executors_name_no_engine() -> None:
    engines = re.compile(r"""["'](vllm|sglang|trtllm|torch|flash-attn|flashinfer|deepgemm|cutlass|fa[234])["']""")
    offending = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for room in ("laws", "executors")
        for path in (PACKAGE / room).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if engines.search(line)
    ]
    assert offending == []
