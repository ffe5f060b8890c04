"""A device that is better in one figure: the gain where that figure limits."""

from __future__ import annotations

from dataclasses import replace

from neusight.devices.chosen import as_device
from neusight.devices.cluster import Cluster
from neusight.devices.schema import key_of
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DeviceError, InapplicableError
from neusight.steps.questions import StepQuestion
from neusight.what_if.transforms import transform

_ROOFLINE = "Williams, Waterman and Patterson 2009, Roofline: a ceiling is raised"


def with_figures(step: StepQuestion, *changes: str) -> StepQuestion:
    """A step on a device some of whose figures are replaced.

    Raises:
        InapplicableError: figures are changed already, or the device cannot have others.
    """
    if step.setting.overrides:
        raise InapplicableError(f"figures of the device are changed already: {', '.join(step.setting.overrides)}")
    try:
        as_device(step.gpu, changes)
    except DeviceError as error:
        raise InapplicableError(str(error)) from None
    return step.under(overrides=changes)


@transform("more-bandwidth", group="device", source=_ROOFLINE, effort="another device")
def more_bandwidth(step: StepQuestion) -> StepQuestion:
    """Twice the bandwidth of memory."""
    return with_figures(step, f"dram_bandwidth={2 * step.device.dram_bandwidth_bytes_per_s} B/s")


@transform("faster-clock", group="device", source=_ROOFLINE, effort="another device")
def faster_clock(step: StepQuestion) -> StepQuestion:
    """A clock a quarter higher, and all rates with it."""
    return with_figures(
        step, f"{key_of(step.device.clock_field, step.device.kind)}={1.25 * step.device.core_clock_hz / 1e6} MHz"
    )


@transform("faster-link", group="device", source=_ROOFLINE, effort="another device")
def faster_link(step: StepQuestion) -> StepQuestion:
    """Twice the bandwidth of all links, to other devices and to the host."""
    if not step.device.links:
        raise InapplicableError(f"{step.device.id} states no links")
    return with_figures(step, *(f"links.{p.kind}={2 * p.bandwidth_bytes_per_s} B/s" for p in step.device.links))


@faster_link.also
def faster_links_of_a_cluster(run: TrainingRun) -> TrainingRun:
    """The same of all links of a cluster, and of its network where that is known."""
    if run.cluster.devices == 1:
        raise InapplicableError("one device exchanges nothing")
    return replace(run, cluster=_with_faster_links(run.cluster))


def _with_faster_links(cluster: Cluster) -> Cluster:
    device, network = cluster.device, cluster.network
    links = [link.model_copy(update={"bandwidth_bytes_per_s": 2 * link.bandwidth_bytes_per_s}) for link in device.links]
    made = {"links": tuple(links), "original": device.original or device}
    if network is not None:
        network = network.model_copy(update={"bandwidth_bytes_per_s": 2 * network.bandwidth_bytes_per_s})
    changes = (*cluster.hypothetical, "twice the bandwidth of links and network")
    return cluster.model_copy(
        update={"device": device.model_copy(update=made), "network": network, "hypothetical": changes}
    )
