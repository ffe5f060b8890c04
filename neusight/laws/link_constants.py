"""Constants of collectives that no datasheet states, by what runs them; the same for all devices.

``neusight fit links`` estimates them from measured collectives. Priors of NCCL's hops and protocols are the figures
of its own cost model (``src/graph/tuning.cc``, tables ``baseLat`` and ``hwLat``), which chooses algorithms by them.
"""

from __future__ import annotations

from neusight.laws.constants import constant, group
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Nccl:
    """NCCL's (RCCL's) rings, exchanges and reductions in the switch."""

    start_cycles: float = constant(5e3, 0.7, "NCCL tuning.cc: 3.6 us of a ring in LL, at 1.4 GHz")
    """Core cycles of a kernel that does next to nothing: it starts, finds its work, ends."""
    exchange_start: float = constant(1.0, 0.5, "guess: sends and receives are set up one peer after another")
    """Times as many of an all-to-all."""
    exchange_simple: float = constant(2.3, 0.7, "as of rings")
    """Times as many of sends and receives in protocol Simple."""
    ll128_start: float = constant(2.8, 0.7, "NCCL tuning.cc: 10 us of a ring in LL128 against 3.6")
    """Times as many in protocol LL128."""
    simple_start: float = constant(2.3, 0.7, "NCCL tuning.cc: 8.4 us of a ring in Simple against 3.6")
    """The same in protocol Simple."""
    switch_start: float = constant(4.0, 0.7, "NCCL tuning.cc: 25 us of NVLS against 6.6 of a ring in LL")
    """The same of a reduction in the switch."""
    switch_pipelining: float = constant(
        0.5, 0.7, "guess: as ``pipelining``, of a start and chunks that fill the switch"
    )
    """As ``pipelining``, of a reduction in the switch: times the root of its start x transfer."""
    nvlink_hop_cycles: float = constant(660.0, 0.7, "NCCL tuning.cc: 0.47 us of a ring over NVLink in LL, at 1.4 GHz")
    """A step of a ring between two devices over their own links, in LL, in core cycles."""
    host_hop_s: float = constant(1.0e-6, 0.7, "NCCL tuning.cc: hop of a ring over PCIe in LL")
    """The same over PCIe [s]."""
    ll128_hop: float = constant(4.0, 0.7, "NCCL tuning.cc: 1.9 us against 0.47 over NVLink")
    """Times as long a hop takes in LL128."""
    simple_hop: float = constant(7.0, 0.7, "NCCL tuning.cc: 3.4 us against 0.47 over NVLink")
    """The same in Simple, which waits for a fence."""
    ll_rate: float = constant(0.5, 0.3, "NCCL 2.28 tuning.cc: half of the bandwidth, for flags are half of all bytes")
    """Share of the sustained bandwidth that LL reaches."""
    ll_bytes_per_cycle: float = constant(
        2.0, 0.7, "512 threads of a channel have 4 bytes of data each on the way, for a hop of some thousand cycles"
    )
    """Rate of LL a core cycle where few channels run: those of a ring together, those of each peer in an exchange."""
    ll128_rate: float = constant(0.92, 0.3, "NCCL tuning.cc: 120 bytes of 128, and less where channels bind")
    """The same of LL128."""
    pipelining: float = constant(0.3, 1.0, "guess: the classic optimum 2 sqrt(latency x transfer) is not attained")
    """What chunks cost that pass through the ring one behind another: times the root of hops x transfer."""
    copy_bytes_per_cycle: float = constant(400.0, 0.5, "guess: a dozen SMs copy 32 bytes a cycle")
    """Rate of the copy of a rank's own share inside the device, a core cycle."""


