"""``Pass``: a change of what a step runs, as a value: equal where name and arguments are."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from neusight.quick_dataclasses import dataclass
from neusight.workloads.workload import Workload

Change = Callable[..., Workload]
EARLY, LATE = -10, 10
"""Orders of passes that change single operators, and of those that move, repeat or drop the remaining ones."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """``change(workload, *arguments)``, a pure function of a module.

    Attributes:
        part: the part of a step that it changes, such as ``norm`` or ``cross entropy``; of each part a step has one
            change.
        order: passes with less come first: what replaces operators before what moves or drops them.
        change: makes the workload; raises ``InapplicableError`` where there is nothing to change.
        arguments: the arguments of ``change`` after the workload.
    """

    part: str
    order: int = 0
    change: Change
    arguments: tuple[Hashable, ...] = ()

    def __call__(self, workload: Workload) -> Workload:
        """The workload with the change."""
        return self.change(workload, *self.arguments)
