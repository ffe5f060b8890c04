"""Measure a sparsity profile: hooks on a network's layers over real training steps on the CPU.

The network itself, synthetic inputs and targets or small real images, and updates by SGD. Needs torch at once.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.collect.sparsity.prune import Pruning, hold_pruned, prune_module
from neusight.collect.sparsity.samples import Data, Digits, noise
from neusight.collect.sparsity.streams import Readings
from neusight.collect.steps import logit_rows, real_input
from neusight.errors import ModelError
from neusight.steps.questions import step_request
from neusight.transforms.sparsity import SparsityProfile
from neusight.workloads import WorkloadSource, resolve
from neusight.workloads.functions import call_function, importable_here
from neusight.workloads.huggingface import build_model, input_specs
from neusight.workloads.inputs import tensors_of
from neusight.workloads.sources.described import ModelSource
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.failures import explained

WARMUP = 3
"""Updates before the first step that is read."""
SEQ_LEN = 128
"""Tokens a sample unless asked for otherwise: few enough for a CPU."""
LEARNING_RATE = 0.01
MOMENTUM = 0.9
ADAM_RATE = 1e-4
_COPIES = 3
"""Of every weight: itself, its gradient and its momentum, in float32."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Samples = tuple[Inputs, torch.Tensor | None]
"""What a step is given, and its classes where there are some."""


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


