"""A model and the options of a step, to its graph: from a shipped trace, the cache, or a trace run now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from neusight.errors import ModelError, nearest
from neusight.workloads.cache import read_trace, trace_key, write_trace
from neusight.workloads.graph import FoldedGraph, Graph
from neusight.workloads.resolve import WorkloadSource, resolve

if TYPE_CHECKING:
    import torch

DEFAULT_SEQ_LEN = 512
"""Tokens a sample where a model sets no limit to them."""
LARGEST_DEFAULT_SEQ_LEN = 2048
"""Tokens a sample, unless asked for more, where a model's limit is larger."""

MODES = ("inference", "training")
DTYPES = ("float32", "bfloat16", "float16")
OPTIMIZERS = ("none", "sgd", "adam", "adamw")
ATTENTIONS = ("eager", "sdpa", "flash")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a trace depends on beside the model. ``optimizer`` is ``none`` in inference."""

    mode: Literal["inference", "training"]
    batch: int
    seq_len: int | None
    dtype: str = "float32"
    optimizer: str = "none"
    attention: str = "eager"


def load_graph(
    model: Any, *, mode: str = "inference", batch: int = 1, seq_len: int | None = None, dtype: str = "float32",
    optimizer: str = "none", attention: str = "eager", inputs: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None, allow_fallback: bool = False, cache: bool = True,
) -> FoldedGraph:  # fmt: skip
    """The kernels and the memory of one step.

    A training step is the forward pass to the logits, the backward pass from the gradient of the cross-entropy over
    all positions, and the optimizer's update; the forward kernels of the loss itself are left out, as in published
    measurements. BERT has its pre-training heads in training and is a sequence classifier in inference.

    Ready workloads come from traces that ship, which holds for any batch and sequence length; other models are traced
    once and kept in the user's cache.

    Args:
        model: whatever ``resolve`` takes.
        mode: ``inference`` or ``training``.
        batch: samples in the step.
        seq_len: tokens a sample; the model's limit, but at most 2048, unless given; 512 where there is no limit.
        dtype: float32, bfloat16 or float16, of weights, activations and optimizer state.
        optimizer: none, sgd, adam or adamw; of no effect in inference.
        attention: ``eager``, ``sdpa`` or ``flash``.
        inputs: what ``forward`` takes, where ``model`` is a module.
        loss: from the model's result to a scalar, in place of the cross-entropy.
        allow_fallback: go on where an operator has no rule; the graph names it in ``uncovered``.
        cache: read and write the user's cache of traces.

    Raises:
        ModelError: unknown model or option, batch below 1, a sequence longer than the model's limit.
        CoverageError: an operator without a rule, unless ``allow_fallback``.
    """
    source = resolve(model, inputs)
    step = _checked(source, mode, batch, seq_len, dtype, optimizer, attention)
    shipped = _shipped(source, step) if loss is None and cache else None
    if shipped is not None:
        return shipped
    key = trace_key(source.digest, asdict(step) | {"fallback": allow_fallback}) if source.digest and cache else None
    if key and loss is None and (stored := read_trace(key)) is not None:
        return replace(stored, model=source.name)
    graph = trace_source(source, step, loss, allow_fallback).fold()
    if key and loss is None:
        write_trace(key, graph)
    return graph


def shipped_graph(
    model: str, *, mode: str = "inference", batch: int = 1, seq_len: int | None = None, dtype: str = "float32",
    optimizer: str = "none", attention: str = "eager",
) -> FoldedGraph | None:  # fmt: skip
    """As ``load_graph`` of a ready workload, at once or not at all: None where no trace of such a step ships."""
    source = resolve(model)
    return _shipped(source, _checked(source, mode, batch, seq_len, dtype, optimizer, attention))


def trace_workload(
    model: Any, *, mode: str = "inference", batch: int = 1, seq_len: int | None = None, dtype: str = "float32",
    optimizer: str = "none", attention: str = "eager", inputs: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None, allow_fallback: bool = False,
) -> Graph:  # fmt: skip
    """The whole graph of one step, traced now: every operator in order, with layers, shapes and dependencies.

    Arguments and errors are those of ``load_graph``.
    """
    source = resolve(model, inputs)
    step = _checked(source, mode, batch, seq_len, dtype, optimizer, attention)
    return trace_source(source, step, loss, allow_fallback)


def _checked(
    source: WorkloadSource, mode: str, batch: int, seq_len: int | None, dtype: str, optimizer: str, attention: str
) -> Step:
    chosen = (("mode", mode, MODES), ("dtype", dtype, DTYPES), ("optimizer", optimizer, OPTIMIZERS))
    for what, value, known in (*chosen, ("attention", attention, ATTENTIONS)):
        if value not in known:
            raise ModelError(f"unknown {what} '{value}'{nearest(str(value), known)}: one of {', '.join(known)}")
    if not isinstance(batch, int) or batch < 1:
        raise ModelError(f"batch {batch} of {source.name}: give at least 1")
    return Step(
        mode=cast(Literal["inference", "training"], mode),
        batch=batch,
        seq_len=_seq_len(source, seq_len),
        dtype=dtype,
        optimizer=optimizer if mode == "training" else "none",
        attention=attention,
    )


def _seq_len(source: WorkloadSource, seq_len: int | None) -> int | None:
    """The sequence length asked for or the default; None for images."""
    limit = source.max_seq_len
    if not source.takes_seq_len:
        if seq_len is not None:
            raise ModelError(f"{source.name} reads images, which have no sequence: leave out --seq-len")
        return None
    if seq_len is None:
        default = min(limit, LARGEST_DEFAULT_SEQ_LEN) if limit else DEFAULT_SEQ_LEN
        return default if source.config else None
    if not isinstance(seq_len, int) or seq_len < 1:
        raise ModelError(f"sequence length {seq_len} of {source.name}: give at least 1")
    if limit is not None and seq_len > limit:
        raise ModelError(f"sequence length {seq_len} is longer than {source.name} allows: at most {limit}")
    return seq_len


def _shipped(source: WorkloadSource, step: Step) -> FoldedGraph | None:
    if source.catalogue is None:
        return None
    from neusight.workloads.parametric import shipped_trace

    trace = shipped_trace(source.catalogue)
    return trace.evaluate(source.name, step) if trace else None


def trace_source(
    source: WorkloadSource, step: Step, loss: Callable[[Any], Any] | None = None, allow_fallback: bool = False
) -> Graph:
    """Trace now; arguments are those of ``load_graph``, resolved and checked."""
    from neusight.workloads.trace.tracing import trace

    model, inputs = _built(source, step)
    return trace(
        model,
        inputs,
        name=source.name,
        loss=loss,
        time_loss=False,
        allow_fallback=allow_fallback,
        **asdict(step),
    )


def _built(source: WorkloadSource, step: Step) -> tuple[Any, Any]:
    """What ``trace`` takes: a module or its builder, and inputs."""
    if source.config is not None:
        from neusight.workloads.huggingface import build_model, input_specs

        config = source.config
        specs = input_specs(config, step.batch, step.seq_len, step.attention)
        return lambda: build_model(config, step.mode, step.attention), specs
    if source.function is None:
        return source.module, source.inputs
    from neusight.workloads.resolve import call_function

    module, inputs = call_function(source.function, step.batch, step.seq_len)
    return module, _as_inputs(inputs)


def _as_inputs(inputs: Any) -> Any:
    """A single tensor stands for the only input."""
    return inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)
