"""Rows that a simulator makes: cycles and energies of a TensorDash machine, with random zeros and with those of
networks in training.

Measured columns are those of the simulator, which counts exactly; beside them stand those of the dense twin and of the
tile model. ``axis`` and ``value`` say in what the zeros or the machine of a row differ.
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
from neusight.measured import MeasuredTable
from neusight.transforms.sparsity import SparsityProfile, sparsify
from neusight.workloads import Workload, load_workload

if TYPE_CHECKING:
    from neusight.lab.declare import RandomZeros, SimulatedNetwork, Simulation
    from neusight.learn import Report

Figures = dict[str, np.ndarray]
PRODUCTS: Mapping[Any, str] = dict(zip(DIRECTIONS.values(), ("A·W", "G·W", "G·A"), strict=True))
"""Products of a layer by the names of their operands."""
ORDERED = ("network", "product", "value", "machine", "cluster")
"""Columns whose values stay in the order in which they come."""
Case = tuple[str, str, SparsityProfile, Machine]
"""Name of the difference, its value, zeros, and the machine."""


def simulated_table(simulation: Simulation, folder: Path, quick: bool, report: Report | None) -> MeasuredTable:
    """All rows of a simulation; of a quick one those of short streams, one seed and one network.

    Raises:
        DataError: a profile of a network is missing, malformed, or of other layers than its own.
    """
    zeros, networks = simulation.random, simulation.networks
    if quick:
        zeros, networks = zeros.model_copy(update={"length": 256, "seeds": zeros.seeds[:1]}), networks[:1]
    parts = [random_rows(zeros)]
    for done, network in enumerate(networks, start=1):
        parts.append(network_rows(network, simulation, folder))
        if report:
            report(network.name, done, len(networks), float("nan"))
    rows = pd.concat(parts, ignore_index=True)
    ordered = {name: pd.Categorical(rows[name], rows[name].dropna().unique()) for name in ORDERED}
    return MeasuredTable(folder / "simulated", "models", rows.assign(**ordered, place=rows.index))


def network_rows(network: SimulatedNetwork, declared: Simulation, folder: Path) -> pd.DataFrame:
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
        labels = {"network": network.name, "in_mean": network.in_mean, "axis": axis, "value": value}
        parts.append(_with_sums(rows).assign(**labels))
        parts[-1]["number"] = pd.factorize(parts[-1]["layer"])[0] + 1
    return pd.concat(parts, ignore_index=True)


def _with_sums(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(zeros=rows["zeros"] * rows["dense_cycles"])
    sums = rows.groupby("product", sort=False, as_index=False).sum(numeric_only=True)
    whole = pd.concat([rows, sums, sums.assign(product="all").groupby("product", as_index=False).sum()])
    return whole.assign(layer=whole["layer"].fillna("all"), zeros=whole["zeros"] / whole["dense_cycles"])


def _cases(network: SimulatedNetwork, declared: Simulation, folder: Path) -> Iterator[Case]:
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
    return {"cycles": counted.cycles, "dense_cycles": counted.dense}


def _cycles_and_energies(batch: KernelBatch, machine: Machine) -> Figures:
    """By the simulator, of the dense twin, and cycles by the tile model; energies of the compute, and with memories."""
    found = _cycles(batch, machine) | {"model_cycles": kernel_cycles(batch, machine, modelled).cycles}
    for device, prefix in (("tensordash", ""), ("tensordash-dense", "dense_")):
        own = replace(machine, skips=not prefix)
        energy = MachinePredictor(machine=own, pass_cycles=simulated).predict(batch, load_gpu(device)).energy
        assert energy is not None
        found |= {f"{prefix}compute_j": energy.compute_j, f"{prefix}energy_j": energy.total_j}
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
    found = pd.DataFrame(lines, columns=["axis", "machine", "sparsity", "clustering", "cluster", "cycles"])
    return found.assign(dense_cycles=float(zeros.length))


def _stream_cycles(length: int, seed: int, rows: int, *zeros: Any) -> int:
    return schedule_cycles(random_mask(np.random.default_rng(seed), (rows, length, Machine().lanes), *zeros))
