"""Run a simulated experiment: random zeros, networks product by product, designs, and the tile model beside it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_gpu
from neusight.executors.tensordash.device import MachinePredictor
from neusight.executors.tensordash.machine import Cycles, Machine, kernel_cycles, simulated
from neusight.executors.tensordash.masks import CLUSTERS, random_mask
from neusight.executors.tensordash.schedule import schedule_cycles
from neusight.executors.tensordash.tile_model import modelled
from neusight.kernels import Conv2d, Gemm, Kernel, KernelBatch
from neusight.kernels.families import group_by_family
from neusight.kernels.sparsity import Zeros, with_zeros
from neusight.transforms.sparsity import MAPPED, SparsityProfile, sparsify

if TYPE_CHECKING:
    from neusight.experiments.declare import RandomZeros, SimulatedNetwork, SparseDeclaration
    from neusight.learn import Report
    from neusight.workloads import Workload

PRODUCTS = {"forward": "A·W", "input_grad": "G·W", "weight_grad": "G·A", "bmm": "attention"}
QUICK_LENGTH = 256
Rows = list[dict[str, Any]]


def run(
    declared: SparseDeclaration, folder: Path, quick: bool = False, report: Report | None = None
) -> dict[str, Rows]:
    """Simulate what is declared.

    Args:
        declared: what to do.
        folder: of the experiment, with the profiles.
        quick: with short streams, one seed and the first network.
        report: called with progress.

    Returns:
        ``random``, ``clustering``, ``products`` (a row a layer and product), ``networks``, ``designs`` and
        ``tile_model``.

    Raises:
        DataError: a profile is missing, malformed, or of other layers than its network's.
    """
    zeros, networks = declared.random, declared.networks
    if quick:
        zeros = zeros.model_copy(update={"length": QUICK_LENGTH, "seeds": zeros.seeds[:1]})
        networks = networks[:1]
    done = _counter(report, 2 + len(networks))
    results: dict[str, Rows] = {"random": random_rows(zeros)}
    done("random zeros")
    results |= {"clustering": clustering_rows(zeros), "products": [], "designs": []}
    done("clustered zeros")
    for network in networks:
        step = network_step(network, folder)
        results["products"] += product_rows(network.name, step)
        results["designs"] += design_rows(network.name, step, declared.designs)
        done(network.name)
    results |= {"networks": summarised(results["products"]), "tile_model": tile_model_errors(results["products"])}
    return results


def _counter(report: Report | None, of: int) -> Callable[[str], None]:
    counted = iter(range(1, of + 1))

    def done(task: str) -> None:
        if report:
            report(task, next(counted), of, float("nan"))

    return done


def random_rows(zeros: RandomZeros) -> Rows:
    """Speed-up with independent zeros: rows, sparsity, speedup (mean over seeds), ideal (the sparse law)."""
    depth = Machine().depth
    return [
        {
            "rows": rows,
            "sparsity": sparsity,
            "speedup": _speedup(zeros, rows, sparsity),
            "ideal": min(depth, 1.0 / max(1.0 - sparsity, 1e-9)),
        }
        for rows in zeros.rows
        for sparsity in zeros.sparsities
    ]


def clustering_rows(zeros: RandomZeros) -> Rows:
    """Speed-up of four PE rows at one sparsity against how much zeros keep together, for every kind of group."""
    sparsity = zeros.clustered_sparsity
    return [
        {
            "cluster": cluster,
            "clustering": clustering,
            "sparsity": sparsity,
            "speedup": _speedup(zeros, 4, sparsity, clustering, cluster),
        }
        for cluster in CLUSTERS
        for clustering in zeros.clusterings
    ]


def _speedup(zeros: RandomZeros, rows: int, sparsity: float, clustering: float = 0.0, cluster: str = "stream") -> float:
    """Over the dense schedule, the mean over seeds."""
    shape = rows, zeros.length, Machine().lanes
    masks = (random_mask(np.random.default_rng(seed), shape, sparsity, clustering, cluster) for seed in zeros.seeds)
    return float(np.mean([zeros.length / schedule_cycles(mask) for mask in masks]))


@dataclass(frozen=True)
class LayerProduct:
    """A kernel that a layer runs on the PEs ``count`` times a step."""

    layer: str
    kernel: Kernel
    phase: str
    zeros: Zeros | None
    count: int


@dataclass(frozen=True)
class NetworkStep:
    """What a network's training step runs on the PEs, with the zeros of its profile.

    ``batches`` holds one batch a family with the positions that its rows have in ``products``.
    """

    products: tuple[LayerProduct, ...]
    batches: tuple[tuple[KernelBatch, np.ndarray], ...]


def network_step(network: SimulatedNetwork, folder: Path) -> NetworkStep:
    """The step of a declared network; operators without a rule don't matter to it."""
    from neusight.workloads import load_workload

    profile = SparsityProfile.load(folder / network.profile)
    workload = load_workload(
        network.model, mode="training", batch=network.batch, attention="eager", allow_fallback=True
    )
    products = _products(sparsify(workload, profile))
    grouped = group_by_family(product.kernel for product in products)
    batches = ((with_zeros(batch, [products[i].zeros for i in at]), at) for batch, at in grouped)
    return NetworkStep(products, tuple(batches))


