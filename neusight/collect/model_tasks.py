"""Whole models as planned measurements: which step of which model, and the row that comes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from neusight.collect.tasks import identity

if TYPE_CHECKING:
    from neusight.collect.bench import Bench


@dataclass(frozen=True, kw_only=True)
class ModelTask:
    """Measure one step of a model. ``config`` is the content of its ``config.json``, as JSON with sorted keys.

    ``seq_len`` is None for images. ``optimizer`` is ``none`` in inference. ``dtype`` may also be ``tf32``: float32
    whose matrix products may round their operands.
    """

    limit_s: ClassVar[float] = 1800.0
    """Compiling a large model takes minutes, a step on a CPU as well."""

    model: str
    config: str
    mode: str
    dtype: str
    batch: int
    seq_len: int | None
    attention: str
    optimizer: str
    compiled: bool

    @property
    def sample(self) -> str:
        """Of everything that the step depends on."""
        return identity(asdict(self))

    @property
    def table(self) -> str:
        """Rows of whole models."""
        return "models"

    def describe(self) -> dict[str, Any]:
        """The step, in columns of ``MODEL_TABLE``; ``option`` is ``fusion`` for a compiled model."""
        step = {name: value for name, value in asdict(self).items() if name not in ("config", "compiled")}
        return {"sample": self.sample, **step, "option": "fusion" if self.compiled else ""}

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Build the model with random weights on the device and time its step."""
        from neusight.collect.model_steps import measured

        return measured(self, bench)
