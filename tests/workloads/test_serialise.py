"""Stored workloads come back equal, and are refused when they are not what they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from small_models import traced

from neusight.errors import DataError
from neusight.workloads.serialise import VERSION, from_json, to_json

STEPS: list[tuple[str, int, dict[str, Any]]] = [
    ("gpt2", 12, {"mode": "training", "optimizer": "adamw"}),
    ("gpt2", 4, {"mode": "training", "attention": "sdpa", "dtype": "bfloat16"}),
    ("switch", 0, {}),
    ("resnet", 0, {"mode": "training", "optimizer": "sgd"}),
]


def test_a_workload_round_trips_exactly_and_to_the_same_text() -> None:
    wrong = []
    for name, layers, options in STEPS:
        workload = traced(name, layers, **options)
        text = to_json(workload)
        again = from_json(text)
        if again != workload or to_json(again) != text or again.memory != workload.memory:
            wrong.append((name, layers, options))
    assert wrong == []


def test_what_is_no_stored_workload_is_refused_with_what_to_do() -> None:
    text = to_json(traced("gpt2"))
    content = json.loads(text)
    family, fields = content["kernels"][0]
    strange = content | {"kernels": [[family, fields | {"colour": 3}], *content["kernels"][1:]]}
    cases = {
        text[: len(text) // 2]: "truncated",
        json.dumps(content | {"version": 99}): f"version 99, this program reads {VERSION}: trace the model again",
        json.dumps({k: v for k, v in content.items() if k != "tensors"}): "tensors",
        json.dumps(content | {"nodes": [[0] * 3]}): "malformed",
        json.dumps(strange): "colour",
        **dict.fromkeys(("[]", "3", "{}", '{"version": 1}'), "trace the model again"),
    }
    for damaged, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            from_json(damaged)
        assert "\n" not in str(caught.value)


def test_reading_a_workload_loads_no_tensor_library() -> None:
    program = (
        "import sys; from neusight.workloads.serialise import from_json; from_json(sys.stdin.read());"
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=to_json(traced("gpt2")), text=True, check=False)
    assert done.returncode == 0
