"""What kernels take in a training step over what they take by themselves: fitted to measured steps, by kind."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from neusight.devices.load import load_device
from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine
from neusight.laws.fitted import FittedConstants
from neusight.laws.training_constants import StepPhysics
from neusight.paths import tile_models_dir
from neusight.quick_dataclasses import dataclass
from neusight.schedule.timeline import COMPOSITION_SPREAD
from neusight.workloads.program import Part

NARROW = ("float8", "float4")
MATRIX = ("narrow_products", "attention", "attention_backward")
"""Kinds whose factor comes on top of that of products."""
FIRST = {"attention": "first_attention", "attention_backward": "first_attention_backward"}
"""Factors of the first FlashAttention, on top of those of the second."""
TERMS = ("products", "narrow_products", "attention", "attention_backward", "rest", "collectives", "exchanges")
"""Kinds of which a part is one."""


def kind_of(part: Part) -> str:
    """The kind of a part, one of ``TERMS``."""
    family = part.batch.family
    if part.group:
        return "exchanges" if part.group in ("dp", "pp") else "collectives"
    if family in ("gemm", "grouped_gemm", "moe"):
        return "narrow_products" if str(part.batch["dtype"][0]) in NARROW else "products"
    if family == "attention":
        return "attention_backward" if str(part.batch["op"][0]) == "backward" else "attention"
    return "rest"


def names_of(kind: str, first: bool) -> tuple[str, ...]:
    """Factors that the time of a kind is multiplied with; ``first``: attention is of the first FlashAttention."""
    own = ("products", kind) if kind in MATRIX else (kind,)
    return (*own, FIRST[kind]) if first and kind in FIRST else own


@dataclass(frozen=True, kw_only=True)
class Factors(FittedConstants[StepPhysics]):
    """What ``neusight fit training`` gives, or what is thought before any step is looked at.

    ``spread`` is the standard deviation of the logarithm of steps on a GPU, of a trainer or of a source whose steps
    were left out; ``errors`` are errors in percent by these three: seen, and left out by each.
    """

    file: ClassVar[str] = "training.json"
    prior: ClassVar[StepPhysics] = StepPhysics()

    spread: float
    errors: list[dict[str, Any]]

    def kind_of_steps(self, engine: str, device: DeviceSpec) -> str:
        """Kind of doubts between sources, a field of ``SourceDoubts``: ``trained`` where steps under an engine, and
        steps on devices of this vendor, were fitted.
        """
        trainers = {row.get("engine") for row in self.errors}
        vendors = {load_device(gpu).vendor for gpu in self.gpus}
        return "trained" if engine in trainers and device.vendor in vendors else "training"

    def of(self, part: Part, engine: Engine) -> float:
        """By what the time of a part is multiplied: 1 for engines that no step was fitted of."""
        if not engine.step_factors:
            return 1.0
        step = self.physics.step
        return prod(getattr(step, name) for name in names_of(kind_of(part), engine.attention_generation == 1))


PRIOR = Factors(values={}, deviations={}, spread=COMPOSITION_SPREAD, errors=[], gpus=[], rows=0, error=0.0, data={})
"""Before any step was looked at."""


def factors_of(engine: Engine) -> Factors:
    """Those of an engine: that ship, or ``PRIOR`` where no steps of its kind were fitted."""
    return shipped_factors() if engine.step_factors else PRIOR


def shipped_factors(tile_models: Path | None = None) -> Factors:
    """Those beside the tile models; ``PRIOR`` where there are none.

    Raises:
        ArtifactError: a file that is damaged or of another protocol.
    """
    return _factors((tile_models or tile_models_dir()) / Factors.file)


@lru_cache(maxsize=8)
def _factors(path: Path) -> Factors:
    return Factors.load(path) if path.is_file() else PRIOR
