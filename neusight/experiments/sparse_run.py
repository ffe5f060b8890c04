"""Run a simulated experiment: random zeros, networks product by product, designs, and the tile model beside it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.executors.tensordash.cycles import Cycles, PassCycles, kernel_cycles, simulated
from neusight.executors.tensordash.device import MachinePredictor
from neusight.executors.tensordash.machine import Machine
from neusight.executors.tensordash.masks import CLUSTERS, random_mask
from neusight.executors.tensordash.operands import MAPPED, by_layer, mapped_layers, with_zeros
from neusight.executors.tensordash.passes import modelled
from neusight.executors.tensordash.schedule import schedule_cycles
from neusight.experiments.results import rounded, versions
from neusight.kernels import Conv2d, Gemm, Kernel, KernelBatch
from neusight.schedule.serial import PreparedGraph, prepare
from neusight.transforms.sparsity import SparsityProfile

if TYPE_CHECKING:
    from neusight.experiments.declare import SparseExperiment
    from neusight.experiments.sparse_declare import Network, RandomZeros
    from neusight.learn.training import Report

PRODUCTS = {"forward": "A·W", "input_grad": "G·W", "weight_grad": "G·A", "bmm": "attention"}
QUICK_LENGTH = 256
Rows = list[dict[str, Any]]


def run(experiment: SparseExperiment, quick: bool = False, report: Report | None = None) -> dict[str, Any]:
    """Do what a simulated experiment declares.

    Args:
        experiment: what to do.
        quick: with short streams, one seed and the first network.
        report: called with progress.

    Returns:
        What ``results.json`` holds.

    Raises:
        DataError: a profile is missing, malformed, or of other layers than its network's.
    """
    declared = experiment.declared
    zeros, networks = declared.random, declared.networks
    if quick:
        zeros = zeros.model_copy(update={"length": QUICK_LENGTH, "seeds": zeros.seeds[:1]})
        networks = networks[:1]
    done = _counter(report, 2 + len(networks))
    random = random_rows(zeros)
    done("random zeros")
    clustering = clustering_rows(zeros)
    done("clustered zeros")
    products: Rows = []
    designs: Rows = []
    for network in networks:
        step = network_step(network, experiment.folder)
        products += product_rows(network.name, step)
        designs += design_rows(network.name, step, declared.designs.model_dump())
        done(network.name)
    found = {"random": random, "clustering": clustering, "products": products, "designs": designs}
    found["networks"] = summarised(products)
    told = declared.model_dump(mode="json")
    head = {"experiment": experiment.id, "kind": told["kind"], "title": told["title"], "question": told["question"]}
    head |= {"quick": quick_said() if quick else None, "versions": versions()}
    head |= {"networks_declared": told["networks"][: len(networks)], "targets": told["targets"]}
    return rounded({**head, **found, "verdicts": verdicts(found, told["targets"])})


def quick_said() -> str:
    """What is to be said of a quick run, wherever its figures stand."""
    return "A quick run: short streams, one seed, one network. It shows that everything works."


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
            "speedup": float(np.mean([_speedup(seed, rows, zeros.length, sparsity) for seed in zeros.seeds])),
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
            "speedup": float(
                np.mean([_speedup(seed, 4, zeros.length, sparsity, clustering, cluster) for seed in zeros.seeds])
            ),
        }
        for cluster in CLUSTERS
        for clustering in zeros.clusterings
    ]


def _speedup(
    seed: int, rows: int, length: int, sparsity: float, clustering: float = 0.0, cluster: str = "stream"
) -> float:
    shape = rows, length, Machine().lanes
    mask = random_mask(np.random.default_rng(seed), shape, sparsity, clustering, cluster)
    return length / schedule_cycles(mask)


@dataclass(frozen=True)
class NetworkStep:
    """A network's training step with the zeros of its profile, and the layer of each of its kernels."""

    prepared: PreparedGraph
    layers: tuple[str, ...]

    def mapped(self) -> list[tuple[KernelBatch, np.ndarray]]:
        """Batches that run on the PEs, with the positions of their kernels."""
        return [(batch, positions) for batch, positions in self.prepared.batches if batch.family in MAPPED]


def network_step(network: Network, folder: Path) -> NetworkStep:
    """The step of a declared network; operators without a rule don't matter to it."""
    from neusight.workloads.load import trace_workload

    profile = SparsityProfile.load(folder / network.profile)
    graph = trace_workload(network.model, mode="training", batch=network.batch, allow_fallback=True)
    profile.check(mapped_layers(graph))
    folded, layers = by_layer(graph)
    return NetworkStep(with_zeros(prepare(folded), profile, layers), layers)


