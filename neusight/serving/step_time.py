"""``StepTimePredictor``: times of an engine's passes for simulators, as a regressor in scikit-learn's manner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import load_device
from neusight.errors import LoadError, nearest, shown
from neusight.executors import Costs, Options, load_executor
from neusight.executors.base import LINK
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.routes import Place, device_of
from neusight.serving.deployment import Deployment
from neusight.serving.passes import ReplicaPricer
from neusight.serving.setup import Setup
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Steps

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("prompts", "prompt_tokens", "prompt_cached", "decodes", "decode_cached")


@dataclass(eq=False, repr=False)
class StepTimePredictor:
    """What passes of a served model take, as a regressor that needs no fit.

    >>> steps = {"prompts": [1, 0], "prompt_tokens": [2048, 0], "decodes": [0, 64], "decode_cached": [0, 1500]}
    >>> StepTimePredictor("Qwen/Qwen3-32B", "h200", tp=2, dtype="fp8").predict(steps)

    Args:
        model: a name of the hub that is known, a ``config.json``, or its folder.
        gpu: id of the catalogue or a device file.
        engine, engine_version, dtype, kv_dtype, tp, pp, ep, dp: fields of ``Setup``.
        overrides: ``key=value`` changes of the device.
    """

    model: str
    gpu: str
    _: KW_ONLY
    engine: str = "vllm"
    engine_version: str = ""
    dtype: str = ""
    kv_dtype: str = ""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    overrides: Sequence[str] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Arguments of the constructor; ``deep`` means nothing, there are none inside of others."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def set_params(self, **params: Any) -> StepTimePredictor:
        """Change arguments of the constructor.

        Raises:
            LoadError: an unknown one.
        """
        for name, value in params.items():
            if name not in (known := self.get_params()):
                raise LoadError(f"unknown parameter '{shown(name)}'{nearest(name, tuple(known))}")
            setattr(self, name, value)
        return self

    def fit(self, X: Any = None, y: Any = None) -> StepTimePredictor:  # noqa: N803
        """Nothing: all is known already; so that pipelines and simulators that fit their predictors can hold it."""
        return self

    def predict(self, X: Mapping[str, Any] | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Times of passes [s], shape (n,).

        Args:
            X: columns of shape (n,) or scalars by the names of ``Steps``: ``prompts`` sequences with ``prompt_tokens``
                new tokens each behind ``prompt_cached``, ``decodes`` sequences with ``decode_cached`` in the cache;
                what is missing is 0.

        Raises:
            LoadError: no or unknown columns, columns of unequal lengths, or entries below 0 or that are no numbers.
            ModelError, DeviceError: as ``Predictor.deployment``; what does not fit has no passes.
        """
        steps = Steps.of(**_columns(X))
        return self.replica().predict(steps).latency_s if len(steps) else np.zeros(0)

    def replica(self) -> ReplicaPricer:
        """What passes are priced with, made anew for other parameters."""
        params = self.get_params()
        key = tuple(map(str, params.values()))
        if getattr(self, "_replica", (None,))[0] != key:
            model, gpu, overrides = (params.pop(name) for name in ("model", "gpu", "overrides"))
            setup = Setup(**params)
            replica = setup.replica(known_decoder(str(model)), load_device(str(gpu), overrides), _priced)
            Deployment(replica=replica, setup=setup, longest=1).check_memory()
            self._replica = (key, replica)
        return self._replica[1]


def _columns(given: Mapping[str, Any] | pd.DataFrame) -> dict[str, np.ndarray]:
    names = [str(name) for name in given]
    if unknown := [name for name in names if name not in COLUMNS]:
        raise LoadError(f"unknown column '{shown(unknown[0])}'{nearest(unknown[0], COLUMNS)}: {', '.join(COLUMNS)}")
    if not names:
        raise LoadError(f"passes without columns: give some of {', '.join(COLUMNS)}")
    columns = {name: _numbers(name, given[name]) for name in names}
    if len(lengths := {len(column) for column in columns.values() if column.ndim}) > 1:
        raise LoadError(f"columns of {sorted(lengths)} rows: give one entry a pass")
    return columns


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        column = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise LoadError(f"column {name} holds what is no number: give counts of sequences or tokens") from None
    if column.ndim > 1 or not (np.isfinite(column) & (column >= 0)).all():
        raise LoadError(f"column {name} holds what is no count: give one dimension of numbers from 0 on")
    return np.rint(column).astype(np.int64)


@cache
def _executor(kind: str) -> Any:
    return load_executor(kind)


def _priced(batch: KernelBatch, place: Place, conditions: Conditions) -> Costs:
    """As ``Predictor.deployment`` prices them."""
    kind = LINK if batch.family == "collective" else device_of(place).kind
    costs: Costs = _executor(kind).cost(batch, place, Options(learned=False), conditions)
    return costs
