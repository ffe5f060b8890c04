"""Rows that a simulator makes: cycles and energies of a TensorDash machine, with random zeros and with those of
networks in training.

A row has a ``quantity`` as ``measured`` by the simulator, which counts exactly, beside that of the ``dense`` twin and
of the tile ``model``. ``axis`` and ``value`` say in what its zeros or its machine differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from neusight.devices import load_gpu
from neusight.executors.tensordash.device import MachinePredictor
from neusight.executors.tensordash.machine import Machine, kernel_cycles, simulated
from neusight.executors.tensordash.masks import CLUSTERS, random_mask
from neusight.executors.tensordash.schedule import schedule_cycles
from neusight.executors.tensordash.tile_model import modelled
from neusight.kernels import Kernel, KernelBatch
from neusight.kernels.families import group_by_family
from neusight.kernels.sparsity import (
    DIRECTIONS,
    MAPPED,
    LayerSparsity,
    OperandSparsity,
    Zeros,
    operand_names,
    with_zeros,
)
from neusight.transforms.sparsity import SparsityProfile, sparsify
from neusight.workloads import Workload, load_workload

if TYPE_CHECKING:
    from neusight.experiments.declare import RandomZeros, SimulatedNetwork, SparseDeclaration

Figures = dict[str, np.ndarray]
PRODUCTS: Mapping[Any, str] = dict(zip(DIRECTIONS.values(), ("A·W", "G·W", "G·A"), strict=True))
"""Products of a layer by the names of their operands."""
CYCLES, COMPUTE, ENERGY = "cycles", "energy of compute", "with memories"
"""Quantities; energies in joules."""
Case = tuple[str, str, SparsityProfile, Machine]
"""Name of the difference, its value, zeros, and the machine."""


def network_rows(network: SimulatedNetwork, declared: SparseDeclaration, folder: Path) -> pd.DataFrame:
    """Cycles of a network's training step in each case and energies [J] in the first: a row for each product of each
    layer, and for sums over layers and over products, which are called "all".

    Raises:
        DataError: a profile is missing, malformed, or of other layers than the network's.
    """
    workload = load_workload(
        network.model, mode="training", batch=network.batch, attention="eager", allow_fallback=True
    )
    parts = []
    for number, (axis, value, profile, machine) in enumerate(_cases(network, declared, folder)):
        rows = product_rows(workload, profile, machine, _cycles if number else _cycles_and_energies)
        parts.append(_with_sums(rows).assign(network=network.name, axis=axis, value=value))
    return _by_quantity(pd.concat(parts, ignore_index=True))


def _with_sums(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(zeros=rows["zeros"] * rows[f"dense {CYCLES}"])
    sums = rows.groupby("product", sort=False, as_index=False).sum(numeric_only=True)
    whole = pd.concat([rows, sums, sums.assign(product="all").groupby("product", as_index=False).sum()])
    return whole.assign(layer=whole["layer"].fillna("all"), zeros=whole["zeros"] / whole[f"dense {CYCLES}"])


def _by_quantity(rows: pd.DataFrame) -> pd.DataFrame:
    labels = rows[["network", "axis", "value", "layer", "product", "zeros"]]
    parts = [
        labels.assign(
            quantity=name, measured=rows[name], dense=rows[f"dense {name}"], model=rows.get(f"modelled {name}", np.nan)
        )
        for name in (CYCLES, COMPUTE, ENERGY)
    ]
    return pd.concat(parts, ignore_index=True).dropna(subset="measured")


def _cases(network: SimulatedNetwork, declared: SparseDeclaration, folder: Path) -> Iterator[Case]:
    def loaded(file: str) -> SparsityProfile:
        return SparsityProfile.load(folder / file)

    machine, measured = Machine(), loaded(network.profile)
    for name, profile in ("as measured", measured), *((name, loaded(file)) for name, file in network.others.items()):
        yield "zeros", name, profile, machine
    for name, change in CHANGES.items():
        yield "zeros", name, replace(measured, layers={k: change(v) for k, v in measured.layers.items()}), machine
    for share in declared.uniform:
        yield "share", f"{share:.0%}", SparsityProfile.uniform(f"activations={share},gradients={share}"), machine
    for updates, file in network.course.items():
        yield "updates", str(updates), loaded(file), machine
    yield "updates", "end", measured, machine
    for axis, values in declared.designs.items():
        for value in values:
            yield axis, str(value), measured, replace(machine, **{axis: value})  # type: ignore[arg-type]


def _independent(layer: LayerSparsity) -> LayerSparsity:
    """The same shares of zeros, independent of each other."""
    operands = layer.activations, layer.gradients, layer.weights
    return LayerSparsity(*(OperandSparsity(operand.sparsity) for operand in operands))


CHANGES: Mapping[str, Callable[[LayerSparsity], LayerSparsity]] = {
    "zeros apart": _independent,
    "dense weights": lambda layer: replace(layer, weights=OperandSparsity(0.0)),
    # Normalisation after a layer else takes the zeros of gradients away.
    "zeros of A in G": lambda layer: replace(
        layer, gradients=max(layer.gradients, layer.activations, key=lambda zeros: zeros.sparsity)
    ),
}
"""Changes of a measured profile that show what its speed-up depends on."""


def product_rows(
    workload: Workload, profile: SparsityProfile, machine: Machine, figures: Callable[[KernelBatch, Machine], Figures]
) -> pd.DataFrame:
    """Figures of each product of each layer, and the share of zeros of its scheduled operand."""
    counts: Counter[tuple[Kernel, str, str, Zeros | None]] = Counter()
    for node, copy in sparsify(workload, profile).expanded():
        for kernel, zeros in node.sparse_kernels:
            if kernel.family in MAPPED:
                counts[kernel, node.layer.name(copy), node.phase, zeros] += 1
    products = list(counts)
    parts = []
    for batch, places in group_by_family(kernel for kernel, *_ in products):
        ours = [products[place] for place in places]
        zeroed = with_zeros(batch, [zeros for *_, zeros in ours])
        times = np.array([counts[product] for product in ours])
        names = [PRODUCTS.get(operand_names(kernel, phase), "attention") for kernel, _, phase, _ in ours]
        labels = {"layer": [layer for _, layer, *_ in ours], "product": names}
        scheduled = np.maximum(zeroed["first_sparsity"], zeroed["second_sparsity"])
        columns = {name: times * values for name, values in figures(zeroed, machine).items()}
        parts.append(pd.DataFrame(labels | {"zeros": scheduled} | columns))
    return pd.concat(parts, ignore_index=True)


def _cycles(batch: KernelBatch, machine: Machine) -> Figures:
    counted = kernel_cycles(batch, machine, simulated)
    return {CYCLES: counted.cycles, f"dense {CYCLES}": counted.dense}


def _cycles_and_energies(batch: KernelBatch, machine: Machine) -> Figures:
    """By the simulator, of the dense twin, and cycles by the tile model; energies of the compute, and with memories."""
    found = _cycles(batch, machine) | {f"modelled {CYCLES}": kernel_cycles(batch, machine, modelled).cycles}
    for device, prefix in (("tensordash", ""), ("tensordash-dense", "dense ")):
        own = replace(machine, skips=not prefix)
        energy = MachinePredictor(machine=own, pass_cycles=simulated).predict(batch, load_gpu(device)).energy
        assert energy is not None
        found |= {f"{prefix}{COMPUTE}": energy.compute_j, f"{prefix}{ENERGY}": energy.total_j}
    return found


def random_rows(zeros: RandomZeros) -> pd.DataFrame:
    """Cycles of streams with random zeros, independent of each other and keeping together; the least by the sparse law
    is a machine of its own.
    """
    independent = [(rows, share, 0.0, "stream") for rows in zeros.rows for share in zeros.sparsities]
    together = [(4, zeros.clustered_sparsity, one, cluster) for cluster in CLUSTERS for one in zeros.clusterings]
    lines: list[tuple[Any, ...]] = []
    for axis, cases in (("random", independent), ("clustering", together)):
        for rows, share, clustering, cluster in cases:
            cycles = [_stream_cycles(zeros.length, seed, rows, share, clustering, cluster) for seed in zeros.seeds]
            # Speed-ups are averaged, not cycles.
            mean = 1.0 / np.mean(1.0 / np.array(cycles))
            lines.append((axis, f"{rows} PE rows", share, clustering, cluster, mean))
    laws = [max(1.0 / Machine().depth, 1.0 - share) * zeros.length for share in zeros.sparsities]
    lines += [("random", "law", share, 0.0, "", law) for share, law in zip(zeros.sparsities, laws, strict=True)]
    found = pd.DataFrame(lines, columns=["axis", "machine", "sparsity", "clustering", "cluster", "measured"])
    return found.assign(quantity=CYCLES, dense=float(zeros.length))


def _stream_cycles(length: int, seed: int, rows: int, *zeros: Any) -> int:
    return schedule_cycles(random_mask(np.random.default_rng(seed), (rows, length, Machine().lanes), *zeros))
