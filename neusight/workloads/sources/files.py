"""Files of a graph: programs of ``torch.export`` (``model.pt2``), ONNX files (``model.onnx``) and those of TensorFlow
Lite (``model.tflite``).

Of weights nothing but the shape is read; extents that a file leaves open take what was asked for.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, reason
from neusight.kernels.precision import OWN_PRECISION
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.inputs.given import given_inputs
from neusight.workloads.inputs.sizes import IMAGE_SIZE
from neusight.workloads.sources.described import Inputs, ModelSource, library, refuse_others
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

EXPORTED_SUFFIX, ONNX_SUFFIX, TFLITE_SUFFIX = ".pt2", ".onnx", ".tflite"
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


def spec_of_input(name: str, shape: Sequence[int | None], dtype: str, request: Request) -> TensorSpec:
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
    extents = [size if size is not None else _extent(place, shape, dtype, request) for place, size in enumerate(shape)]
    missing = [place for place, size in enumerate(extents) if size is None]
    if missing:
        shape_text = "x".join("?" if size is None else str(size) for size in extents)
        raise ModelError(
            f"input '{name}' of {request.model} is {shape_text}: write it out, as --input {name}=SHAPE:{dtype}"
        )
    return TensorSpec(tuple(size for size in extents if size is not None), dtype)


def _extent(place: int, shape: Sequence[int | None], dtype: str, request: Request) -> int | None:
    if place == 0:
        return request.batch
    if len(shape) == _IMAGE_DIMENSIONS and place >= 2:
        return (request.extents.edges or (IMAGE_SIZE, IMAGE_SIZE))[min(place, 3) - 2]
    if place == 1 and (len(shape) == 2 or request.seq_len) and not dtype.startswith("float"):
        return request.seq_len or SEQ_LEN
    return request.seq_len if place == 1 else None


@dataclass(frozen=True, kw_only=True)
class GraphFile(ModelSource):
    """A graph in a file: of ONNX with external data beside it, if any."""

    file: Path

    @property
    def content(self) -> str:
        """The file's; values of weights, which may lie elsewhere, change no kernel."""
        return f"{self.file.suffix} {digest(self.file)}"

    def settled(self, request: Request) -> Request:
        """Inference; extents that the graph leaves open may be asked for.

        Raises:
            ModelError: training was asked for, which a graph does not have, or something that no input depends on.
        """
        if request.mode == "training":
            raise ModelError(
                f"{request.model} is a graph for inference: leave out --mode training, or pass the module itself as "
                "package.module:function"
            )
        return refuse_others(request, "seq_len", "image_size", "given")


class ExportedModel(GraphFile):
    """A program of ``torch.export``."""

    def build(self, request: Request) -> torch.nn.Module:
        """The program as a module without weights."""
        import torch

        from neusight.workloads.trace.building import copy_as_fake
        from neusight.workloads.trace.library_forms import as_module

        with warnings.catch_warnings():
            # Copies of a program's signature ask for classes by names that PyTorch has changed.
            warnings.simplefilter("ignore", FutureWarning)
            is_own = request.precision == OWN_PRECISION
            return copy_as_fake(as_module(self._program), None if is_own else torch.get_default_dtype())

    def inputs(self, request: Request) -> Inputs:
        """Inputs by name, where the program has names; extents that it leaves open are the requested ones."""
        placeholders = {node.name: node for node in self._program.graph.nodes if node.op == "placeholder"}
        inputs: dict[str, Any] = {}
        for name in self._program.graph_signature.user_inputs:
            value = placeholders[name].meta.get("val") if isinstance(name, str) and name in placeholders else name
            shape = getattr(value, "shape", None)
            dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
            inputs[str(name)] = value if shape is None else spec_of_input(name, _extents(shape), dtype, request)
        return inputs

    @cached_property
    def _program(self) -> torch.export.ExportedProgram:
        from torch.export import load
        from torch.utils._python_dispatch import _disable_current_modes

        logger = logging.getLogger("torch.export")
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            with _disable_current_modes():
                return load(self.file)
        except Exception as error:
            raise ModelError(
                f"{self.file} is no program of this PyTorch ({type(error).__name__}: {reason(error)}): write it again "
                "with torch.export.save"
            ) from None
        finally:
            logger.setLevel(level)


def _extents(shape: Any) -> list[int | None]:
    """Sizes, with None for those that the program leaves open."""
    return [size if isinstance(size, int) else None for size in shape]


class OnnxModel(GraphFile):
    """An ONNX graph."""

    def build(self, request: Request) -> torch.nn.Module:
        """The graph as a module.

        Raises:
            ModelError: onnx is missing, or the file is no graph. CoverageError: an operator has no form.
        """
        library("onnx")
        from neusight.workloads.onnx.graph import OnnxModule

        return OnnxModule(self._model, self.file.parent)

    def inputs(self, request: Request) -> Inputs:
        """Inputs by name: all that are no weights."""
        weights = {tensor.name for tensor in self._model.graph.initializer}
        return {
            value.name: self._input(value, request) for value in self._model.graph.input if value.name not in weights
        }

    def _input(self, given: Any, request: Request) -> Any:
        from neusight.workloads.onnx.node import dtype_of

        kind = given.type.tensor_type
        if not given.type.HasField("tensor_type"):
            raise ModelError(
                f"input '{given.name}' of {request.model} is no tensor: export the model with tensors alone"
            )
        extents = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        return spec_of_input(given.name, extents, str(dtype_of(kind.elem_type)).removeprefix("torch."), request)

    @cached_property
    def _model(self) -> Any:
        onnx = library("onnx")
        try:
            model = onnx.load(str(self.file), load_external_data=False)
        except Exception as error:
            raise ModelError(
                f"{self.file} is no ONNX graph ({type(error).__name__}: {reason(error)}): write it again with "
                "torch.onnx.export"
            ) from None
        if not model.graph.node:
            raise ModelError(f"{self.file} holds no operators: write it again with torch.onnx.export")
        return model


class TfliteModel(GraphFile):
    """A graph of TensorFlow Lite."""

    @property
    def dtype(self) -> str:
        """Dtype in which most of its operators run."""
        model = self._model
        from neusight.workloads.tflite import dtype_of

        return dtype_of(model)

    def build(self, request: Request) -> torch.nn.Module:
        """The graph as a module.

        Raises:
            ModelError: tflite is missing, or the file is no graph. CoverageError: an operator has no form.
        """
        model = self._model
        from neusight.workloads.tflite import TfliteModule

        return TfliteModule(model)

    def inputs(self, request: Request) -> Inputs:
        """Inputs by name."""
        from neusight.workloads.tflite import inputs_of

        named = inputs_of(self._model).items()
        return {name: spec_of_input(name, shape, "float32", request) for name, (_, shape) in named}

    @cached_property
    def _model(self) -> Any:
        tflite = library("tflite")
        content = self.file.read_bytes()
        if content[4:8] != b"TFL3":
            raise ModelError(f"{self.file} is no graph of TensorFlow Lite: write it with tf.lite.TFLiteConverter")
        return tflite.Model.GetRootAsModel(content, 0)
