"""What people call: ``Predictor`` answers for kernels, models and whole grids of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neusight
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DeviceError, NeusightError
from neusight.estimates import Estimate, KernelEstimate, Provenance
from neusight.executors.gpu.calibration.folder import load_calibrations
from neusight.executors.gpu.predictor import KernelEstimates, KernelPredictor
from neusight.executors.kinds import is_machine
from neusight.kernels import Kernel, KernelBatch
from neusight.kernels.named import requested
from neusight.schedule.serial import PreparedGraph, kernel_rows, prepare, serial

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from neusight.executors.tensordash.estimate import Sparsity
    from neusight.transforms.sparsity import SparsityProfile

Gpu = str | Path | DeviceSpec
_REMEMBERED = 256
"""Folded graphs that a predictor keeps: a few hundred kernels each."""


class Predictor:
    """Latency of kernels and models on any device.

    >>> predictor = Predictor.load()
    >>> predictor.estimate("gpt2-large", "l4", mode="training").latency_s
    >>> predictor.kernel("gemm", "l4", m=4096, n=4096, k=4096).utilisation

    One predictor answers many questions: it keeps tile models, devices and the kernels of every model that it has seen.
    """

    def __init__(self, kernels: KernelPredictor) -> None:
        self.kernel_predictor = kernels
        self._prepared = lru_cache(maxsize=_REMEMBERED)(_load)
        self._layered = lru_cache(maxsize=_REMEMBERED)(_load_layers)

    @classmethod
    def load(cls, tile_models: str | Path | None = None, calibrations: str | Path | None = None) -> Predictor:
        """A predictor with the tile models that ship, or with those of a folder that ``neusight train`` wrote.

        Args:
            tile_models: that folder.
            calibrations: a file that ``neusight calibrate`` wrote, or a folder of them. The commands take
                ``neusight.paths.calibrations_dir()``.

        Raises:
            ArtifactError: the folder holds no tile models of this protocol, or they are damaged; a calibration that is
                none, or was fitted on other tile models.
        """
        kernels = KernelPredictor.load(None if tile_models is None else Path(tile_models))
        if calibrations is not None:
            kernels = replace(kernels, corrections=load_calibrations(Path(calibrations), kernels))
        return cls(kernels)

    def kernel(self, kernel: Kernel | str, gpu: Gpu, /, overrides: Sequence[str] = (), **fields: Any) -> KernelEstimate:
        """One kernel launched alone, launch overhead included.

        Args:
            kernel: a kernel, or the name of a family or operator, whose shape ``fields`` give.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            overrides: ``key=value`` changes of the device.

        Raises:
            CoverageError: unknown kernel or field, or a field is missing.
            DeviceError: unknown device, or it lacks the dtype.
        """
        batch = requested(kernel, fields) if isinstance(kernel, str) else KernelBatch.of([kernel])
        device = as_device(gpu, overrides)
        device.gemm_flops_per_s(str(batch["dtype"][0]))
        return kernel_rows(batch, self.kernels(batch, device))[0]

    def kernels(self, batch: KernelBatch, gpu: Gpu) -> KernelEstimates:
        """A batch of kernels of one family, each launched alone: arrays of shape (n,). Devices that skip zeros meet
        none.
        """
        device = as_device(gpu)
        if is_machine(device):
            from neusight.executors.tensordash.estimate import machine_predictor
            from neusight.executors.tensordash.operands import without_zeros

            return machine_predictor(device).predict(without_zeros(batch), device)
        return self.kernel_predictor.predict(batch, device)

    def estimate(
        self,
        model: str | Path | torch.nn.Module,
        gpu: Gpu,
        mode: str = "inference",
        batch: int = 1,
        seq_len: int | None = None,
        dtype: str = "float32",
        optimizer: str = "none",
        attention: str = "eager",
        *,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        overrides: Sequence[str] = (),
        allow_fallback: bool = False,
        sparsity: Sparsity | None = None,
        simulate: bool = False,
        compression: bool = False,
    ) -> Estimate:
        """One step of a model on one device.

        Args:
            model: a name of the catalogue, a Hugging Face ``config.json``, ``package.module:function``, or a module
                with its ``inputs``.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            mode: ``inference`` or ``training`` (forward, backward and, if chosen, the optimizer).
            batch: samples a step.
            seq_len: tokens a sample; default is the model's own.
            dtype: of weights and activations.
            optimizer: ``none``, ``sgd``, ``adam`` or ``adamw``.
            attention: ``eager``, ``sdpa`` or ``flash``.
            inputs: example inputs of a module, named or positional; values do not matter, shapes do.
            overrides: ``key=value`` changes of the device; the estimate says that it is hypothetical.
            allow_fallback: estimate operators without a rule as data movement, visibly, instead of raising.
            sparsity: zeros of the layers' tensors, for devices that skip them: a ``SparsityProfile``, its file, or
                ``activations=0.6,gradients=0.5`` for all layers. Other devices don't care.
            simulate: on such a device, run its scheduler instead of the tile model that has learned from it.
            compression: on such a device, zeros don't travel to and from DRAM.

        Raises:
            ModelError: the model is unknown, or cannot run so.
            CoverageError: an operator has no rule.
            DeviceError: the device is unknown, malformed, or lacks the dtype.
            DataError: a sparsity profile is malformed, or of other layers than the model's.
        """
        device = as_device(gpu, overrides)
        device.gemm_flops_per_s(dtype)
        options = {"mode": mode, "batch": batch, "seq_len": seq_len, "dtype": dtype, "optimizer": optimizer}
        options |= {"attention": attention, "allow_fallback": allow_fallback}
        if is_machine(device):
            from neusight.executors.tensordash.estimate import as_profile, estimate_step

            profile = as_profile(sparsity)
            prepared, layers = self._with_layers(model, profile, inputs, options)
            said = self._provenance(device)
            return estimate_step(prepared, device, profile, layers, said, simulate, compression)
        prepared = self._step(model, inputs, options)
        return serial(prepared, device, self.kernel_predictor.predict, self._provenance(device))

    def _step(self, model: Any, inputs: Any, options: Mapping[str, Any]) -> PreparedGraph:
        if isinstance(model, str | Path):
            return self._prepared(str(model), _version(model), **options)
        return _load(model, 0, inputs=inputs, **options)

    def _with_layers(
        self, model: Any, profile: SparsityProfile, inputs: Any, options: Mapping[str, Any]
    ) -> tuple[PreparedGraph, tuple[str, ...] | None]:
        """The step with the layer of each of its kernels where the profile tells layers apart."""
        if not profile.layers:
            return self._step(model, inputs, options), None
        key = (str(model), _version(model)) if isinstance(model, str | Path) else None
        graph, layers, mapped = (
            self._layered(*key, **options) if key else _load_layers(model, 0, inputs=inputs, **options)
        )
        profile.check(mapped)
        return graph, layers

    def sweep(
        self,
        models: Iterable[str],
        gpus: Iterable[Gpu],
        batches: Iterable[int] = (1,),
        modes: Iterable[str] = ("inference",),
        seq_lens: Iterable[int | None] = (None,),
        dtypes: Iterable[str] = ("float32",),
        optimizer: str = "none",
        attention: str = "eager",
        progress: Callable[[int, int], None] | None = None,
        sparsity: Sparsity | None = None,
    ) -> pd.DataFrame:
        """Every combination as one row a step: latency, throughput, memory and cost, for capacity planning.

        A step that does not fit has ``fits`` False; one that cannot be estimated has its reason in ``error`` and no
        figures. Columns: model, gpu, mode, batch, seq_len, dtype, latency_ms, low_ms, high_ms, bound_ms, limiter,
        samples_per_s, tokens_per_s, memory_gib, fits, usd_per_million_samples, error.

        >>> table = predictor.sweep(["gpt2-large"], ["l4", "a100-pcie-80gb"], [1, 2, 4, 8], modes=["training"])
        >>> table[table.fits].sort_values("samples_per_s").groupby("gpu").last()   # the best batch a GPU

        Args:
            models, gpus, batches, modes, seq_lens, dtypes: what to combine.
            optimizer, attention: of all steps.
            progress: called with (done, of) after each row.
            sparsity: as ``estimate`` takes it, for devices that skip zeros.
        """
        import pandas as pd

        grid = list(product(models, gpus, modes, batches, seq_lens, dtypes))
        rows = []
        for done, point in enumerate(grid, start=1):
            rows.append(self._point(*point, optimizer, attention, sparsity=sparsity))
            if progress:
                progress(done, len(grid))
        return pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))

    def _point(
        self,
        model: str,
        gpu: Gpu,
        mode: str,
        batch: int,
        seq_len: int | None,
        dtype: str,
        *options: str,
        sparsity: Sparsity | None = None,
    ) -> dict[str, Any]:
        name = gpu.id if isinstance(gpu, DeviceSpec) else str(gpu)
        asked = {"model": model, "gpu": name, "mode": mode, "batch": batch, "seq_len": seq_len, "dtype": dtype}
        try:
            found = self.estimate(model, gpu, mode, batch, seq_len, dtype, *options, sparsity=sparsity)
            return asked | _figures(found) | {"error": ""}
        except NeusightError as error:
            return asked | {"fits": False, "error": str(error)}

    def _provenance(self, device: DeviceSpec) -> Provenance:
        said = self.kernel_predictor.provenance
        correction = self.kernel_predictor.correction(device)
        return Provenance(
            neusight=neusight.__version__,
            tile_models=said["tile_models"],
            training_gpus=tuple(said["training_gpus"]),
            hypothetical=device.hypothetical,
            calibration=correction.described() if correction else "",
        )


SWEEP_COLUMNS = (
    *("model", "gpu", "mode", "batch", "seq_len", "dtype", "latency_ms", "low_ms", "high_ms", "bound_ms", "limiter"),
    *("samples_per_s", "tokens_per_s", "memory_gib", "fits", "usd_per_million_samples", "error"),
)


def as_device(gpu: Gpu, overrides: Sequence[str] = ()) -> DeviceSpec:
    """The device that an id, a file or a spec stands for.

    Raises:
        DeviceError: unknown or malformed device, or changes of a spec, which ``model_copy`` makes.
    """
    if not isinstance(gpu, DeviceSpec):
        return _device(str(gpu), _version(gpu), tuple(overrides))
    if overrides:
        raise DeviceError(f"overrides need the id or file of a device, not the spec of {gpu.id}: use its model_copy()")
    return gpu


@lru_cache(maxsize=_REMEMBERED)
def _device(name: str, _version: int, overrides: tuple[str, ...]) -> DeviceSpec:
    return load_device(name, overrides)


def _version(name: str | Path) -> int:
    """Changes when the file of that name does; 0 where there is none."""
    try:
        return Path(name).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def _load(model: Any, _version: int, **options: Any) -> PreparedGraph:
    from neusight.workloads import load_graph

    return prepare(load_graph(model, **options))


def _load_layers(model: Any, _version: int, **options: Any) -> tuple[PreparedGraph, tuple[str, ...], tuple[str, ...]]:
    """The step folded by layer, the layer of each of its kernels, and the layers whose tensors may hold zeros."""
    from neusight.executors.tensordash.operands import by_layer, mapped_layers
    from neusight.workloads.load import trace_workload

    graph = trace_workload(model, **options)
    folded, layers = by_layer(graph)
    return prepare(folded), layers, mapped_layers(graph)


def _figures(estimate: Estimate) -> dict[str, Any]:
    low_s, high_s = estimate.interval
    price = estimate.usd_per_hour
    return {
        "seq_len": estimate.seq_len,
        "latency_ms": estimate.latency_s * 1e3,
        "low_ms": low_s * 1e3,
        "high_ms": high_s * 1e3,
        "bound_ms": estimate.bound_s * 1e3,
        "limiter": estimate.limiter,
        "samples_per_s": estimate.samples_per_s,
        "tokens_per_s": estimate.tokens_per_s,
        "memory_gib": estimate.memory.peak_bytes / 2**30,
        "fits": estimate.fits,
        "usd_per_million_samples": None if price is None else estimate.cost_usd(1e6),
    }
