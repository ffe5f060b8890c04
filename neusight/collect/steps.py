"""One real step of a model on a device: the same phases that a trace counts, built from the same configuration.

Forward is timed from the inputs to the logits. The loss, the cross-entropies of all logits over all positions, runs
between the timed phases; backward begins with its gradient. The optimizer's step is timed apart, clearing the
gradients is not. Dropout is active in training, nothing is cached or padded, and transformers runs as it is installed:
it may look at positions to see that sequences are not packed, which no trace counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from neusight.collect.bench import Bench, Timing, doubt
from neusight.collect.launches.launch import TORCH_DTYPES, float32_precision
from neusight.collect.tasks import identity
from neusight.errors import UnmeasurableError
from neusight.workloads.huggingface import build_model, input_specs
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.memory import Ledger
from neusight.workloads.trace.training import prepared_optimizer

BUDGET_S = 10.0
"""Seconds of repeated steps behind a row."""
TIMED = ("forward", "backward", "optimizer")
"""Phases whose times add up to the step's."""
_HALF = (torch.float16, torch.bfloat16)
_NO_FLASH = "No available kernel"
"""Beginning of PyTorch's error that no allowed form of attention can run."""


@dataclass(frozen=True, kw_only=True)
class ModelTask:
    """Measure one step of a model. ``config`` is the content of its ``config.json``, as JSON with sorted keys.

    ``seq_len`` is None for images. ``optimizer`` is ``none`` in inference. ``dtype`` may also be ``tf32``: float32
    whose matrix products may round their operands.
    """

    table: ClassVar[str] = "steps"
    limit_s: ClassVar[float] = 1800.0
    """Compiling a large model takes minutes, a step on a CPU as well."""

    model: str
    config: str
    mode: str
    dtype: str
    batch: int
    seq_len: int | None
    attention: str
    optimizer: str
    compiled: bool

    @property
    def sample(self) -> str:
        """Hash of everything that the step depends on."""
        return identity(asdict(self))

    def describe(self) -> dict[str, Any]:
        """The question of the step. Nothing runs in TF32 but in ``tf32``, unlike PyTorch's defaults."""
        question = asdict(self) | {"dtype": "float32_ieee" if self.dtype == "float32" else self.dtype}
        compiled = question.pop("compiled")
        return {"sample": self.sample, **question, "launch": "compiled" if compiled else None}

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Build the model with random weights on the device and time its step.

        Returns:
            The measured columns of the row; times are medians over iterations, ``latency`` the sum of the timed
            phases, ``peak_allocated_bytes`` the allocator's peak during steady iterations without what instruments hold
            (None on the CPU).

        Raises:
            UnmeasurableError: the device does not compute in the dtype, or has no flash attention for it.
            torch.OutOfMemoryError: the step does not fit.
        """
        _check_dtype(self.dtype, bench)
        # Flash allows that fused kernel alone; ``sdpa`` leaves the choice to PyTorch.
        fused = sdpa_kernel(SDPBackend.FLASH_ATTENTION) if self.attention == "flash" else nullcontext()
        with float32_precision(self.dtype == "tf32"), fused:
            phases = _phases(self, bench)
            _run_once(phases, self, bench)
            if bench.on_gpu:
                torch.cuda.reset_peak_memory_stats(bench.torch_device)
            timings = dict(zip(phases, bench.timed(list(phases.values()), BUDGET_S), strict=True))
        peak = torch.cuda.max_memory_allocated(bench.torch_device) - bench.held_bytes if bench.on_gpu else None
        conditions = bench.conditions()
        step = _whole([timings[name] for name in TIMED if name in timings])
        return {
            **step.columns("latency", "repeats"),
            **{f"{name}_ms": 1e3 * timings[name].median_s for name in TIMED if name in timings},
            "peak_allocated_bytes": peak,
            **conditions,
            "suspect": doubt(step, conditions),
        }


def _whole(phases: Sequence[Timing]) -> Timing:
    """The sum of phases; its percentiles are those of a step whose phases are all fast, or all slow, at once."""
    sums = {part: sum(getattr(timing, part) for timing in phases) for part in ("median_s", "p10_s", "p90_s")}
    return Timing(**sums, count=phases[0].count)


def _check_dtype(dtype: str, bench: Bench) -> None:
    rates = {"float32", "float16", *bench.device.matrix_flops_per_s, *bench.device.vector_flops_per_s}
    if dtype not in rates:
        raise UnmeasurableError(f"{dtype} needs tensor cores of compute capability 8.0 or later")


def _run_once(phases: Mapping[str, Callable[[], Any]], task: ModelTask, bench: Bench) -> None:
    """Compile, choose algorithms and allocate, and find out whether the step runs at all."""
    try:
        for phase in phases.values():
            phase()
        bench.synchronise()
    except RuntimeError as error:
        if task.attention != "flash" or not str(error).startswith(_NO_FLASH):
            raise
        reason = f"no flash attention in {task.dtype} for this model and device: use --attention sdpa"
        raise UnmeasurableError(reason) from error


def _phases(task: ModelTask, bench: Bench) -> dict[str, Callable[[], Any]]:
    """Functions of one iteration's phases, in order."""
    torch.manual_seed(bench.seed)
    config = json.loads(task.config)
    module = real_module(config, task, bench.torch_device)
    inputs = real_inputs(config, task, module, bench.torch_device)
    if task.compiled:  # Afresh: PyTorch compiles one function only a few times, and then runs it eagerly, unsaid.
        torch.compiler.reset()
    run = torch.compile(module) if task.compiled else module
    if task.mode == "inference":
        infer = torch.no_grad()(run)
        return {"forward": lambda: infer(**inputs)}
    return _TrainingStep(run, module, inputs, still_optimizer(module, task.optimizer)).phases()


