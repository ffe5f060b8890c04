"""Kinds of collectives, whose errors have causes in common: who runs them, where they pass, how long they are."""

from __future__ import annotations

import numpy as np

from neusight.kernels.conditions import Conditions
from neusight.kernels.families import KernelBatch
from neusight.kernels.implementations import traits_of
from neusight.laws.link_constants import LinkPhysics
from neusight.laws.links import least_s
from neusight.laws.routes import Place, network_of, ranks_of, route

FABRIC, NETWORK, SHORT = " fabric", " network", " short"
HALF_S = 15e-6
"""Bound of a message of which what is sent takes about as long as starts and hops (assumption: NCCL's starts and hops
in a node; messages that reach half of the bandwidth would tell)."""


def kinds_of(batch: KernelBatch, conditions: Conditions, network_known: bool = False) -> np.ndarray:
    """Kind of each collective, whose error a device has in common: who runs it, what it does, and whether its launch
    or the network is in it, as ``nccl all_gather`` or ``vllm all_reduce stream``.

    Where the network is known it is ``nccl all_gather fabric``: what was measured of others says nothing of it.
    """
    traits = traits_of("collective", conditions)
    own = traits["own_all_reduce"] & (batch["op"] == "all_reduce")
    whose = np.where(traits["owner"] == "", conditions.engine, traits["owner"])
    who = np.where(own | traits["own_runtime"], whose, "nccl")
    ranks, within = ranks_of(batch)
    alone = np.isin(conditions.timing, ("stream", "wall"))
    how = np.select([within < ranks, alone], [FABRIC if network_known else NETWORK, " stream"], "")
    return np.char.add(np.char.add(np.char.add(who.astype(str), " "), batch["op"].astype(str)), how)


def long_share(batch: KernelBatch, place: Place) -> np.ndarray:
    """How long a message is, from 0 where starts and hops take all of its time to 1 where what is sent does."""
    bound_s = least_s(batch, place)
    return np.asarray(bound_s / (bound_s + HALF_S))


def kinds_by_size(batch: KernelBatch, place: Place, conditions: Conditions) -> np.ndarray:
    """``kinds_of``, short messages apart: a device's starts and its links err for different reasons."""
    kinds = kinds_of(batch, conditions, network_of(place) is not None)
    return np.char.add(kinds, np.where(long_share(batch, place) < 0.5, SHORT, ""))


def paths_of(batch: KernelBatch, place: Place, conditions: Conditions, links: LinkPhysics) -> np.ndarray:
    """Whose kernel passes what: ``nccl links``, ``own host``, ``nccl network``, ``nccl fabric`` where the network is
    known, …, by which intervals differ.
    """
    path = route(batch, place, links)
    own = traits_of("collective", conditions)["own_all_reduce"] & (batch["op"] == "all_reduce")
    network = FABRIC if network_of(place) else NETWORK
    where = np.select([path.across, ~path.carried], [network, " host"], " links")
    return np.char.add(np.where(own, "own", "nccl"), where)
