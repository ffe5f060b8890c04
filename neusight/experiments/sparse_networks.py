"""Networks in training on a simulated machine: their products with the zeros of a profile, and what comes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_gpu
from neusight.executors.tensordash.device import MachinePredictor
from neusight.executors.tensordash.machine import Cycles, Machine, kernel_cycles, simulated
from neusight.executors.tensordash.tile_model import modelled
from neusight.kernels import Conv2d, Gemm, Kernel, KernelBatch
from neusight.kernels.families import group_by_family
from neusight.kernels.sparsity import MAPPED, LayerSparsity, OperandSparsity, Zeros, with_zeros
from neusight.transforms.sparsity import SparsityProfile, sparsify

if TYPE_CHECKING:
    from neusight.experiments.declare import SimulatedNetwork
    from neusight.workloads import Workload

PRODUCTS = {"forward": "A·W", "input_grad": "G·W", "weight_grad": "G·A", "bmm": "attention"}
MEAN = "geometric mean"
Rows = list[dict[str, Any]]


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


def traced(network: SimulatedNetwork) -> Workload:
    """A declared network in training; operators without a rule don't matter to it."""
    from neusight.workloads import load_workload

    return load_workload(network.model, mode="training", batch=network.batch, attention="eager", allow_fallback=True)


def network_step(workload: Workload, profile: SparsityProfile) -> NetworkStep:
    """What a network runs on the PEs with the zeros of a profile.

    Raises:
        DataError: the profile is of other layers.
    """
    products = _products(sparsify(workload, profile))
    grouped = group_by_family(product.kernel for product in products)
    batches = ((with_zeros(batch, [products[i].zeros for i in at]), at) for batch, at in grouped)
    return NetworkStep(products, tuple(batches))


def _products(workload: Workload) -> tuple[LayerProduct, ...]:
    counts: Counter[tuple[str, Kernel, str, Zeros | None]] = Counter()
    for node, copy in workload.expanded():
        for kernel, zeros in node.sparse_kernels:
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
        {"network": network, "axis": axis, "value": value, "speedup": _speedup(step, _machine(axis, value))}
        for axis, values in designs.items()
        for value in values
    ]


def _machine(axis: str, value: int) -> Machine:
    return replace(Machine(), **{axis: value})  # type: ignore[arg-type]


def course_rows(network: str, workload: Workload, profiles: Mapping[int, SparsityProfile]) -> Rows:
    """Speed-up of each product and of all after so many updates of the weights, by the simulator."""
    return [
        {"network": network, "updates": updates, **product_speedups(cycle_rows(network_step(workload, one), Machine()))}
        for updates, one in profiles.items()
    ]


def zeros_apart(layer: LayerSparsity) -> LayerSparsity:
    """The same shares of zeros, independent of each other."""
    operands = layer.activations, layer.gradients, layer.weights
    return LayerSparsity(*(OperandSparsity(operand.sparsity) for operand in operands))


def dense_weights(layer: LayerSparsity) -> LayerSparsity:
    """No weight is zero."""
    return replace(layer, weights=OperandSparsity(0.0))


def gradients_like_activations(layer: LayerSparsity) -> LayerSparsity:
    """Gradients with at least the zeros of the activations, which normalisation after the layer else takes away."""
    return replace(layer, gradients=max(layer.gradients, layer.activations, key=lambda zeros: zeros.sparsity))


CHANGES: Mapping[str, Callable[[LayerSparsity], LayerSparsity]] = {
    "zeros apart": zeros_apart,
    "dense weights": dense_weights,
    "zeros of A in G": gradients_like_activations,
}
"""What is changed of a measured profile to see what its speed-up depends on."""


def changed_rows(network: str, workload: Workload, profiles: Mapping[str, SparsityProfile]) -> Rows:
    """Speed-up of the whole network with each profile, and with the first one changed, by the simulator."""
    first = next(iter(profiles.values()))
    changed = {name: _changed(first, change) for name, change in CHANGES.items()}
    return [
        {"network": network, "zeros": name, "speedup": _speedup(network_step(workload, profile), Machine())}
        for name, profile in {**profiles, **changed}.items()
    ]


