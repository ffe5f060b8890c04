"""Kernels that stream through memory: pointwise arithmetic, reductions over rows, copies, optimizers.

Most wait for memory, so that bytes over bandwidth is most of their law. What is left: tensors that their producer left
in L2, operands that are broadcast and read again, kernels that handle one element a thread and are held up by
instructions, rows that a block takes one by one, and the time in which a small kernel does next to nothing.
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.executors.gpu.expected.convolutions import PAIRED, WINDOWS
from neusight.executors.gpu.expected.times import Times, hot_share
from neusight.executors.gpu.tiling.decompose import MOST_VALUES, REDUCING_THREADS, WARP_SOFTMAX_COLS, row_parts
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.implementations import traits_of
from neusight.kernels.operators import ELEMENTWISE
from neusight.kernels.work import among, by_distinct, element_bytes, work_of
from neusight.laws.cache import reread_missed_share, reusable_l2_bytes
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics
from neusight.laws.power import flop_energy_j
from neusight.laws.waves import FLOAT_BYTES
from neusight.quick_dataclasses import dataclass

NORM_THREADS, BLOCK_THREADS, GATHER_THREADS = 128.0, 1024.0, 1024.0
"""Threads that PyTorch's layer_norm has for a row (cited: ``layer_norm_kernel.cu``), other blocks at most, and its
gathers on an SM (``Indexing.cu``: eight blocks of 128)."""
FULL_THREADS = 2048.0
"""Threads of an SM on which the length of a step is stated (definition)."""
VECTOR = 4.0
"""Elements of a thread's step along a row in PyTorch's kernels (cited: ``layer_norm_kernel.cu``, ``vec_size``)."""
BY_HAND = ("silu_and_mul", "rms_norm", "rope")
"""Operators that serving engines first wrote by hand, with one element a thread at a time (vLLM,
``activation_kernels.cu``, ``layernorm_kernels.cu``, ``pos_encoding_kernels.cu``)."""
CHANNEL_THREADS, CHANNEL_WALKS = 512.0, 2.0
"""Of cuDNN's batch normalisation in training, which in NCHW has a block for a channel: its threads, and how often it
walks along the channel, for the statistics and to apply them (cited: the names of its kernels,
``bn_fw_tr_1C11_kernel_NCHW`` with 512)."""
NORMS = ("layer_norm", "rms_norm")
"""Normalisations whose kernels were written with a value a thread at a time."""
STRIDED = ("rope_eager",)
"""Operators whose kernels walk over tensors that do not lie in one piece, as those do that broadcast an operand."""
REDUCED = ("sum", "mean", "prod", "any", "all", "amax", "max", "argmax", "var", "norm", "nansum", "count_nonzero")
"""Operators of PyTorch's general reduction, whose blocks take several rows."""
REDUCING_ROWS = 16.0
"""Rows that such a block takes at most, with a warp for each at least where they are as long (cited: ``Reduce.cuh``,
``setReduceConfig``)."""
CHANNELS = ("batch_norm", "batch_norm_backward")
LEAST_REPEATS = 8.0
"""Times that a broadcast operand is read, at least (assumption: one that lacks less than its other seven parts may be
of a narrower dtype; dtypes of all operands would tell)."""
WARP = 32.0
"""Threads of a warp (datasheet: CUDA C++ Programming Guide)."""
POOLS = ("avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool3d")
"""Pooling as PyTorch wrote it, a thread a result (``AveragePool2d.cu``, ``DilatedMaxPool2d.cu``)."""


