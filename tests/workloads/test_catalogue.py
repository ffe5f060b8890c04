"""The catalogue: names, sizes and limits of the ready workloads, and what a file or folder stands for."""

import json
import os
from pathlib import Path

import pytest

from neusight.errors import ModelError
from neusight.workloads import list_workloads, resolve
from neusight.workloads.catalogue import KINDS, canonical_name, catalogue_config, is_image_config
from neusight.workloads.huggingface import build_model

# What the authors of the models (or the papers) state, counted with the head of pre-training.
PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "resnet-50": 25_557_032,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "vit-base": 86_567_656,
    "t5-small": 60_506_624,
}


def build(name, mode="training"):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from neusight.workloads.trace.building import built

    with FakeTensorMode(allow_non_fake_inputs=True):
        return built(lambda: build_model(catalogue_config(name), mode, "eager"), torch.float32)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_workload_builds_with_the_parameters_the_catalogue_states():
    stated = {info.name: info.parameters for info in list_workloads()}
    counted = {name: count(build(name)) for name in stated}
    assert counted == stated
    assert {name: stated[name] for name in PARAMETERS} == PARAMETERS
    assert count(build("bert-large").bert) == 335_141_888


def test_bert_trains_with_pre_training_heads_and_infers_as_a_classifier():
    assert type(build("bert-base", "training")).__name__ == "BertForPreTraining"
    assert type(build("bert-base", "inference")).__name__ == "BertForSequenceClassification"


def test_gpt3_xl_is_the_model_that_was_measured():
    config = catalogue_config("gpt3-xl")
    assert (config["n_embd"], config["n_head"], config["n_layer"]) == (3072, 24, 24)


def test_kinds_limits_and_names():
    for info in list_workloads():
        config = catalogue_config(info.name)
        assert info.kind in KINDS
        assert (info.kind == "image") == is_image_config(config)
        relative = info.kind in ("encoder-decoder", "mixture-of-experts", "image")
        assert (info.max_seq_len is None) == relative
    names = [name for info in list_workloads() for name in (info.name, *info.aliases)]
    assert len(names) == len(set(names))
    for info in list_workloads():
        assert {canonical_name(alias) for alias in (info.name, *info.aliases)} == {info.name}


def test_spelling_of_a_name_and_the_nearest_of_an_unknown_one():
    for spelling in ("GPT2-Large", "gpt2_large", "openai-community/gpt2-large"):
        assert resolve(spelling).catalogue == "gpt2-large"
    with pytest.raises(ModelError, match=r"unknown model 'gpt2-lrge'; did you mean gpt2-large"):
        resolve("gpt2-lrge")


def test_measured_configurations_are_ready_workloads():
    data = os.environ.get("NEUSIGHT_DATA")
    if not data:
        pytest.skip("NEUSIGHT_DATA is not set")
    configs = sorted(Path(data, "neusight-fp32/models/configs").glob("*.json"))
    assert len(configs) >= 12
    for file in configs:
        by_file, by_name = resolve(str(file)), resolve(file.stem)
        assert by_file.catalogue == by_name.catalogue is not None
        assert by_file.name == file.stem


def test_a_changed_size_is_another_workload(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(catalogue_config("gpt2") | {"summary_type": "mean"}))
    assert resolve(str(file)).catalogue == "gpt2"
    file.write_text(json.dumps(catalogue_config("gpt2") | {"n_layer": 11}))
    assert resolve(str(file)).catalogue is None


def test_a_folder_is_a_path_and_a_bare_name_is_the_catalogue_s(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "gpt2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(catalogue_config("gpt2") | {"n_layer": 3}))
    monkeypatch.chdir(tmp_path)
    for path in ("mine/gpt2", "./mine/gpt2", str(folder), "mine/gpt2/config.json"):
        source = resolve(path)
        assert (source.name, source.catalogue, source.config["n_layer"]) == ("gpt2", None, 3)
    monkeypatch.chdir(tmp_path / "mine")
    assert resolve("gpt2").config["n_layer"] == 12
    monkeypatch.chdir(folder)
    assert resolve("config.json").name == "gpt2"
