"""Rules: which kernels a GPU runs for an ATen operator. One module a family; importing the package registers all."""

from importlib import import_module
from pkgutil import iter_modules

from neusight.workloads.rules.registry import fallback, has_rule, kernels_of, rule

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["fallback", "has_rule", "kernels_of", "rule"]
