"""Quantities are SI floats inside the program; strings with units are read and written only here.

``GB = 1e9`` and ``GiB = 2**30``: memory and bandwidth of datasheets are decimal, caches are binary.
"""

from __future__ import annotations

import re
from math import floor, isfinite, log10

from neusight.errors import UnitError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12, "": 1.0}

_UNITS: dict[str, dict[str, float]] = {
    "bytes": {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()},
    "bytes_per_s": {f"{p}B/s": f for p, f in (_DECIMAL | _BINARY).items()},
    "bits_per_s": {f"{p}{w}": f for p, f in _DECIMAL.items() for w in ("b/s", "bit/s", "bps")},
    "flops_per_s": {f"{p}{w}/s": f for p, f in _DECIMAL.items() for w in ("FLOP", "OP")},
    "hz": {f"{p}Hz": f for p, f in _DECIMAL.items()},
    "w": {f"{p}W": f for p, f in (_DECIMAL | {"m": 1e-3}).items()},
    "s": {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0, "h": 3600.0},
    "m": {f"{p}m": f for p, f in _SMALL.items()},
    "j": {f"{p}J": f for p, f in _SMALL.items()},
    "coremark": {"CoreMark/MHz": 1.0},
    "usd_per_hour": {"USD/h": 1.0, "$/h": 1.0},
}
_EXAMPLES = {
    "bytes": "80GB or 40MiB",
    "bytes_per_s": "4.8TB/s",
    "bits_per_s": "400Gb/s",
    "flops_per_s": "19.5TFLOP/s",
    "hz": "1410MHz",
    "w": "250W",
    "s": "5us",
    "m": "7nm",
    "j": "20pJ",
    "coremark": "3.4 CoreMark/MHz",
    "usd_per_hour": "1.2USD/h",
}
_IMAGE = re.compile(r"0*([1-9][0-9]{0,11})(?:[xX]0*([1-9][0-9]{0,11}))?")
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def parse_image_size(size: int | str) -> tuple[int, int]:
    """Read ``768x512``, width and height, or one edge of a square [pixels].

    Raises:
        UnitError: neither one nor two whole numbers of at least 1.
    """
    match = _IMAGE.fullmatch(str(size))
    if not match:
        raise UnitError(f"'{str(size)[:40]}' is no size of an image: write 512, or width and height like 768x512")
    return int(match[1]), int(match[2] or match[1])


def parse(text: str, quantity: str) -> float:
    """Read ``"4.8TB/s"`` as 4.8e12.

    Args:
        text: a number directly or after blanks followed by its unit.
        quantity: the kind expected: bytes, bytes_per_s, bits_per_s, flops_per_s, hz, w, s, m, j, coremark or
            usd_per_hour.

    Raises:
        UnitError: no number, no unit, or a unit of another kind.
    """
    units, example = _UNITS[quantity], _EXAMPLES[quantity]
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise UnitError(f"cannot read '{text}' as a quantity: write a number and its unit, such as {example}")
    number, unit = match.groups()
    if unit not in units:
        said = f"unit '{unit}'" if unit else "no unit"
        raise UnitError(f"'{text}' has {said}, expected {quantity.replace('_', ' ')}: write it like {example}")
    return float(number) * units[unit]


_WORDS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))
_PREFIXES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9, "p": 1e-12}
_MOST_DECIMALS = 12
"""Digits after the point, at most: what is less is zero to a reader."""


def decimal(value: float, digits: int = 3) -> str:
    """A number for people, to some significant digits: ``12,200``, ``1.22``, ``0.00122``, ``1.22 million``.

    Thousands have commas, from a million on a word stands for them; it is never written as a power of ten.
    """
    if not isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.{digits}g}")
    for factor, word in _WORDS:
        if abs(rounded) >= factor:
            return f"{decimal(rounded / factor, digits)}{word}"
    places = max(0, min(_MOST_DECIMALS, digits - 1 - floor(log10(abs(rounded)))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def scaled(value: float, unit: str, digits: int = 3) -> str:
    """Write 4.8e12 with unit ``B/s`` as ``4.8 TB/s``; values below one take the prefixes m, µ, n and p."""
    prefix = next((name for name, factor in _PREFIXES.items() if abs(value) >= factor), "")
    return f"{decimal(value / _PREFIXES[prefix], digits)} {prefix}{unit}"


def milliseconds(seconds: float) -> str:
    """Latency for people: ``12.3 ms``, ``4.56 s``, ``7.8 µs``; what is less than a nanosecond is none."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    if seconds >= 1e-3:
        return f"{decimal(seconds * 1e3)} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{decimal(round(seconds * 1e6, 3))} µs"


_RARE = 0.01
"""Probability below which, and above one minus which, no estimate tells more (definition)."""


def chance(probability: float) -> str:
    """A probability for people: ``80%``, ``above 99%``, ``below 1%``."""
    if _RARE <= probability <= 1.0 - _RARE:
        return f"{probability:.0%}"
    return f"above {1.0 - _RARE:.0%}" if probability > 0.5 else f"below {_RARE:.0%}"


_SMALL_BYTES = 2**30 / 200
"""Below that two digits of GiB say nothing."""


def gib(value_bytes: float) -> str:
    """Memory for people: in GiB, the unit that drivers report; in KiB what is less than a hundredth of one."""
    return f"{value_bytes / 2**30:.2f} GiB" if abs(value_bytes) >= _SMALL_BYTES else f"{value_bytes / 2**10:,.0f} KiB"


def exact(value: float, quantity: str) -> str:
    """The shortest text that ``parse`` reads back as the same float: 50331648 bytes give ``48 MiB``.

    Args:
        value: SI.
        quantity: the kind, as in ``parse``.
    """
    candidates = [f"{value / factor:.15g} {unit}" for unit, factor in _UNITS[quantity].items()]
    same = [text for text in candidates if _QUANTITY.fullmatch(text) and parse(text, quantity) == value]
    base = next(unit for unit, factor in _UNITS[quantity].items() if factor == 1)
    return min(same, key=lambda text: (len(text.replace("FLOP", "OP")), "." in text), default=f"{value!r} {base}")
