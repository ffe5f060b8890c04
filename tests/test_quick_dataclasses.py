"""Classes that are quick to define behave as those of ``dataclasses`` with the same arguments."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field

import pytest

from neusight import quick_dataclasses


def classes(define):
    """A class and a subclass with all kinds of fields, by one of the two decorators."""

    @define(frozen=True)
    class Base:
        """A base."""

        first: int
        second: float = 2.0

    @define(frozen=True, kw_only=True)
    class Derived(Base):
        names: dict = field(default_factory=dict, hash=False)
        hidden: str = field(default="h", repr=False, compare=False)

        def __post_init__(self):
            if self.first < 0:
                raise ValueError("first is below zero")

    for kind in (Base, Derived):
        kind.__qualname__ = kind.__name__
    return Base, Derived


BOTH = {name: classes(one.dataclass) for name, one in (("standard", dataclasses), ("quick", quick_dataclasses))}


def outcome(act, name):
    try:
        return act(*BOTH[name])
    except (TypeError, ValueError, FrozenInstanceError) as error:
        return type(error)


@pytest.mark.parametrize(
    "act",
    [
        lambda base, derived: repr(derived(first=1, names={"a": 1})),
        lambda base, derived: repr(base(1, second=3.0)),
        lambda base, derived: vars(derived(1, 5.0, hidden="x")),
        lambda base, derived: list(vars(derived(hidden="x", first=1))),
        lambda base, derived: derived(1) == derived(1, hidden="other"),
        lambda base, derived: derived(1) == derived(1, names={"b": 2}),
        lambda base, derived: base(1) == derived(1),
        lambda base, derived: base(1) != base(1, 2.5),
        lambda base, derived: hash(derived(1)) == hash(derived(1, names={"b": 2})),
        lambda base, derived: hash(base(1)) == hash((1, 2.0)),
        lambda base, derived: derived(1).names is derived(1).names,
        lambda base, derived: vars(dataclasses.replace(derived(1), second=7.0)),
        lambda base, derived: dataclasses.asdict(derived(1, names={"a": base(2)})),
        lambda base, derived: [one.name for one in dataclasses.fields(derived)],
        lambda base, derived: vars(copy.deepcopy(derived(1))),
        lambda base, derived: derived.__match_args__,
        lambda base, derived: derived.second,
        lambda base, derived: derived(-1),
        lambda base, derived: derived(),
        lambda base, derived: derived(1, 2.0, {}),
        lambda base, derived: derived(1, third=3),
        lambda base, derived: base(1, first=2),
        lambda base, derived: setattr(base(1), "first", 2),
        lambda base, derived: delattr(base(1), "first"),
    ],
)
def test_dataclass_is_as_the_standard_one(act):
    assert outcome(act, "quick") == outcome(act, "standard")


@quick_dataclasses.dataclass(frozen=True, kw_only=True)
class Pickled:
    """With a hash and an equality of its own."""

    value: int

    def __eq__(self, other):
        return isinstance(other, Pickled)


def test_dataclass_keeps_methods_of_the_class_and_pickles():
    read = pickle.loads(pickle.dumps(Pickled(value=3)))
    assert read.value == 3
    assert read == Pickled(value=4)
    assert hash(read) == hash((3,))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "missing required arguments: 'value'"),
        ({"value": 1, "valeu": 2}, "unexpected keyword argument 'valeu'"),
    ],
)
def test_wrong_arguments_are_named(arguments, says):
    with pytest.raises(TypeError, match=says):
        Pickled(**arguments)
