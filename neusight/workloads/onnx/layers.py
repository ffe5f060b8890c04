"""Layers of ONNX as functions of PyTorch: products, convolutions, pooling, norms, activations, recurrence, images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from neusight.errors import ModelError
from neusight.workloads.onnx.node import GraphNode

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _gemm(node: GraphNode) -> Any:
    a, b, c = (node.tensor(place) for place in range(3))
    a, b = (a.t() if node.get("transA", 0) else a), (b.t() if node.get("transB", 0) else b)
    if c is None:
        return torch.matmul(a, b)
    return torch.addmm(c, a, b) if isinstance(c, torch.Tensor) else torch.matmul(a, b) + c


def _padding(
    node: GraphNode, x: torch.Tensor, window: list[int], dilations: list[int]
) -> tuple[torch.Tensor, list[int]]:
    """The tensor, padded where its two ends differ, and the padding that is left to the operator."""
    dims, strides = len(window), node.get("strides") or [1] * len(window)
    pads = node.get("pads") or [0] * (2 * dims)
    how = node.get("auto_pad", "NOTSET")
    if how.startswith("SAME"):
        pads = _same(list(x.shape[2:]), window, strides, dilations, upper=how.endswith("UPPER"))
    if pads[:dims] == pads[dims:]:
        return x, pads[:dims]
    ends = [size for place in reversed(range(dims)) for size in (pads[place], pads[place + dims])]
    return functional.pad(x, ends), [0] * dims


def _same(sizes: list[int], window: list[int], strides: list[int], dilations: list[int], *, upper: bool) -> list[int]:
    """Padding that leaves as many results as steps fit into the tensor."""
    zipped = zip(sizes, window, strides, dilations, strict=True)
    totals = [max(0, (-(-size // step) - 1) * step + (width - 1) * gap + 1 - size) for size, width, step, gap in zipped]
    less, more = [total // 2 for total in totals], [-(-total // 2) for total in totals]
    return [*less, *more] if upper else [*more, *less]


def _conv(node: GraphNode) -> Any:
    x, weight, bias = (node.tensor(place) for place in range(3))
    dims = weight.dim() - 2
    dilations = node.get("dilations") or [1] * dims
    x, padding = _padding(node, x, list(weight.shape[2:]), dilations)
    strides, groups = node.get("strides") or [1] * dims, node.get("group", 1)
    return getattr(functional, f"conv{dims}d")(x, weight, bias, strides, padding, dilations, groups)


def _conv_transpose(node: GraphNode) -> Any:
    x, weight, bias = (node.tensor(place) for place in range(3))
    dims = weight.dim() - 2
    function = getattr(functional, f"conv_transpose{dims}d")
    pads = node.get("pads") or [0] * (2 * dims)
    beyond = node.get("output_padding") or [0] * dims
    # Padding at the ends beyond that at the beginnings is output that is not made.
    beyond = [size + begin - end for size, begin, end in zip(beyond, pads[:dims], pads[dims:], strict=True)]
    how = {"stride": node.get("strides") or [1] * dims, "dilation": node.get("dilations") or [1] * dims}
    return function(x, weight, bias, padding=pads[:dims], output_padding=beyond, groups=node.get("group", 1), **how)


def _pool(node: GraphNode) -> Any:
    x, window = node.tensor(0), node.get("kernel_shape")
    dims = len(window)
    dilations = node.get("dilations") or [1] * dims
    x, padding = _padding(node, x, window, dilations)
    how: dict[str, Any] = {"stride": node.get("strides") or [1] * dims, "padding": padding}
    how["ceil_mode"] = bool(node.get("ceil_mode", 0))
    if node.operator == "MaxPool":
        return getattr(functional, f"max_pool{dims}d")(x, window, dilation=dilations, **how)
    padded = bool(node.get("count_include_pad", 0))
    return getattr(functional, f"avg_pool{dims}d")(x, window, count_include_pad=padded, **how)


def _global(function: Callable[..., Any]) -> Callable[[GraphNode], Any]:
    return lambda node: function(node.tensor(0), list(range(2, node.tensor(0).dim())), True)


def _batch_norm(node: GraphNode) -> Any:
    x, weight, bias, mean, variance = (node.tensor(place) for place in range(5))
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, node.get("epsilon", 1e-5))


def _layer_norm(node: GraphNode) -> Any:
    x, weight, bias = (node.tensor(place) for place in range(3))
    shape = x.shape[node.get("axis", -1) % x.dim() :]
    return functional.layer_norm(x, shape, weight, bias, node.get("epsilon", 1e-5))


def _rms_norm(node: GraphNode) -> Any:
    x, weight = node.tensor(0), node.tensor(1)
    return functional.rms_norm(x, x.shape[node.get("axis", -1) % x.dim() :], weight, node.get("epsilon", 1e-5))


def _group_norm(node: GraphNode) -> Any:
    x, weight, bias = (node.tensor(place) for place in range(3))
    groups = node.get("num_groups", x.shape[1])
    per_channel = weight if weight.shape[0] == x.shape[1] else weight.repeat_interleave(x.shape[1] // groups)
    shift = bias if bias.shape[0] == x.shape[1] else bias.repeat_interleave(x.shape[1] // groups)
    return functional.group_norm(x, groups, per_channel, shift, node.get("epsilon", 1e-5))


def _instance_norm(node: GraphNode) -> Any:
    x, weight, bias = (node.tensor(place) for place in range(3))
    return functional.instance_norm(x, weight=weight, bias=bias, eps=node.get("epsilon", 1e-5))


def _softmax(node: GraphNode) -> Any:
    """Before version 13 over all dimensions from the axis on."""
    function = torch.log_softmax if node.operator == "LogSoftmax" else torch.softmax
    x = node.tensor(0)
    axis = node.get("axis", 1 if node.version < 13 else -1)
    if node.version < 13 and axis % x.dim() != x.dim() - 1:
        return function(x.flatten(axis % x.dim()), -1).reshape(x.shape)
    return function(x, axis)


def _recurrent(node: GraphNode) -> Any:
    """One layer; gates lie in another order than PyTorch's, which changes no shape."""
    x, weight, recurrence, bias = (node.tensor(place) for place in range(4))
    if node.get("layout", 0) or any(lengths is not None for lengths in node.given[4:5]):
        raise ModelError(f"{node.operator} '{node.proto.name}' has lengths or a layout of its own: export it without")
    directions, width = weight.shape[0], node.get("hidden_size")
    gates = _GATES[node.operator] * width
    parameters = []
    for way in range(directions):
        parameters += [weight[way], recurrence[way]]
        parameters += [bias[way, :gates], bias[way, gates:]] if bias is not None else []
    start = x.new_zeros(directions, x.shape[1], width)
    states = (start, start) if node.operator == "LSTM" else start
    functions: dict[str, Callable[..., Any]] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}
    result, *last = functions[node.operator](
        x, states, parameters, bias is not None, 1, 0.0, False, directions == 2, False
    )
    return result.reshape(*result.shape[:2], directions, width).transpose(1, 2), *last