def _products(workload: Workload) -> tuple[LayerProduct, ...]:
    counts: Counter[tuple[str, Kernel, str, Zeros | None]] = Counter()
    for node, copy in workload.expanded():
        for kernel, zeros in zip(node.kernels, node.zeros or (None,) * len(node.kernels), strict=True):
            if kernel.family in MAPPED:
                counts[node.layer.name(copy), kernel, node.phase, zeros] += 1
    return tuple(LayerProduct(*product, count) for product, count in counts.items())


def product_rows(network: str, step: NetworkStep) -> Rows:
    """One row a layer and product: cycles of the dense twin, of the simulator and of the tile model, zeros of the
    scheduled operand, and energies [J] of both machines.
    """
    machine, twin = Machine(), Machine(skips=False)
    rows: Rows = []
    for batch, positions in step.batches:
        ours, model = (kernel_cycles(batch, machine, by) for by in (simulated, modelled))
        energy, twins = (_energy(batch, m, name) for m, name in ((machine, "tensordash"), (twin, "tensordash-dense")))
        for row, position in enumerate(positions):
            product = step.products[position]
            rows.append(
                {
                    "network": network,
                    "layer": product.layer,
                    "product": _product(product.kernel, product.phase),
                    "sparsity": max(float(batch[f"{side}_sparsity"][row]) for side in ("first", "second")),
                    **_cycle_figures(ours, model, row, product.count),
                    "compute_j": product.count * energy[0][row],
                    "dense_compute_j": product.count * twins[0][row],
                    "memory_j": product.count * energy[1][row],
                }
            )
    return rows


def _cycle_figures(ours: Cycles, model: Cycles, row: int, count: int) -> dict[str, float]:
    return {
        "dense": count * float(ours.dense[row]),
        "cycles": count * float(ours.cycles[row]),
        "modelled": count * float(model.cycles[row]),
        "model_error": 100.0 * (float(model.cycles[row]) / float(ours.cycles[row]) - 1.0),
    }


def _energy(batch: KernelBatch, machine: Machine, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Joules of the compute, and of SRAM and DRAM together."""
    costs = MachinePredictor(machine=machine, pass_cycles=simulated).predict(batch, load_gpu(device)).energy
    assert costs is not None
    return costs.compute_j, costs.sram_j + costs.dram_j


def _product(kernel: Kernel, phase: str) -> str:
    if isinstance(kernel, Conv2d):
        return PRODUCTS[kernel.op]
    assert isinstance(kernel, Gemm)
    if kernel.op == "bmm":
        return PRODUCTS["bmm"]
    if phase != "backward":
        return PRODUCTS["forward"]
    return PRODUCTS["weight_grad" if kernel.layout == "nt" else "input_grad"]


def design_rows(network: str, step: NetworkStep, designs: Mapping[Any, Sequence[int]]) -> Rows:
    """Speed-up of the whole network by the simulator, with one figure of the machine changed at a time."""
    return [
        {"network": network, "axis": axis, "value": value, "speedup": _network_speedup(step, axis, value)}
        for axis, values in designs.items()
        for value in values
    ]


def _network_speedup(step: NetworkStep, axis: str, value: int) -> float:
    machine = replace(Machine(), **{axis: value})  # type: ignore[arg-type]
    dense = cycles = 0.0
    for batch, positions in step.batches:
        counted = kernel_cycles(batch, machine, simulated)
        counts = np.array([step.products[position].count for position in positions])
        dense, cycles = dense + float(counts @ counted.dense), cycles + float(counts @ counted.cycles)
    return dense / cycles


def summarised(products: Rows) -> Rows:
    """Each network: speed-up of every product and of all, energy of the dense twin over ours, compute alone and with
    memories, and the geometric means of networks.
    """
    names = list(dict.fromkeys(row["network"] for row in products))
    networks = [_network(name, [row for row in products if row["network"] == name]) for name in names]
    keys = [key for key in networks[0] if key != "network"]
    mean = {key: _geometric_mean([row[key] for row in networks if row[key] is not None]) for key in keys}
    return [*networks, {"network": "geometric mean", **mean}]


def _network(name: str, rows: Rows) -> dict[str, Any]:
    def total(key: str, of: Rows = rows) -> float:
        return float(sum(row[key] for row in of))

    speedups: dict[str, float | None] = {}
    for product in PRODUCTS.values():
        own = [row for row in rows if row["product"] == product]
        speedups[product] = total("dense", own) / total("cycles", own) if own else None
    memory = total("memory_j")
    return {
        "network": name,
        **speedups,
        "all": total("dense") / total("cycles"),
        "compute_energy": total("dense_compute_j") / total("compute_j"),
        "energy": (total("dense_compute_j") + memory) / (total("compute_j") + memory),
    }


def _geometric_mean(values: Sequence[float]) -> float | None:
    return exp(sum(map(log, values)) / len(values)) if values else None


def tile_model_errors(products: Rows) -> Rows:
    """By how many percent the tile model misses the simulator: products, mean and worst of each network."""
    errors_by_network: dict[str, list[float]] = {}
    for row in products:
        errors_by_network.setdefault(row["network"], []).append(abs(row["model_error"]))
    return [
        {"network": name, "products": len(errors), "mean": float(np.mean(errors)), "worst": max(errors)}
        for name, errors in errors_by_network.items()
    ]
