"""Run a simulated experiment: random zeros, networks product by product, designs, and the tile model beside it all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.executors.tensordash.machine import Machine
from neusight.executors.tensordash.masks import CLUSTERS, random_mask
from neusight.executors.tensordash.schedule import schedule_cycles
from neusight.experiments.sparse_networks import (
    Rows,
    changed_rows,
    course_rows,
    design_rows,
    mean_rows,
    network_step,
    product_rows,
    summarised,
    tile_model_errors,
    traced,
    uniform_rows,
    zero_shares,
)
from neusight.transforms.sparsity import SparsityProfile

if TYPE_CHECKING:
    from neusight.experiments.declare import RandomZeros, SimulatedNetwork, SparseDeclaration
    from neusight.learn import Report

QUICK_LENGTH = 256


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
        ``random``, ``clustering``, ``products`` (a row a layer and product), ``networks``, ``zeros``, ``course``,
        ``changed``, ``uniform``, ``designs`` and ``tile_model``.

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
    results |= {"clustering": clustering_rows(zeros)}
    done("clustered zeros")
    for network in networks:
        for table, rows in _of_network(network, declared, folder).items():
            results[table] = results.get(table, []) + rows
        done(network.name)
    products, in_mean = results["products"], {network.name for network in networks if network.in_mean}
    return results | {
        "networks": summarised(products, in_mean),
        "zeros": zero_shares(products),
        "changed": [*results["changed"], *mean_rows(results["changed"], "zeros", in_mean)],
        "uniform": [*results["uniform"], *mean_rows(results["uniform"], "share", in_mean)],
        "tile_model": tile_model_errors(products),
    }


def _of_network(network: SimulatedNetwork, declared: SparseDeclaration, folder: Path) -> dict[str, Rows]:
    """Tables to which every network adds rows."""
    name, workload = network.name, traced(network)
    course = {updates: SparsityProfile.load(folder / file) for updates, file in network.course.items()}
    others = {what: SparsityProfile.load(folder / file) for what, file in network.others.items()}
    profile = SparsityProfile.load(folder / network.profile)
    step = network_step(workload, profile)
    return {
        "products": product_rows(name, step),
        "course": course_rows(name, workload, course | {network.updates: profile}) if course else [],
        "changed": changed_rows(name, workload, {"as measured": profile} | others),
        "uniform": uniform_rows(name, workload, declared.uniform),
        "designs": design_rows(name, step, declared.designs),
    }


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
