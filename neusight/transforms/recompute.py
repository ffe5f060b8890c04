"""Forward parts that a segment of a program runs again before its backward pass, where activations were not kept."""

from __future__ import annotations

from neusight.engines import Engine
from neusight.errors import ModelError, nearest
from neusight.kernels.families import Gemm, Kernel
from neusight.requests import RECOMPUTES, modules_of
from neusight.workloads.program import Part, Segment

KEPT = ("reduce_scatter", "all_to_all")
"""Collectives whose results selection by operators keeps."""


def recomputed(segment: Segment, how: str, engine: Engine) -> tuple[Part, ...]:
    """Forward parts that run a second time for each micro-batch.

    Args:
        segment: the segment of a program.
        how: ``selective``: the core of attention (Korthikanti et al. 2022, section 5); ``full``: everything from the
            segment's input on; ``operators``: all but attention, scattered sums, exchanged tokens and every other
            product (torchtitan, selective activation checkpointing per operator, ``_save_list``); ``none``; or names of
            ``MODULES`` with "+" between.
        engine: decides whether a pass stops at the last value that is needed.

    Raises:
        ModelError: an unknown way.
    """
    forward, again = segment.of("forward"), modules_of(how)
    if how == "none" or again:
        return tuple(part for part in forward if not again.isdisjoint(part.modules))
    if how not in RECOMPUTES:
        raise ModelError(f"unknown recompute '{how}'{nearest(how, RECOMPUTES)}: one of {', '.join(RECOMPUTES)}")
    parts = _up_to_last_input(forward) if engine.stops_early else forward
    return parts if how == "full" else _cheap(parts)


def _up_to_last_input(forward: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts before the product that ends the segment: backward passes read inputs, not results."""
    last = max((at for at, part in enumerate(forward) if part.name == "down"), default=len(forward))
    return forward[:last]


def _cheap(forward: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts other than attention, collectives whose results are kept, and the first, third, fifth … product."""
    products = [part for part in forward if is_product(part.batch.kernel(0))]
    saved = {id(part) for part in products[::2]}
    return tuple(
        part
        for part in forward
        if "core_attn" not in part.modules
        and id(part) not in saved
        and not (part.group and part.batch["op"][0] in KEPT)
    )


def is_product(kernel: Kernel) -> bool:
    """True if a kernel multiplies with a weight."""
    return isinstance(kernel, Gemm) and kernel.op == "linear"