def real_module(config: dict[str, Any], task: ModelTask, device: str) -> torch.nn.Module:
    """The traced module with random weights, made on the device in its dtype: the host needs no memory for them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(TORCH_DTYPES[task.dtype])
    try:
        with torch.device(device):
            module = build_model(config, task.mode, task.attention)
    finally:
        torch.set_default_dtype(before)
    return module.train(task.mode == "training")


def real_inputs(
    config: dict[str, Any], task: ModelTask, module: torch.nn.Module, device: str
) -> dict[str, torch.Tensor]:
    """Inputs of ``forward``: random ids within the vocabulary, random images, a mask that hides nothing."""
    specs = input_specs(config, task.batch, task.seq_len, task.attention)
    dtype = TORCH_DTYPES[task.dtype]
    with torch.device(device):
        return {name: real_input(name, spec, module, dtype) for name, spec in specs.items()}


def real_input(
    name: str,
    spec: TensorSpec,
    module: torch.nn.Module,
    dtype: torch.dtype = torch.float32,
    images: Callable[..., torch.Tensor] = torch.randn,
) -> torch.Tensor:
    """Random ids within the vocabulary, random ``images``, or a mask that hides nothing, on the default device."""
    if name == "attention_mask":
        return torch.zeros(spec.shape, dtype=dtype)
    if spec.floating:
        return images(spec.shape).to(dtype)
    embedding: Any = module.get_input_embeddings()  # type: ignore[operator]
    return torch.randint(embedding.num_embeddings, spec.shape)


def still_optimizer(module: torch.nn.Module, name: str) -> torch.optim.Optimizer | None:
    """The traced optimizer with its state, which changes no weight: random weights and targets would soon diverge.

    Learning rate 0 runs the same kernels. The large ``eps`` keeps Adam's quotient finite where half precision rounds
    the second moment to zero.
    """
    optimizer = prepared_optimizer(module, name, "foreach", Ledger())
    if optimizer is None:
        return None
    for group in optimizer.param_groups:
        group.update(lr=0.0, eps=1e-3)
    for state in optimizer.state.values():
        for tensor in state.values():
            tensor.zero_()
    return optimizer


@dataclass
class _TrainingStep:
    """One iteration of training; what a phase leaves to the next lives no longer than it would in a loop."""

    run: Callable[..., Any]
    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    optimizer: torch.optim.Optimizer | None
    targets: Sequence[torch.Tensor] = ()
    result: Any = None
    scalar: Any = None

    def phases(self) -> dict[str, Callable[[], Any]]:
        """Phases by name, in order."""
        update = {"optimizer": self.optimizer.step} if self.optimizer is not None else {}
        phases = {"forward": self.forward, "loss": self.loss, "backward": self.backward}
        return {**phases, **update, "clear": self.module.zero_grad}

    def forward(self) -> None:
        """Run from the inputs to the logits."""
        self.result = self.run(**self.inputs)

    def loss(self) -> None:
        """The cross-entropies of all logits over all positions, as the trace forms them."""
        logits = logit_rows(self.result)
        self.result = None
        self.targets = self.targets or random_targets(logits)
        self.scalar = sum(map(functional.cross_entropy, logits, self.targets))

    def backward(self) -> None:
        """Run from the gradient of the loss to those of the weights."""
        self.scalar.backward()
        self.scalar = None


def random_targets(logits: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A random class for each row of logits."""
    return [torch.randint(rows.shape[1], (len(rows),), device=rows.device) for rows in logits]


def logit_rows(result: Any) -> list[torch.Tensor]:
    """All logits of a model's result, one row a position; half precision is widened. None where it names none."""
    values = {"logits": result} if isinstance(result, torch.Tensor) else result if isinstance(result, Mapping) else {}
    named = [v for k, v in values.items() if "logits" in k and isinstance(v, torch.Tensor)]
    flat = [logits.reshape(-1, logits.shape[-1]) for logits in named]
    return [rows.float() if rows.dtype in _HALF else rows for rows in flat]
