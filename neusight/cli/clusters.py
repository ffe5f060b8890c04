"""``neusight clusters``: nodes of devices, and the networks between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format

if TYPE_CHECKING:
    from neusight.devices import Cluster, Network

clusters = typer.Typer(no_args_is_help=True, help="Nodes of devices and the networks between them.")


@clusters.command("list")
def list_clusters(form: Format = "human") -> None:
    """List all clusters that have a name."""
    from neusight.cli.output import Column, Output, line, table
    from neusight.devices import list_clusters as known

    found = known()
    rows = [_row(cluster) for cluster in found]

    def human() -> None:
        line("Devices of a node; GB/s of one, one direction: links, share of the network.")
        columns = [Column("name"), Column("device"), Column("kind")]
        columns[2:2] = [Column(title, right=True) for title in ("a node", "links", "network")]
        table(columns, (_cells(cluster) for cluster in found))

    Output(form).data(rows, rows, human)


@clusters.command("show")
def show_cluster(
    name: Annotated[str, typer.Argument(help="A name of `neusight clusters list`, or a cluster file (.toml).")],
    nodes: Annotated[int, typer.Option(min=0, help="How many nodes; default: as the file says, else one.")] = 0,
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a figure: `per_node=4`, `network.bandwidth=800Gb/s`, `device.tdp=600W`. Repeatable.",
        ),
    ] = [],  # noqa: B006
    form: Format = "human",
) -> None:
    """Show one cluster with the source of every figure.

    Example: `neusight clusters show dgx-h100 --nodes 4 --set network.reduces=true`
    """
    from neusight.cli.output import Output
    from neusight.devices import load_cluster

    cluster = load_cluster(name, nodes, overrides)
    data = cluster.model_dump(mode="json")
    Output(form).data(data, [_row(cluster)], lambda: _shown(cluster))


def _shown(cluster: Cluster) -> None:
    from neusight.cli.output import line

    line(f"{cluster.id}: {cluster.name}")
    line(f"{cluster.nodes} x {cluster.per_node} x {cluster.device.id}, {cluster.devices} devices")
    for link in cluster.device.links:
        line(f"links     {link.kind} {link.generation}, {link.bandwidth_bytes_per_s / 1e9:g} GB/s, {link.joins}")
    line(f"network   {_network(cluster.network) if cluster.network else 'not told'}")
    for what in (cluster.notes, *cluster.hypothetical):
        if what:
            line(f"note      {what}")
    for key, document in cluster.sources.items():
        line(f"source    {key}: {document}")


def _network(network: Network) -> str:
    extras = (
        "switches reduce" if network.reduces else "",
        "rails" if network.rails else "no rails",
        f"oversubscribed {network.oversubscription:g} times" if network.oversubscription > 1 else "",
        f"a hop {1e6 * network.added_hop_s:g} us longer than over InfiniBand" if network.added_hop_s else "",
    )
    rate = f"{network.adapters} x {8e-9 * network.bandwidth_bytes_per_s:g} Gb/s"
    kind = f"{network.kind} {network.generation}".strip()
    return ", ".join((f"{kind}, {rate}, {network.sustained:.0%} sustained", *filter(None, extras)))


def _cells(cluster: Cluster) -> tuple[str, ...]:
    links = max((link.bandwidth_bytes_per_s for link in cluster.device.links), default=0.0)
    rates = (f"{1e-9 * links:.4g}", f"{1e-9 * rate:.4g}" if (rate := cluster.network_bytes_per_s) else "-")
    kind = cluster.network.kind if cluster.network else "not told"
    return cluster.id, cluster.device.id, str(cluster.per_node), *rates, kind


def _row(cluster: Cluster) -> dict[str, Any]:
    network = cluster.network
    return {
        "id": cluster.id,
        "name": cluster.name,
        "device": cluster.device.id,
        "per_node": cluster.per_node,
        "nodes": cluster.nodes,
        "network": network.kind if network else "",
        "generation": network.generation if network else "",
        "adapters": network.adapters if network else None,
        "network_bytes_per_s": cluster.network_bytes_per_s,
        "reduces": network.reduces if network else None,
    }
