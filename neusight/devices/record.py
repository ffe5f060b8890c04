"""Records of figures: dataclasses that refuse figures at or below zero, and make changed copies and plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from datetime import date
from typing import Any, Self

from neusight.errors import DeviceError

PositiveFloat = float
PositiveInt = int
"""Types of fields that must be above zero, or None where the annotation permits it."""


class Record:
    """Base of the dataclasses of devices and clusters."""

    def __post_init__(self) -> None:
        """Raises:
        DeviceError: a figure that must be above zero is not.
        """
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type.startswith("Positive") and value is not None and not value > 0:
                raise DeviceError(f"{field.name} = {value} is not above zero: give the datasheet's figure")

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy in which the fields of ``update`` have other values."""
        return replace(self, **update or {})  # type: ignore[type-var]

    def to_dict(self, include: Collection[str] = ()) -> dict[str, Any]:
        """Plain data for JSON of the fields in ``include``, or of all but the ``original`` of a device."""
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        chosen = (name for name in names if (name in include if include else name != "original"))
        return {name: _plain(getattr(self, name)) for name in chosen}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return value.isoformat() if isinstance(value, date) else value
