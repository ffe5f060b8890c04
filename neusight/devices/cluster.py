"""``Cluster``: nodes of equal devices and the network between them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError

NetworkKind = Literal["infiniband", "roce", "efa", "tcpx", "slingshot", "ethernet"]


class Network(BaseModel):
    """What joins the nodes of a cluster; bandwidths are one direction.

    ``sustained`` is the share of the line rate that long messages reach, ``added_hop_s`` what a message takes longer
    than over InfiniBand; both are of the kind unless a file says otherwise (``fabrics.toml``). ``reduces``: switches
    form sums on the way (SHARP). ``rails``: adapters of one place in all nodes meet at one leaf switch, so that
    neighbours of rings and trees do; ``oversubscription`` is the bandwidth of adapters over that of the spine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: NetworkKind
    generation: str = ""
    bandwidth_bytes_per_s: PositiveFloat
    """Line rate of one adapter."""
    adapters: PositiveInt
    """Of a node, all of one rate, that its devices share."""
    sustained: float = Field(gt=0.0, le=1.0)
    added_hop_s: NonNegativeFloat = 0.0
    reduces: bool = False
    rails: bool = True
    oversubscription: float = Field(default=1.0, ge=1.0)


class Cluster(BaseModel):
    """``nodes`` of ``per_node`` equal devices each.

    A node is what the devices' own links join: of a rack whose switches join 72 devices, the rack. Without a network
    several nodes have one adapter a device, as DGX machines of its generation do, and sustain what was fitted to
    collectives between machines whose network nobody tells.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    device: DeviceSpec
    per_node: PositiveInt
    nodes: PositiveInt = 1
    network: Network | None = None
    aliases: tuple[str, ...] = ()
    sources: dict[str, str] = Field(default_factory=dict)
    """Document behind each figure, by key of the cluster's file."""
    notes: str = ""
    hypothetical: tuple[str, ...] = ()
    """Figures changed by the user, as ``key=value``."""

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return self.per_node * self.nodes

    @property
    def network_bytes_per_s(self) -> float | None:
        """Line rate of the network for one device, one direction [B/s]: the adapters of a node are shared evenly, since
        its devices communicate at once, as ranks of a plan do. None where no network is told.
        """
        if self.network is None:
            return None
        return self.network.adapters * self.network.bandwidth_bytes_per_s / self.per_node

    @model_validator(mode="after")
    def _joined(self) -> Cluster:
        """Raises:
        DeviceError: several devices without links among them.
        """
        if self.devices > 1 and not self.device.links:
            raise DeviceError(
                f"{self.id}: {self.device.id} states no links between {self.per_node} devices of a node: add [[links]] "
                "to its device file, or --set device.links.pcie=64GB/s"
            )
        return self
