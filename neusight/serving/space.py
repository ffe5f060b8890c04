"""Which deployments are looked at where a service level is to be held: combinations of what is stated, and of what is
usual for what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, log2
from typing import Any

from neusight.devices.cluster import USUAL_PER_NODE
from neusight.devices.spec import HALVES, DeviceSpec
from neusight.serving.setup import Setup
from neusight.workloads.decoders.decoder import Decoder

TPS = (1, 2, 4, 8)
"""Degrees of tensor parallelism."""
FULL, MOST_NODES = 0.8, 4
"""Share of a node's memory beyond which weights leave no room for a cache, and nodes that a replica may then span."""
PASS_TOKENS = (2048, 8192)
"""New tokens of a pass beside an engine's default: short passes delay answers less, long ones prompts."""


def setups(
    decoder: Decoder,
    device: DeviceSpec,
    stated: Mapping[str, Any],
    *,
    usual: bool = False,
    make: Callable[[dict[str, Any]], Setup] = lambda words: Setup(**words),
) -> list[Setup]:
    """Of one replica, each once.

    Args:
        decoder: the model.
        device: that runs it.
        stated: fields of ``Setup``, each a value or several.
        usual: whether what is not stated takes usual values; else all but ``tp`` have their defaults.
        make: makes a setup of words, which it may check.
    """
    axes = {"tp": TPS} | {name: _several(value) for name, value in stated.items()}
    if not usual:
        return list(dict.fromkeys(make(fields) for fields in _combined(axes)))
    # Stages send far less than ranks of a layer, which counts where all goes through the host.
    pps = TPS if all(link.kind == "pcie" for link in device.links) else (1,)
    most = USUAL_PER_NODE * _nodes(decoder, device)
    beyond = {"tp": (*TPS, most), "pp": (*pps, most // USUAL_PER_NODE)} if most > USUAL_PER_NODE else {"pp": pps}
    axes = {"dtype": _dtypes(decoder, device)} | axes | {n: v for n, v in beyond.items() if n not in stated}
    spread = decoder.has_experts and not {"ep", "dp"} & set(stated)
    found = dict.fromkeys(
        setup
        for fields in _combined(axes)
        for one in [make(fields)]
        for setup in [one, *(_with_experts(one) if spread and one.tp > 1 else ())]
    )
    return [setup for setup in found if setup.plan.world <= most or {"tp", "pp", "dp"} & set(stated)]


def with_pass_sizes(setup: Setup) -> list[Setup]:
    """The same, with other sizes of passes too where that is open."""
    sizes = () if setup.max_num_batched_tokens else PASS_TOKENS
    return [setup, *(replace(setup, max_num_batched_tokens=tokens) for tokens in sizes)]


def _nodes(decoder: Decoder, device: DeviceSpec) -> int:
    """Over which the weights must be spread, in doublings."""
    weight_bytes = decoder.parameters * decoder.quantisation.weight_bytes(decoder.served_dtype)
    share = weight_bytes / (FULL * USUAL_PER_NODE * device.usable_bytes)
    return min(2 ** max(ceil(log2(share)), 0), MOST_NODES)


def _dtypes(decoder: Decoder, device: DeviceSpec) -> tuple[str, ...]:
    """As configured, or else in 16 bits that the device computes in, and what engines quantise to as they load."""
    if decoder.quantisation:
        return ("",)
    if not device.multiplies(decoder.dtype):
        return tuple(dtype for dtype in HALVES if device.multiplies(dtype)) or ("",)
    return ("", "fp8") if device.multiplies("float8") else ("",)


def _with_experts(setup: Setup) -> tuple[Setup, Setup]:
    """With experts on all devices of a stage, and with attention on each of them apart too."""
    return replace(setup, ep=setup.tp), replace(setup, tp=1, dp=setup.tp, ep=setup.tp)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _combined(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
