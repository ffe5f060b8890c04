"""Every class and function of ``torch.nn`` and what runs it: each gets an estimate, in inference and training."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from neusight import Predictor
from neusight.devices import load_device
from neusight.workloads.tensors import TensorSpec

Given = tuple[Any, ...]
LINE, PLANE, SPACE = (2, 4, 12), (2, 4, 12, 12), (2, 4, 6, 6, 6)
BY_DIMENSION = {1: LINE, 2: PLANE, 3: SPACE}
CLASSES = (2, 7)


def ids(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "int64")


def _by_dimension(name: str, *options: Any, dims: tuple[int, ...] = (1, 2, 3), **named: Any) -> dict[str, Any]:
    kinds = {n: getattr(nn, f"{name}{n}d") for n in dims}
    return {f"{name}{n}d": (lambda kind=kind: kind(*options, **named), (BY_DIMENSION[n],)) for n, kind in kinds.items()}


POINTWISE = [
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
    "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink",
    "Softsign", "Tanh", "Tanhshrink", "Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout", "Flatten",
]  # fmt: skip
LOSSES = [
    "BCEWithLogitsLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "PoissonNLLLoss", "SmoothL1Loss", "BCELoss",
    "MultiLabelSoftMarginLoss", "HingeEmbeddingLoss",
]  # fmt: skip

MODULES: dict[str, tuple[Callable[[], Callable[..., Any]], Given]] = {
    **{name: (getattr(nn, name), (LINE,)) for name in POINTWISE},
    **{name: (getattr(nn, name), (CLASSES, CLASSES)) for name in LOSSES},
    **_by_dimension("Conv", 4, 6, 3, padding=1),
    **_by_dimension("ConvTranspose", 4, 6, 3, stride=2),
    **_by_dimension("BatchNorm", 4),
    **_by_dimension("InstanceNorm", 4, affine=True),
    **_by_dimension("MaxPool", 2),
    **_by_dimension("AvgPool", 2),
    **_by_dimension("LPPool", 2, 2),
    **_by_dimension("AdaptiveAvgPool", 2),
    **_by_dimension("AdaptiveMaxPool", 2),
    **_by_dimension("ZeroPad", 1),
    **_by_dimension("ConstantPad", 1, 0.5),
    **_by_dimension("ReflectionPad", 1),
    **_by_dimension("ReplicationPad", 1),
    **_by_dimension("CircularPad", 1),
    **_by_dimension("Dropout", dims=(2, 3)),
    **_by_dimension("FractionalMaxPool", 2, output_size=3, dims=(2, 3)),
    "depthwise Conv2d": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (PLANE,)),
    "dilated Conv2d": (lambda: nn.Conv2d(4, 8, 3, dilation=2), (PLANE,)),
    "grouped Conv2d": (lambda: nn.Conv2d(4, 8, 3, groups=2), (PLANE,)),
    "SyncBatchNorm": (lambda: nn.BatchNorm2d(4), (PLANE,)),
    "Linear": (lambda: nn.Linear(12, 5), (LINE,)),
    "Bilinear": (lambda: nn.Bilinear(12, 12, 5), ((3, 12), (3, 12))),
    "GLU": (nn.GLU, (LINE,)),
    "Threshold": (lambda: nn.Threshold(0.1, 0.0), (LINE,)),
    "Softmax": (lambda: nn.Softmax(-1), (LINE,)),
    "Softmax2d": (nn.Softmax2d, (PLANE,)),
    "Softmin": (lambda: nn.Softmin(-1), (LINE,)),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), (LINE,)),
    "LayerNorm": (lambda: nn.LayerNorm(12), (LINE,)),
    "RMSNorm": (lambda: nn.RMSNorm(12), (LINE,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (PLANE,)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (PLANE,)),
    "CrossMapLRN2d": (lambda: nn.LocalResponseNorm(3), (PLANE,)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), (PLANE,)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (PLANE,)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), (PLANE,)),
    "Fold": (lambda: nn.Fold((6, 6), 3), ((2, 9, 16),)),
    "Unfold": (lambda: nn.Unfold(3), (PLANE,)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), (LINE,)),
    "MaxUnpool1d": (lambda: nn.MaxUnpool1d(2), (LINE, ids(*LINE))),
    "MaxUnpool3d": (lambda: nn.MaxUnpool3d(2), (SPACE, ids(*SPACE))),
    "MaxUnpool2d": (lambda: nn.MaxUnpool2d(2), (PLANE, ids(*PLANE))),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), (PLANE,)),
    "Upsample, linear": (lambda: nn.Upsample(scale_factor=2, mode="linear"), (LINE,)),
    "Upsample, bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (PLANE,)),
    "Upsample, trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), (SPACE,)),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), (PLANE,)),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), (PLANE,)),
    "CosineSimilarity": (nn.CosineSimilarity, (CLASSES, CLASSES)),
    "PairwiseDistance": (nn.PairwiseDistance, (CLASSES, CLASSES)),
    "Embedding": (lambda: nn.Embedding(30, 8), (ids(2, 5),)),
    "Embedding, sparse": (lambda: nn.Embedding(30, 8, sparse=True), (ids(2, 5),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(30, 8), (ids(2, 5),)),
    "EmbeddingBag, sparse": (lambda: nn.EmbeddingBag(30, 8, mode="sum", sparse=True), (ids(2, 5),)),
    "RNN": (lambda: nn.RNN(12, 8, 2), (LINE,)),
    "LSTM": (lambda: nn.LSTM(12, 8, 2, bidirectional=True, batch_first=True), (LINE,)),
    "LSTM, projected": (lambda: nn.LSTM(12, 8, proj_size=3), (LINE,)),
    "GRU": (lambda: nn.GRU(12, 8, 2, bidirectional=True), (LINE,)),
    "RNNCell": (lambda: nn.RNNCell(12, 8), ((4, 12),)),
    "LSTMCell": (lambda: nn.LSTMCell(12, 8), ((4, 12),)),
    "GRUCell": (lambda: nn.GRUCell(12, 8), ((4, 12),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(12, 3), (LINE, LINE, LINE)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(12, 3, 24), (LINE,)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(12, 3, 24), (LINE, LINE)),
    "TransformerEncoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 24), 2), (LINE,)),
    "TransformerDecoder": (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 24), 2), (LINE, LINE)),
    "Transformer": (lambda: nn.Transformer(12, 3, 1, 1, 24), (LINE, LINE)),
    "AdaptiveLogSoftmaxWithLoss": (lambda: nn.AdaptiveLogSoftmaxWithLoss(12, 30, [5, 10]), ((4, 12), ids(4))),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (CLASSES, ids(2))),
    "CTCLoss": (nn.CTCLoss, ((20, 2, 7), ids(2, 5), ids(2), ids(2))),
    "NLLLoss": (nn.NLLLoss, (CLASSES, ids(2))),
    "NLLLoss2d": (nn.NLLLoss, (PLANE, ids(2, 12, 12))),
    "MultiMarginLoss": (nn.MultiMarginLoss, (CLASSES, ids(2))),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, (CLASSES, ids(*CLASSES))),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, (CLASSES, CLASSES, (2,))),
    "SoftMarginLoss": (lambda: lambda x, y: functional.soft_margin_loss(x, y.detach()), (CLASSES, CLASSES)),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, (CLASSES, CLASSES, CLASSES)),
    "MarginRankingLoss": (nn.MarginRankingLoss, (CLASSES, CLASSES, CLASSES)),
    "TripletMarginLoss": (nn.TripletMarginLoss, (CLASSES, CLASSES, CLASSES)),
    "TripletMarginWithDistanceLoss": (nn.TripletMarginWithDistanceLoss, (CLASSES, CLASSES, CLASSES)),
}
"""By name of the class; several forms of one after a comma or before its name."""
NOTHING = {
    *("Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Container", "Buffer"),
    *("Parameter", "UninitializedParameter", "UninitializedBuffer", "RNNBase", "RNNCellBase"),
    *("LinearCrossEntropyLoss", "LinearCrossEntropyOptions"),
}
"""Classes that hold others, or that not every version of PyTorch that is supported has."""

SQUARE = (3, 16, 16)


def _symmetric(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


FUNCTIONS: dict[str, tuple[Callable[..., Any], Given]] = {
    "fft": (lambda x: torch.fft.fft(x).abs(), (LINE,)),
    "rfft2": (lambda x: torch.fft.rfft2(x).real, (PLANE,)),
    "irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), (LINE,)),
    "stft": (lambda x: torch.stft(x, 16, window=torch.ones(16), return_complex=True).abs(), ((2, 256),)),
    "item": (lambda x: x * x.sum().item(), (LINE,)),
    "nonzero": (lambda x: x[x.gt(0).nonzero(as_tuple=True)], (LINE,)),
    "scaled_dot_product_attention": (functional.scaled_dot_product_attention, ((2, 3, 8, 4),) * 3),
    "flex_attention": (flex_attention, ((2, 3, 128, 16),) * 3),
    "grid_sample": (lambda x, grid: functional.grid_sample(x, grid, align_corners=False), (PLANE, (2, 5, 5, 2))),
    "affine_grid": (lambda x: functional.affine_grid(x, [2, 3, 8, 8], align_corners=False), ((2, 2, 3),)),
    "cumsum": (lambda x: x.cumsum(-1), (LINE,)),
    "cumprod": (lambda x: x.cumprod(-1), (LINE,)),
    "topk": (lambda x: x.topk(3)[0], (LINE,)),
    "sort": (lambda x: x.sort()[0], (LINE,)),
    "histc": (lambda x: torch.histc(x.detach(), 10) * x.sum(), (LINE,)),
    "searchsorted": (lambda x, y: torch.searchsorted(x.detach(), y).float() * x.sum(), ((2, 12), (2, 5))),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False)[1], (SQUARE,)),
    "qr": (lambda x: torch.linalg.qr(x)[0], (SQUARE,)),
    "cholesky": (lambda x: torch.linalg.cholesky(_symmetric(x)), (SQUARE,)),
    "inv": (torch.linalg.inv, (SQUARE,)),
    "solve": (torch.linalg.solve, (SQUARE, SQUARE)),
    "det": (torch.linalg.det, (SQUARE,)),
    "eigh": (lambda x: torch.linalg.eigh(_symmetric(x))[0], (SQUARE,)),
    "matrix_exp": (torch.linalg.matrix_exp, (SQUARE,)),
    "pinv": (torch.linalg.pinv, (SQUARE,)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (SQUARE, SQUARE)),
    "scatter": (lambda x, i: torch.zeros(2, 4, 12).scatter(1, i, x), (LINE, ids(*LINE))),
    "scatter_add": (lambda x, i: torch.zeros(2, 4, 12).scatter_add(1, i, x), (LINE, ids(*LINE))),
    "scatter_reduce": (lambda x, i: torch.zeros(2, 4, 12).scatter_reduce(1, i, x, "amax"), (LINE, ids(*LINE))),
    "gather": (lambda x, i: x.gather(1, i), (LINE, ids(*LINE))),
    "index_put": (lambda x, i: torch.zeros(9, 12).index_put((i,), x, accumulate=True), ((5, 12), ids(5))),
    "index_add": (lambda x, i: torch.zeros(9, 12).index_add(0, i, x), ((5, 12), ids(5))),
    "index_select": (lambda x, i: x.index_select(1, i), (LINE, ids(3))),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), (LINE,)),
    "multinomial": (lambda x: x.gather(1, x.detach().softmax(-1).multinomial(2)), (CLASSES,)),
    "cdist": (torch.cdist, ((2, 5, 8), (2, 6, 8))),
    "roll": (lambda x: x.roll(2, -1), (LINE,)),
    "flip": (lambda x: x.flip(-1), (LINE,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (LINE,)),
    "logsumexp": (lambda x: x.logsumexp(-1), (LINE,)),
    "norm": (lambda x: x.norm(dim=-1), (LINE,)),
    "var": (lambda x: x.var(-1), (LINE,)),
    "median": (lambda x: x.median(-1)[0], (LINE,)),
    "unique": (lambda x, i: x[i.unique() % 2], (LINE, ids(6))),
    "bincount": (lambda x, i: i.bincount(minlength=4) * x.sum(), (LINE, ids(6))),
    "one_hot": (lambda x, i: functional.one_hot(i, 12) * x, ((5, 12), ids(5))),
    "kron": (torch.kron, ((3, 4), (2, 5))),
    "complex": (lambda x: torch.complex(x, x).angle(), (LINE,)),
    "erfinv": (torch.erfinv, (LINE,)),
    "lgamma": (torch.lgamma, (LINE,)),
    "atan2": (torch.atan2, (LINE, LINE)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (LINE, LINE)),
    "baddbmm": (torch.baddbmm, (SQUARE, SQUARE, SQUARE)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), (LINE,)),
    "trapezoid": (torch.trapezoid, (LINE,)),
    "gumbel_softmax": (lambda x: functional.gumbel_softmax(x, hard=True), (CLASSES,)),
}
"""By name, each with its inputs."""


GPU = "h100-sxm-80gb"
SHORTEST_S = 0.5e-6
"""No kernel of a stream is shorter on any GPU: an empty one takes more than a microsecond."""
CASES = {**MODULES, **{name: (lambda f=function: f, given) for name, (function, given) in FUNCTIONS.items()}}


class Learnt(nn.Module):
    """What is called, behind a factor that has a gradient."""

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, *given: torch.Tensor) -> Any:
        return self.called(*(x * self.factor if x.is_floating_point() else x for x in given))


def test_no_class_is_left_out() -> None:
    shown = {name.split(",")[0].split()[-1] for name in MODULES}
    named = {name for name in nn.modules.__all__ if not name.startswith("Lazy")}
    assert named - shown - NOTHING == set()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_everything_runs_and_takes_time(predictor: Predictor, name: str, mode: str) -> None:
    build, given = CASES[name]
    inputs = [each if isinstance(each, TensorSpec) else TensorSpec(each) for each in given]
    estimate = predictor.estimate(Learnt(build()), GPU, inputs=inputs, mode=mode)
    assert ("backward" in estimate.by_phase) == (mode == "training")
    size = sum(prod(spec.shape) * spec.element_bytes for spec in inputs if spec.floating)
    # Each is scaled: read and written.
    assert estimate.latency_s >= 2 * size / load_device(GPU).dram_bandwidth_bytes_per_s
    assert estimate.latency_s >= SHORTEST_S * sum(row.count for row in estimate.by_kernel)
