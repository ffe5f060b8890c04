"""Plans from files: in this program's format, and configurations of torchtitan and DeepSpeed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from neusight.errors import DataError, nearest, shown
from neusight.paths import user_path
from neusight.plans.deepspeed import deepspeed_values, is_deepspeed
from neusight.plans.torchtitan import is_torchtitan, torchtitan_values
from neusight.requests import Plan

PLAN = tuple(f.name for f in fields(Plan))
STEP = (
    "seq_len", "dtype", "optimizer", "moment_dtype", "micro_batches", "lora_rank", "adapter", "adapted", "source_len",
    "mtp_layers", "embedding_shard",
)  # fmt: skip
"""Fields of a training step in addition to its plan and its engine."""
RUN = ("engine", *STEP)
"""Fields of a run that a file may have, in addition to the fields of ``Plan``."""
_FORMER = {
    "micro_batch": "micro_batch_size", "global_batch": "global_batch_size", "overlap_gradients": "overlap_grad_reduce",
    "overlap_parameters": "overlap_param_gather", "lora": "lora_rank",
}  # fmt: skip
"""Names that fields of plans and runs had, which files may still use."""


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Contents of a file of a training step: ``fields`` of ``Plan`` and of ``RUN``; ``unread``: options of the file
    that matter to a step and have no place here.
    """

    fields: Mapping[str, Any]
    unread: tuple[str, ...] = ()


def read_plan(source: str | Path, depth: int = 0) -> PlanFile:
    """Read a plan from a file.

    Args:
        source: ``.toml`` of this program or of torchtitan; ``.json`` of this program or of DeepSpeed.
        depth: layers of the model, in which some of these files count.

    Raises:
        DataError: no such file, or another format. ModelError: values that no plan can have.
    """
    path = user_path(str(source))
    table = _parse(path, _text(path))
    if path.suffix == ".toml" and is_torchtitan(table):
        return _plan_file(*torchtitan_values(table, depth))
    if path.suffix == ".json" and is_deepspeed(table):
        return _plan_file(*deepspeed_values(table))
    return _read_fields(table, path)


def write_plan(path: Path, plan: Plan, run: Mapping[str, Any]) -> None:
    """Write a TOML file that ``read_plan`` reads.

    Args:
        path: the file.
        plan: fields that differ from the defaults of ``Plan`` are written, and all switches.
        run: values of ``RUN``.

    Raises:
        DataError: another ending.
    """
    if path.suffix != ".toml":
        raise DataError(f"{path} does not end in .toml: name it so")
    usual = asdict(Plan())
    values = {name: value for name, value in asdict(plan).items() if value != usual[name] or isinstance(value, bool)}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (values | dict(run)).items()))


def _plan_file(values: dict[str, Any], unread: list[str]) -> PlanFile:
    return PlanFile(fields={key: value for key, value in values.items() if value is not None}, unread=tuple(unread))


def _read_fields(table: Mapping[str, Any], path: Path) -> PlanFile:
    names, table = (*PLAN, *RUN), {_FORMER.get(name, name): value for name, value in table.items()}
    for name in table:
        if name not in names:
            raise DataError(
                f"{path}: unknown key '{shown(name)}'{nearest(str(name), names)}: one of {', '.join(names)}"
            )
    for name, value in table.items():
        if not isinstance(value, str | int):
            raise DataError(f"{path}: {name} = {shown(value)}: give a whole number, true, false or a word")
    return PlanFile(fields=table)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text: give a plan as .toml or .json") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} does not read as {path.suffix[1:]}: {error}: mend it") from None
    if not isinstance(table, dict):
        raise DataError(f"{path} holds no table: write a plan's fields as keys")
    return table
