"""Engines that ship, by name: ``engines.toml``, whose keys are fields of ``Engine`` and of ``Server``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from neusight.engines.engine import Engine
from neusight.engines.server import ALL_AT_ONCE, SCHEDULERS, Server

_GROUPS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("engines.toml").read_text(encoding="utf-8")
)
_TABLES = {name: table for group in _GROUPS.values() for name, table in group.items()}
_SCHEDULERS = SCHEDULERS | {ALL_AT_ONCE.name: ALL_AT_ONCE}


def _engine(name: str) -> Engine:
    """Build an engine from its table and those of the engines that it is like."""
    engine_fields, server_fields = _fields(name)
    if not server_fields:
        return Engine(name=name, **engine_fields)
    scheduler = _SCHEDULERS[server_fields.pop("scheduler")]
    return Engine(name=name, **engine_fields, server=Server(scheduler=scheduler, **server_fields))


def _fields(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of ``Engine`` and of ``Server`` that a table gives, or that of the engine that it is like."""
    table = dict(_TABLES[name])
    server_fields = table.pop("server", {})
    inherited: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    if "like" in table:
        inherited = _fields(table.pop("like"))
    engine_fields = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return inherited[0] | engine_fields, inherited[1] | server_fields


TRAINERS = tuple(_GROUPS["training"])
"""Names of engines that train."""
SERVERS = tuple(_GROUPS["serving"])
"""Names of engines that serve requests."""
ENGINES: dict[str, Engine] = {name: _engine(name) for name in (*TRAINERS, *_GROUPS["steps"], *SERVERS)}
"""Engines that a question may name."""
WHOLE_PROGRAMS = _engine(*_GROUPS["compilers"])
"""The engine that others become on devices that run whole programs alone."""