def _pad(node: GraphNode) -> Any:
    x, pads = node.tensor(0), node.numbers(1, "pads") or []
    axes = node.numbers(3) or list(range(len(pads) // 2))
    ends = [0] * (2 * x.dim())
    for place, axis in enumerate(axes):
        last = 2 * (x.dim() - 1 - axis % x.dim())
        ends[last], ends[last + 1] = pads[place], pads[place + len(axes)]
    while len(ends) > 2 and ends[-2:] == [0, 0]:
        ends = ends[:-2]
    how = {"edge": "replicate", "wrap": "circular"}.get(node.get("mode", "constant"), node.get("mode", "constant"))
    return functional.pad(x, ends, how, node.number(2, "value", 0.0) if how == "constant" else None)


def _resize(node: GraphNode) -> Any:
    """Resize to given sizes or by scales, along all but the first two dimensions."""
    x = node.tensor(0)
    old = node.operator == "Upsample" or node.version < 11
    sizes = None if old else node.numbers(3)
    scales = node.numbers(1 if old else 2, "scales") if sizes is None else None
    edges = sizes[2:] if sizes else [int(size * by) for size, by in zip(x.shape[2:], (scales or [])[2:], strict=True)]
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return functional.interpolate(x, edges, mode="nearest")
    result = "bicubic" if mode == "cubic" else ("linear", "bilinear", "trilinear")[x.dim() - 3]
    corners = node.get("coordinate_transformation_mode") == "align_corners"
    return functional.interpolate(x, edges, mode=result, align_corners=corners)


def _grid_sample(node: GraphNode) -> Any:
    mode = node.get("mode", "linear")
    names = {"linear": "bilinear", "cubic": "bicubic"}
    corners = bool(node.get("align_corners", 0))
    x, grid = node.tensor(0), node.tensor(1)
    return functional.grid_sample(x, grid, names.get(mode, mode), node.get("padding_mode", "zeros"), corners)


def _attention(node: GraphNode) -> Any:
    """Attention of tensors with three or four dimensions; the operator's cache and scores are not read."""
    query, key, value, mask = (node.tensor(place) for place in range(4))
    if query.dim() == 3:
        heads, shared = node.get("q_num_heads"), node.get("kv_num_heads")
        query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        key, value = (operand.unflatten(-1, (shared, -1)).transpose(1, 2) for operand in (key, value))
    how = {"is_causal": bool(node.get("is_causal", 0)), "scale": node.get("scale")}
    grouped = query.shape[1] != key.shape[1]
    result = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=grouped, **how)
    return result.transpose(1, 2).flatten(2) if node.tensor(0).dim() == 3 else result


def _gelu(node: GraphNode) -> Any:
    return functional.gelu(node.tensor(0), approximate=node.get("approximate", "none"))


def _prelu(node: GraphNode) -> Any:
    x, slope = node.tensor(0), node.tensor(1)
    return torch.where(x > 0, x, x * slope)


LAYERS: dict[str, Callable[[GraphNode], Any]] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "BatchNormalization": _batch_norm,
    "Celu": lambda node: functional.celu(node.tensor(0), node.get("alpha", 1.0)),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": lambda node: functional.pixel_shuffle(node.tensor(0), node.get("blocksize")),
    "Dropout": lambda node: node.tensor(0),
    "Elu": lambda node: functional.elu(node.tensor(0), node.get("alpha", 1.0)),
    "GRU": _recurrent,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global(torch.mean),
    "GlobalMaxPool": _global(torch.amax),
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda node: functional.hardsigmoid(node.tensor(0)),
    "InstanceNormalization": _instance_norm,
    "LRN": lambda node: functional.local_response_norm(node.tensor(0), node.get("size")),
    "LSTM": _recurrent,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda node: functional.leaky_relu(node.tensor(0), node.get("alpha", 0.01)),
    "LogSoftmax": _softmax,
    "LpNormalization": lambda node: functional.normalize(node.tensor(0), node.get("p", 2), node.get("axis", -1)),
    "MaxPool": _pool,
    "PRelu": _prelu,
    "Pad": _pad,
    "RMSNormalization": _rms_norm,
    "RNN": _recurrent,
    "Resize": _resize,
    "Selu": lambda node: functional.selu(node.tensor(0)),
    "Softmax": _softmax,
    "SpaceToDepth": lambda node: functional.pixel_unshuffle(node.tensor(0), node.get("blocksize")),
    "Upsample": _resize,
}
"""Forms by the operator's name."""