def _changed(profile: SparsityProfile, change: Callable[[LayerSparsity], LayerSparsity]) -> SparsityProfile:
    return replace(profile, layers={name: change(layer) for name, layer in profile.layers.items()})


def uniform_rows(network: str, workload: Workload, shares: Sequence[float]) -> Rows:
    """Speed-up with the same share of independent zeros in all activations and gradients, by the simulator."""
    profiles = ((share, SparsityProfile.uniform(f"activations={share},gradients={share}")) for share in shares)
    return [
        {"network": network, "share": share, "speedup": _speedup(network_step(workload, profile), Machine())}
        for share, profile in profiles
    ]


def _speedup(step: NetworkStep, machine: Machine) -> float | None:
    """Of the whole network."""
    return product_speedups(cycle_rows(step, machine))["all"]


def cycle_rows(step: NetworkStep, machine: Machine) -> Rows:
    """Cycles of each product of a layer by the simulator, and of the dense twin."""
    rows: Rows = []
    for batch, positions in step.batches:
        counted = kernel_cycles(batch, machine, simulated)
        for at, dense, cycles in zip(positions, counted.dense, counted.cycles, strict=True):
            one = step.products[at]
            product = _product(one.kernel, one.phase)
            rows.append({"product": product, "dense": one.count * dense, "cycles": one.count * cycles})
    return rows


def summarised(products: Rows, in_mean: Collection[str]) -> Rows:
    """Each network: speed-up of every product and of all, energy of the dense twin over ours, compute alone and with
    memories, and the geometric means of those ``in_mean``.
    """
    names = list(dict.fromkeys(row["network"] for row in products))
    networks = [_network(name, [row for row in products if row["network"] == name]) for name in names]
    counted = [row for row in networks if row["network"] in in_mean]
    keys = [key for key in networks[0] if key != "network"]
    mean = {key: _geometric_mean([row[key] for row in counted if row[key] is not None]) for key in keys}
    return [*networks, {"network": MEAN, **mean}]


def mean_rows(rows: Rows, by: str, in_mean: Collection[str]) -> Rows:
    """Geometric means of ``speedup`` over networks, for each value of another column that all of them have."""
    speedups: dict[Any, list[float]] = {}
    for row in rows:
        if row["network"] in in_mean:
            speedups.setdefault(row[by], []).append(row["speedup"])
    complete = {value: each for value, each in speedups.items() if len(each) == len(in_mean)}
    return [{"network": MEAN, by: value, "speedup": _geometric_mean(each)} for value, each in complete.items()]


def _network(name: str, rows: Rows) -> dict[str, Any]:
    memory = _total(rows, "memory_j")
    return {
        "network": name,
        **product_speedups(rows),
        "compute_energy": _total(rows, "dense_compute_j") / _total(rows, "compute_j"),
        "energy": (_total(rows, "dense_compute_j") + memory) / (_total(rows, "compute_j") + memory),
    }


def product_speedups(rows: Rows) -> dict[str, float | None]:
    """Of each product and of all; None of those that a network lacks."""
    own = {product: [row for row in rows if row["product"] == product] for product in PRODUCTS.values()}
    own["all"] = rows
    return {name: _total(each, "dense") / _total(each, "cycles") if each else None for name, each in own.items()}


def _total(rows: Rows, key: str) -> float:
    return float(sum(row[key] for row in rows))


def zero_shares(products: Rows) -> Rows:
    """Each network: the share of zeros of the operand whose zeros are skipped, by product and over all, each layer's
    weighted by its dense cycles.
    """
    rows: Rows = []
    for name in dict.fromkeys(row["network"] for row in products):
        for product in (*PRODUCTS.values(), "all"):
            own = [row for row in products if row["network"] == name and product in (row["product"], "all")]
            if dense := _total(own, "dense"):
                skipped = sum(row["sparsity"] * row["dense"] for row in own)
                rows.append({"network": name, "product": product, "zeros": skipped / dense})
    return rows


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
