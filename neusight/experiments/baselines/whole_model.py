"""Whole models as the published predictors compose them: the plain sum of kernels, each as if launched alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.experiments.baselines.protocol import Baseline
from neusight.schedule.serial import PreparedGraph, prepare
from neusight.workloads.graph import PHASES, FoldedGraph


def whole_model_s(baseline: Baseline, graph: PreparedGraph | FoldedGraph, device: DeviceSpec) -> Mapping[str, float]:
    """Seconds of each phase of a step (forward, backward, optimizer; those that the step has).

    Args:
        baseline: fitted.
        graph: the step; prepare it once where several devices or baselines are asked.
        device: where it runs.
    """
    prepared = prepare(graph) if isinstance(graph, FoldedGraph) else graph
    totals: dict[str, float] = {}
    for batch, positions in prepared.batches:
        folded = [prepared.graph.kernels[i] for i in positions]
        counted_s = baseline.predict_s(batch, device) * np.array([kernel.count for kernel in folded])
        for kernel, seconds in zip(folded, counted_s.tolist(), strict=True):
            totals[kernel.phase] = totals.get(kernel.phase, 0.0) + seconds
    return {phase: totals[phase] for phase in PHASES if phase in totals}
