"""Measure a sparsity profile: hooks on a network's layers over real training steps on the CPU. Needs torch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from neusight.collect.sparsity.inputs import TrainedModule, prepare
from neusight.collect.sparsity.prune import Pruning, hold_pruned, prune_module
from neusight.collect.sparsity.streams import Readings
from neusight.collect.steps import logit_rows, random_targets
from neusight.errors import ModelError
from neusight.transforms.sparsity import SparsityProfile
from neusight.workloads import resolve
from neusight.workloads.trace.failures import explain_failures

WARMUP = 3
"""Updates before the first step that is read."""
LEARNING_RATE = 0.01
MOMENTUM = 0.9
ADAM_RATE = 1e-4
Loss = Callable[[Any], torch.Tensor]


def measure(model: Any, batch: int = 2, *, warmup: int = WARMUP, **options: Any) -> SparsityProfile:
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
    Layers that never ran are left out, and the default is dense: unseen zeros save nothing.

    Args:
        model: what ``neusight predict`` takes, or a ``torch.nn.Module`` with ``inputs`` (it is copied). One that has a
            method ``samples`` trains on what that gives for each step: inputs of its ``forward``, in order, and
            classes of every row of its logits, -100 where there is none.
        batch: samples a step.
        warmup: updates before.
        options: as ``measure_course`` takes them.

    Raises:
        ModelError: an unknown model, a count that is too small, inputs or weights that do not fit, or no such layer.
    """
    return measure_course(model, batch, updates=(warmup,), **options)[warmup]


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
    loss: Loss | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[int, SparsityProfile]:
    """Profiles as ``measure`` gives them after each of several numbers of updates, in one training.

    Args:
        model, batch: as for ``measure``.
        updates: rising, ``steps`` apart at least, since steps that are read update as well.
        inputs: for a module, what its ``forward`` takes, by name or in order, with values; for a model of images also
            ``"digits"``, real ones with their classes.
        seq_len: tokens a sample; 128 unless given, or less where the model allows no more.
        image_size: pixels along an edge; the model's own unless given.
        steps: training steps that are read.
        seed: of weights, inputs, targets, dropout and the streams drawn. Equal seeds give equal profiles.
        pruning: of the weights before training; what is pruned stays zero.
        weights: a state_dict to start from.
        loss: from the module's result to a scalar; else the result's own, or the cross-entropy of its logits.
        progress: called with (steps done, of).

    Raises:
        ModelError: as ``measure``, or updates that do not rise.
    """
    _check_counts({"batch": batch, "steps": steps, "sequence length": seq_len, "image size": image_size}, updates)
    profiles = {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        digits = isinstance(inputs, str) and inputs == "digits"
        training = prepare(resolve(model, None if digits else inputs), batch, seq_len, image_size, digits=digits)
        _load_weights(training, weights)
        masks = prune_module(training.module, pruning) if pruning else {}
        readings = Readings(training.module, seed)
        optimizer = _optimizer(training)
        kind = type(optimizer).__name__
        begin = "given weights" if weights is not None else training.origin
        start = f"from {begin}{f', {pruning}' if pruning else ''}; {training.described}"
        losses: list[float] = []
        for count in updates:
            for done in range(len(losses), count + steps):
                readings.active = done >= count
                losses.append(_update(training, optimizer, loss))
                hold_pruned(training.module, masks)
                progress(done + 1, updates[-1] + steps)
            counts = f"{_plural(steps, 'training step')} after {_plural(count, 'update')} by {kind}"
            learned = f"loss {losses[0]:.2f} to {sum(losses[-steps:]) / steps:.2f}"
            source = f"measured over {counts}, {start}; {learned}; seed {seed}"
            profiles[count] = SparsityProfile(model=training.name, layers=readings.take(), source=source)
    return profiles


def _check_counts(counts: Mapping[str, Any], updates: Sequence[int]) -> None:
    for name, count, least in [*((name, count, 1) for name, count in counts.items()), ("warm-up", updates[0], 0)]:
        if count is not None and (not isinstance(count, int) or count < least):
            raise ModelError(f"{name} {count}: give a whole number of at least {least}")
    for before, after in pairwise(updates):
        if after - before < counts["steps"]:
            raise ModelError(f"updates {before} and {after}: give rising numbers, {counts['steps']} apart at least")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _load_weights(training: TrainedModule, weights: Mapping[str, torch.Tensor] | None) -> None:
    if weights is None:
        return
    try:
        training.module.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"the weights are not those of {training.name}: {reason}: give its state_dict") from None


def _optimizer(training: TrainedModule) -> torch.optim.Optimizer:
    """SGD; Adam where real classes are to be learned, which networks without normalisation otherwise take long to."""
    parameters = training.module.train().parameters()
    if training.real:
        return torch.optim.Adam(parameters, lr=ADAM_RATE)
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)


def _update(training: TrainedModule, optimizer: torch.optim.Optimizer, loss: Loss | None) -> float:
    """Run one training step and return its loss.

    Raises:
        ModelError: the module does not run with its inputs, or diverges.
    """
    with explain_failures(training.name, "train"):
        (args, kwargs), classes = training.samples()
        result = training.module(*args, **kwargs)
        value = loss(result) if loss else _loss_of(result, classes)
        value.backward()
    if not torch.isfinite(value):
        raise ModelError(f"the loss of {training.name} is {value.item()}: give weights that training can go on from")
    optimizer.step()
    optimizer.zero_grad()
    return value.item()


def _loss_of(result: Any, classes: torch.Tensor | None) -> torch.Tensor:
    """The result's own loss, or the cross-entropies of its logits over all positions for classes, random ones where
    none are known.
    """
    if isinstance(loss := getattr(result, "loss", None), torch.Tensor):
        return loss
    logits = logit_rows(result)
    if not logits:
        kind = type(result).__name__
        raise ModelError(f"cannot form a loss from {kind}: return logits, or pass loss=, from the result to a scalar")
    targets = random_targets(logits) if classes is None else [classes.flatten()] * len(logits)
    return torch.stack(list(map(functional.cross_entropy, (rows.float() for rows in logits), targets))).sum()
