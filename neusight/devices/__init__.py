"""Devices and clusters of them: figures of each, with their source, from the catalogue or from the user's own file."""

from neusight.devices.cluster import Cluster, Network, cluster_ids, cluster_of, list_clusters, load_cluster
from neusight.devices.load import (
    device_ids,
    gpu_of,
    list_devices,
    list_gpus,
    listed_gpus,
    load_device,
    load_devices,
    load_gpu,
)
from neusight.devices.prices import price_notes, with_prices
from neusight.devices.spec import DeviceSpec, GpuSpec, Link
from neusight.devices.write import to_toml

__all__ = [
    "Cluster",
    "DeviceSpec",
    "GpuSpec",
    "Link",
    "Network",
    "cluster_ids",
    "cluster_of",
    "device_ids",
    "gpu_of",
    "list_clusters",
    "list_devices",
    "list_gpus",
    "listed_gpus",
    "load_cluster",
    "load_device",
    "load_devices",
    "load_gpu",
    "price_notes",
    "to_toml",
    "with_prices",
]