@dataclass(frozen=True)
class Stream:
    """Streams as an SM sees them; columns of shape (n,). Bytes and elements are those of all ``passes``.

    ``again_bytes`` are read a second time and more by row-wise kernels, and of operands that are broadcast over the
    elements ``repeats`` times, 1 where none is; ``flops`` is the arithmetic; ``rows`` is 0 where there are none to keep
    apart, ``threads`` those that share a row, ``vector`` the elements of their step. ``ports_bytes`` are those of the
    busier direction between SMs and L2, which have a network each way.
    ``walks`` is how often they walk along it, ``several`` whether a block takes more than one. ``by_hand`` marks
    kernels of serving engines that were written with one element a thread at a time.
    """

    elements: np.ndarray
    bytes: np.ndarray
    again_bytes: np.ndarray
    repeats: np.ndarray
    ports_bytes: np.ndarray
    flops: np.ndarray
    passes: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    threads: np.ndarray
    vector: np.ndarray
    walks: np.ndarray
    several: np.ndarray
    by_hand: np.ndarray

    @classmethod
    def of(cls, batch: KernelBatch, conditions: Conditions, physics: Physics) -> Stream:
        """Those of a batch of ``elementwise``, ``row_reduction``, ``memory`` or ``optimizer`` kernels."""
        work, none = work_of(batch), np.zeros(len(batch))
        by_row = batch.family == "row_reduction"
        channels = among(batch["op"], CHANNELS) & by_row
        traits = traits_of("stream", conditions)
        own = (batch["op"] == "gelu") & traits["own_gelu"]
        first = among(batch["op"], BY_HAND) & ~traits["vectorised"]
        by_hand = (first | own) & (element_bytes(batch) < FLOAT_BYTES)
        again, repeats = _broadcast(batch) if batch.family == "elementwise" else (none, none + 1.0)
        rows, cols = (batch[name].astype(float) if by_row else none for name in ("rows", "cols"))
        again = _times_again(batch["op"], cols) * work.read_bytes if by_row else again
        return cls(
            # A kernel over nothing still is one thread.
            elements=np.maximum(rows * cols if by_row else batch["elements"].astype(float), 1.0),
            bytes=work.bytes,
            again_bytes=again,
            repeats=repeats,
            ports_bytes=np.maximum(work.read_bytes + again, work.write_bytes),
            flops=work.flops,
            passes=batch["passes"].astype(float) if "passes" in batch.columns else np.ones(len(batch)),
            # In NHWC neighbours belong to all channels, which all blocks share.
            rows=np.where(channels & (batch["image_layout"] == "nhwc"), none, rows) if by_row else none,
            cols=cols,
            threads=_threads(batch["op"], rows, cols, by_hand),
            vector=_vector(batch["op"], by_hand, physics),
            walks=np.where(channels, CHANNEL_WALKS, 1.0),
            several=among(batch["op"], REDUCED) & by_row,
            by_hand=by_hand,
        )


def stream_times(batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics) -> Times:
    r"""What streams ask of each resource.

    .. math::
        t_D = \frac{B (1 - h_M) + B' m}{W} + \frac{B (h_M - h)}{s W_M},\quad
        t_2 = \frac{\max(B_r + B', B_w)}{s W_2},\quad t_c = \frac{E i / l + F j / l_{32}}{N f},\quad
        t_l = \max\left(\frac{R}{N b} t_R, \frac{(B (1 - h) + B' m) \tau}{N Q}\right)

    Of t_D and t_2 the longer one counts, since the same bytes pass both at once, read (r) and written (w) each way. B
    bytes of which the share h lies in L2, and h_M in it or in a cache before DRAM, since the kernel before has just
    written them or an earlier use left them; B' bytes that a row or a broadcast operand is read again, of which m miss;
    instructions of E elements in l issue slots of an SM and of F operations on its l_32 float32 lanes; R rows, b blocks
    an SM at a time, each t_R; and Little's law, with the Q bytes that the threads of an SM have under way to DRAM for a
    latency τ.

    Args:
        batch: of the families ``elementwise``, ``row_reduction``, ``memory`` or ``optimizer``.
        device: W and W_M bandwidth of DRAM and of that cache, W_2 ports between SMs and L2 [B/s], N SMs, f clock [Hz].
        conditions: bytes touched between two uses of operands; never more than since they were written.
        physics: i, j, t_R, τ and the gain in W, group ``stream``; s ``memory.l2_share``.

    Source: Little's law; PyTorch's and vLLM's kernels for what a thread does; constants fitted.
    Validity: contiguous tensors; instructions an element are those of the engines' versions that were measured.
    """
    s, stream = Stream.of(batch, conditions, physics), physics.stream
    hot = _hot(s, device.l2_capacity_bytes, conditions, physics)
    near = s.bytes * (_hot(s, device.cached_bytes, conditions, physics) - hot)
    missed = s.bytes * (1.0 - hot) + s.again_bytes * _missed(s, batch, device, physics)
    cold = missed - near
    steps_s = np.maximum(_rows_s(batch, s, device, physics), _steps_s(batch, conditions, s, device, physics))
    flight_s = missed * stream.latency_s / (device.sm_count * _under_way_bytes(batch, s, device))
    start_s = s.passes * stream.start_cycles / device.boost_clock_hz
    dram_bytes_per_s = stream.dram_gain * sustained_dram_bytes_per_s(device, physics)
    near_bytes_per_s = np.maximum(device.memory_cache_bytes_per_s * physics.memory.l2_share, dram_bytes_per_s)
    return Times(
        compute_s=_issue_s(batch, s, device, physics),
        dram_s=cold / dram_bytes_per_s + near / near_bytes_per_s,
        l2_s=s.ports_bytes / (device.sustained_l2_bytes_per_s * physics.memory.l2_share),
        serial_s=np.maximum(steps_s, flight_s),
        fixed_overhead_s=start_s * np.where(conditions.timing == "profiler", physics.start.profiled, 1.0),
        switching_j=s.flops * flop_energy_j(device, physics),
        dram_bytes=cold,
        overlap=stream.overlap,
        same_bytes=True,
    )


