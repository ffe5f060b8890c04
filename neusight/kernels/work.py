"""The work of kernels: floating-point operations and compulsory bytes, exact, from shapes alone.

A multiply-add is two operations. Compulsory bytes count every operand once, as stored: what any schedule must move
when nothing is cached. Work adds and multiplies, so that a model's work is the sum of its kernels'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.families import KernelBatch
from neusight.kernels.moe import products_of
from neusight.kernels.precision import stored_bytes
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Work:
    """Columns of shape (n,): ``flops`` as the definition of the operation counts them, ``least_flops`` what the
    cheapest known algorithm needs (Winograd for convolutions, else the same), and bytes read and written.
    """

    flops: np.ndarray
    least_flops: np.ndarray
    read_bytes: np.ndarray
    write_bytes: np.ndarray

    @property
    def bytes(self) -> np.ndarray:
        """All compulsory bytes."""
        return self.read_bytes + self.write_bytes

    def __add__(self, other: Work) -> Work:
        return Work(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __mul__(self, times: float | np.ndarray) -> Work:
        return Work(**{f.name: getattr(self, f.name) * times for f in fields(self)})

    __rmul__ = __mul__


COMPARED = 16
"""Distinct names that are compared with one by one, before the rest is sorted (numerics)."""
FEW = 256
"""Entries that are looked up one by one: fewer than a column's operations cost (numerics)."""


def by_distinct(column: np.ndarray, value: Callable[[str], float]) -> np.ndarray:
    """``value`` of every entry of a column of names, called once a distinct name."""
    if column.strides == (0,):  # One name, repeated.
        return np.full(len(column), float(value(str(column[0]))))
    if len(column) <= FEW:
        listed = column.tolist()
        values = {name: float(value(str(name))) for name in set(listed)}
        return np.array([values[name] for name in listed])
    out = np.full(len(column), float(value(str(column[0]))))
    # Names are few: to compare with each takes a tenth of the time of sorting them. Entries are taken as arrays of one,
    # since NumPy 2.4 loses a pending Ctrl-C where it makes a scalar of a text.
    left = np.flatnonzero(column != column[:1])
    for _ in range(COMPARED):
        if not len(left):
            return out
        name = column[left[:1]]
        same = column[left] == name
        out[left[same]] = value(name.tolist()[0])
        left = left[~same]
    names, where = np.unique(column[left], return_inverse=True)
    out[left] = np.array([value(str(name)) for name in names], dtype=float)[where]
    return out


def among(column: np.ndarray, names: Collection[str]) -> np.ndarray:
    """Which entries of a column of names are one of some, shape (n,)."""
    return by_distinct(column, lambda name: float(name in names)) > 0.0


def element_bytes(batch: KernelBatch) -> np.ndarray:
    """Bytes of one element of each kernel's dtype.

    Raises:
        CoverageError: a dtype without a size.
    """
    return by_distinct(batch["dtype"], stored_bytes)


def result_bytes(batch: KernelBatch) -> np.ndarray:
    """Bytes of one element of what a product or attention writes: 16 bits where its operands have 8."""
    return np.maximum(element_bytes(batch), 2.0)


def weight_bytes(batch: KernelBatch) -> np.ndarray:
    """Bytes of one element of the B of a ``gemm`` or ``grouped_gemm`` as it lies in memory."""
    return _stored_as(batch, "weight_dtype")


def cache_bytes(batch: KernelBatch) -> np.ndarray:
    """Bytes of one element of the keys and values of ``attention`` as they lie in memory."""
    return _stored_as(batch, "kv_dtype")


def _stored_as(batch: KernelBatch, column: str) -> np.ndarray:
    """Bytes of an element in the dtype of a column, that of the kernel where it is empty."""
    width = by_distinct(batch[column], lambda dtype: stored_bytes(dtype) if dtype else 0.0)
    return np.where(width > 0, width, element_bytes(batch))


ACCUMULATOR_BYTES = 4.0
"""Bytes of an element that products are added to (definition: float32)."""
SCALE_BYTES, SCALE_BLOCK = 4.0, 128.0
"""Scales of 8-bit operands are float32; a block of them is 128 wide (cited: DeepSeek-V3 technical report, section
3.3.2)."""
MICRO_BLOCK = 16.0
"""Values of a row that share a scale of one byte in NVFP4, which matrix units apply (cited: PTX ISA 8.7, tcgen05.mma
block_scale)."""
GROUP = 32.0
"""Values of a row of A that share a scale and a sum of 16 bits each (cited: ggml-common.h, block_q8_1); those of
weights are among the bits of their dtype."""


