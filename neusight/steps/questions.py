"""What is asked of a step: the device, the request, and how the step is estimated, checked and made into a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.defaults import Defaults, chosen, default_seq_len
from neusight.devices import DeviceSpec
from neusight.devices.chosen import Gpu, as_device
from neusight.engines import Host, Libraries
from neusight.engines.torch import run_on
from neusight.errors import ModelError, shown
from neusight.executors import Options
from neusight.kernels.optimizers import optimizer_named
from neusight.kernels.precision import OWN_PRECISION, Precision
from neusight.quick_dataclasses import dataclass
from neusight.requests import INTEGERS, Plan, Request
from neusight.transforms.narrowed import wholly_in_int8
from neusight.transforms.optimizer import fuse_optimizer, stepped_by
from neusight.transforms.passes import Pass
from neusight.transforms.precision import as_computed
from neusight.transforms.sparsity import Sparsity, as_profile, sparsify
from neusight.workloads.target import TargetDevice

if TYPE_CHECKING:
    from neusight.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a step is estimated, beside what it is.

    Args:
        overrides: ``key=value`` changes of the device; the estimate says that it is hypothetical.
        allow_fallback: estimate operators without a rule as data movement, visibly, instead of raising.
        sparsity: zeros of the layers' tensors, for devices that skip them: a ``SparsityProfile``, its file, or
            ``activations=0.6,gradients=0.5`` for all layers.
        simulate: on such a device, run its scheduler instead of the tile model that has learned from it.
        compression: on such a device, zeros don't travel to and from DRAM.
        fused_optimizer: the optimizer updates all parameters in one pass, as ``fused=True`` and Apex do.
        cache: read and write the user's cache of traces.
        plan: how several devices of one node share the step, whose batch is then the plan's ``global_batch_size``.
        operands: ``cold``, or ``resident`` in L2 as far as what the step moves fits there, as when it is repeated on
            the same tensors with nothing between.
        host: of a step that is called while the device rests; unless given, steps follow each other, and the host's
            time shows as far as it is longer than the device's.
        libraries: of other versions than those that kernels were measured with.
        tp_plan: how products are shared over ``tp`` ranks, module path with ``*`` to ``colwise``, ``rowwise`` or
            ``replicated``, as in PyTorch's ``parallelize_module`` and Hugging Face's ``base_model_tp_plan``; default as
            the model's structure tells.
        passes: changes of what the step runs, in their order; see ``neusight.transforms.passes``.
        step: a function that runs a training step on one device, from the module, its optimizer (None for ``none``) and
            the inputs: one that accumulates gradients, say, clips them, or keeps a mean of the weights.
    """

    overrides: Sequence[str] = ()
    allow_fallback: bool = False
    sparsity: Sparsity | None = None
    simulate: bool = False
    compression: bool = False
    fused_optimizer: bool = False
    cache: bool = True
    plan: Plan | None = None
    tp_plan: Mapping[str, str] | None = None
    operands: str = "cold"
    host: Host | None = None
    libraries: Libraries | None = None
    passes: tuple[Pass, ...] = ()
    step: Callable[..., Any] | None = None

    @property
    def options(self) -> Options:
        """Those of the executor."""
        return Options(simulate=self.simulate, compression=self.compression)


@dataclass(frozen=True, kw_only=True)
class StepQuestion:
    """A step of any model on one device, or on those of a node.

    Attributes:
        defaults: values that were chosen for fields of the request.
        traced_precision: that of the weights of the model, once they are known, where the request leaves it to that.
        words: those that were asked; {} where the step was changed since.
    """

    model: Any
    gpu: Gpu
    request: Request
    setting: Setting = field(default_factory=Setting)
    inputs: Any = None
    defaults: Defaults = field(default_factory=dict)
    traced_precision: Precision = OWN_PRECISION
    words: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.inputs is not None:
            from neusight.workloads.inputs import as_inputs

            object.__setattr__(self, "inputs", as_inputs(self.inputs))

    @property
    def device(self) -> DeviceSpec:
        """With the changes of its figures."""
        return as_device(self.gpu, self.setting.overrides)

    def assumed(self, seq_len: int | None) -> dict[str, str]:
        """Defaults that the question still has, in words; ``seq_len`` is that of the step, known once it is traced."""
        words = chosen(self.defaults, {"dtype": self.request.dtype})
        length = default_seq_len(seq_len)
        taken = self.request.seq_len is None and length.value == seq_len
        return words | ({"seq_len": str(length)} if taken else {})

    @property
    def precision(self) -> Precision:
        """The precision that is requested, else that of the model."""
        own = self.request.precision == OWN_PRECISION
        return self.traced_precision if own else self.request.precision

    @property
    def shared(self) -> bool:
        """Whether several devices, or micro-batches, take part in it."""
        plan = self.setting.plan
        return plan is not None and (plan.world > 1 or plan.micro_batches > 1)

    def asking(self, **changes: Any) -> StepQuestion:
        """With other fields of the request."""
        return replace(self, request=replace(self.request, **changes), words={})

    def running(self, **changes: Any) -> StepQuestion:
        """With other traits of the engine."""
        return self.asking(engine=replace(self.request.engine, **changes))

    def under(self, **changes: Any) -> StepQuestion:
        """With another setting."""
        return replace(self, setting=replace(self.setting, **changes), words={})

    def changed_by(self, change: Pass) -> StepQuestion:
        """With a pass more, in the order of passes."""
        passes = sorted((*self.setting.passes, change), key=lambda one: (one.order, one.part))
        return self.under(passes=tuple(passes))


