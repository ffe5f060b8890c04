"""Decoders by the names that they have on the Hugging Face hub, without asking it."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from neusight.errors import ModelError, close_names, did_you_mean, shown
from neusight.paths import is_there, user_path
from neusight.workloads import catalogue
from neusight.workloads.catalogue import (
    KINDS,
    canonical_name,
    catalogue_config,
    list_hub,
    list_traced,
    list_workloads,
    traced_config,
    traced_name,
)
from neusight.workloads.config_file import read_config
from neusight.workloads.decoders.architecture import decoder_of, no_decoder
from neusight.workloads.decoders.decoder import Decoder


def known_decoders() -> tuple[str, ...]:
    """Names of the configurations that ship for serving, as the hub has them."""
    return tuple(_entries())


def known_decoder(name: str) -> Decoder:
    """A decoder by its name on the hub, in any case and with or without its organisation, or from a file.

    Args:
        name: such as ``Qwen/Qwen3-32B``, a name of the catalogue of workloads, or the path of a ``config.json`` or of
            the folder that holds it. What is written as a path is one; else names come first.

    Raises:
        ModelError: no such name or file, or a configuration that is no decoder's.
    """
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        return _from_file(user_path(name))
    if full := _names().get(_plain(name)):
        return _shipped_decoder(full)
    if ready := canonical_name(name):
        return decoder_of(catalogue_config(ready), ready)
    if traced := traced_name(name):
        return decoder_of(traced_config(traced), traced)
    if is_there(name):
        return _from_file(Path(name))
    if other := catalogue.hub_config(name):
        return _of_hub(*other)
    if ":" in name:
        raise no_decoder(shown(name), "a model of a library or a module")
    hint = nearest_models(name, ("causal-lm",))
    raise ModelError(f"unknown model '{shown(name)}'{hint}: not in the catalogue, give the path of its config.json")


@cache
def _shipped_decoder(full: str) -> Decoder:
    """Decoder of one of the ``known_decoders``."""
    return decoder_of(_config(full), full)


def _of_hub(name: str, config: dict[str, Any]) -> Decoder:
    """A model whose configuration states what transformers would not take for its type."""
    from neusight.workloads.huggingface import complete

    return decoder_of(complete(config), name)


def hub_config(name: str) -> tuple[str, dict[str, Any]] | None:
    """The full name and the configuration of one of ``known_decoders``, by its name in any case and with or without its
    organisation; None for other names.
    """
    full = _names().get(_plain(name))
    return None if full is None else (full, _config(full))


def _from_file(path: Path) -> Decoder:
    file = path / "config.json" if path.is_dir() else path
    return decoder_of(read_config(file), file.resolve().parent.name if file.name == "config.json" else file.stem)


def nearest_models(name: str, kinds: Collection[str] = KINDS) -> str:
    """A hint at models of some kinds whose names look alike, with or without the organisation."""
    workloads = [info for info in (*list_workloads(), *list_traced()) if info.kind in kinds]
    others = list_hub() if len(kinds) > 1 else ()
    hub = {_plain(full).rsplit("/", 1)[-1]: full for full in (*others, *_entries())}
    names = [*(name for info in workloads for name in (info.name, *info.aliases)), *hub]
    return did_you_mean(hub.get(close, close) for close in close_names(_plain(name).rsplit("/", 1)[-1], names))


def _plain(name: str) -> str:
    return name.strip().lower()


@cache
def _names() -> dict[str, str]:
    """Full names by what people write: lower case, whole or without the organisation; the first of equal ones."""
    names: dict[str, str] = {}
    for full in _entries():
        names.setdefault(_plain(full).rsplit("/", 1)[-1], full)
    return {**names, **{_plain(full): full for full in _entries()}}


def _config(full: str) -> dict[str, Any]:
    """Keys of a configuration; one of the same architecture as another has that one's, and what differs. Weights are
    in bfloat16 unless an entry states another dtype.
    """
    entry = {"torch_dtype": "bfloat16", **_entries()[full]}
    base = _entries()[entry.pop("same_as")] if "same_as" in entry else {}
    return {**{key: value for key, value in base.items() if key != "quantization_config"}, **entry}


@cache
def _entries() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("known.json").read_text(encoding="utf-8")
    return json.loads(text)