def stream_shape(
    batch: KernelBatch, device: GpuSpec, conditions: Conditions, physics: Physics
) -> dict[str, np.ndarray]:
    """Dimensionless inputs of a learned correction; columns of shape (n,)."""
    s, t = Stream.of(batch, conditions, physics), stream_times(batch, device, conditions, physics)
    total = t.unlimited_s + t.fixed_overhead_s
    blocks = np.where(s.rows > 0, s.rows * s.threads, s.elements / VECTOR) / BLOCK_THREADS
    return {
        "dram": t.dram_s / total,
        "l2": t.l2_s / total,
        "issue": t.compute_s / total,
        "serial": t.serial_s / total,
        "start": t.fixed_overhead_s / total,
        "hot": _hot(s, device.l2_capacity_bytes, conditions, physics),
        "l2_fill": np.clip(np.log2(np.maximum(s.bytes, 1.0) / s.passes / device.l2_capacity_bytes), -12.0, 8.0),
        "waves": np.clip(np.log2(blocks / (device.sm_count * _blocks_of_sm(s, device))), -8.0, 8.0),
        "cols": np.log2(np.maximum(s.cols, 1.0)),
        "flops": np.log2(1.0 + s.flops / s.elements),
        "bytes": np.log2(np.maximum(s.bytes / s.elements, 0.125)),
        "passes": np.log2(s.passes),
        "aligned": (s.cols * element_bytes(batch) % 16 == 0).astype(float),
    }


def issue_slots(device: GpuSpec) -> float:
    """Instructions of threads that an SM issues a clock: one for each of its cores, and at least what its schedulers
    issue beside arithmetic of fewer.
    """
    return max(device.cuda_cores_per_sm, device.facts.issue_slots_per_sm)


