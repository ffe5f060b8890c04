"""Stored graphs come back equal, and are refused when they are not what they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from neusight.errors import DataError
from neusight.workloads.graph import Graph
from neusight.workloads.serialise import from_json, to_json


def test_folded_graph_round_trips_exactly(gpt2: Callable[..., Graph]) -> None:
    folded = gpt2(mode="training", optimizer="adamw").fold()
    assert from_json(to_json(folded)) == folded


def test_full_graph_round_trips_exactly(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training", optimizer="adamw")
    assert from_json(to_json(graph)) == graph


def test_text_is_the_same_for_the_same_graph(gpt2: Callable[..., Graph]) -> None:
    folded = gpt2().fold()
    assert to_json(from_json(to_json(folded))) == to_json(folded)


def test_truncated_text_is_refused(gpt2: Callable[..., Graph]) -> None:
    text = to_json(gpt2().fold())
    with pytest.raises(DataError, match="truncated"):
        from_json(text[: len(text) // 2])


def test_other_version_is_refused_with_both_numbers(gpt2: Callable[..., Graph]) -> None:
    content = json.loads(to_json(gpt2().fold())) | {"version": 99}
    with pytest.raises(DataError, match="version 99, this program reads 1"):
        from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["[]", "3", '{"version": 1}', '{"version": 1, "kind": "folded", "table": [{}]}'])
def test_json_that_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="trace the model again"):
        from_json(text)


def test_kernel_with_an_unknown_field_is_refused(gpt2: Callable[..., Graph]) -> None:
    content = json.loads(to_json(gpt2().fold()))
    content["table"][0]["colour"] = "red"
    with pytest.raises(DataError, match="colour"):
        from_json(json.dumps(content))


def test_reading_a_graph_loads_no_tensor_library(gpt2: Callable[..., Graph]) -> None:
    program = (
        "import sys; from neusight.workloads.graph import Graph; from neusight.workloads.serialise import from_json;"
        "from_json(sys.stdin.read()); sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=to_json(gpt2().fold()), text=True, check=False)
    assert done.returncode == 0
