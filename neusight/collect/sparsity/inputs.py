"""Networks that train where their zeros are measured, with samples for each step: noise, small real images that
scikit-learn ships, random tokens, or inputs that a module draws for itself.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from neusight.collect.steps import real_input
from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import WorkloadSource
from neusight.workloads.catalogue import is_image_config
from neusight.workloads.functions import call_function, function_options, import_function, importable_here
from neusight.workloads.huggingface import build_model, input_specs
from neusight.workloads.inputs import as_inputs, tensors_of
from neusight.workloads.load import settled_request
from neusight.workloads.sources.described import ModelSource
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.failures import explain_failures

SEQ_LEN = 128
"""Tokens a sample unless asked for otherwise: few enough for a CPU."""
_COPIES = 3
"""Copies of every weight: itself, its gradient and its momentum, in float32."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Samples = tuple[Inputs, torch.Tensor | None]
"""Inputs of a step, and its classes where there are some."""


@dataclass(frozen=True, kw_only=True)
class TrainedModule:
    """A module in training and the samples of its steps; ``described``: these in words, ``origin``: its weights.
    Classes that are ``real`` can be learned.
    """

    name: str
    module: nn.Module
    samples: Callable[[], Samples]
    described: str
    origin: str = "random initialisation"
    real: bool = False


def prepare(
    source: WorkloadSource, batch: int, seq_len: int | None, image_size: int | None, *, digits: bool
) -> TrainedModule:
    """The real module with random weights, of the caller's seed, and a source of inputs.

    Raises:
        ModelError: inputs that it does not take, or one too large for this host.
    """
    if seq_len is None and source.config is not None and source.takes_seq_len:
        seq_len = min(SEQ_LEN, source.max_seq_len or SEQ_LEN)
    sizes: dict[str, Any] = {"batch": batch, "seq_len": seq_len, "image_size": image_size}
    request = settled_request(source, Request.of(source.name, mode="training", attention="eager", **sizes))
    if source.config is not None:
        training = _from_config(source.config, request, digits)
    elif source.described is not None:
        training = _from_library(source.described, request)
    elif image_size is not None:
        raise ModelError(f"the inputs of {source.name} come with it: leave out the image size")
    elif source.function is not None:
        training = _with_given_inputs(source.name, *_from_function(source.function, batch, seq_len))
    else:
        module = source.module if isinstance(source.module, nn.Module) else source.module()
        # A copy, since training changes it.
        training = _with_given_inputs(source.name, copy.deepcopy(module), source.inputs)
    return _with_digits(training) if digits else training


def _from_config(config: dict[str, Any], request: Request, digits: bool) -> TrainedModule:
    name, size, images = request.model, request.extents.image_size, is_image_config(config)
    unread = {"--seq-len": request.seq_len} if images else {"--data": digits or None, "--image-size": size}
    if unread_options := [option for option, value in unread.items() if value is not None]:
        raise ModelError(f"{name} reads {'images' if images else 'tokens'}: leave out {unread_options[0]}")
    config = config | {"image_size": size or config.get("image_size", 224)} if images else config
    shape = f"{config['image_size']}x{config['image_size']} pixels" if images else f"{request.seq_len} tokens"
    specs = input_specs(config, request.batch, request.seq_len, "eager")
    with explain_failures(name, "train"):
        _check_size(name, config)
        module = build_model(config, "training", "eager")
    return _with_random_inputs(module, request, (), specs, shape)


def _with_random_inputs(
    module: nn.Module, request: Request, args: Sequence[TensorSpec], kwargs: Mapping[str, TensorSpec], shape: str
) -> TrainedModule:
    """A trained module with inputs of a forward pass, in order or by name, drawn for each step."""

    def samples() -> Samples:
        positional = tuple(real_input("", spec, module, images=noise) for spec in args)
        return (positional, {key: real_input(key, spec, module, images=noise) for key, spec in kwargs.items()}), None

    described = f"random inputs of batch {request.batch}, {shape}"
    return TrainedModule(name=request.model, module=module, samples=samples, described=described)


def _check_size(name: str, config: dict[str, Any]) -> None:
    """A host that runs out of memory kills without a word."""
    with torch.device("meta"):
        module = build_model(config, "training", "eager")
    needed = _COPIES * sum(p.numel() * p.element_size() for p in module.parameters())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = f"{needed / 1e9:.0f} GB for weights, gradients and updates, this host has {there / 1e9:.0f} GB"
        raise ModelError(f"training {name} takes {sizes}: measure a smaller model of its kind")


