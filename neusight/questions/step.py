"""``Step``: one step of any model on a device, or on those of a node."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from neusight.engines import LAUNCHES, LAYOUTS
from neusight.kernels.conditions import OPERANDS
from neusight.questions.field import FieldError, number, required, switch, text, texts, whole
from neusight.questions.parts import DEVICE, ENGINE, MODEL, PLAN, Computed, OnCluster, Planned, Recorded, Sized
from neusight.quick_dataclasses import dataclass
from neusight.requests import OPTIMIZERS

_MOST_STEPS = 10_000
"""Of denoising: the longest chains that models are trained with have 4,000 (Nichol and Dhariwal 2021, section 3)."""


@dataclass(frozen=True, kw_only=True)
class Step(OnCluster, Planned, Recorded, Computed, Sized):
    """A step of a model: which kernels run is decided by all of this, and by the device."""

    KIND: ClassVar[str] = "predict"

    HELP: ClassVar[Mapping[str, str]] = MappingProxyType({})

    model: str = required(
        "A name of `neusight models list`, timm:NAME, torchvision:NAME, diffusers:FOLDER, a hub id, a config.json, a "
        ".onnx or .pt2 file, or package.module:function.",
        MODEL, listable=True, objects=True,
    )  # fmt: skip
    config: str = text("Configuration of the model as JSON, in place of the one that its name has.", MODEL)
    image_size: int | None = whole("Edge of an image in pixels. Default: the model's own.", MODEL)
    frames: int | None = whole("Images of a clip. Default: the model's own.", MODEL)
    seconds: float | None = number(
        "Length of a sound. Default: the model's own, else 10.", MODEL, low=1e-3, high=86_400.0, metavar="S"
    )
    steps: int | None = whole(
        "Denoising steps of a diffusion pipeline, a whole image or clip. Default: one.", MODEL, high=_MOST_STEPS
    )
    inputs: tuple[str, ...] = texts(
        "One input written out: `pixel_values=1x3x448x448`. May be repeated.",
        MODEL, option="--input", metavar="NAME=SHAPE:DTYPE", former=("input", "given"), objects=True,
    )  # fmt: skip
    share: tuple[str, ...] = texts(
        "Share that an operator or layer selects by values that are not known: `nonzero=0.25`. Warnings name it. May "
        "be repeated.",
        MODEL, metavar="NAME=NUMBER",
    )  # fmt: skip
    optimizer: str = text("Optimizer whose update is part of the training step.", MODEL, "none", choices=OPTIMIZERS)
    fused_optimizer: bool = switch("The optimizer updates all parameters in one pass.", MODEL)
    grad_scaler: bool = switch("Gradients are scaled back before the update, as float16 needs.", MODEL)
    launch: str = text(
        "How kernels are launched: one operator at a time, compiled by torch.compile, that as one CUDA graph, or eager "
        "operators in one.",
        ENGINE, "eager", choices=LAUNCHES, listable=True,
    )  # fmt: skip
    layout: str = text("Order of images in memory; nhwc is PyTorch's channels_last.", ENGINE, "nchw", choices=LAYOUTS)
    allow_fallback: bool = switch("Estimate operators without a rule as data movement, visibly.", ENGINE)
    operands: str = text(
        "Place of operands before the step: device memory, or L2 as far as they fit.",
        ENGINE, "cold", choices=OPERANDS,
    )  # fmt: skip
    synchronized: bool = switch("The host waits for each step before it begins the next.", ENGINE)
    sparsity: str = text(
        "Zeros that devices like tensordash skip: `activations=0.6,gradients=0.5`, or a profile of `neusight sparsity "
        "measure`.",
        DEVICE, metavar="OPERAND=SHARE,…|FILE", objects=True,
    )  # fmt: skip
    simulate: bool = switch("On such a device, run its scheduler instead of its tile model.", DEVICE)
    compression: bool = switch("On such a device, zeros do not travel to and from DRAM.", DEVICE)
    tp_plan: tuple[str, ...] = texts(
        "How --tp splits products, where not by the model's structure: `*.c_fc=colwise`. May be repeated.",
        PLAN, metavar="MODULE=STYLE",
    )  # fmt: skip

    def check(self) -> None:
        """Relations between fields."""
        if self.optimizer != "none" and self.mode == "inference":
            raise FieldError("optimizer", f"{self.optimizer}: inference has no optimizer: leave it out, or give mode "
                             "training")  # fmt: skip
