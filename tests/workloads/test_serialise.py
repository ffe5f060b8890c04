"""Workloads as text, and traces kept as such between runs: exact, of one version, by content."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from small_models import traced

from neusight.errors import DataError
from neusight.kernels import Gemm
from neusight.workloads import load, load_workload
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


TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 100}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    return file


def entries(tmp_path):
    return sorted((tmp_path / "cache" / "traces").glob("*"))


def test_the_second_load_reads_an_equal_graph_and_traces_nothing(config, tmp_path, monkeypatch):
    first = load_workload(str(config), mode="training", optimizer="adamw", batch=2)
    assert [file.suffix for file in entries(tmp_path)] == [".json"]
    monkeypatch.setattr(load, "trace_source", lambda *_: pytest.fail("traced again"))
    assert load_workload(str(config), mode="training", optimizer="adamw", batch=2) == first


def test_every_option_and_the_content_have_entries_of_their_own(config, tmp_path):
    load_workload(str(config))
    for number, change in enumerate(({"batch": 2}, {"seq_len": 8}, {"mode": "training"}, {"dtype": "float16"}), 2):
        load_workload(str(config), **change)
        assert len(entries(tmp_path)) == number
    config.write_text(json.dumps(TINY | {"n_layer": 1}))
    assert len(load_workload(str(config)).launches) > 0
    assert len(entries(tmp_path)) == 6


def test_a_damaged_entry_is_traced_again_and_mended(config, tmp_path):
    first = load_workload(str(config))
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    for damage in (b"", b"{", b'{"version": 1}', b"\xff\xfe", b"[]"):
        entry.write_bytes(damage)
        assert load_workload(str(config)) == first
        assert entry.read_bytes() == whole, damage


def test_without_the_cache_nothing_is_written(config, tmp_path):
    load_workload(str(config), cache=False)
    assert entries(tmp_path) == []


def test_a_folder_that_cannot_be_written_does_not_matter(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "file"))
    assert load_workload(str(config)).request.batch == 1


def products(workload):
    return [launch.kernel for launch in workload.launches if isinstance(launch.kernel, Gemm)]


def test_a_function_is_traced_again_when_its_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    source = "import torch\n\n\ndef model(batch):\n    return torch.nn.Linear(8, WIDTH), torch.zeros(batch, 8)\n"
    (tmp_path / "user_models.py").write_text(source.replace("WIDTH", "16"))
    first = load_workload("user_models:model", batch=3)
    (gemm,) = products(first)
    assert (gemm.m, gemm.n, gemm.k) == (3, 16, 8)
    (tmp_path / "user_models.py").write_text(source.replace("WIDTH", "320"))
    sys.modules.pop("user_models")
    (gemm,) = products(load_workload("user_models:model", batch=3))
    assert gemm.n == 320


def test_stored_and_shipped_workloads_load_no_heavy_library(config):
    load_workload(str(config))
    code = (
        "import sys\n"
        "from neusight.workloads import load_workload, shipped_step\n"
        f"load_workload({str(config)!r})\n"
        "assert shipped_step('gpt3-xl', mode='training', batch=3, seq_len=777, optimizer='adamw')\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'lightgbm', 'sklearn', 'scipy') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
