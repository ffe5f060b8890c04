"""Quantities as people read them: commas for thousands, words from a million on, never a power of ten."""

import pytest

from neusight.errors import UnitError
from neusight.units import chance, decimal, milliseconds, parse_image_size, scaled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12_200.4, "12,200"),
        (999.6, "1,000"),
        (1.5, "1.5"),
        (234.0, "234"),
        (0.001224, "0.00122"),
        (2e-7, "0.0000002"),
        (1_220_000.0, "1.22 million"),
        (1e12, "1 trillion"),
        (-4_560.0, "-4,560"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_decimal_writes_thousands_and_words(value: float, text: str) -> None:
    assert decimal(value) == text


def test_decimal_keeps_significant_digits() -> None:
    assert decimal(12_345.6, 6) == "12,345.6"


@pytest.mark.parametrize("power", range(-14, 20))
def test_numbers_are_never_powers_of_ten(power: int) -> None:
    for value in (1.0, 1.2345, 9.9996):
        texts = decimal(value * 10.0**power), scaled(value * 10.0**power, "B"), milliseconds(value * 10.0**power)
        assert not any("e" in text for text in texts)


def test_milliseconds_below_a_nanosecond_are_none() -> None:
    assert (milliseconds(1e-12), milliseconds(2.5e-7), milliseconds(9.996e-4)) == ("0 µs", "0.25 µs", "1,000 µs")


@pytest.mark.parametrize(
    ("text", "edges"), [("768x512", (768, 512)), ("1X2", (1, 2)), (224, (224, 224)), ("64", (64, 64))]
)
def test_parse_image_size_reads_width_and_height(text: int | str, edges: tuple[int, int]) -> None:
    assert parse_image_size(text) == edges


@pytest.mark.parametrize("text", ["", "x", "768x", "x512", "0x5", "1x2x3", "-1", "1.5", "²", "a4"])
def test_parse_image_size_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(UnitError, match="no size of an image"):
        parse_image_size(text)


def test_chance_is_never_certain() -> None:
    assert [chance(p) for p in (0.0, 0.009, 0.01, 0.515, 0.99, 0.991, 1.0)] == [
        "below 1%", "below 1%", "1%", "52%", "99%", "above 99%", "above 99%",
    ]  # fmt: skip