def measure(
    model: Any,
    batch: int = 2,
    *,
    inputs: Any = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    steps: int = 2,
    warmup: int = WARMUP,
    seed: int = 0,
    pruning: Pruning | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SparsityProfile:
    """Zeros of each convolution and linear layer, as the layer sees them, mean over training steps.

    The network is real, but small in batch: random initialisation (unless ``weights`` are given), noise as smooth as
    photographs or random tokens as inputs, random targets, or real samples with their classes; float32, dropout active.
    ``warmup`` updates come first, since rectifiers of a network as it was initialised are not those of one in
    training. ``source`` of the profile says what was done.

    Shares of zeros count every value of a layer's input, of the gradient of its output and of its weights. Clustering
    is that of at most 256 of an operand's streams a step, drawn evenly (see ``streams``); 0 where it comes out below.
    Of what groups, is chosen for each operand: the kind whose zeros keep together most (in rectified networks mostly
    ``slot``: units that are dead for many inputs). Zeros drawn from that took cycles within 1.0 % of the real zeros' on
    average for AlexNet, where ``stream`` was 2.3 % off; 0.2 % and 0.9 % for OPT-125M; 0.8 % and 0.7 % for ResNet-50.
    Layers that never ran are left out, and the default is dense: zeros that nobody saw save nothing.

    Args:
        model: what ``neusight predict`` takes, or a ``torch.nn.Module`` with ``inputs`` (it is copied). One that has a
            method ``samples`` trains on what that gives for each step: inputs of its ``forward``, in order, and
            classes of every row of its logits, -100 where there is none.
        batch: samples a step.
        inputs: for a module, what its ``forward`` takes, by name or in order, with values; for a model of images also
            ``"digits"``, real ones with their classes.
        seq_len: tokens a sample; 128 unless given, or less where the model allows no more.
        image_size: pixels along an edge; the model's own unless given.
        steps: training steps that are read.
        warmup: updates before.
        seed: of weights, inputs, targets, dropout and the streams drawn. Equal seeds give equal profiles.
        pruning: of the weights before training; what is pruned stays zero.
        weights: a state_dict to start from.
        loss: from the module's result to a scalar; else the result's own, or the cross-entropy of its logits.
        progress: called with (steps done, of).

    Raises:
        ModelError: an unknown model, a count that is too small, inputs or weights that do not fit, or no such layer.
    """
    profiles = measure_course(
        model, batch, inputs=inputs, seq_len=seq_len, image_size=image_size, steps=steps, updates=(warmup,), seed=seed,
        pruning=pruning, weights=weights, loss=loss, progress=progress,
    )  # fmt: skip
    return profiles[warmup]


def measure_course(
    model: Any,
    batch: int = 2,
    *,
    updates: Sequence[int],
    inputs: Any = None,
    seq_len: int | None = None,
    image_size: int | None = None,
    steps: int = 2,
    seed: int = 0,
    pruning: Pruning | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[int, SparsityProfile]:
    """Profiles as ``measure`` gives them after each of several numbers of updates, in one training.

    Args:
        updates: rising, ``steps`` apart at least, since steps that are read update as well.

    Raises:
        ModelError: as ``measure``, or updates that do not rise.
    """
    _hold_counts({"batch": batch, "steps": steps, "sequence length": seq_len, "image size": image_size}, least=1)
    _hold_counts({"warm-up": updates[0]}, least=0)
    _hold_rising(updates, steps)
    profiles = {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        data: Data = "digits" if isinstance(inputs, str) and inputs == "digits" else "noise"
        given = None if data == "digits" else inputs
        training = prepared(resolve(model, given), batch, seq_len, image_size, data)
        _start_from(training, weights)
        masks = prune_module(training.module, pruning) if pruning else {}
        readings = Readings(training.module, seed)
        optimizer = _optimizer(training)
        begin = "given weights" if weights is not None else training.origin
        begun = f"from {begin}{f', {pruning}' if pruning else ''}; {training.described}"
        losses: list[float] = []
        for at in updates:
            for done in range(len(losses), at + steps):
                readings.active = done >= at
                losses.append(_update(training, optimizer, loss))
                hold_pruned(training.module, masks)
                progress(done + 1, updates[-1] + steps)
            counts = f"{_counted(steps, 'training step')} after {_counted(at, 'update')} by {type(optimizer).__name__}"
            learned = f"loss {losses[0]:.2f} to {sum(losses[-steps:]) / steps:.2f}"
            source = f"measured over {counts}, {begun}; {learned}; seed {seed}"
            profiles[at] = SparsityProfile(model=training.name, layers=readings.taken(), source=source)
    return profiles


def _hold_rising(updates: Sequence[int], steps: int) -> None:
    for before, after in pairwise(updates):
        if after - before < steps:
            raise ModelError(f"updates {before} and {after}: give rising numbers, {steps} apart at least")


def _optimizer(training: TrainedModule) -> torch.optim.Optimizer:
    """SGD; Adam where real classes are to be learned, which networks without normalisation otherwise take long to."""
    parameters = training.module.train().parameters()
    if training.real:
        return torch.optim.Adam(parameters, lr=ADAM_RATE)
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _hold_counts(counts: Mapping[str, Any], least: int) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < least):
            raise ModelError(f"{name} {count}: give a whole number of at least {least}")


def _start_from(training: TrainedModule, weights: Mapping[str, torch.Tensor] | None) -> None:
    if weights is None:
        return
    try:
        training.module.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"the weights are not those of {training.name}: {reason}: give its state_dict") from None


def prepared(
    source: WorkloadSource,
    batch: int = 2,
    seq_len: int | None = None,
    image_size: int | None = None,
    data: Data = "noise",
) -> TrainedModule:
    """The real module with random weights, of the caller's seed, and a source of inputs.

    Raises:
        ModelError: inputs that it does not take, or one too large for this host.
    """
    if source.config is not None:
        return _from_config(source, batch, seq_len, image_size, data)
    if source.described is not None:
        return _of_library(source, source.described, batch, image_size, data)
    if image_size is not None:
        raise ModelError(f"the inputs of {source.name} come with it: leave out the image size")
    if source.function is not None:
        return _from_function(source, batch, seq_len)
    module = source.module if isinstance(source.module, nn.Module) else source.module()
    # A copy, since training changes it.
    training = _given(source.name, copy.deepcopy(module), source.inputs)
    return _of_digits(training) if data == "digits" else training


def _update(
    training: TrainedModule, optimizer: torch.optim.Optimizer, loss: Callable[[Any], torch.Tensor] | None
) -> float:
    """One training step, and its loss.

    Raises:
        ModelError: the module does not run with its inputs, or diverges.
    """
    with explained(training.name, "train"):
        (args, kwargs), classes = training.samples()
        result = training.module(*args, **kwargs)
        value = loss(result) if loss else _loss_of(result, classes)
        value.backward()
    if not torch.isfinite(value):
        raise ModelError(f"the loss of {training.name} is {value.item()}: give weights that training can go on from")
    optimizer.step()
    optimizer.zero_grad()
    return value.item()


def _from_config(
    source: WorkloadSource, batch: int, seq_len: int | None, image_size: int | None, data: Data
) -> TrainedModule:
    config = source.config or {}
    name = source.name
    if source.takes_seq_len and data != "noise":
        raise ModelError(f"{name} reads tokens, and {data} are images: leave out --data")
    if source.takes_seq_len and image_size is not None:
        raise ModelError(f"{name} reads tokens, which have no image size: leave out --image-size")
    if not source.takes_seq_len and seq_len is not None:
        raise ModelError(f"{name} reads images, which have no sequence: leave out --seq-len")
    if not source.takes_seq_len:
        config = config | {"image_size": image_size or config.get("image_size", 224)}
    seq_len = _seq_len(source, seq_len)
    specs = input_specs(config, batch, seq_len, "eager")
    with explained(name, "train"):
        _hold_size(name, config)
        module = build_model(config, "training", "eager")
    shape = f"{seq_len} tokens" if seq_len else f"{config['image_size']}x{config['image_size']} pixels"
    real = Digits() if data == "digits" else None
    images = real.images if real else noise

    def samples() -> Samples:
        inputs = {k: real_input(k, spec, module, images=images) for k, spec in specs.items()}
        return ((), inputs), real.classes if real else None

    described = f"{'handwritten digits' if real else 'random inputs'} of batch {batch}, {shape}"
    return TrainedModule(name=name, module=module, samples=samples, described=described, real=real is not None)


def _seq_len(source: WorkloadSource, requested: int | None) -> int | None:
    if not source.takes_seq_len:
        return None
    limit = source.max_seq_len
    if requested is not None and limit is not None and requested > limit:
        raise ModelError(f"sequence length {requested} is longer than {source.name} allows: at most {limit}")
    return requested or min(SEQ_LEN, limit or SEQ_LEN)


def _hold_size(name: str, config: dict[str, Any]) -> None:
    """A host that runs out of memory kills without a word."""
    with torch.device("meta"):
        module = build_model(config, "training", "eager")
    needed = _COPIES * sum(p.numel() * p.element_size() for p in module.parameters())
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        sizes = f"{needed / 1e9:.0f} GB for weights, gradients and updates, this host has {there / 1e9:.0f} GB"
        raise ModelError(f"training {name} takes {sizes}: measure a smaller model of its kind")


def _from_function(source: WorkloadSource, batch: int, seq_len: int | None) -> TrainedModule:
    """Called once without weights for its mistakes to be told; once more where that left it without values."""
    text = str(source.function)
    module, inputs = call_function(text, batch, seq_len)
    if any(t.is_meta for t in (*module.parameters(), *module.buffers(), *tensors_of(inputs))):
        module_name, _, name = text.partition(":")
        function = getattr(importlib.import_module(module_name), name)
        taken = inspect.signature(function).parameters
        wanted = {"batch": batch, "seq_len": seq_len}
        with explained(text, "train"), importable_here():
            module, inputs = function(**{k: v for k, v in wanted.items() if k in taken and v is not None})
    return _given(source.name, module, inputs)


def _given(name: str, module: nn.Module, inputs: Any) -> TrainedModule:
    """The caller's own inputs, the same in every step, or what its module draws for each."""
    if callable(draw := getattr(module, "samples", None)):
        return TrainedModule(
            name=name, module=module, samples=lambda: _drawn(draw()), described=_first_line(draw), real=True
        )
    if isinstance(inputs, Mapping):
        given: Inputs = (), dict(inputs)
    else:
        given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
    if not any(isinstance(v, torch.Tensor) for v in (*given[0], *given[1].values())):
        raise ModelError(f"the inputs of {name} hold no tensor: give what its forward() takes, with values")
    return TrainedModule(
        name=name,
        module=module,
        samples=lambda: (given, None),
        described="the given inputs in every step",
        origin="the weights it came with",
    )


def _drawn(sample: tuple[tuple[Any, ...], torch.Tensor]) -> Samples:
    args, classes = sample
    return (args, {}), classes


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "its own samples").splitlines()[0].rstrip(".")


