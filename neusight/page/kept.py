"""Files that are dropped on the page: kept in the user's cache by their content, where commands find them again."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from nicegui import ui

from neusight.errors import ModelError, NeusightError
from neusight.paths import cache_dir
from neusight.workloads.config_file import read_config
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.reading import Keys


def chosen_file(label: str, endings: str, taken: Callable[[Any], Awaitable[None]]) -> tuple[ui.upload, ui.button]:
    """A button that chooses a file, and the upload behind it, whose event goes to ``taken``."""

    async def on_upload(event: Any) -> None:
        event.sender.reset()
        await taken(event)

    upload = ui.upload(on_upload=on_upload).props(f'auto-upload accept="{endings}"').style("display: none")
    button = ui.button(label, on_click=lambda: upload.run_method("pickFiles")).props("flat dense no-caps")
    return upload, button


def keep(name: str, content: bytes) -> Path:
    """Write a file into the folder of its content."""
    path = cache_dir() / "dropped" / sha256(content).hexdigest()[:12] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def keep_model(name: str, content: bytes) -> Path:
    """Keep a model, a configuration as ``bloom-194b/config.json``.

    Raises:
        ModelError: no model is read from the file.
    """
    from neusight.workloads.resolve import resolve

    path = keep(Path(name).name, content)
    try:
        source = resolve(path)
        if source.config is not None:
            path = keep(f"{_name(read_config(path))}/config.json", content)
    except NeusightError as mistake:
        path.unlink()
        raise ModelError(str(mistake).replace(f"{path.parent}/", "")) from None
    return path


def _name(config: dict[str, object]) -> str:
    """Type and size of a model: the number of weights of a decoder, else layers and width."""
    kind = re.sub(r"[^\w.]+", "-", str(config["model_type"]))[:40]
    try:
        number = decoder_of(config, kind).parameters
    except NeusightError:
        keys = Keys(config, kind, {})
        sizes = [str(size) for key in ("num_hidden_layers", "hidden_size") if isinstance(size := keys.get(key), int)]
        return "-".join([kind, "x".join(sizes)]).rstrip("-")
    return f"{kind}-{number / 1e9:.3g}b" if number >= 1e9 else f"{kind}-{number / 1e6:.3g}m"
