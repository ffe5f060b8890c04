"""What kernels cost on a device: one executor a kind of device, found by ``DeviceSpec.kind``."""

from neusight.executors.base import Executor, Options, load_executor
from neusight.executors.costs import Costs, EnergyUse

__all__ = ["Costs", "EnergyUse", "Executor", "Options", "load_executor"]
