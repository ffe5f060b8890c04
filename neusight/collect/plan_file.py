"""A finite plan in a file: kernels that someone chose, with the samples that they will have as rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from neusight.collect.tasks import KernelTask
from neusight.errors import DataError
from neusight.kernels import KERNEL_CLASSES

PROTOCOL = 1


def write_plan(path: Path, tasks: Sequence[KernelTask]) -> None:
    """Write kernels in the order of measuring as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"protocol": PROTOCOL, "kernels": [task.describe() for task in tasks]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_plan(path: Path) -> list[KernelTask]:
    """Read what ``write_plan`` wrote.

    Raises:
        DataError: missing, malformed, of another protocol, empty, or with a kernel that its sample does not name.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the plan {path}: {error}; write one with neusight calibrate plan --out") from None
    protocol = content.get("protocol") if isinstance(content, dict) else None
    if protocol != PROTOCOL:
        raise DataError(f"{path}: protocol {protocol} is not {PROTOCOL}: write it again with neusight calibrate plan")
    try:
        tasks = [_task(row) for row in content["kernels"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no plan ({error}): write it again with neusight calibrate plan") from None
    if not tasks:
        raise DataError(f"{path} has no kernels: write it again with neusight calibrate plan")
    return tasks


def _task(row: dict[str, Any]) -> KernelTask:
    kind = KERNEL_CLASSES[row["family"]]
    kernel = kind(**{f.name: row[f.name] for f in fields(kind)})
    task = KernelTask(kernel=kernel, split=row["split"], repeat=row["repeat"])
    if task.sample != row["sample"]:
        raise ValueError(f"sample {row['sample']} is another kernel")
    return task
