"""``ServingEngine``: what vLLM, SGLang and TensorRT-LLM do alike and what they do not, as figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.errors import ArtifactError, ModelError, nearest, shown
from neusight.paths import read_json, tile_models_dir
from neusight.serving.limits import SGLANG, TRTLLM, VLLM, Scheduler
from neusight.workloads.decoders.steps import Steps

GROUPS = ("products", "experts", "context", "decode", "collectives", "rest")
"""Kinds of kernels that an engine may run slower or faster than the same kernels by themselves."""
FILE = "engines.json"
HOST = ("pass_s", "rank_s", "sequence_s", "mixture_s")
"""Constants of an engine's own time."""


@dataclass(frozen=True, kw_only=True)
class ServingEngine:
    """What runs a served model.

    ``library`` is whose kernels it runs (``Conditions.engine``). Beside its kernels a pass takes ``pass_s``, where
    several ranks must meet ``rank_s`` more, ``sequence_s`` for each sequence in it, and ``mixture_s`` for each layer of
    experts: scheduling, sampling, copies to and from the host, what sorts tokens by expert. ``request_s`` is what a
    server and its client add to the first token of a request. ``factors`` by ``GROUPS`` are what its kernels take of
    the same kernels by themselves. It takes ``memory_share`` of the device's ``total`` memory for everything, or of
    what is ``free`` after weights and activations for the cache. ``era`` tells which versions the constants are of,
    ``spread`` is the standard deviation of the logarithm of what they leave unexplained.
    """

    name: str
    library: str
    scheduler: Scheduler
    memory_share: float
    memory_of: str = "total"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_tokens: int = 16
    era: str = ""
    pass_s: float = 0.0
    rank_s: float = 0.0
    sequence_s: float = 0.0
    mixture_s: float = 0.0
    request_s: float = 0.0
    factors: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(GROUPS, 1.0))
    spread: float = 0.2

    def host_s(self, steps: Steps, ranks: int, mixtures: int) -> np.ndarray:
        """What the engine adds to each pass [s], shape (n,), of a model with so many layers of experts."""
        fixed_s = self.pass_s + (self.rank_s if ranks > 1 else 0.0) + self.mixture_s * mixtures
        return np.asarray(fixed_s + self.sequence_s * steps.sequences, dtype=float)


_PLAIN = {
    "vllm": ServingEngine(name="vllm", library="vllm", scheduler=VLLM, memory_share=0.9),
    "sglang": ServingEngine(name="sglang", library="sglang", scheduler=SGLANG, memory_share=0.88),
    "tensorrt-llm": ServingEngine(
        name="tensorrt-llm", library="trtllm", scheduler=TRTLLM, memory_share=0.9, memory_of="free",
        max_num_seqs=2048, block_tokens=32,
    ),
}  # fmt: skip
"""With the defaults of their documentation: vLLM's ``gpu_memory_utilization`` 0.9, and its limits before 0.8 (later
ones: ``started_on``); SGLang's ``mem_fraction_static`` about 0.88 and ``chunked_prefill_size`` 8192; TensorRT-LLM's
``free_gpu_memory_fraction`` 0.9, ``max_batch_size`` 2048, ``max_num_tokens`` 8192, 32 tokens a block."""
_ALIASES = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm"}
ERAS: tuple[tuple[str, tuple[int, int], str], ...] = (
    ("vllm", (0, 8), "vllm before 0.8"),
    ("vllm", (0, 14), "vllm before 0.14"),
    ("tensorrt-llm", (0, 12), "tensorrt-llm before 0.12"),
)
"""Versions before which an engine was another program, older ones first: vLLM's V1 became the default with 0.8 and its
asynchronous scheduling with 0.14, TensorRT-LLM's executor replaced its Python sessions with 0.12."""


def engine_named(name: str, version: str = "", artifact: Path | None = None) -> ServingEngine:
    """An engine with the constants that ``neusight fit --engines`` found for its version.

    Args:
        name: vllm, sglang, tensorrt-llm (trtllm).
        version: such as 0.15.1; the newest where it is empty.
        artifact: file of constants; default those that ship, or none where there are none.

    Raises:
        ModelError: no such engine, or a version that is no number. ArtifactError: the file is not one.
    """
    plain = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if plain not in _PLAIN:
        known = tuple(_PLAIN)
        raise ModelError(f"unknown engine '{shown(name)}'{nearest(plain, known)}: one of {', '.join(known)}")
    era = era_of(plain, version)
    constants = _constants(artifact or tile_models_dir() / FILE).get(era)
    engine = replace(_PLAIN[plain], era=era)
    return engine if constants is None else with_constants(engine, constants)


LARGE_BYTES, AMPERE = 70 * 2**30, 8.0
"""Memory from which vLLM starts with larger limits, and the compute capability of A100, on which it does not."""


def started_on(engine: ServingEngine, device: DeviceSpec) -> ServingEngine:
    """An engine with the limits that its server starts with on a device where nobody tells them.

    vLLM's by version 0.9 and later: 1,024 sequences and 8,192 tokens a pass from 70 GiB of memory on, but on A100,
    where large passes were found slower; else 256 and 2,048 (``EngineArgs.get_batch_defaults``, API server).
    """
    if engine.name != "vllm" or engine.era.endswith("before 0.8"):
        return engine
    large = device.usable_bytes >= LARGE_BYTES and device.capability != AMPERE
    sequences, tokens = (1024, 8192) if large else (256, 2048)
    return replace(engine, max_num_seqs=sequences, max_num_batched_tokens=tokens)


def with_constants(engine: ServingEngine, constants: Mapping[str, float]) -> ServingEngine:
    """The same engine with other constants: those of ``HOST``, ``GROUPS``, ``request_s`` and ``spread``."""
    host: dict[str, Any] = {name: constants[name] for name in (*HOST, "request_s", "spread") if name in constants}
    factors = {group: constants.get(group, engine.factors[group]) for group in GROUPS}
    return replace(engine, **host, factors=factors)


def era_of(name: str, version: str) -> str:
    """Which constants hold for a version.

    Raises:
        ModelError: a version that is no number.
    """
    if not version:
        return name
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if not found:
        raise ModelError(f"version '{shown(version)}' of {name} is no number: write it like 0.15.1, or leave it out")
    number = (int(found[1]), int(found[2]))
    return next((era for engine, before, era in ERAS if engine == name and number < before), name)


@cache
def _constants(file: Path) -> dict[str, dict[str, float]]:
    if not file.is_file():
        return {}
    content: Any = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("engines"), dict):
        raise ArtifactError(f"{file} holds no constants of engines: make it again with neusight fit --engines")
    return {era: dict(found["values"]) for era, found in content["engines"].items()}
