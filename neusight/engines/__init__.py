"""Software that runs models, by name: of each what it makes of a model, and what it costs its host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.engines.catalogue import ENGINES, SERVERS, TRAINERS
from neusight.engines.engine import ATTENTIONS, EXPERT_LOAD, LAUNCHES, LAYOUTS, AttentionForm, Engine, Host, Libraries
from neusight.engines.server import era_of
from neusight.errors import ModelError, nearest, shown

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

__all__ = [
    "ATTENTIONS", "ENGINES", "EXPERT_LOAD", "LAUNCHES", "LAYOUTS", "SERVERS", "TRAINERS", "AttentionForm", "Engine",
    "Host", "Libraries", "engine_named", "library_named", "server_named", "usual_trainer",
]  # fmt: skip

_ALIASES = {
    "trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm", "hf": "transformers",
    "exllama": "exllamav2", "mlc": "mlc-llm", "turbomind": "lmdeploy",
}  # fmt: skip


def engine_named(name: str) -> Engine:
    """The engine of a name that trains or runs the steps of a model.

    Raises:
        ModelError: none has it.
    """
    return ENGINES[_known(name, tuple(name for name in ENGINES if name not in SERVERS))]


_OF_VENDORS = {"google": "maxtext", "aws": "neuron"}
"""By vendor of arrays, whose compilers Megatron-LM knows nothing of."""


def usual_trainer(device: DeviceSpec) -> str:
    """Name of the engine that trains on a device where nobody says which: of TPUs and Trainium their vendors' own."""
    return _OF_VENDORS.get(device.vendor if device.runs_programs else "", "megatron-te")


def server_named(name: str, version: str = "", artifact: Path | None = None) -> Engine:
    """The engine of a name that serves requests, with the constants that ``neusight fit engines`` found for it.

    Args:
        name: vllm, sglang, tensorrt-llm (trtllm).
        version: such as 0.15.1; the newest where it is empty.
        artifact: file of constants; default those that ship.

    Raises:
        ModelError: no such engine, or a version that is no number. ArtifactError: the file is not one.
    """
    word = name.strip().lower()
    engine = ENGINES[_known(_ALIASES.get(word, word), SERVERS)]
    attention = "eager" if era_of(engine.name, version).writes_scores else engine.attention
    return replace(engine, attention=attention, server=engine.serving.of_version(engine.name, version, artifact))


LIBRARIES = ("flashinfer", "flashmla", "flash-attn", "deepgemm", "aiter", "xla")
"""Kernel libraries that run by themselves, as ``Conditions.engine`` and data sets name them."""


def library_named(backend: str) -> str:
    """Whose kernels a backend runs, as ``Conditions.engine`` has it: ``torch``, those of PyTorch and its libraries, a
    library's, or an engine's own.

    Raises:
        ModelError: no engine or library has this name.
    """
    libraries = {"torch": "torch"} | {engine.name: engine.library or "torch" for engine in ENGINES.values()}
    libraries |= {name: name for name in LIBRARIES}
    return libraries[_known(_ALIASES.get(backend, backend), tuple(libraries), "backend")]


def _known(name: str, known: tuple[str, ...], what: str = "engine") -> str:
    if name not in known:
        raise ModelError(f"unknown {what} '{shown(name)}'{nearest(name, known)}: one of {', '.join(known)}")
    return name