@dataclass(frozen=True)
class ByContent:
    """A sparsity profile as a key: equal where its content is."""

    profile: Any

    def __hash__(self) -> int:
        return hash((self.profile.model, self.profile.source, tuple(self.profile.layers), self.profile.default))


def step_request(model: Any, step: Mapping[str, Any]) -> tuple[Request, Defaults]:
    """The request that words make, and the values that were chosen for its fields.

    Raises:
        ModelError: as ``Request.of``. CoverageError: an unknown dtype.
    """
    dtype = None if step.get("dtype") is None else str(step["dtype"]).removeprefix("torch.")
    named = isinstance(model, str | Path)
    return with_default_dtype(model, Request.of(str(model) if named else "", **{**step, "dtype": dtype}))


def with_default_dtype(model: Any, request: Request) -> tuple[Request, Defaults]:
    """The request in the default dtype where it leaves that open; a module has its own."""
    if not isinstance(model, str | Path):
        return request, {}
    from neusight.workloads.resolve import resolve, step_dtype

    requested = "" if request.precision == OWN_PRECISION else request.dtype
    dtype, defaults = step_dtype(resolve(model), request.engine, requested)
    return replace(request, precision=Request.of(dtype=dtype).precision), defaults


def checked(gpu: Gpu, request: Request, setting: Setting) -> tuple[DeviceSpec, Request]:
    """The device, and the request for one micro-batch.

    Raises:
        ModelError: options that contradict each other. DeviceError: an unknown device, or one that lacks the dtype.
    """
    if setting.fused_optimizer and request.optimizer == "none":
        raise ModelError("fused_optimizer: there is no optimizer to fuse: name one, such as adam, or leave it out")
    if setting.fused_optimizer and not optimizer_named(request.optimizer).fused:
        raise ModelError(f"{request.optimizer} has no fused form: leave out fused_optimizer")
    if not (setting.step is None or callable(setting.step)):
        raise ModelError(f"step: {shown(setting.step)} is no function: give one of the module, optimizer and inputs")
    if setting.step is not None and (request.mode != "training" or request.grad_scaler or setting.plan is not None):
        raise ModelError("step: runs a training step on one device, and scales the loss itself: mode='training' alone")
    device = as_device(gpu, setting.overrides)
    if request.precision != OWN_PRECISION:
        device.gemm_flops_per_s(request.precision.of_products)
    plan = setting.plan or Plan(micro_batch_size=request.batch, global_batch_size=request.batch)
    if request.steps and plan.pp > 1:
        raise ModelError("steps of denoising go through all layers again and again: leave out pp, or ask for one step")
    return device, micro_batch_of(replace(request, engine=run_on(device, request.engine)), plan)


def workload_of(model: Any, request: Request, setting: Setting, target: TargetDevice, inputs: Any = None) -> Workload:
    """The step on one device, with the zeros, the optimizer and the passes that are asked for."""
    workload = unchanged(model, request, setting, target, inputs)
    for change in setting.passes:
        workload = change(workload)
    return as_computed(workload, target.tf32)


def traces_of(
    model: Any, request: Request, setting: Setting, device: DeviceSpec, inputs: Any = None
) -> Callable[[int], Workload]:
    """The step on one device for a micro-batch of any number of samples."""
    target = TargetDevice.of(device)
    return lambda batch: workload_of(model, replace(request, batch=batch), setting, target, inputs)


def unchanged(model: Any, request: Request, setting: Setting, target: TargetDevice, inputs: Any = None) -> Workload:
    """The step before any pass.

    Raises:
        ModelError: it runs no kernel, so that there is no time, throughput or share to speak of.
    """
    from neusight.workloads import load_workload

    whole = request.precision.activations == INTEGERS
    optimizer = optimizer_named(request.optimizer).traced
    traced = replace(request, optimizer=optimizer) if optimizer != request.optimizer else request
    traced = replace(traced, precision=Precision.named("float32_ieee")) if whole else traced
    options: dict[str, Any] = {"allow_fallback": setting.allow_fallback, "cache": setting.cache, "target": target}
    options |= {"step": setting.step}
    workload = load_workload(model, traced, inputs=inputs, **options)
    if not any(node.kernels for node in workload.nodes):
        raise ModelError(
            f"{request.model or 'the module'} runs nothing on a device: its forward() returns what it is given, or a "
            "view of that; estimate a module that computes something"
        )
    if whole:
        workload = wholly_in_int8(workload, request.precision)
    if optimizer != request.optimizer:
        workload = stepped_by(workload, request.optimizer)
    if (zeros := setting.sparsity) is not None:
        workload = sparsify(workload, zeros.profile if isinstance(zeros, ByContent) else as_profile(zeros))
    return fuse_optimizer(workload) if setting.fused_optimizer else workload


def micro_batch_of(request: Request, plan: Plan) -> Request:
    """The request for one micro-batch of a plan.

    Raises:
        ModelError: another batch was asked for than the plan's.
    """
    if request.batch not in (1, plan.global_batch_size):
        raise ModelError(
            f"batch {request.batch}, but the plan has {plan.global_batch_size} samples a step: leave out one of them"
        )
    return replace(request, batch=plan.micro_batch_size)
