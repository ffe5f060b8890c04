"""``neusight devices`` and ``clusters``: the catalogue of hardware."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from neusight.cli import options as opt
from neusight.cli.asked import Asked, described, leave_out, only
from neusight.cli.commands import Commands
from neusight.cli.output import Output, busy, figures, line, note
from neusight.errors import DeviceError
from neusight.questions.field import whole
from neusight.questions.parts import OnCluster, OnDevices
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal, scaled

if TYPE_CHECKING:
    from neusight.collect.drafting import Draft
    from neusight.devices import Cluster, DeviceSpec, Network

_DEVICES = (
    "id | >year | >SMs = cores | >fp32 = fp32:.1f | >half = half:.1f | >GB/s = rate:.0f | >GB = size:.0f | "
    ">TDP = tdp_w:.0f"
)
_CLUSTERS = "name = id | device | >a node = per_node | >links = links:decimal4 | >network = rate:decimal4 | kind"
devices = Commands(help="The accelerators that the catalogue holds.")
clusters = Commands(help="Nodes of devices and the networks between them.")
_OF_CLUSTERS = (
    "Change a figure: `per_node=4`, `redirected=true` (PCIe access control services), `network.bandwidth=800Gb/s`, "
    "`device.tdp=600W`. May be repeated."
)


@devices.command("list")
def list_devices(output: opt.Formatted) -> None:
    """List all devices, oldest first."""
    from neusight.devices import list_devices as known

    specs = known()
    described = [_device_row(spec) for spec in specs]
    # Kinds of devices have figures of their own.
    names = dict.fromkeys(name for row in described for name in row)
    rows = [{name: row.get(name) for name in names} for row in described]
    title = "Peaks in TFLOP/s, dense (half: bfloat16, else float16); DRAM; TDP in W."
    Output(output.form).data(rows, rows, lambda: figures(_DEVICES, map(_device_figures, specs), title))


@devices.command("show")
def show_device(
    device: Annotated[opt.Named, described(name="An id, a driver's name, or a device file.")],
    asked: Annotated[Asked[OnDevices], leave_out("gpu")],
    output: opt.Formatted,
) -> None:
    """Show one device with the source of every figure, as a file that `--gpu` reads.

    Example: `neusight devices show l4 > mine.toml`, change it, then `neusight predict gpt2 --gpu ./mine.toml`.
    """
    from neusight.devices import load_devices, price_notes, to_toml

    changes = asked.one
    (spec,) = load_devices([opt.named_gpu(device.name)], changes.overrides, changes.prices)
    data = spec.to_dict()
    remarks = [f"# {text}" for text in price_notes([spec])]
    Output(output.form).data(data, [_device_row(spec)], lambda: line("\n".join([*remarks, to_toml(spec).rstrip()])))


@dataclass(frozen=True, kw_only=True)
class DraftOptions(opt.OnHost, opt.Written):
    """The device of this machine, and its file."""

    HELP: ClassVar[Mapping[str, str]] = {"out": "Device file (.toml). Default: stdout."}

    index: int = whole("Number of the GPU, as PyTorch counts them.", opt.CHOICE, 0, low=0, high=1024)


@devices.command()
def draft(options: DraftOptions) -> None:
    """Draft the device file of this machine's GPU or CPU from what its driver reports.

    Example: `neusight devices draft --out mine.toml`, then `neusight predict gpt2-large --gpu mine.toml`.
    """
    from neusight.collect.drafting import draft_device
    from neusight.devices import to_toml

    out = options.out
    opt.check_out(out, "--out", ".toml")
    with busy("asking the driver" if options.device == "cuda" else "measuring clock and memory"):
        drafted = draft_device(options.device, options.index)
    text = to_toml(drafted.spec)
    if out is None:
        line(text.rstrip())
    else:
        _write(text, out)
    _explain(drafted, out)


def _write(text: str, out: Path) -> None:
    """Write the file; one that may have been corrected by hand is kept."""
    if out.exists() and out.read_text(encoding="utf-8") != text:
        raise DeviceError(f"{out} exists with other content: name another --out, or remove it first")
    out.write_text(text, encoding="utf-8")


def _explain(drafted: Draft, out: Path | None) -> None:

    spec = drafted.spec
    if drafted.known:
        note(f"The catalogue knows this device as {spec.id}; the file is the catalogue's.")
    else:
        note(f"The catalogue does not know {spec.name}: check what [sources] calls an assumption.")
    for difference in drafted.differences:
        note(f"  {difference}")
    if out is None:
        note("Keep it with --out mine.toml, then: neusight predict gpt2-large --gpu mine.toml")
    else:
        note(f"Use it: neusight predict gpt2-large --gpu {out}")


def _device_figures(spec: DeviceSpec) -> dict[str, Any]:
    """Figures of a device in the list, in its units."""
    rates = {**spec.vector_flops_per_s, **spec.matrix_flops_per_s}
    half = rates.get("bfloat16") or rates.get("float16")
    return _device_row(spec) | {
        "year": spec.release_date.year, "cores": spec.core_count, "fp32": spec.vector_flops_per_s["float32"] / 1e12,
        "half": half / 1e12 if half else None, "rate": spec.dram_bandwidth_bytes_per_s / 1e9,
        "size": spec.dram_capacity_bytes / 1e9,
    }  # fmt: skip


def _device_row(spec: DeviceSpec) -> dict[str, Any]:
    """The scalar figures; rates and links are in the JSON of ``show``."""
    data = spec.to_dict()
    return {key: value for key, value in data.items() if not isinstance(value, dict | list)}


@clusters.command("list")
def list_clusters(output: opt.Formatted) -> None:
    """List all clusters that have a name."""
    from neusight.devices import list_clusters as known

    every = known()
    rows = [_cluster_row(cluster) for cluster in every]
    title = "Devices of a node; GB/s of one, one direction: links, share of the network."
    Output(output.form).data(rows, rows, lambda: figures(_CLUSTERS, map(_cluster_figures, every), title))


@clusters.command("show")
def show_cluster(
    named: Annotated[opt.Named, described(name="A name of `neusight clusters list`, or a cluster file (.toml).")],
    asked: Annotated[Asked[OnCluster], only(OnCluster, "nodes", "overrides"), described(overrides=_OF_CLUSTERS)],
    output: opt.Formatted,
) -> None:
    """Show one cluster with the source of every figure.

    Example: `neusight clusters show dgx-h100 --nodes 4 --set network.reduces=true`
    """
    from neusight.devices import load_cluster

    changes = asked.one
    cluster = load_cluster(named.name, changes.nodes or 0, changes.overrides)
    data = cluster.to_dict()
    Output(output.form).data(data, [_cluster_row(cluster)], lambda: _show_lines(cluster))


def _show_lines(cluster: Cluster) -> None:

    line(f"{cluster.id}: {cluster.name}")
    line(f"{cluster.nodes} x {cluster.per_node} x {cluster.device.id}, {cluster.devices} devices")
    for link in cluster.device.links:
        rate = scaled(link.bandwidth_bytes_per_s, "B/s", 6)
        line(f"links     {link.kind} {link.generation}, {rate}, {link.joins}")
    if cluster.redirected:
        line("links     PCIe access control services redirect what devices exchange")
    line(f"network   {_network(cluster.network) if cluster.network else 'not stated'}")
    for what in (cluster.notes, *cluster.hypothetical):
        if what:
            line(f"note      {what}")
    for key, document in cluster.sources.items():
        line(f"source    {key}: {document}")


def _network(network: Network) -> str:
    extras = (
        "switches reduce" if network.reduces else "",
        "rails" if network.rails else "no rails",
        f"oversubscribed {decimal(network.oversubscription, 6)} times" if network.oversubscription > 1 else "",
        f"a hop {decimal(1e6 * network.added_hop_s, 6)} us longer than over InfiniBand" if network.added_hop_s else "",
    )
    rate = f"{network.adapters} x {decimal(8e-9 * network.bandwidth_bytes_per_s, 6)} Gb/s"
    kind = f"{network.kind} {network.generation}".strip()
    return ", ".join((f"{kind}, {rate}, {network.sustained:.0%} sustained", *filter(None, extras)))


def _cluster_figures(cluster: Cluster) -> dict[str, Any]:
    """Figures of a cluster in the list, in its units."""
    links = max((link.bandwidth_bytes_per_s for link in cluster.device.links), default=0.0)
    rate = 1e-9 * cluster.network_bytes_per_s if cluster.network_bytes_per_s else None
    kind = cluster.network.kind if cluster.network else "not stated"
    return _cluster_row(cluster) | {"links": 1e-9 * links, "rate": rate, "kind": kind}


def _cluster_row(cluster: Cluster) -> dict[str, Any]:
    network = cluster.network
    return {
        "id": cluster.id, "name": cluster.name, "device": cluster.device.id, "per_node": cluster.per_node,
        "nodes": cluster.nodes, "network": network.kind if network else "",
        "generation": network.generation if network else "", "adapters": network.adapters if network else None,
        "network_bytes_per_s": cluster.network_bytes_per_s,
        "reduces": network.reduces if network else None,
    }  # fmt: skip
