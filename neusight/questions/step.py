"""``Step``: one step of any model on a device, or on those of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from neusight.defaults import Default, Defaults
from neusight.devices import DeviceSpec
from neusight.engines import ATTENTIONS, LAUNCHES, LAYOUTS, Engine, Host, Libraries, engine_named
from neusight.engines.traits import with_traits
from neusight.errors import ModelError
from neusight.kernels.conditions import OPERANDS
from neusight.questions.field import MOST, FieldError, number, option, pairs_of, required, switch, text, texts, whole
from neusight.questions.parts import DEVICE, ENGINE, MODEL, PLAN, RECORDED, Clustered, Configured, Planned, Recorded
from neusight.questions.training import Training
from neusight.quick_dataclasses import dataclass
from neusight.requests import MODES, MOST_STEPS, OPTIMIZERS, Plan, Request
from neusight.steps.questions import Setting, StepQuestion, step_request, with_default_dtype
from neusight.transforms.passes import LATE, Pass
from neusight.transforms.phases import alone

_OBJECTS = ("request", "plan", "host", "libraries", "passes", "cache", "step")
"""Keywords of Python that no words stand for."""
_HOST = tuple(name for name in Recorded.fields() if name.startswith("host"))
_OF_SETTING = (
    *Recorded.fields(), "model", "gpu", "overrides", "prices", "allow_fallback", "sparsity", "simulate", "compression",
    "fused_optimizer", "operands", "tp_plan", "synchronized",
)  # fmt: skip
"""Words that may stand beside a request that is given as an object."""
_MICROSECOND = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step(Configured, Recorded, Planned, Clustered):
    """A step of a model: which kernels run is decided by all of this, and by the device."""

    KIND: ClassVar[str] = "predict"

    model: str = required(
        "A name of `neusight models list`, timm:NAME, torchvision:NAME, diffusers:FOLDER, a hub id, a config.json, a "
        ".onnx or .pt2 file, or package.module:function.",
        MODEL, listable=True, objects=True, complete="models",
    )  # fmt: skip
    mode: str = text(
        "Inference is the forward pass; training adds the backward pass and the optimizer.",
        MODEL, "inference", choices=MODES, listable=True,
    )  # fmt: skip
    batch: int = whole(
        "Batch size: samples of a step, over all replicas.",
        MODEL, 1, short="-b", listable=True, former=("global_batch",),
    )  # fmt: skip
    image_size: int | str | None = option(
        "image", "Edge of an image in pixels, or width and height: 768x512. Default: the model's own.", MODEL,
        low=1, high=MOST, metavar="N|WxH",
    )  # fmt: skip
    frames: int | None = whole("Images of a clip. Default: the model's own.", MODEL)
    seconds: float | None = number(
        "Length of a sound. Default: the model's own, else 10.", MODEL, low=1e-3, high=86_400.0, metavar="S"
    )
    steps: int | None = whole(
        "Denoising steps of a diffusion pipeline, a whole image or clip. Default: one.", MODEL, high=MOST_STEPS
    )
    inputs: tuple[str, ...] = texts(
        "One input written out: `pixel_values=1x3x448x448`. May be repeated.",
        MODEL, option="--input", metavar="NAME=SHAPE:DTYPE", former=("input", "given"), objects=True, pairs=True,
    )  # fmt: skip
    phase: str = text("One phase of the step alone.", RECORDED, choices=("forward", "backward", "optimizer"))
    share: tuple[str, ...] = texts(
        "Share that an operator or layer selects by values that are not known: `nonzero=0.25`. Warnings name it. May "
        "be repeated.",
        MODEL, metavar="NAME=NUMBER", pairs=True,
    )  # fmt: skip
    optimizer: str = text(
        "Optimizer whose update is part of the training step.", MODEL, "none", choices=OPTIMIZERS, of_mode="training"
    )  # fmt: skip
    fused_optimizer: bool = switch("The optimizer updates all parameters in one pass.", MODEL, of_mode="training")
    grad_scaler: bool = switch(
        "Gradients are scaled back before the update, as float16 needs.", MODEL, of_mode="training"
    )
    dtype: str = text(
        "Precision of weights and activations: bf16, fp16, fp32 (convolutions in TF32, PyTorch's default), "
        "float32_ieee, tf32, amp, amp_bf16. Default: that of the model's configuration, else fp32.",
        ENGINE, metavar="NAME", listable=True,
    )  # fmt: skip
    attention: str = text(
        "Form of attention: operator by operator, or one fused kernel. Default: the model's own.",
        ENGINE, choices=ATTENTIONS,
    )  # fmt: skip

    launch: str = text(
        "How kernels are launched: one operator at a time (eager), compiled by torch.compile, that as one CUDA graph, "
        "eager operators in one (cudagraphs), or by code that was compiled ahead of time (static).",
        ENGINE, "eager", choices=LAUNCHES, listable=True,
    )  # fmt: skip
    engine: str = text("Software other than PyTorch that runs the step, such as torchscript.", ENGINE, metavar="NAME")
    layout: str = text("Order of images in memory; nhwc is PyTorch's channels_last.", ENGINE, "nchw", choices=LAYOUTS)
    allow_fallback: bool = switch("Estimate operators without a rule as data movement, visibly.", ENGINE)
    operands: str = text(
        "Place of operands before the step: device memory, or L2 as far as they fit.", ENGINE, "cold", choices=OPERANDS
    )
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
        PLAN, metavar="MODULE=STYLE", pairs=True,
    )  # fmt: skip

    @classmethod
    def of(cls, model: Any, gpu: Any = "", **words: Any) -> Step:
        """The question of keywords of Python, whose objects are kept: a module, its inputs, a device, a plan, passes, …

        Raises:
            FieldError: an unknown name, or a value that the field cannot take.
        """
        objects = {name: given_object for name in _OBJECTS if (given_object := words.pop(name, None)) is not None}
        inputs = words.pop("inputs", None)
        if isinstance(inputs, Sequence) and inputs and all(isinstance(given_object, str) for given_object in inputs):
            words["inputs"] = inputs
        elif inputs is not None:
            objects["inputs"] = inputs
        if words.get("dtype") is not None:
            words["dtype"] = str(words["dtype"]).removeprefix("torch.")
        question = cls.named(words | {"model": model, "gpu": gpu})
        return replace(question, objects={**question.objects, **objects}) if objects else question

    def resolve(self, device: DeviceSpec | None = None) -> StepQuestion:
        """The step as objects that answer it.

        Args:
            device: that of ``gpu``, where it is loaded already.

        Raises:
            ModelError: words that exclude each other, an unknown model. CoverageError: an unknown dtype.
        """
        self.refuse(("nodes",), "is of a cluster: name it with cluster")
        device = device or (self.device() if self.prices else None)
        model = self.model_or_file()
        request, defaults = self._request(model)
        setting = replace(self._setting(request.engine), overrides=() if device else self.overrides)
        if setting.host is not None and "host" not in self.objects and self.host_call_us is None:
            defaults = {**defaults, "host_call_us": Default(self._call_us(), "the usual call of eager PyTorch")}
        return StepQuestion(
            model=model, gpu=device or self.given("gpu"), request=request, setting=setting, defaults=defaults,
            inputs=self.objects.get("inputs"), words=self.record(),
        )  # fmt: skip

    @classmethod
    def training_words(cls, words: Mapping[str, Any]) -> dict[str, Any]:
        """Words of the training step on a named cluster.

        Raises:
            FieldError: the step is no training, or a word has no meaning there.
        """
        if words.get("mode") != "training":
            raise FieldError("cluster", "is for training: add mode training")
        if foreign := [name for name in words if name not in (*Training.fields(), "mode", "batch")]:
            raise FieldError(foreign[0], "has no meaning with a cluster: leave it out")
        return {"batch": "1", **{name: word for name, word in words.items() if name != "mode"}}

    def _request(self, model: Any) -> tuple[Request, Defaults]:
        """The request to run, and the values that were chosen for open fields."""
        if (request := self.objects.get("request")) is not None:
            return self._given_request(model, request)
        names = ("mode", "batch", "seq_len", "image_size", "frames", "seconds", "launch", "layout", "optimizer",
                 "grad_scaler", "steps")  # fmt: skip
        words = {name: getattr(self, name) for name in names}
        words |= {"share": self._shares(), "given": tuple(word for text in self.inputs for word in text.split())}
        words |= {"dtype": self.dtype or None, "attention": self.attention or None}
        if self._plan() is not None and "plan" not in self.objects:
            words["batch"] = 1
        request, defaults = step_request(model, words)
        engine = request.engine
        if self.engine:
            engine = replace(engine_named(self.engine), attention=engine.attention, layout=engine.layout)
        engine = with_traits(engine, self.engine_options) if self.engine_options else engine
        return replace(request, engine=engine), defaults

    def _given_request(self, model: Any, request: Any) -> tuple[Request, Defaults]:
        if not isinstance(request, Request):
            raise ModelError(f"{request!r} is not a Request: give the step by name, such as mode='training', batch=4")
        if others := [name for name in self.words() if name not in _OF_SETTING]:
            raise ModelError(f"{', '.join(others)} given as well as a request: leave one of them out")
        return with_default_dtype(model, request)

    def _shares(self) -> dict[str, float]:
        """Shares by the name of what selects them."""
        try:
            return {name: float(value) for name, value in pairs_of(self.share).items()}
        except ValueError as error:
            raise FieldError("share", f"{error}: write it like NAME=NUMBER") from None

    def _setting(self, engine: Engine) -> Setting:
        objects, plan = self.objects, self._plan()
        if self.tp_plan and "plan" not in objects and self.tp == 1:
            raise FieldError("tp_plan", "says how tp splits products: give tp of 2 or more")
        phase = (Pass(part="phase", order=2 * LATE, change=alone, arguments=(self.phase,)),) if self.phase else ()
        return Setting(
            allow_fallback=self.allow_fallback, sparsity=self.given("sparsity") or None, simulate=self.simulate,
            compression=self.compression, fused_optimizer=self.fused_optimizer, operands=self.operands, plan=plan,
            tp_plan=pairs_of(self.tp_plan) or None, cache=objects.get("cache", True), host=self._host(engine),
            libraries=objects.get("libraries") or self._libraries(), passes=(*objects.get("passes", ()), *phase),
            step=objects.get("step"),
        )  # fmt: skip

    def _plan(self) -> Plan | None:
        """The plan by which devices share the step; None for one device that runs all samples at once."""
        names = ("dp", "tp", "pp", "vp", "cp", "ulysses", "micro_batch_size", "schedule", "shard", "recompute",
                 "recompute_layers", "sequence_parallel", "overlap_grad_reduce")  # fmt: skip
        plan: Plan | None = self.objects.get("plan")
        if plan is not None:
            self.refuse(names, "is a part of the plan, which is given as well: leave it out")
            return plan
        words = {name: getattr(self, name) for name in names}
        return Plan.of_step(self.batch, training=self.mode == "training", **words)

    def _host(self, engine: Engine) -> Host | None:
        """The host of a step that is waited for; None where steps follow each other."""
        host: Host | None = self.objects.get("host")
        if host or not self.synchronized:
            self.refuse(_HOST, "is of a host that waits for each step: give synchronized, and no other host")
            return host
        operator_us, spread = self.host_operator_us, self.host_spread
        return Host(
            call_s=_MICROSECOND * self._call_us(),
            operator_s=engine.host_s_per_operator if operator_us is None else _MICROSECOND * operator_us,
            spread=engine.host_spread if spread is None else spread,
            ahead_s=_MICROSECOND * (self.host_ahead_us or 0.0), copied_bytes=self.host_bytes or 0,
        )  # fmt: skip

    def _call_us(self) -> float:
        """Time of the host before the first operator, the middle of the usual ones where none is given [us]."""
        if self.host_call_us is not None:
            return self.host_call_us
        values = sorted(usual.value for usual in self.fields()["host_call_us"].field.if_unset(self))
        return float(values[len(values) // 2])

    def _libraries(self) -> Libraries | None:
        """Libraries of other versions than the measured ones."""
        if self.library_factor is None:
            self.refuse(("library_spread",), "is of library_factor: give that as well")
            return None
        return Libraries(factor=self.library_factor, spread=self.library_spread or 0.0)


def step_question(model: Any, gpu: Any = "", **words: Any) -> StepQuestion:
    """A step from keywords of Python, as objects that answer it; arguments and errors as those of ``Step``."""
    return Step.of(model, gpu, **words).resolve()
