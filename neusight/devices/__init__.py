"""Devices and clusters of them: figures of each, with their source, from the catalogue or from the user's own file."""

from neusight.devices.cluster import Cluster, Network, cluster_ids, cluster_of, list_clusters, load_cluster
from neusight.devices.load import device_ids, list_devices, load_device
from neusight.devices.spec import DeviceSpec, Link
from neusight.devices.write import to_toml

__all__ = [
    "Cluster",
    "DeviceSpec",
    "Link",
    "Network",
    "cluster_ids",
    "cluster_of",
    "device_ids",
    "list_clusters",
    "list_devices",
    "load_cluster",
    "load_device",
    "to_toml",
]
