"""Files of ready workloads: JSON as members of a gzip file, of which an answer reads two.

The first member has what all steps share, and the sizes of the others, each of which is one piece of a variant, see
``shipped``. Rows of a piece are written column by column, and places as differences from the one before: layers that
repeat then repeat in the file as well, which makes it a third as large.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

from neusight.workloads.workload import KEPT

DAMAGE = (KeyError, TypeError, ValueError, zlib.error)
"""Exceptions that reading a damaged file raises."""
Rows = list[list[Any]]
_BORN, _DIED = 6, 7
_ID, _READS, _WRITES = 4, 5, 6
"""Columns of rows of tensors and of nodes that hold places, see ``serialise``."""
_FOREVER = -1
"""Stands for the life of a tensor that outlives the step."""


def pack(content: Mapping[str, Any]) -> bytes:
    """The bytes of a file with the content that ``ShippedWorkload`` describes."""
    members: list[bytes] = []
    variants: dict[str, Any] = {}
    for name, variant in content["variants"].items():
        if isinstance(variant, str):
            variants[name] = variant
            continue
        variants[name] = [[piece["min_batch"], len(members) + place] for place, piece in enumerate(variant)]
        members += [_compress(_packed_piece(piece)) for piece in variant]
    return b"".join([_compress({**content, "variants": variants, "sizes": [len(m) for m in members]}), *members])


def split(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Content that all steps share, and the pieces, each in the form that ``unpack`` reads.

    Raises:
        DAMAGE: the file is damaged.
    """
    reader = zlib.decompressobj(wbits=31)
    head = json.loads(reader.decompress(data))
    ends = accumulate(head["sizes"], initial=0)
    return head, [reader.unused_data[start:end] for start, end in pairwise(ends)]


def unpack(member: bytes) -> dict[str, Any]:
    """A piece, with tensors and nodes as the rows of ``serialise``.

    Raises:
        DAMAGE: the file is damaged.
    """
    piece: dict[str, Any] = json.loads(zlib.decompress(member, wbits=31))
    updates = {name: _unpack(update) for name, update in piece.get("updates", {}).items()}
    return {**piece, **_unpack(piece), "updates": updates}


def _compress(content: Any) -> bytes:
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), level=9, wbits=31)


def _packed_piece(piece: Mapping[str, Any]) -> dict[str, Any]:
    updates = {name: _pack(update) for name, update in piece.get("updates", {}).items()}
    return {**piece, **_pack(piece), "updates": updates}


def _pack(part: Mapping[str, Any]) -> dict[str, Any]:
    """Pack tensors and nodes of a piece or of an update in columns."""
    tensors, nodes = _columns(part["tensors"]), _columns(part["nodes"])
    if tensors:
        born, died = tensors[_BORN], tensors[_DIED]
        tensors[_DIED] = [_FOREVER if end == KEPT else end - start for start, end in zip(born, died, strict=True)]
        tensors[_BORN] = _differences(born)
    if nodes:
        nodes[_ID] = _differences(nodes[_ID])
        for column in (_READS, _WRITES):
            nodes[column] = _packed_references(nodes[column])
    return {"tensors": tensors, "nodes": nodes}


def _unpack(part: Mapping[str, Any]) -> dict[str, Any]:
    tensors, nodes = list(part["tensors"]), list(part["nodes"])
    if tensors:
        tensors[_BORN] = list(accumulate(tensors[_BORN]))
        lives = zip(tensors[_BORN], tensors[_DIED], strict=True)
        tensors[_DIED] = [KEPT if life == _FOREVER else start + life for start, life in lives]
    if nodes:
        nodes[_ID] = list(accumulate(nodes[_ID]))
        for column in (_READS, _WRITES):
            nodes[column] = _references(*nodes[column])
    return {"tensors": _columns(tensors), "nodes": _columns(nodes)}


def _packed_references(references: Sequence[Rows]) -> list[Any]:
    """Number of references of each node, then their columns, the edges of one relative to its tensor."""
    rows = [row for of_node in references for row in of_node]
    edges = [[[copy, tensor - row[0], number] for copy, tensor, number in row[3:]] for row in rows]
    columns = [[row[place] for row in rows] for place in range(3)]
    return [[len(of_node) for of_node in references], _differences(columns[0]), *columns[1:], edges]


def _references(counts: Sequence[int], tensors: Iterable[int], *columns: Sequence[Any]) -> list[Rows]:
    rows = zip(accumulate(tensors), *columns, strict=True)
    whole: Iterator[list[Any]] = (
        [at, first, step, *([copy, at + further, number] for copy, further, number in edges)]
        for at, first, step, edges in rows
    )
    return [list(islice(whole, count)) for count in counts]


def _columns(rows: Rows) -> Rows:
    """Rows as columns, or columns as rows."""
    return [list(column) for column in zip(*rows, strict=True)]


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise((0, *values))]