def scale_bytes(batch: KernelBatch, rows: np.ndarray, matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the scales of ``rows`` rows of A and of ``matrices`` matrices B, of products n x k; see ``Gemm``."""
    n, k = batch["n"].astype(float), batch["k"].astype(float)
    row, block = ((batch["scaling"] == name) * SCALE_BYTES for name in ("row", "block"))
    deep, micro = np.ceil(k / SCALE_BLOCK), (batch["scaling"] == "micro") * np.ceil(k / MICRO_BLOCK)
    group = (batch["scaling"] == "group") * SCALE_BYTES * np.ceil(k / GROUP)
    return rows * (row + block * deep + micro + group), matrices * (
        n * (row + micro) + block * deep * np.ceil(n / SCALE_BLOCK)
    )


def conv_output(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """Height and width of a convolution's output: as stated, else ``(H + 2 p - d (k - 1) - 1) // s + 1``."""

    def extent(axis: str) -> np.ndarray:
        reach = batch["dilation"] * (batch[f"kernel_{axis}"] - 1) + 1
        follows = (batch[axis] + 2 * batch["padding"] - reach) // batch["stride"] + 1
        return np.where(batch[f"output_{axis}"] > 0, batch[f"output_{axis}"], follows).astype(float)

    return extent("height"), extent("width")


def conv_gemm(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(groups, m, n, k) of the matrix product that a convolution is (implicit GEMM, Chetlur et al. 2014).

    forward: pixels x filters, depth C·kh·kw; input gradient: input pixels x channels, depth K·kh·kw times output
    over input pixels (the zeros that a stride dilates the gradient with do not count, in two dimensions or three);
    weight gradient: filters x C·kh·kw, depth pixels. Each has the operations of the forward convolution.
    """
    height, width = conv_output(batch)
    groups = batch["groups"].astype(float)
    images = batch["batch"].astype(float)
    inputs, outputs = batch["in_channels"] / groups, batch["out_channels"] / groups
    positions = (batch["kernel_height"] * batch["kernel_width"]).astype(float)
    pixels, op = images * height * width, batch["op"]
    backward_input, backward_weight = op == "input_grad", op == "weight_grad"
    input_pixels = images * batch["height"] * batch["width"]
    m = np.where(backward_input, input_pixels, np.where(backward_weight, outputs, pixels))
    n = np.where(backward_input, inputs, np.where(backward_weight, inputs * positions, outputs))
    depth_input = outputs * positions * pixels / input_pixels
    k = np.where(backward_input, depth_input, np.where(backward_weight, pixels, inputs * positions))
    return groups, m, n, k


WINOGRAD_DTYPES = ("float32", "tf32", "float16")
"""Dtypes for which libraries have minimal filtering: cuDNN's documentation of ``cudnnConvolutionForward()`` lists its
half and float configurations at ``CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED``, and tf32 is float32 to it."""


def winograd_gain(batch: KernelBatch) -> np.ndarray:
    """Factor by which Winograd's F(4x4, rxr) reduces multiplications: ``(4 r / (r + 3))²``; 1 where it can't run.

    Lavin and Gray 2016, section 4. Unit stride and dilation, square filters up to 7, ``WINOGRAD_DTYPES``; the weight
    gradient's dual form has the same gain.
    """
    r = batch["kernel_height"].astype(float)
    square = (batch["kernel_height"] == batch["kernel_width"]) & (r > 1) & (r <= 7)
    able = square & (batch["stride"] == 1) & (batch["dilation"] == 1) & (batch["groups"] == 1)
    able &= by_distinct(batch["dtype"], lambda dtype: dtype in WINOGRAD_DTYPES).astype(bool)
    return np.where(able, (4 * r / (r + 3)) ** 2, 1.0)


def attention_pairs(batch: KernelBatch) -> np.ndarray:
    """Query-key pairs of one head that are computed: all, the causal part, the window's, or the selected ones."""
    q, kv = batch["q_len"].astype(float), batch["kv_len"].astype(float)
    # Of the keys that it sees, a query takes as many whether they are the last ones or chosen ones.
    window = np.where(batch["window"] > 0, np.minimum(batch["window"], kv), kv)
    window = np.where(batch["selected"] > 0, np.minimum(batch["selected"], window), window)
    # The last q queries see kv-q+1 … kv keys, at most `window` of them; queries before the first key see none.
    seeing = np.minimum(q, kv)
    short = np.clip(window - (kv - seeing), 0, seeing)
    causal = short * (kv - seeing) + short * (short + 1) / 2 + (seeing - short) * window
    return np.where(batch["causal"], causal, q * window)


def attention_keys(batch: KernelBatch) -> np.ndarray:
    """Keys that the queries of one head can touch: all, those that the windows of ``q_len`` consecutive queries
    cover, ``min(kv_len, q_len + window - 1)``, or all that they can have selected, ``min(kv_len, q_len · selected)``.
    """
    kv = batch["kv_len"].astype(float)
    within = np.where(batch["window"] > 0, np.minimum(kv, batch["q_len"] + batch["window"] - 1.0), kv)
    return np.where(batch["selected"] > 0, np.minimum(within, 1.0 * batch["q_len"] * batch["selected"]), within)


def value_width(batch: KernelBatch) -> np.ndarray:
    """Width of the values of ``attention``, none where scores alone are computed."""
    width = np.where(batch["value_dim"] > 0, batch["value_dim"], batch["head_dim"]).astype(float)
    return np.where(batch["op"] == "indexer", 0.0, width)


def filled_groups(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray]:
    """(groups that have rows, rows of the fullest) of a grouped product.

    A fullest group outside what tokens and groups allow is moved to the nearest end; the groups beside it are taken
    to have rows as long as there are tokens for them.
    """
    groups, tokens = batch["groups"].astype(float), batch["tokens"].astype(float)
    fullest = np.clip(batch["largest"], np.ceil(tokens / groups), tokens)
    return 1.0 + np.minimum(groups - 1.0, tokens - fullest), fullest


def _gemm(batch: KernelBatch) -> Work:
    """2·b·m·n·k; reads A, B, their scales and the bias, writes C. Where A is quantised on the way, it is read in 16
    bits and written in 8 before; a C that is accumulated to is read as well, and has float32.
    """
    b, m, n, k = (batch[name].astype(float) for name in ("batch", "m", "n", "k"))
    size, result, flops = element_bytes(batch), result_bytes(batch), 2 * b * m * n * k
    written = b * m * n * np.where(batch["accumulates"], ACCUMULATOR_BYTES, result)
    operands = b * (m * k * size + k * n * weight_bytes(batch)) + sum(scale_bytes(batch, b * m, b))
    made = np.where(batch["quantised"], b * m * k, 0.0)
    read = operands + np.where(batch["bias"], n, 0) * result + 2.0 * made + np.where(batch["accumulates"], written, 0.0)
    return Work(flops=flops, least_flops=flops, read_bytes=read, write_bytes=written + made * size)


def _conv2d(batch: KernelBatch) -> Work:
    """2·g·m·n·k of the implicit product; reads two of input, filter and output, writes the third."""
    groups, m, n, k = conv_gemm(batch)
    size, flops = element_bytes(batch), 2 * groups * m * n * k
    height, width = conv_output(batch)
    images = batch["batch"].astype(float)
    source = size * images * batch["in_channels"] * batch["height"] * batch["width"]
    target = size * images * batch["out_channels"] * height * width
    taps = batch["kernel_height"] * batch["kernel_width"]
    filters = size * batch["out_channels"] * batch["in_channels"] / groups * taps
    everything = source + target + filters
    written = np.where(batch["op"] == "forward", target, np.where(batch["op"] == "input_grad", source, filters))
    return Work(
        flops=flops, least_flops=flops / winograd_gain(batch), read_bytes=everything - written, write_bytes=written
    )


def _attention(batch: KernelBatch) -> Work:
    """Forward 2·(d + v) a pair (q·k and p·v), backward 6·d + 4·v: five products for two (Dao 2023). An indexer has
    2·d + 2: it weights the scores of its heads and adds them up.

    Forward reads q, k, v and writes o and a float32 log-sum-exp a query; backward reads those and the gradient of o,
    and writes three gradients. Of keys and values, those that count lie within the windows of the queries.
    """
    size, backward, indexer = element_bytes(batch), batch["op"] == "backward", batch["op"] == "indexer"
    d, v = batch["head_dim"].astype(float), value_width(batch)
    heads, pairs = batch["batch"] * batch["heads"].astype(float), attention_pairs(batch)
    flops = np.where(backward, 6.0 * d + 4.0 * v, 2.0 * (d + v) + 2.0 * indexer) * heads * pairs
    queries, outputs = size * heads * batch["q_len"] * d, result_bytes(batch) * heads * batch["q_len"] * v
    width = np.where(batch["shared_kv"], np.maximum(d, v), d + v)
    cached = 1.0 * batch["batch"] * batch["kv_heads"] * attention_keys(batch) * width
    sums = 4.0 * heads * batch["q_len"]
    read = np.where(backward, queries + 2 * outputs + sums, queries) + cached * cache_bytes(batch)
    written = np.where(backward, queries + cached * size, outputs + sums)
    scores = 4.0 * batch["batch"] * pairs
    return Work(flops=flops, least_flops=flops, read_bytes=read, write_bytes=np.where(indexer, scores, written))


def _grouped_gemm(batch: KernelBatch) -> Work:
    """2·tokens·n·k however the tokens fall; reads A and the B of each group that has rows, writes C."""
    tokens, n, k = (batch[name].astype(float) for name in ("tokens", "n", "k"))
    filled, flops = filled_groups(batch)[0], 2 * tokens * n * k
    operands = tokens * k * element_bytes(batch) + filled * k * n * weight_bytes(batch)
    read = operands + sum(scale_bytes(batch, tokens, filled))
    return Work(flops=flops, least_flops=flops, read_bytes=read, write_bytes=result_bytes(batch) * tokens * n)


def _moe(batch: KernelBatch) -> Work:
    """Both grouped products, and the passes beside them, each of which reads and writes memory: the quantisation of
    tokens for 8-bit products, the activation, and the sum of each token's results. A token that several experts share
    is read once.
    """
    up, down = products_of(batch)
    pairs, ffn, hidden = up["tokens"].astype(float), down["k"].astype(float), down["n"].astype(float)
    tokens, size, wide = batch["tokens"].astype(float), element_bytes(batch), result_bytes(batch)
    distinct = np.minimum(tokens, pairs)
    made = np.where(size < 2.0, distinct * hidden, 0.0)
    passes = Work(
        flops=np.zeros(len(batch)),
        least_flops=np.zeros(len(batch)),
        read_bytes=2.0 * made + wide * pairs * (up["n"] + hidden) - size * (pairs - distinct) * hidden,
        write_bytes=size * made + size * pairs * ffn + wide * tokens * hidden,
    )
    return _grouped_gemm(up) + _grouped_gemm(down) + passes


def _as_stated(batch: KernelBatch) -> Work:
    """Families that carry their own bytes and operations."""
    moved = {name: batch[name].astype(float) for name in ("read_bytes", "write_bytes")}
    flops = batch["flops"].astype(float) if "flops" in batch.columns else np.zeros(len(batch))
    return Work(flops=flops, least_flops=flops, **moved)


def _collective(batch: KernelBatch) -> Work:
    """Bytes that a rank sends (read) and receives (written) over links, no arithmetic counted: ``2 (n - 1) / n`` of the
    bytes of an all-reduce (Patarasu and Yuan 2009), ``(n - 1) / n`` of other collectives', all of a send-receive's or
    of a copy's from or to the host.
    """
    ranks, op = np.maximum(batch["ranks"].astype(float), 1.0), batch["op"]
    passed = np.where(op == "all_reduce", 2.0, 1.0) * (ranks - 1.0) / ranks
    sent = batch["bytes"] * np.where(np.isin(op, ("send_recv", "host_copy")), np.minimum(ranks - 1.0, 1.0), passed)
    nothing = np.zeros(len(batch))
    return Work(flops=nothing, least_flops=nothing, read_bytes=sent, write_bytes=sent)


_FAMILIES: dict[str, Callable[[KernelBatch], Work]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "grouped_gemm": _grouped_gemm,
    "moe": _moe,
    "elementwise": _as_stated,
    "row_reduction": _as_stated,
    "memory": _as_stated,
    "optimizer": _as_stated,
    "collective": _collective,
}


def work_of(batch: KernelBatch) -> Work:
    """Work of each kernel of the batch.

    Raises:
        CoverageError: a family without a formula.
    """
    if batch.family not in _FAMILIES:
        raise CoverageError(f"no work formula for kernel family '{batch.family}': one of {', '.join(_FAMILIES)}")
    return _FAMILIES[batch.family](batch)
