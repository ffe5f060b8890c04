"""Measure a sparsity profile: hooks on a network's layers over real training steps on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from neusight.collect.sparsity.prune import Pruning, hold_pruned, prune_module
from neusight.errors import ModelError
from neusight.transforms.sparsity import LayerSparsity, OperandSparsity, SparsityProfile

if TYPE_CHECKING:
    import torch

    from neusight.collect.sparsity.steps import Training

WARMUP = 3
"""Updates before the first step that is read."""


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
    cluster: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SparsityProfile:
    """Zeros of each convolution and linear layer, as the layer sees them, mean over training steps.

    The network is real, but small in batch: random initialisation (unless ``weights`` are given), noise as smooth as
    photographs or random tokens as inputs, random targets, float32, dropout active. ``warmup`` updates by SGD come
    first, since rectifiers of a network as it was initialised are not those of one in training; what long training on
    real data would make of them, no such measurement knows. ``source`` of the profile says what was done.

    Shares of zeros count every value of a layer's input, of the gradient of its output and of its weights. Clustering
    is that of at most 256 of an operand's streams a step, drawn evenly (see ``operands``); 0 where it comes out below.
    Layers that never ran are left out, and the default is dense: zeros that nobody saw save nothing.

    Args:
        model: what ``neusight predict`` takes, or a ``torch.nn.Module`` with ``inputs`` (it is copied).
        batch: samples a step.
        inputs: for a module, what its ``forward`` takes, by name or in order, with values.
        seq_len: tokens a sample; 128 unless given, or less where the model allows no more.
        image_size: pixels along an edge; the model's own unless given.
        steps: training steps that are read.
        warmup: updates before.
        seed: of weights, inputs, targets, dropout and the streams drawn. Equal seeds give equal profiles.
        pruning: of the weights before training; what is pruned stays zero.
        weights: a state_dict to start from.
        loss: from the module's result to a scalar; else the result's own, or the cross-entropy of its logits.
        cluster: what groups clustering is that of, one of ``neusight.executors.tensordash.CLUSTERS``; None chooses
            for each operand the kind whose zeros keep together most (in rectified networks mostly ``slot``: units that
            are dead for many inputs). Zeros drawn from that took cycles within 1.0 % of the real zeros' on average for
            AlexNet, where ``stream`` was 2.3 % off; 0.2 % and 0.9 % for OPT-125M; 0.8 % and 0.7 % for ResNet-50.
        progress: called with (steps done, of).

    Raises:
        ModelError: an unknown model, a count that is too small, inputs or weights that do not fit, or no such layer.
        DataError: an unknown ``cluster``.
    """
    _hold_counts({"batch": batch, "steps": steps, "sequence length": seq_len, "image size": image_size}, least=1)
    _hold_counts({"warm-up": warmup}, least=0)
    OperandSparsity(0.0, cluster=cluster or "stream")
    import torch

    from neusight.collect.sparsity.steps import Request, prepared

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        request = Request(model=model, inputs=inputs, batch=batch, seq_len=seq_len, image_size=image_size)
        training = prepared(request)
        _start_from(training, weights)
        masks = prune_module(training.module, pruning) if pruning else {}
        layers = _read(training, masks, loss, (warmup, steps), seed, cluster, progress)
    begin = "given weights" if weights is not None else training.origin
    how = f", {pruning}" if pruning else ""
    counts = f"{_counted(steps, 'training step')} after {_counted(warmup, 'update')} by SGD"
    source = f"measured over {counts}, from {begin}{how}; {training.described}; seed {seed}"
    return SparsityProfile(model=training.name, layers=layers, source=source)


def _read(
    training: Training, masks: dict[str, torch.Tensor], loss: Callable[[Any], torch.Tensor] | None,
    counts: tuple[int, int], seed: int, cluster: str | None, progress: Callable[[int, int], None],
) -> dict[str, LayerSparsity]:  # fmt: skip
    """Train for (warm-up, steps) and read the zeros of the latter."""
    from neusight.collect.sparsity.readings import Readings
    from neusight.collect.sparsity.steps import updates
    from neusight.executors.tensordash.masks import CLUSTERS

    readings = Readings(training.module, [cluster] if cluster else [*CLUSTERS], seed)
    training_steps = updates(training, loss, lambda: hold_pruned(training.module, masks))
    warmup, total = counts[0], sum(counts)
    for done in range(1, total + 1):
        readings.active = done > warmup
        next(training_steps)
        progress(done, total)
    return readings.finish()


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _hold_counts(counts: Mapping[str, Any], least: int) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < least):
            raise ModelError(f"{name} {count}: give a whole number of at least {least}")


def _start_from(training: Training, weights: Mapping[str, torch.Tensor] | None) -> None:
    if weights is None:
        return
    try:
        training.module.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"the weights are not those of {training.name}: {reason}: give its state_dict") from None
