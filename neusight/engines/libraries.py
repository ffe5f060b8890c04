"""The library whose kernels a serving engine runs, by operands and GPU; how it runs few bits and composes passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from neusight.devices.architectures import is_between
from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine
from neusight.engines.limits import release_of, tables_of
from neusight.kernels import KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import Quantisation, scheme_named

_rules = partial(tables_of, "libraries.toml")


def variant_of(engine: Engine, device: DeviceSpec, batch: KernelBatch) -> str:
    """``Conditions.variant`` of kernels of one family that are alike in their dtypes, "" where nobody knows it."""
    if batch.family not in _rules() or device.vendor != "nvidia":
        return ""
    known = (engine, device, _operands(batch))
    return str(next((rule["variant"] for rule in reversed(_rules()[batch.family]) if _holds(rule, *known)), ""))


def slowdown(engine: Engine, batch: KernelBatch) -> float:
    """Time of an engine's kernels of one family, alike in their dtypes, over that of those which laws are of."""
    times = {"gemm": engine.block_product_time, "moe": engine.block_experts_time}
    return times.get(batch.family, 1.0) if _operands(batch) == "block" else 1.0


def scheme_run(scheme: Quantisation, engine: Engine, device: DeviceSpec) -> Quantisation:
    """A scheme as an engine of a version runs it on a device, by the rules ``few_bits`` of ``libraries.toml``: which
    arithmetic, and up to which rows weights are widened within a product. Of rules that hold all count, in their order.
    """
    for rule in _rules()["few_bits"]:
        if _concerns(rule, scheme) and _is_run(rule, engine, device):
            changes = {name: value for name, value in rule.items() if name not in _CONDITIONS}
            becomes = changes.pop("becomes", "")
            scheme = replace(scheme_named(becomes, chosen=scheme), **changes)
    return scheme


def engine_run(engine: Engine, device: DeviceSpec, *, aiter: bool | None = None) -> Engine:
    """An engine as its version composes passes on a device, by the rules ``passes`` of ``libraries.toml``; ``aiter``
    where AMD's kernels for engines run.
    """
    for rule in _rules()["passes"]:
        if _is_run(rule, engine, device) and rule.get("aiter", bool(aiter)) == bool(aiter):
            engine = replace(engine, **{name: value for name, value in rule.items() if name not in _CONDITIONS})
    return engine


_CONDITIONS = (
    "engine", "since", "until", "from", "before", "vendor", "formats", "methods", "experts_alone", "lacks", "has",
    "applies_block_scales", "aiter",
)  # fmt: skip


def _concerns(rule: Mapping[str, Any], scheme: Quantisation) -> bool:
    """Whether a rule is for a scheme, by its format, method and what it quantises."""
    return (
        scheme.format in rule.get("formats", (scheme.format,))
        and scheme.method in rule.get("methods", (scheme.method,))
        and (not rule.get("experts_alone") or scheme.kinds == {"experts"})
    )


def _is_run(rule: Mapping[str, Any], engine: Engine, device: DeviceSpec) -> bool:
    """Whether a rule is for an engine of a version on a device."""
    name = engine.name
    capability = getattr(device, "compute_capability", None) or "0.0"
    return (
        name in rule.get("engine", (name,))
        and device.vendor == rule.get("vendor", device.vendor)
        and (device.vendor != "nvidia" or is_between(capability, rule.get("since", "0.0"), rule.get("until", "99.0")))
        and _is_of_version(rule, engine)
        and ("lacks" not in rule or not device.multiplies(rule["lacks"]))
        and ("has" not in rule or device.multiplies(rule["has"]))
        and (not rule.get("applies_block_scales") or device.facts.applies_block_scales)
    )


def _is_of_version(rule: Mapping[str, Any], engine: Engine) -> bool:
    name, release = engine.name, release_of(engine.name, engine.serving.version)
    older, newer = release_of(name, rule.get("from", "0.0")), release_of(name, rule.get("before", ""))
    return older <= release and ("before" not in rule or release < newer)


def _holds(rule: Mapping[str, Any], engine: Engine, device: DeviceSpec, operands: str) -> bool:
    era = engine.serving.era
    return (
        (engine.library or engine.name) in rule["engine"]
        and _is_of_version(rule, engine)
        and is_between(device.compute_capability, rule.get("since", "0.0"), rule.get("until", "99.0"))
        and era in rule.get("eras", (era,))
        and operands in rule.get("operands", (operands,))
    )


def _operands(batch: KernelBatch) -> str:
    """What operands lie in, as rules name it."""
    if batch.family == "attention":
        scores, chosen = batch["op"][0] == "indexer", batch["selected"][0] > 0
        kinds = {"scores": scores, "chosen": chosen, "latent": batch["shared_kv"][0]}
        width = "8 bit" if stored_bytes(str(batch["kv_dtype"][0]) or str(batch["dtype"][0])) < 2.0 else "16 bit"
        return next((kind for kind, holds in kinds.items() if holds), width)
    if "scaling" not in batch.columns:
        return ""
    scaling = str(batch["scaling"][0])
    return scaling if scaling == "group" else str(batch["weight_dtype"][0]) or scaling or "16 bit"