def product_rows(network: str, step: NetworkStep) -> Rows:
    """One row a layer and product: cycles of the dense twin, of the simulator and of the tile model, zeros of the
    scheduled operand, and energies [J] of both machines.
    """
    machine, twin = Machine(), Machine(skips=False)
    rows: Rows = []
    for batch, positions in step.mapped():
        ours, model = (kernel_cycles(batch, machine, by) for by in (simulated, modelled))
        energy, twins = (_energy(batch, m, name) for m, name in ((machine, "tensordash"), (twin, "tensordash-dense")))
        for row, position in enumerate(positions):
            folded = step.prepared.graph.kernels[position]
            sides = [float(batch[f"{side}_sparsity"][row]) for side in ("first", "second")]
            rows.append(
                {
                    "network": network,
                    "layer": step.layers[position],
                    "product": _product(folded.kernel, folded.phase),
                    "sparsity": max(sides),
                    **_cycle_figures(ours, model, row, folded.count),
                    "compute_j": folded.count * energy[0][row],
                    "dense_compute_j": folded.count * twins[0][row],
                    "memory_j": folded.count * energy[1][row],
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
    found = MachinePredictor(machine=machine, pass_cycles=simulated).predict(batch, load_device(device)).energy
    assert found is not None
    return found.compute_j, found.sram_j + found.dram_j


def _product(kernel: Kernel, phase: str) -> str:
    if isinstance(kernel, Conv2d):
        return PRODUCTS[kernel.op]
    assert isinstance(kernel, Gemm)
    if kernel.op == "bmm":
        return PRODUCTS["bmm"]
    if phase != "backward":
        return PRODUCTS["forward"]
    return PRODUCTS["weight_grad" if kernel.layout == "nt" else "input_grad"]


def design_rows(network: str, step: NetworkStep, designs: Mapping[str, Sequence[int]]) -> Rows:
    """Speed-up of the whole network by the simulator, with one figure of the machine changed at a time."""
    return [
        {"network": network, "axis": axis, "value": value, "speedup": _network_speedup(step, axis, value, simulated)}
        for axis, values in designs.items()
        for value in values
    ]


def _network_speedup(step: NetworkStep, axis: str, value: int, pass_cycles: PassCycles) -> float:
    machine = replace(Machine(), **{axis: value})  # type: ignore[arg-type]
    dense = cycles = 0.0
    for batch, positions in step.mapped():
        found = kernel_cycles(batch, machine, pass_cycles)
        counts = np.array([step.prepared.graph.kernels[position].count for position in positions])
        dense, cycles = dense + float(counts @ found.dense), cycles + float(counts @ found.cycles)
    return dense / cycles


def summarised(products: Rows) -> Rows:
    """Each network: speed-up of every product and of all, energy of the dense twin over ours, compute alone and with
    memories, and the geometric means of networks.
    """
    names = list(dict.fromkeys(row["network"] for row in products))
    found = [_network(name, [row for row in products if row["network"] == name]) for name in names]
    keys = [key for key in found[0] if key != "network"]
    mean = {key: _geometric_mean([row[key] for row in found if row[key] is not None]) for key in keys}
    return [*found, {"network": "geometric mean", **mean}]


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


def verdicts(found: Mapping[str, Any], targets: Mapping[str, float]) -> Rows:
    """Beside the literature's figures, which are no limits, and the tile model's error, which has one."""
    mean = found["networks"][-1]
    worst = max(found["products"], key=lambda row: abs(row["model_error"]))
    rows = [
        _within("speed-up of training, geometric mean", mean["all"], targets["speedup"]),
        _within("energy efficiency of the compute, geometric mean", mean["compute_energy"], targets["compute_energy"]),
        _within("energy efficiency with memories, geometric mean", mean["energy"], targets["energy"]),
    ]
    limit, value = targets["layer_error"], abs(worst["model_error"])
    short = [] if value <= limit else [f"{worst['network']} {worst['layer']} {worst['product']}"]
    aim = f"at most {limit:g}"
    name = "tile model against simulator, worst product of a layer, percent"
    return [*rows, {"target": name, "aim": aim, "value": value, "met": value <= limit, "short": short}]


def _within(target: str, value: float, reported: float) -> dict[str, Any]:
    """Met: within a tenth of what was reported."""
    met = abs(value / reported - 1.0) <= 0.1
    return {"target": target, "aim": f"{reported:g} reported", "value": value, "met": met, "short": []}
