"""Tables of embeddings of a traced step: on the host, in part there, split among ranks, or as trains of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, isqrt, log

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Gemm, Kernel, Memory
from neusight.kernels.optimizers import optimizer_named
from neusight.kernels.precision import stored_bytes
from neusight.transforms.optimizer import fused_step, passes_of
from neusight.transforms.unrolled import unroll
from neusight.workloads.workload import Node, Tensor, Workload

SKEW = 1.05
"""Exponent of Zipf's law by which rows of a model that states none are asked for (assumption, near the popularity that
Adnan et al. 2021, section 2, show of Criteo's data)."""
_INDEX_BYTES = 8
"""Size of the index of a row [B]."""
_EXACT = 2


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A table, and how it is read: ``count`` rows of ``width`` [elements] in a forward pass."""

    table: Tensor
    count: int

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return self.table.shape[0]

    @property
    def width(self) -> int:
        """Width of a row [elements]."""
        return self.table.shape[-1]

    @property
    def row_bytes(self) -> int:
        """Size of a row [B]."""
        return round(self.width * stored_bytes(self.table.dtype))


def lookups(step: Workload) -> dict[str, tuple[int, Lookup]]:
    """The tensor's number and the lookups of each table, by its module.

    Raises:
        InapplicableError: the step has no bags of embeddings.
    """
    tables = {}
    for node in step.nodes:
        if node.phase == "forward" and "_embedding_bag" in node.operator and node.kernels:
            at = node.reads[0].tensor
            table = step.tensors[at]
            count = getattr(node.kernels[0], "elements", 0) // table.shape[-1]
            tables[node.layer.name()] = (at, Lookup(table=table, count=count))
    if not tables:
        raise InapplicableError("the model has no tables of embeddings whose rows are summed in bags")
    return tables


def on_host(workload: Workload) -> Workload:
    """The host holds all tables, sums their rows and updates them: bags and their gradients cross its link.

    The host's time for this is not counted, so that a step may be longer.
    """

    def crossing(node: Node, lookup: Lookup) -> tuple[Kernel, ...]:
        bags = workload.request.batch * lookup.row_bytes
        return (_copy(bags, lookup),)

    return _with_kernels(workload, crossing, lambda lookup: 0)


def with_hot_rows(workload: Workload, hot_bytes: int, skew: float = SKEW, updated: float = 1.0) -> Workload:
    """The device stores the most requested rows, equally many of each table; others come from the host and their
    gradients go back to it.

    Args:
        workload: the step.
        hot_bytes: size of all hot rows together [B].
        skew: exponent of Zipf's law.
        updated: share of the requested hot rows whose gradients are made.

    Raises:
        InapplicableError: all rows fit, or there are no tables.
    """
    tables = [lookup for _, lookup in lookups(unroll(workload)).values()]
    hot = hot_rows(tables, hot_bytes)
    if all(lookup.rows <= hot for lookup in tables) and updated == 1.0:
        raise InapplicableError(f"all tables fit in the {hot_bytes / 1e6:.0f} MB of hot rows")

    def split(node: Node, lookup: Lookup) -> tuple[Kernel, ...]:
        share = cold_share(lookup.rows, hot, skew)
        cold = ceil(share * lookup.count) * lookup.row_bytes
        copies = (_copy(cold, lookup),) if cold else ()
        return (*copies, *node.kernels) if node.phase == "forward" else (*_part(node, updated, share), *copies)

    return _with_kernels(workload, split, lambda lookup: min(lookup.rows, hot) * lookup.row_bytes)


def hot_rows(tables: list[Lookup], hot_bytes: int) -> int:
    """Largest number of rows of each table with which all tables together take at most ``hot_bytes``."""
    low, high = 0, max(lookup.rows for lookup in tables)
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(min(t.rows, middle) * t.row_bytes for t in tables) <= hot_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def cold_share(rows: int, kept: int, skew: float) -> float:
    r"""Share of lookups beyond the ``kept`` most requested rows, by Zipf's law.

    .. math:: 1 - H_{k,s} / H_{n,s}
    """
    return 0.0 if kept >= rows else 1.0 - _harmonic(kept, skew) / _harmonic(rows, skew)


def _harmonic(count: int, skew: float) -> float:
    """Sum of i^-skew, its first terms exactly and the others as an integral from middle to middle."""
    head = sum(i**-skew for i in range(1, min(count, _EXACT) + 1))
    if count <= _EXACT:
        return head
    first, last = _EXACT + 0.5, count + 0.5
    return head + (log(last / first) if skew == 1.0 else (last ** (1 - skew) - first ** (1 - skew)) / (1 - skew))


def as_trains(workload: Workload, rank: int, least_rows: int, cached: float = 0.0, skew: float = SKEW) -> Workload:
    """Each large table as three cores, from whose slices a row is multiplied together whenever it is read (Yin et al.
    2021, TT-Rec, sections 2.2 and 3.1); the backward pass forms the first product again.

    Args:
        workload: the step.
        rank: size of both inner dimensions.
        least_rows: rows from which on a table is replaced.
        cached: share of their rows, the most requested, which are stored unchanged next to the trains (section 4.2).
        skew: exponent of Zipf's law.

    Raises:
        InapplicableError: no table has as many rows.
    """
    large = [lookup for _, lookup in lookups(unroll(workload)).values() if lookup.rows >= least_rows]
    if not large:
        raise InapplicableError(f"no table has {least_rows:,} rows")

    def multiply(node: Node, lookup: Lookup) -> tuple[Kernel, ...]:
        if lookup.rows < least_rows:
            return node.kernels
        cold = replace(lookup, count=ceil(cold_share(lookup.rows, int(cached * lookup.rows), skew) * lookup.count))
        return (*train_products(cold, rank, node.phase == "backward"), *node.kernels)

    def held(lookup: Lookup) -> int | None:
        cached_bytes = int(cached * lookup.rows) * lookup.row_bytes
        return train_bytes(lookup, rank) + cached_bytes if lookup.rows >= least_rows else None

    return _with_kernels(workload, multiply, held)


def factors(width: int) -> tuple[int, int, int]:
    """Three factors of a row's width, as equal as whole ones are, the smallest first."""
    pairs = [(a, b, width // a // b) for a in _divisors(width) for b in _divisors(width // a)]
    first, second, third = sorted(min(pairs, key=lambda three: (max(three), -min(three))))
    return first, second, third


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def train_bytes(lookup: Lookup, rank: int) -> int:
    """Size of the three cores of a table [B]."""
    edge, (first, second, third) = ceil(lookup.rows ** (1 / 3)), factors(lookup.width)
    elements = edge * (first * rank + rank * second * rank + rank * third)
    return round(elements * stored_bytes(lookup.table.dtype))


def train_products(lookup: Lookup, rank: int, backward: bool) -> Iterator[Kernel]:
    """Batched products of all lookups: two that make rows, and of a backward pass the first again and two for each."""
    first, second, third = factors(lookup.width)
    joined = first * second
    forward = [(first, second * rank, rank), (joined, third, rank)]
    gradients = [
        (rank, third, joined),
        (joined, rank, third),
        (rank, second * rank, first),
        (first, rank, second * rank),
    ]
    for m, n, k in [forward[0], *gradients] if backward else forward:
        yield Gemm(op="bmm", batch=lookup.count, m=m, n=n, k=k, layout="nn", dtype=lookup.table.dtype)


def _copy(size: int, lookup: Lookup) -> Collective:
    return Collective(op="host_copy", ranks=2, bytes=size, dtype=lookup.table.dtype)


def _part(node: Node, updated: float, cold: float) -> Iterator[Kernel]:
    """Kernels of gradients of the rows that are updated: all cold ones, and a share of the hot."""
    share = cold + (1.0 - cold) * updated
    sizes = ("elements", "read_bytes", "write_bytes")
    for kernel in node.kernels:
        yield replace(kernel, **{name: ceil(share * getattr(kernel, name)) for name in sizes})


def _with_kernels(
    workload: Workload, kernels: Callable[[Node, Lookup], tuple[Kernel, ...]], held: Callable[[Lookup], int | None]
) -> Workload:
    """A step whose tables are read and updated by other kernels, and have ``held`` bytes; None: as many as before."""
    step = unroll(workload)
    tables = lookups(step)
    tensors = list(step.tensors)
    for at, lookup in tables.values():
        size = held(lookup)
        if size is not None:
            tensors[at] = replace(lookup.table, nbytes=size, touched_bytes=min(size, lookup.table.touched_bytes))
    nodes = tuple(
        replace(node, kernels=kernels(node, tables[node.layer.name()][1]))
        if node.kernels and "_embedding_bag" in node.operator and node.layer.name() in tables
        else node
        for node in step.nodes
    )
    return replace(step, nodes=nodes, tensors=tuple(tensors))


def has_tables(workload: Workload) -> bool:
    """True if a step has bags of embeddings."""
    return any(node.kernels and "_embedding_bag" in node.operator for node in workload.nodes)


def split_among(workload: Workload, ranks: int) -> Workload:
    """Ranks have an even share of all tables each, look rows up for the samples of all and exchange sums of bags and
    their gradients; only rows that were read are stepped (Naumov et al. 2019, section 4; TorchRec,
    ``apply_optimizer_in_backward`` with FBGEMM's fused embeddings).

    A rank reads as many rows as before: of a share of the tables for as many times the samples.

    Raises:
        InapplicableError: the step has no bags of embeddings, or an optimizer that steps tensor by tensor.
    """
    step = unroll(workload)
    used = dict(lookups(step).values())
    bags = step.request.batch * sum(t.row_bytes for t in used.values())
    places = [at for at, node in enumerate(step.nodes) if node.kernels and "_embedding_bag" in node.operator]
    forward = [at for at in places if step.nodes[at].phase == "forward"]
    backward = [at for at in places if step.nodes[at].phase == "backward"]
    nodes = list(step.nodes)
    for at, size, before in (
        (forward[0], _INDEX_BYTES * sum(t.count for t in used.values()), True),
        (forward[-1], bags, False),
        *((at, bags, True) for at in backward[:1]),
    ):
        exchange = (Collective(op="all_to_all", ranks=ranks, bytes=size, dtype=next(iter(used.values())).table.dtype),)
        kernels = nodes[at].kernels
        nodes[at] = replace(nodes[at], kernels=exchange + kernels if before else kernels + exchange)
    updates = [at for at, node in enumerate(nodes) if node.phase == "optimizer"]
    for at in updates:
        nodes[at] = replace(nodes[at], kernels=_rows_stepped(step, used) if at == updates[-1] else ())
    return replace(step, nodes=tuple(nodes), tensors=tuple(_split_tensors(step, used, ranks)))


def _rows_stepped(step: Workload, found: Mapping[int, Lookup]) -> tuple[Kernel, ...]:
    """The update of all weights but tables, and of the rows of those that were read."""
    algorithm = optimizer_named(step.request.optimizer)
    if not algorithm.fused:
        words = "steps tensor by tensor: name another optimizer, or embedding_shard none"
        raise InapplicableError(f"{step.request.optimizer} {words}")
    tensors = [t for at, t in enumerate(step.tensors) if t.kind == "weight" and at not in found]
    dtype = next(iter(found.values())).table.dtype
    dense = step.parameters - sum(t.rows * t.width for t in found.values())
    elements, size = sum(t.count * t.width for t in found.values()), round(stored_bytes(dtype))
    states = algorithm.moments_of_rows
    rows = Memory(
        op="scatter",
        elements=elements,
        read_bytes=(2 + states) * elements * size,
        write_bytes=(1 + states) * elements * size,
        dtype=dtype,
    )
    whole = fused_step(algorithm.fused, dense, len(tensors), dtype)
    return (*(passes_of(whole, algorithm) if algorithm.passes else (whole,)), rows)


def _split_tensors(step: Workload, found: Mapping[int, Lookup], ranks: int) -> Iterator[Tensor]:
    """A rank's shares of tables and of their optimizer states; intermediate results of whole tables are dropped."""
    algorithm = optimizer_named(step.request.optimizer)
    share = algorithm.moments_of_rows / (algorithm.moments or 1)
    shapes = {lookup.table.shape for lookup in found.values()}
    made = {w.tensor for node in step.nodes if node.phase == "optimizer" for w in node.writes}
    for at, tensor in enumerate(step.tensors):
        if at in found:
            size = ceil(tensor.nbytes / ranks)
            yield replace(tensor, nbytes=size, touched_bytes=min(size, tensor.touched_bytes), split=True)
        elif tensor.shape in shapes and tensor.kind == "state":
            yield replace(tensor, nbytes=ceil(share * tensor.nbytes / ranks), touched_bytes=0)
        elif tensor.shape in shapes and at in made:
            yield replace(tensor, nbytes=0, touched_bytes=0)
        else:
            yield tensor