def _times_again(op: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """How often rows are read again: a block's softmax passes three times over its row, a normalisation twice."""

    def again(name: str) -> float:
        return 2.0 if name == "softmax" else 1.0 if "softmax" in name or "_norm" in name else 0.0

    times = by_distinct(op, again)
    in_registers = by_distinct(op, lambda name: float("softmax" in name)) * (cols <= WARP_SOFTMAX_COLS)
    return np.asarray(times * (1.0 - in_registers))


def _broadcast(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that a broadcast operand of a pointwise kernel is read again, and how many times it is read in all."""
    read = by_distinct(batch["op"], lambda op: float((getattr(ELEMENTWISE.get(op), "read", None) or (0.0,))[0]))
    whole = element_bytes(batch) * np.maximum(batch["elements"], 1.0)
    stored = np.clip(batch["read_bytes"] - (read - 1.0) * whole, 1.0, whole)
    repeats = np.where((read > 1.0) & (stored * LEAST_REPEATS <= whole), whole / stored, 1.0)
    return np.asarray((1.0 - 1.0 / repeats) * whole), repeats


def _threads(op: np.ndarray, rows: np.ndarray, cols: np.ndarray, by_hand: np.ndarray) -> np.ndarray:
    """Threads that share a row."""
    wide = np.clip(cols / VECTOR, 32.0, BLOCK_THREADS)
    torch = np.where(op == "layer_norm", NORM_THREADS, np.where(cols <= WARP_SOFTMAX_COLS, WARP, wide))
    torch = np.select([among(op, REDUCED), among(op, CHANNELS)], [_reducing(rows, cols), CHANNEL_THREADS], torch)
    return np.where(by_hand, np.clip(cols, 32.0, BLOCK_THREADS), torch)


def _reducing(rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Threads of a general reduction that share a row: as many as it has values, and as are left by other rows."""
    left = REDUCING_THREADS / np.clip(_power_of_two(rows), 1.0, REDUCING_ROWS)
    shared = np.clip(_power_of_two(cols), 1.0, left)
    return np.where(cols / shared >= MOST_VALUES, REDUCING_THREADS, shared)


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """The largest that is no more."""
    return np.asarray(2.0 ** np.floor(np.log2(np.maximum(values, 1.0))))


def _vector(op: np.ndarray, by_hand: np.ndarray, physics: Physics) -> np.ndarray:
    """Elements of a row that a thread takes in a step: of its loads, those of one tensor."""
    tensors = by_distinct(op, lambda name: 2.0 if name.endswith("backward") else 1.0)
    torch = np.where(op == "add_rms_norm", 2.0 * VECTOR, VECTOR)
    return np.where(by_hand, 1.0, np.where(among(op, CHANNELS), physics.stream.channel_loads / tensors, torch))


def _blocks_of_sm(s: Stream, device: GpuSpec) -> np.ndarray:
    """Rows that an SM has under way: one a block, unless blocks take several."""
    most = np.where(s.several, device.max_threads_per_sm, device.max_blocks_per_sm)
    return np.clip(np.floor(device.max_threads_per_sm / s.threads), 1.0, most)


def _rows_s(batch: KernelBatch, s: Stream, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Time for which SMs take rows, or parts of long ones, as many at a time as they hold [s]."""
    stream = physics.stream
    parts = row_parts(batch, device) if batch.family == "row_reduction" else 1.0
    steps = np.ceil(s.cols / parts / (s.threads * s.vector))
    blocks = _blocks_of_sm(s, device)
    walked = s.walks * steps * _step_cycles(blocks * s.threads, physics)
    # A warp that has a row for itself needs no barrier of its block: what it has found is written in one more step.
    alone = s.several & (s.threads <= WARP)
    ends = np.where(alone, _step_cycles(blocks * s.threads, physics), stream.row_cycles)
    row_s = (ends + walked) / device.boost_clock_hz
    waves = np.maximum(s.rows * parts / (device.sm_count * blocks), 1.0)
    return np.where(s.rows > 0, waves * row_s, 0.0)


def _steps_s(batch: KernelBatch, conditions: Conditions, s: Stream, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Time for which threads take elements one at a time [s]: those of an SM wait, each for its own."""
    stream, op = physics.stream, batch["op"]
    gated = np.where(op == "silu_and_mul", stream.gate_steps, np.where(op == "rope", stream.rope_steps, 1.0))
    threads = np.maximum(np.floor(device.max_threads_per_sm / BLOCK_THREADS), 1.0) * BLOCK_THREADS
    own = np.where(s.by_hand & (s.rows == 0), gated * _step_cycles(threads, physics) / threads, 0.0)
    gathered = (op == "embedding") & traits_of("stream", conditions)["gathers_one_by_one"]
    gather = stream.gather_steps * _step_cycles(GATHER_THREADS, physics) / GATHER_THREADS
    each = np.where(gathered, gather, own)
    return np.asarray(s.elements * each / (device.sm_count * device.boost_clock_hz))


def _under_way_bytes(batch: KernelBatch, s: Stream, device: GpuSpec) -> np.ndarray:
    """What the threads of an SM read and write at once [B], shape (n,): some elements each, of a byte at least; copies
    move words.
    """
    least = 2.0 * FLOAT_BYTES if batch.family == "memory" else 1.0
    element = np.maximum(s.bytes / (s.elements * s.passes), least)
    return device.max_threads_per_sm * device.facts.elements_per_thread * element


def _step_cycles(threads: np.ndarray | float, physics: Physics) -> np.ndarray:
    """Core cycles of a step where so many threads share an SM."""
    return np.asarray(physics.stream.step_cycles * (threads / FULL_THREADS) ** physics.stream.crowding)


def _hot(s: Stream, capacity_bytes: float, conditions: Conditions, physics: Physics) -> np.ndarray:
    """Share of bytes that a cache holds: a pass touches little between its operands being written and read."""
    since = np.minimum(conditions.cycled_bytes, physics.stream.follow * s.bytes / s.passes)
    ratio = np.log2(np.maximum(since, 1.0) / capacity_bytes) - physics.stream.hot_centre
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(physics.residency.slope * ratio, -50.0, 50.0))))


