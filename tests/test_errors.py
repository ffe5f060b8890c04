"""Suggestions of names: only where a name is misspelt, or of the same family."""

import pytest

from neusight.errors import nearest

MODELS = ("gpt3-small", "gpt2-large", "granite-3.1-8b", "qwen3-8b", "bert-base", "megatron-te", "mlp", "a100-pcie-80gb")


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("granite-4.0-h-small", "granite-3.1-8b"), ("gpt2-lrage", "gpt2-large"), ("bret-base", "bert-base"),
        ("QWEN3-9B", "qwen3-8b"), ("megtron", "megatron-te"), ("mpl", "mlp"), ("a100-pci-80gb", "a100-pcie-80gb"),
    ],
)  # fmt: skip
def test_nearest_is_of_the_same_family(name: str, suggested: str) -> None:
    assert nearest(name, MODELS).startswith(f"; did you mean {suggested}")
    assert nearest(suggested, [suggested]) == ""


@pytest.mark.parametrize("name", ["granite-4.0-h-small", "h100-pcie-80gb", "xlarge", "small", "dgx-large", "gru"])
def test_nearest_is_nothing_for_another_family(name: str) -> None:
    assert nearest(name, [known for known in MODELS if not known.startswith("granite")]) == ""


def test_nearest_is_the_name_of_the_same_letters_alone() -> None:
    known = ("reduce_scatter", "all_reduce", "gpt2-large", "gpt2-xl")
    for name, same in (("allreduce", "all_reduce"), ("All-Reduce", "all_reduce"), ("gpt2large", "gpt2-large")):
        assert nearest(name, known) == f"; did you mean {same}?"
