"""Models by name: those whose steps ship, a small ``config.json`` each, and those that are traced when asked for, from
a configuration that ships here or from what one on the Hugging Face hub has beside the defaults of its type.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from neusight.errors import ModelError, nearest
from neusight.quick_dataclasses import dataclass

_HERE = Path(__file__).parent
KINDS = {
    "causal-lm": "decoder with a language-model head",
    "encoder": "encoder: pre-training heads in training, sequence classification in inference",
    "encoder-decoder": "encoder and decoder, both sides of the given sequence length",
    "mixture-of-experts": "encoder and decoder whose sparse layers run every expert on a padded buffer",
    "image": "image classifier",
    "vision": "images to features, boxes or maps",
    "multimodal": "images or sounds, and text",
    "diffusion": "denoiser of a diffusion model, or its pipeline: one step of that, or --steps",
    "recommendation": "probability of a click",
    "recurrent": "recurrent layers",
    "audio": "spectrograms to speech",
    "tiny": "keywords, images and sounds on microcontrollers",
}


@dataclass(frozen=True, kw_only=True)
class WorkloadInfo:
    """A ready workload. ``max_seq_len`` is None where positions are relative or the input is an image.

    ``kind`` is one of ``KINDS``; ``parameters`` counts the trained model, with the head that its training uses.
    """

    name: str
    kind: str
    parameters: int
    max_seq_len: int | None
    aliases: tuple[str, ...] = ()


def list_workloads() -> list[WorkloadInfo]:
    """Every ready workload, in the order of the catalogue: families together, small to large."""
    return [_info(name, entry, _config(name)) for name, entry in _entries().items()]


def canonical_name(name: str) -> str | None:
    """The catalogue name that a name or alias stands for, or None.

    Case, ``_`` for ``-`` and the organisation before a slash do not matter: ``facebook/opt-1.3b`` is ``opt-1.3b``.
    """
    return _names().get(normal_name(name))


def catalogue_config(name: str) -> dict[str, Any]:
    """The configuration of a workload, as in a Hugging Face ``config.json``.

    Raises:
        ModelError: no workload has this name or alias.
    """
    canonical = canonical_name(name)
    if canonical is None:
        raise ModelError(f"unknown model '{name}'{nearest(normal_name(name), _names())}: see 'neusight models list'")
    return dict(_config(canonical))


def config_max_seq_len(config: dict[str, Any]) -> int | None:
    """The longest sequence that a configuration allows, or None where it sets no limit."""
    for key in ("n_positions", "max_position_embeddings", "max_seq_len", "seq_length"):
        if isinstance(limit := config.get(key), int) and config.get("model_type") not in _RELATIVE_POSITIONS:
            return limit
    return None


_RELATIVE_POSITIONS = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers"})


def is_image_config(config: dict[str, Any]) -> bool:
    """Tell whether the model reads images: its configuration then has the size of an image or of its channels."""
    return "image_size" in config or "num_channels" in config


def own_attention(config: dict[str, Any]) -> str:
    """The form of attention that transformers takes, unless told, for a type that ready workloads have."""
    return "eager" if config["model_type"] in _WRITTEN_OUT else "sdpa"


_WRITTEN_OUT = frozenset({"switch_transformers"})
"""Types without fused attention."""


def is_ready_type(config: dict[str, Any]) -> bool:
    """Tell whether ready workloads have this type, if not these sizes: its inputs are known without its class."""
    return (config["model_type"], is_image_config(config)) in _ready_types()


@cache
def _ready_types() -> frozenset[tuple[str, bool]]:
    return frozenset((_config(name)["model_type"], is_image_config(_config(name))) for name in _entries())


def normal_name(name: str) -> str:
    """A name as names are compared: in small letters, without the organisation before a slash."""
    return name.strip().rsplit("/", 1)[-1].lower().replace("_", "-")


@cache
def _entries(folder: str = "") -> dict[str, dict[str, Any]]:
    """Entries of the ready workloads, or of those that are traced (``_TRACED``)."""
    return json.loads((_HERE / folder / "catalogue.json").read_text(encoding="utf-8"))


@cache
def _names(folder: str = "") -> dict[str, str]:
    entries = _entries(folder)
    return {normal_name(n): name for name, entry in entries.items() for n in (name, *entry.get("aliases", ()))}


def _info(name: str, entry: dict[str, Any], config: dict[str, Any]) -> WorkloadInfo:
    return WorkloadInfo(
        name=name,
        kind=entry["kind"],
        parameters=entry["parameters"],
        max_seq_len=config_max_seq_len(config) if "model_type" in config else None,
        aliases=tuple(entry.get("aliases", ())),
    )


@cache
def _config(name: str) -> dict[str, Any]:
    return json.loads((_HERE / "configs" / f"{name}.json").read_text(encoding="utf-8"))


_TRACED = "models"


def list_traced() -> list[WorkloadInfo]:
    """Every one of them, families together, in the order of the file."""
    return [_info(name, entry, entry["config"]) for name, entry in _entries(_TRACED).items()]


def traced_name(name: str) -> str | None:
    """The name that a name or alias stands for, or None; written as those of ready workloads may be."""
    return _names(_TRACED).get(normal_name(name))


def traced_config(name: str) -> dict[str, Any]:
    """The configuration of one of ``list_traced``."""
    return dict(_entries(_TRACED)[name]["config"])


def list_hub() -> tuple[str, ...]:
    """Names on the hub of models of transformers, other than those that are served, as they are written there."""
    return tuple(_hub())


def hub_config(name: str) -> tuple[str, dict[str, Any]] | None:
    """The full name and the configuration of one of ``list_hub``, written as those of ready workloads may be; None for
    other names. Missing keys default to those of transformers for its ``model_type``.
    """
    full = _hub_names().get(normal_name(name))
    return None if full is None else (full, dict(_hub()[full]))


@cache
def _hub() -> dict[str, dict[str, Any]]:
    return json.loads((_HERE / "hub.json").read_text(encoding="utf-8"))


@cache
def _hub_names() -> dict[str, str]:
    return {normal_name(full): full for full in _hub()}