def _missed(s: Stream, batch: KernelBatch, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Share of what is read again that comes from DRAM. What a kernel touches between two uses of a broadcast operand
    drives it out.
    """
    if batch.family == "elementwise":
        return 1.0 - hot_share(device, (s.bytes + s.again_bytes) / s.repeats, physics)
    running = np.minimum(s.rows, device.sm_count * _blocks_of_sm(s, device))
    flight = np.maximum(np.where(s.rows > 0, running * s.cols * element_bytes(batch), s.again_bytes), 1.0)
    return reread_missed_share(flight, reusable_l2_bytes(device), physics)


def _issue_s(batch: KernelBatch, s: Stream, device: GpuSpec, physics: Physics) -> np.ndarray:
    """Time for which instructions are issued [s]: arithmetic on float32 lanes, what else there is in any slot."""
    stream = physics.stream
    arithmetic = s.flops * stream.flop_instructions + 0.5 * s.flops * _tap_instructions(batch["op"], physics)
    arithmetic += np.where(_is_indexed(batch), s.elements * stream.window_instructions, 0.0)
    arithmetic += np.where(among(batch["op"], NORMS), s.elements * stream.norm_instructions, 0.0)
    plain = np.where(
        among(batch["op"], STRIDED) | (s.repeats > 1.0), stream.strided_instructions, stream.plain_instructions
    )
    cycles = s.elements * s.passes * plain / issue_slots(device) + arithmetic / device.cuda_cores_per_sm
    return np.asarray(cycles / (device.sm_count * device.boost_clock_hz))


def _is_indexed(batch: KernelBatch) -> np.ndarray:
    """Whether each value of a window's image has its place computed, shape (n,): pooling, depthwise convolutions in
    float32 and their gradients of the input.

    Source: PyTorch, ``Convolution.cpp``: ``use_cudnn_depthwise`` takes cuDNN's in 16 bit alone.
    """
    windows = among(batch["op"], (WINDOWS["forward"], WINDOWS["input_grad"])) & (element_bytes(batch) == FLOAT_BYTES)
    return windows | among(batch["op"], POOLS)


def _tap_instructions(op: np.ndarray, physics: Physics) -> np.ndarray:
    """Instructions for a value of a window beside its multiplication and addition: its place, whether it lies in the
    image, its load and that of its weight. In NHWC a thread takes two channels in one load. Pooling, with one operation
    a value, compares its place in each direction, as gradients of the input do.
    """
    stream = physics.stream
    each = (stream.tap_instructions, stream.input_tap_instructions, stream.weight_tap_instructions)
    taps = dict(zip(WINDOWS.values(), each, strict=True))
    paired = {name + PAIRED: 0.5 * count for name, count in taps.items()}
    pools = dict.fromkeys(POOLS, 2.0 * stream.input_tap_instructions)
    return by_distinct(op, lambda name: (taps | paired | pools).get(name, 0.0))
