"""One exception class a kind of mistake; every message says what was wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class NeusightError(Exception):
    """Base of everything a user can cause. The command line prints it as one line and exits with 1."""


class UnitError(NeusightError):
    """A quantity that cannot be read, or has the wrong unit."""


class DeviceError(NeusightError):
    """A device that is unknown, malformed, or lacks what was asked of it."""


class ModelError(NeusightError):
    """A model that cannot be found, built or run with the given inputs."""


class CoverageError(NeusightError):
    """An operator, kernel family or dtype for which there is no rule."""


class UnmeasurableError(NeusightError):
    """A kernel or a step that the device or its library cannot run: a collection records it and goes on."""


class DataError(NeusightError):
    """A data set or file that is missing, truncated or not what its schema says."""


class ArtifactError(NeusightError):
    """A trained tile model that does not load: protocol, features or hashes differ."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean a10, a30?`` or the empty string when nothing is close."""
    close = get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else ""
