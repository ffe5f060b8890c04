"""The device that a module runs on, as PyTorch describes it to code in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neusight.devices.architectures import is_between
from neusight.errors import ModelError

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec

Facts = tuple[tuple[str, Any], ...]
"""Names and values of a target's fields, in plain data."""


@dataclass(frozen=True, kw_only=True)
class TargetDevice:
    """Facts of a device that a module may ask PyTorch for; the default is a GPU of which no more is known.

    ``cuda``: ``torch.cuda`` drives it, as it does GPUs of NVIDIA and, with ``hip``, of AMD. ``tf32``: it runs
    convolutions of float32 in TF32 unless told otherwise, as cuDNN does where matrix units take it. ``bf16``: it
    computes in bfloat16 without emulation. ``flash``: PyTorch has its flash kernels of attention for it, on NVIDIA from
    compute capability 8.0 on (PyTorch, ``sdp_utils.cpp``, ``check_flash_attention_hardware_support``).
    """

    name: str = ""
    cuda: bool = True
    hip: bool = False
    capability: str = ""
    memory_bytes: int = 0
    cores: int = 0
    tf32: bool = False
    bf16: bool = True
    flash: bool = True
    warp_size: int = 32

    @classmethod
    def of(cls, device: DeviceSpec) -> TargetDevice:
        """The facts of a device."""
        return cls(
            name=device.name,
            cuda=device.kind == "gpu" and device.vendor in ("nvidia", "amd"),
            hip=device.vendor == "amd",
            capability=device.compute_capability or "",
            memory_bytes=int(device.usable_bytes),
            cores=device.core_count,
            tf32=device.vendor == "nvidia" and device.multiplies("tf32"),
            bf16=device.multiplies("bfloat16"),
            flash=device.vendor != "nvidia" or is_between(device.compute_capability or "8.0", "8.0", "99.0"),
            warp_size=getattr(device, "warp_size", 0),
        )

    def agrees(self, facts: Iterable[Iterable[Any]]) -> bool:
        """Tell whether a trace that has read these facts of its target is the trace for this one as well."""
        return all(getattr(self, name) == value for name, value in facts)


PARTLY_COMPILED = "compiled by torch.compile but priced as written: --launch compiled prices the whole step compiled"
"""Ends notes that do not hold where all of a step is compiled."""


@dataclass
class TargetReader:
    """A target and the facts that have been read of it while a module was imported, built and traced."""

    target: TargetDevice = field(default_factory=TargetDevice)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    """Lines for a reader of the estimate on what a module does that is priced otherwise."""

    def read(self, name: str) -> Any:
        """The value of a field, which is noted.

        Raises:
            ModelError: it is not known of this target, or a fact of a GPU that the target is not.
        """
        value = getattr(self.target, name)
        if name not in ("cuda", "flash"):
            self.require_cuda()
        if value in ("", 0) and value is not False:
            device = self.target.name or "the GPU, of which none is named"
            raise ModelError(
                f"the module asks PyTorch for the {name.replace('_', ' ')} of {device}: predict it on a device with one"
            )
        self.facts[name] = value
        return value

    def require_cuda(self) -> None:
        """Raises:
        ModelError: the target is no GPU that ``torch.cuda`` drives.
        """
        if not self.read("cuda"):
            name = self.target.name
            raise ModelError(f"the module asks for CUDA, which {name} does not have: let it use its input's device")

    @property
    def read_facts(self) -> Facts:
        """The facts that were read, by name."""
        return tuple(sorted(self.facts.items()))
