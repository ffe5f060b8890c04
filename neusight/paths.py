"""Where resources lie: inside the installed package, or in the checkout next to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from neusight.errors import DataError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent
_instead: ContextVar[Path | None] = ContextVar("tile_models", default=None)


@contextmanager
def tile_models_from(folder: Path | None) -> Iterator[None]:
    """Within this context a folder stands for that of what ships: tile models, and constants of every kind."""
    token = _instead.set(folder)
    try:
        yield
    finally:
        _instead.reset(token)


def chosen_tile_models() -> Path | None:
    """The folder of ``tile_models_from``; None where what ships counts."""
    return _instead.get()


def tile_models_dir() -> Path:
    """Folder of the tile models that ship: ``neusight/_pretrained`` in a wheel, ``tile_models/`` in a checkout."""
    if chosen := _instead.get():
        return chosen
    installed = _PACKAGE / "_pretrained"
    return installed if installed.is_dir() else _CHECKOUT / "tile_models"


def checkout_dir(stage: str) -> Path:
    """Folder of a stage's declarations (``datasets``, ``features``, ``experiments``): in a wheel below the package, in
    a checkout at its root.
    """
    installed = _PACKAGE / f"_{stage}"
    return installed if installed.is_dir() else _CHECKOUT / stage


def cache_dir() -> Path:
    """Per-user cache: ``$NEUSIGHT_CACHE``, else ``$XDG_CACHE_HOME/neusight``, else ``~/.cache/neusight``."""
    chosen = os.environ.get("NEUSIGHT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "neusight"


def calibrations_dir() -> Path:
    """The user's calibrations: ``$NEUSIGHT_CALIBRATIONS``, else ``neusight/calibrations`` in ``$XDG_DATA_HOME``, which
    is ``~/.local/share`` where it is not set. The folder need not be there.
    """
    chosen = os.environ.get("NEUSIGHT_CALIBRATIONS")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "neusight" / "calibrations"


def data_dir() -> Path:
    """Folder with the measured data sets, from ``NEUSIGHT_DATA``.

    Raises:
        DataError: the variable is not set, or names no folder.
    """
    chosen = os.environ.get("NEUSIGHT_DATA")
    if not chosen:
        raise DataError("NEUSIGHT_DATA is not set: point it at the folder that holds the measured data sets")
    if not Path(chosen).is_dir():
        raise DataError(f"NEUSIGHT_DATA={chosen} is not a folder: point it at the measured data sets")
    return Path(chosen)


def writable(path: Path, *, folder: bool = False) -> Path:
    """The path, when a file can be written there, or a folder be filled; nothing is created.

    For whoever works long before writing: a path that cannot be is known at once.

    Args:
        path: may exist, and so may the folders above it or not.
        folder: a folder is written, not a file.

    Raises:
        DataError: a file is where a folder would be, a folder where a file would be, or it may not be written.
    """
    existing = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if existing != path.absolute() and not existing.is_dir():
        raise DataError(f"{path} cannot be written: {existing} is a file, not a folder: give another path")
    if existing == path.absolute() and existing.is_dir() != folder:
        is_, wanted = ("a folder", "file") if existing.is_dir() else ("a file", "folder")
        raise DataError(f"{path} is {is_}: give the {wanted} to write")
    if not os.access(existing, os.W_OK):
        raise DataError(f"{path} cannot be written: {existing} may not be written to: give another path")
    return path


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, no text, or nested deeper than anything that belongs here.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def user_path(text: str) -> Path:
    """A path as people write it, with ``~`` for a home; ``~`` of somebody unknown stays as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_there(text: str) -> bool:
    """Whether a text is the path of something; one that no path can be, such as one too long, is not."""
    try:
        return Path(text).exists()
    except OSError:
        return False
