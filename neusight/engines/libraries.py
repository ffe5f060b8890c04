"""``variant_of``: the library whose kernels a serving engine runs, by what they work on and the GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from neusight.devices.architectures import is_between
from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine
from neusight.kernels import KernelBatch
from neusight.kernels.precision import stored_bytes

_FILE = Path(__file__).with_name("libraries.toml")


def variant_of(engine: Engine, device: DeviceSpec, batch: KernelBatch) -> str:
    """``Conditions.variant`` of kernels of one family that are alike in their dtypes, "" where nobody knows it."""
    rules = _rules().get(batch.family, ())
    if not rules or device.vendor != "nvidia":
        return ""
    era, operands = engine.serving.era, _operands(batch)
    held = (r["variant"] for r in reversed(rules) if _holds(r, engine.library, era, device, operands))
    return str(next(held, ""))


def _holds(rule: Mapping[str, Any], library: str, era: str, device: DeviceSpec, operands: str) -> bool:
    return (
        library in rule["engine"]
        and is_between(device.compute_capability, rule.get("since", "0.0"), rule.get("until", "99.0"))
        and era in rule.get("eras", (era,))
        and operands in rule.get("operands", (operands,))
    )


def _operands(batch: KernelBatch) -> str:
    """What operands lie in, as rules name it."""
    if batch.family == "attention":
        narrow = str(batch["kv_dtype"][0]) or str(batch["dtype"][0])
        return "8 bit" if stored_bytes(narrow) < 2.0 else "16 bit"
    if "scaling" not in batch.columns:
        return ""
    return str(batch["weight_dtype"][0]) or str(batch["scaling"][0]) or "16 bit"


@cache
def _rules() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