def _of_library(
    source: WorkloadSource, described: ModelSource, batch: int, image_size: int | None, data: Data
) -> TrainedModule:
    """A model of timm or torchvision, which name their inputs."""
    request, _ = step_request(source.name, {"mode": "training", "batch": batch, "image_size": image_size})
    request = described.settled(request)
    with explained(source.name, "train"):
        module, specs = described.build(request), described.inputs(request)
    if not isinstance(specs, tuple) or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise ModelError(f"{source.name} takes more than images: give it as package.module:function, with its inputs")
    batch, *_, height, width = specs[0].shape
    training = TrainedModule(
        name=source.name,
        module=module,
        samples=lambda: ((tuple(noise(spec.shape) for spec in specs), {}), None),
        described=f"random inputs of batch {batch}, {height}x{width} pixels",
    )
    return _of_digits(training) if data == "digits" else training


def _of_digits(training: TrainedModule) -> TrainedModule:
    """With real images of the shape of those that came with the module.

    Raises:
        ModelError: it takes no images.
    """
    (args, kwargs), _ = training.samples()
    real = Digits()

    def image(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim == 4

    def drawn(value: Any) -> Any:
        return real.images(tuple(value.shape)) if image(value) else value

    shapes = [tuple(value.shape) for value in (*args, *kwargs.values()) if image(value)]
    if len(shapes) != 1:
        raise ModelError(f"{training.name} takes no batch of images: leave out --data")
    batch, _, height, width = shapes[0]

    def samples() -> Samples:
        inputs = tuple(map(drawn, args)), {name: drawn(value) for name, value in kwargs.items()}
        return inputs, real.classes

    described = f"handwritten digits of batch {batch}, {height}x{width} pixels"
    return replace(training, samples=samples, described=described, real=True)


def _loss_of(result: Any, classes: torch.Tensor | None) -> torch.Tensor:
    """The result's own loss, or the cross-entropies of its logits over all positions for classes, random ones where
    none are known.
    """
    own = getattr(result, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    rows = [each.float() for each in logit_rows(result)]
    if not rows:
        kind = type(result).__name__
        raise ModelError(f"cannot form a loss from {kind}: return logits, or pass loss=, from the result to a scalar")
    losses = [
        functional.cross_entropy(
            each, torch.randint(each.shape[1], (len(each),)) if classes is None else classes.flatten()
        )
        for each in rows
    ]
    return torch.stack(losses).sum()