@dataclass(frozen=True, kw_only=True)
class Own:
    """Serving engines' own all-reduce kernels: each rank reads its peers' memory."""

    vllm_cycles: float = constant(6e3, 0.5, "guess: a small kernel of 2 us with a barrier of 1 to 2 us over the links")
    """Core cycles of vLLM's kernel and its barrier."""
    sglang_cycles: float = constant(6e3, 0.5, "as vLLM's, from which it comes")
    """The same of SGLang's."""
    trtllm_cycles: float = constant(5e3, 0.5, "guess: flags travel with the data, without a barrier")
    """The same of TensorRT-LLM's."""
    peer_s: float = constant(0.1e-6, 0.7, "guess: flags of a peer are one more access over a link")
    """What each further peer adds."""
    host_s: float = constant(2.0e-6, 0.7, "two hops over PCIe of NCCL tuning.cc")
    """What barriers through the host take longer."""
    second_cycles: float = constant(5e3, 0.7, "guess: as the first half, with a barrier of its own")
    """What the second half of a two-shot all-reduce adds in core cycles."""
    rate: float = constant(0.6, 0.3, "guess: reads wait for answers; less than writes in long pipelines")
    """Share of the links' bandwidth that reads of peers reach."""
    switch_rate: float = constant(0.6, 0.3, "guess: as NCCL's reduction in the switch, with fewer blocks")
    """The same of a reduction in the switch (vLLM's symmetric memory)."""
    switch_s: float = constant(6e-6, 0.5, "guess: a kernel with barriers before and after")
    """Start of the latter."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What links sustain of their bandwidth in long messages."""

    nvlink_share: float = constant(0.78, 0.1, "guess: headers, flow control and gaps between chunks take a fifth")
    """Of devices' own links, NVLink or another vendor's."""
    switch_share: float = constant(0.8, 0.2, "guess: as of rings")
    """Of what NCCL expects of NVLink for a reduction in the switch."""
    host_share: float = constant(0.7, 0.2, "guess: headers, credits and the bridges of the host take a third")
    """Of PCIe between two devices."""
    crossing_bytes_per_s: float = constant(28e9, 0.3, "eight boards on PCIe 5.0 (NVIDIA/nccl issue 1639)")
    """Of a ring that passes several root complexes or sockets, whose links do not grow with the boards' PCIe [B/s]."""
    redirected_contention: float = constant(
        1.0, 0.5, "guess: all that boards exchange passes one root complex, evenly shared", scale="linear"
    )
    """Power with which a board's bandwidth falls with the pairs whose messages access control services redirect."""
    bridge_share: float = constant(0.39, 0.1, "116 GB/s between two H100 PCIe of 300 (NVIDIA/nccl issue 1161)")
    """Of a bridge between two devices."""
    network_hop_s: float = constant(5.0e-6, 0.7, "NCCL tuning.cc: hop of a tree over a network in LL")
    """A step that crosses between nodes, in LL."""


@dataclass(frozen=True, kw_only=True)
class LaunchPhysics:
    """What a collective takes on the host where it is launched by itself."""

    xla_s: float = constant(100e-6, 0.7, "guess: an executable is enqueued on each device, with buffers of its own")
    """An executable of XLA that holds nothing but a collective."""
    vllm_s: float = constant(30e-6, 0.4, "guess: a call of Python that checks and launches, in 20 to 50 us")
    """A call of vLLM's all-reduce, a copy of the operand included."""
    sglang_s: float = constant(30e-6, 0.4, "as vLLM's")
    """The same of SGLang's."""
    copy_share: float = constant(0.9, 0.1, "copies of many megabytes sustain nine tenths of DRAM's bandwidth")
    """Of DRAM's bandwidth, for the copy of the operand into a buffer that peers may read."""


@dataclass(frozen=True, kw_only=True)
class LinkPhysics:
    """All constants of collectives."""

    nccl: Nccl = group(Nccl, "nccl-tests by size, algorithm and protocol, on 2 to 8 devices and several nodes")
    own: Own = group(Own, "all-reduce kernels of serving engines, by size and ranks")
    rates: Rates = group(Rates, "long messages over each kind of link")
    launch: LaunchPhysics = group(LaunchPhysics, "single collectives as engines and XLA launch them, by size")


PRIOR = LinkPhysics()
"""Centres of the priors."""
