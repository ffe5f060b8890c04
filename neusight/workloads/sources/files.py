"""What sources that are files of a graph have in common: their content, and extents that a file leaves open."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads.inputs.given import given_inputs
from neusight.workloads.inputs.sizes import IMAGE_SIZE
from neusight.workloads.sources.described import refuse_others
from neusight.workloads.tensors import TensorSpec

SEQ_LEN = 128
"""Tokens where a file leaves a second extent of integers open and none are asked for."""
_IMAGE_DIMENSIONS = 4


def digest(file: Path) -> str:
    """The hash of a file's bytes.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}; check the path") from None


def for_inference(request: Request) -> Request:
    """The request, if it is for inference and asks for extents that a file may leave open.

    Raises:
        ModelError: training was asked for, which no file of a graph has, or something that no input depends on.
    """
    if request.mode == "training":
        raise ModelError(
            f"{request.model} is a graph for inference: leave out --mode training, or pass the module itself as "
            "package.module:function"
        )
    return refuse_others(request, "seq_len", "image_size", "given")


def sized(name: str, shape: Sequence[int | None], dtype: str, request: Request) -> TensorSpec:
    """An input whose open extents are filled in: the first is the batch; others are pixels of images or tokens.

    Args:
        name: of the input, for messages.
        shape: its extents; None where the file leaves one open.
        dtype: of its elements.
        request: what was asked for; an input written out with ``--input`` counts as it is.

    Raises:
        ModelError: an open extent is none of these, or the batch that was asked for is not the file's.
    """
    written = [text for text in request.extents.given if text.partition("=")[0].strip() == name]
    if written:
        return given_inputs(written, [name])[name]
    if shape and shape[0] not in (None, request.batch) and request.batch != 1:
        raise ModelError(
            f"input '{name}' of {request.model} is made for {shape[0]} samples: leave out --batch, or export the model "
            "with an open first extent"
        )
    found = [size if size is not None else _filled(place, shape, dtype, request) for place, size in enumerate(shape)]
    missing = [place for place, size in enumerate(found) if size is None]
    if missing:
        told = "x".join("?" if size is None else str(size) for size in found)
        raise ModelError(f"input '{name}' of {request.model} is {told}: write it out, as --input {name}=SHAPE:{dtype}")
    return TensorSpec(tuple(size for size in found if size is not None), dtype)


def _filled(place: int, shape: Sequence[int | None], dtype: str, request: Request) -> int | None:
    if place == 0:
        return request.batch
    if len(shape) == _IMAGE_DIMENSIONS and place >= 2:
        return request.extents.image_size or IMAGE_SIZE
    if place == 1 and (len(shape) == 2 or request.seq_len) and not dtype.startswith("float"):
        return request.seq_len or SEQ_LEN
    return request.seq_len if place == 1 else None
