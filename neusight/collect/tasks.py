"""Tasks that workers measure, and their outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from neusight.kernels import Kernel
from neusight.kernels.families import LATER_FIELDS

if TYPE_CHECKING:
    from neusight.collect.bench import Bench


SOURCE = "neusight collect"
"""Source of rows that are measured here."""


class Task(Protocol):
    """One planned measurement. Tasks are frozen and travel to worker processes."""

    @property
    def sample(self) -> str:
        """Identity: equal in every run of the same plan, distinct within it."""

    @property
    def table(self) -> str:
        """Table of the row: a kernel family, ``steps`` or ``names``."""

    def describe(self) -> dict[str, Any]:
        """Columns that are known before measuring, the question among them."""

    def measure(self, bench: Bench) -> dict[str, Any]:
        """The columns that measuring gives.

        Raises:
            UnmeasurableError: the device cannot do it. Any other exception is recorded as the sample's fault.
        """


def identity(*parts: Any) -> str:
    """A short name for equal content: sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class KernelTask:
    """Measure one kernel. ``split`` says where its shape comes from: ``train`` sampled, ``test`` from a workload."""

    kernel: Kernel
    split: str
    repeat: int = 0

    @property
    def sample(self) -> str:
        """Id of the kernel and the repetition only, so that a shape proposed twice is measured once."""
        return identity(self.kernel.family, _named_by(self.kernel), self.repeat)

    @property
    def table(self) -> str:
        """The kernel's family."""
        return self.kernel.family

    def describe(self) -> dict[str, Any]:
        """Fields of the kernel with the split."""
        words = {"family": self.kernel.family, "split": self.split, "repeat": self.repeat}
        return {"sample": self.sample, **words, **asdict(self.kernel)}

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Prepare the kernel's operator and time it."""
        from neusight.collect.launches import prepare

        return bench.kernel(prepare(self.kernel))


def _named_by(kernel: Kernel) -> dict[str, Any]:
    """The kernel's fields but for later ones at their defaults: samples of older plans keep their names."""
    later = {f.name: f.default for f in fields(kernel) if f.name in LATER_FIELDS}
    return {name: value for name, value in asdict(kernel).items() if name not in later or value != later[name]}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a task: a row, or the reason why there is none."""

    sample: str
    table: str
    row: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
