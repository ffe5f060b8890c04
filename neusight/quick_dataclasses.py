"""``dataclass`` for frozen classes, whose definition takes a tenth of the time.

The standard library compiles six methods for each class, which takes 0.4 ms: of the 200 classes that an answer imports,
a third of its time. Here all classes share their methods, which look up the fields. Arguments, defaults, order,
equality, hash and errors are those of ``dataclasses``, whose ``fields``, ``replace`` and ``asdict`` work as usual. A
class whose base is defined so is defined so as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Callable[[type], type]:
        """As ``dataclasses.dataclass`` with the same arguments, where ``frozen`` is True."""

        def define(kind: type) -> type:
            kind.__doc__ = kind.__doc__ or kind.__name__
            defined = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(kind)
            for name, method in _METHODS.items():
                # Python sets the hash of a class with its own equality to None.
                if vars(kind).get(name) is None:
                    setattr(defined, name, method)
            return defined

        return define


class _Layout:
    """What the methods need to know of a class."""

    def __init__(self, kind: type) -> None:
        fields = dataclasses.fields(kind)
        given = [field for field in fields if field.init]
        self.by_place = [field.name for field in given if not field.kw_only]
        self.defaults = {field.name: field.default for field in given}
        self.factories = {f.name: f.default_factory for f in fields if f.default_factory is not MISSING}
        self.required = {name for name, value in self.defaults.items() if value is MISSING} - self.factories.keys()
        self.shown = [field.name for field in fields if field.repr]
        self.compared = _values_of([field.name for field in fields if field.compare])
        self.hashed = _values_of([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
        self.checked = hasattr(kind, "__post_init__")


class _Layouts(dict[type, _Layout]):
    def __missing__(self, kind: type) -> _Layout:
        layout = self[kind] = _Layout(kind)
        return layout


_LAYOUTS = _Layouts()


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _init(self: Any, *args: Any, **given: Any) -> None:
    layout = _LAYOUTS[type(self)]
    if args:
        given = _placed(type(self), args, given)
    values = layout.defaults | given
    if len(values) != len(layout.defaults) or not given.keys() >= layout.required:
        raise _wrong_arguments(type(self), given)
    for name, factory in layout.factories.items():
        if name not in given:
            values[name] = factory()
    vars(self).update(values)
    if layout.checked:
        self.__post_init__()


def _placed(kind: type, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    names = _LAYOUTS[kind].by_place
    if len(args) > len(names):
        raise TypeError(f"{kind.__qualname__}() takes {len(names)} positional arguments but {len(args)} were given")
    placed = dict(zip(names, args, strict=False))
    if twice := placed.keys() & given.keys():
        raise TypeError(f"{kind.__qualname__}() got multiple values for argument '{min(twice)}'")
    return placed | given


def _wrong_arguments(kind: type, given: dict[str, Any]) -> TypeError:
    layout = _LAYOUTS[kind]
    if unknown := [name for name in given if name not in layout.defaults]:
        return TypeError(f"{kind.__qualname__}() got an unexpected keyword argument '{unknown[0]}'")
    missing = ", ".join(f"'{name}'" for name in layout.defaults if name in layout.required - given.keys())
    return TypeError(f"{kind.__qualname__}() missing required arguments: {missing}")


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _LAYOUTS[type(self)].shown)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    values = _LAYOUTS[type(self)].compared
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(_LAYOUTS[type(self)].hashed(self))


def _setattr(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}
