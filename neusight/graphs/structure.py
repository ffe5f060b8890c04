"""Repeated layers, found by structure: the same operators on the same shapes with the same relative dependencies."""

from __future__ import annotations

from collections.abc import Sequence

from neusight.graphs.graph import Node, RepeatedLayer


def find_repeats(nodes: Sequence[Node]) -> tuple[RepeatedLayer, ...]:
    """Stretches of nodes that occur several times in a row."""
    return ()