def _from_function(text: str, batch: int, seq_len: int | None) -> tuple[Any, Any]:
    """Call it once without weights, which finds mistakes early, and again where that left tensors without values."""
    module, inputs = call_function(text, batch, seq_len)
    if any(t.is_meta for t in (*module.parameters(), *module.buffers(), *tensors_of(inputs))):
        function = import_function(text)
        with explain_failures(text, "train"), importable_here():
            module, inputs = function(**function_options(function, text, batch, seq_len))
    return module, inputs


def _from_library(described: ModelSource, request: Request) -> TrainedModule:
    """A model of timm or torchvision, which name their inputs."""
    name = request.model
    with explain_failures(name, "train"):
        module, specs = described.build(request), described.inputs(request)
    if not isinstance(specs, tuple) or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise ModelError(f"{name} takes more than images: give it as package.module:function, with its inputs")
    height, width = specs[0].shape[-2:]
    return _with_random_inputs(module, request, specs, {}, f"{height}x{width} pixels")


def _with_given_inputs(name: str, module: nn.Module, inputs: Any) -> TrainedModule:
    """The caller's own inputs, the same in every step, or what its module draws for each."""
    if callable(draw := getattr(module, "samples", None)):

        def drawn() -> Samples:
            args, classes = draw()
            return (args, {}), classes

        described = (inspect.getdoc(draw) or "its own samples").splitlines()[0].rstrip(".")
        return TrainedModule(name=name, module=module, samples=drawn, described=described, real=True)
    named = isinstance(inputs, Mapping)
    arguments: Inputs = ((), dict(inputs)) if named else (tuple(as_inputs(inputs)), {})
    if not any(isinstance(value, torch.Tensor) for value in tree_leaves(arguments)):
        raise ModelError(f"the inputs of {name} hold no tensor: give what its forward() takes, with values")
    return TrainedModule(
        name=name,
        module=module,
        samples=lambda: (arguments, None),
        described="the given inputs in every step",
        origin="the weights it came with",
    )


def _with_digits(training: TrainedModule) -> TrainedModule:
    """The training with handwritten digits in place of the module's images, a batch with its classes drawn for each
    step.

    Raises:
        ModelError: it takes no images.
    """

    def is_image(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim == 4

    with torch.random.fork_rng(devices=[]):
        inputs, _ = training.samples()
    shapes = [tuple(value.shape) for value in tree_leaves(inputs) if is_image(value)]
    if len(shapes) != 1:
        raise ModelError(f"{training.name} takes no batch of images: leave out --data")

    def samples() -> Samples:
        digit_images, classes = digits()
        chosen = torch.randint(len(digit_images), shapes[0][:1])
        images = enlarged(digit_images[chosen], shapes[0])
        return tree_map(lambda value: images if is_image(value) else value, inputs), classes[chosen]

    batch, _, height, width = shapes[0]
    described = f"handwritten digits of batch {batch}, {height}x{width} pixels"
    return replace(training, samples=samples, described=described, real=True)


def noise(shape: tuple[int, ...]) -> torch.Tensor:
    """Noise whose amplitudes fall as 1/f, as those of natural images do (Field 1987, JOSA A 4(12)); each channel of
    mean 0 and variance 1. White noise would not excite the same units at neighbouring pixels.
    """
    height, width = shape[-2:]
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width))
    frequency[0, 0] = torch.inf
    smooth = torch.fft.irfft2(torch.fft.rfft2(torch.randn(shape)) / frequency, s=(height, width))
    return smooth / smooth.std(dim=(-2, -1), correction=0, keepdim=True).clamp(min=1e-12)


def enlarged(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Grey images (images, height, width) as (images, channels, height, width), all channels alike."""
    larger = functional.interpolate(images[:, None], size=shape[-2:], mode="bilinear", align_corners=False)
    return larger.expand(shape).clone()


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All handwritten digits of ``sklearn.datasets.load_digits`` (Alpaydin and Kaynak 1998), of shape (images, 8, 8),
    mean 0 and variance 1, and their classes.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)
    return (images - images.mean()) / images.std(), torch.tensor(data.target)
