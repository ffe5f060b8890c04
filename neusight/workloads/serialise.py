"""Graphs as JSON: exact round trip, versioned, no tensor library needed to read one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES, Kernel
from neusight.workloads.graph import FoldedGraph, FoldedKernel, Graph, MemoryProfile, Node, RepeatedLayer

VERSION = 1


def to_json(graph: FoldedGraph | Graph) -> str:
    """One line of JSON; kernels are written once, in a table of their own."""
    kernels: dict[Kernel, int] = {}

    def number(kernel: Kernel) -> int:
        return kernels.setdefault(kernel, len(kernels))

    content = {f.name: getattr(graph, f.name) for f in fields(graph)}
    content["memory"] = asdict(graph.memory)
    if isinstance(graph, FoldedGraph):
        kind = "folded"
        content["kernels"] = [[number(f.kernel), f.operator, f.phase, f.count] for f in graph.kernels]
    else:
        kind = "graph"
        content["repeats"] = [asdict(r) for r in graph.repeats]
        content["nodes"] = [_node_content(node, number) for node in graph.nodes]
    table = [{"family": k.family, **_compact(k)} for k in kernels]
    return json.dumps({"version": VERSION, "kind": kind, "table": table, "graph": content}, separators=(",", ":"))


def from_json(text: str) -> FoldedGraph | Graph:
    """The graph that ``to_json`` wrote.

    Raises:
        DataError: not JSON, another version, or not a graph.
    """
    try:
        data = json.loads(text)
        version = data["version"]
    except (ValueError, KeyError, TypeError):
        raise DataError("a stored graph is truncated or not one: delete it and trace the model again") from None
    if version != VERSION:
        raise DataError(f"a stored graph has version {version}, this program reads {VERSION}: trace the model again")
    try:
        return _graph(data)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"a stored graph is malformed ({error}): delete it and trace the model again") from None


def _compact(kernel: Kernel) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {f.name: getattr(kernel, f.name) for f in fields(kernel) if getattr(kernel, f.name) != f.default}


def _graph(data: dict[str, Any]) -> FoldedGraph | Graph:
    table = [KERNEL_CLASSES[entry.pop("family")](**entry) for entry in data["table"]]
    content = data["graph"]
    content["memory"] = MemoryProfile(**content["memory"])
    content["uncovered"], content["warnings"] = tuple(content["uncovered"]), tuple(content["warnings"])
    if data["kind"] == "folded":
        content["kernels"] = tuple(
            FoldedKernel(kernel=table[k], operator=operator, phase=phase, count=count)
            for k, operator, phase, count in content["kernels"]
        )
        return FoldedGraph(**content)
    content["repeats"] = tuple(RepeatedLayer(**r) for r in content["repeats"])
    content["nodes"] = tuple(_node(n, table) for n in content["nodes"])
    return Graph(**content)


def _node_content(node: Node, number: Callable[[Kernel], int]) -> dict[str, Any]:
    content = {f.name: getattr(node, f.name) for f in fields(node)}
    content["kernels"] = [number(k) for k in node.kernels]
    return content


def _node(content: dict[str, Any], table: list[Kernel]) -> Node:
    for name in ("shapes", "strides"):
        content[name] = tuple(tuple(v) for v in content[name])
    content["inputs"], content["dtypes"] = tuple(content["inputs"]), tuple(content["dtypes"])
    content["kernels"] = tuple(table[k] for k in content["kernels"])
    return Node(**content)
