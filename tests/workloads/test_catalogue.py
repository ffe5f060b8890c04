"""The catalogue: names, sizes and limits of the ready workloads, and what a file or folder stands for."""

import json

import pytest

from neusight.errors import ModelError
from neusight.workloads import list_traced, list_workloads, resolve
from neusight.workloads.catalogue import KINDS, canonical_name, catalogue_config, is_image_config, own_attention
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


def build(name, mode="training", attention="eager"):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from neusight.workloads.trace.building import built

    with FakeTensorMode(allow_non_fake_inputs=True):
        return built(lambda: build_model(catalogue_config(name), mode, attention), torch.float32)


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


# Billions of parameters by name. GPT-3: Brown et al. 2020, table 2.1; OPT: Zhang et al. 2022, table 1; LLaMA: Touvron
# et al. 2023, Grattafiori et al. 2024; T5: Raffel et al. 2020, section 3.7; BERT: Devlin et al. 2019, section 3;
# Switch: Fedus et al. 2022, table 9; ResNet, AlexNet, VGG: torchvision; ViT: Dosovitskiy et al. 2021, table 1.
PUBLISHED = {
    "bert-base": 0.110, "bert-large": 0.340, "gpt2": 0.124, "gpt2-medium": 0.355, "gpt2-large": 0.774,
    "gpt2-xl": 1.558, "gpt3-small": 0.125, "gpt3-medium": 0.350, "gpt3-large": 0.760, "gpt3-xl": 1.3,
    "gpt3-2.7b": 2.7, "gpt3-6.7b": 6.7, "gpt3-13b": 13.0, "gpt3-175b": 175.0, "opt-125m": 0.125, "opt-350m": 0.331,
    "opt-1.3b": 1.3, "opt-2.7b": 2.7, "opt-6.7b": 6.7, "opt-13b": 13.0, "opt-30b": 30.0, "opt-66b": 66.0,
    "llama-2-7b": 6.74, "llama-2-13b": 13.0, "llama-2-70b": 69.0, "llama-3-8b": 8.03, "llama-3-70b": 70.6,
    "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "llama-3.1-405b": 405.0, "llama-3.2-1b": 1.23, "llama-3.2-3b": 3.21,
    "mistral-7b": 7.25, "t5-small": 0.060, "t5-base": 0.220, "t5-large": 0.770, "t5-3b": 2.8, "t5-11b": 11.0,
    "switch-base-8": 0.620, "vit-base": 0.086, "vit-large": 0.304, "resnet-18": 0.0117, "resnet-50": 0.0256,
    "resnet-101": 0.0445, "resnet-152": 0.0602, "alexnet": 0.0611, "vgg16": 0.138, "clip-vit-b-32": 0.151,
    "clip-vit-l-14": 0.428, "siglip-base-16": 0.203, "siglip-so400m-14": 0.877, "whisper-small": 0.244,
    "whisper-large-v3": 1.55, "mamba2-370m": 0.370, "mamba2-2.7b": 2.7, "mixtral-8x7b": 46.7, "convnext-tiny": 0.0286,
    "convnext-base": 0.0886, "efficientnet-b0": 0.0053, "efficientnet-b7": 0.066, "swin-tiny": 0.0283,
    "swin-base": 0.0878, "detr-resnet-50": 0.041, "sd-1.5-unet": 0.860, "sd-2.1-unet": 0.866, "sdxl-unet": 2.6,
    "dit-xl-2": 0.675, "pixart-alpha": 0.600, "sd3-medium": 2.0, "flux-dev": 12.0, "lstm-ptb-large": 0.066,
    "waveglow": 0.268, "jasper-10x5-dr": 0.333, "quartznet-15x5": 0.0189, "u-net": 0.031, "nnu-net-3d": 0.0312,
    "transformer-xl-base": 0.192, "gnmt-v2": 0.160,
}  # fmt: skip
UNPUBLISHED = {
    *("opt-one-layer", "gpt3-xl-3072"),  # as they were measured for the float32 data sets
    *("switch-base-4", "switch-base-16", "switch-xl-4"),  # with other counts of experts than the paper's
    *("dlrm-kaggle", "dlrm-terabyte", "gru-deep-speech-2"),  # in which tables and vocabulary are the data's
    *("cogvideox-2b", "cogvideox-5b"),  # in whole billions alone
    *("sd-1.5-pipeline", "pixart-alpha-pipeline", "flux-dev-pipeline"),  # of parts that are counted by themselves
    *("cogvideox-2b-pipeline", "cogvideox-5b-pipeline"),
    "translation-decoder",  # of the words of a checkpoint
    *("wide-and-deep", "ssd300-resnet50", "nnu-net-2d", "transformer-xl-large"),  # sizes of examples that count none
    "hifi-gan",  # of which the generator alone is counted
    *("mlperf-tiny-kws", "mlperf-tiny-vww", "mlperf-tiny-ic", "mlperf-tiny-ad"),  # in bytes of their files alone
}


def test_every_model_has_the_size_that_was_published():
    stated = {info.name: info.parameters for info in (*list_workloads(), *list_traced())}
    assert PUBLISHED.keys() | UNPUBLISHED == stated.keys()
    wrong = {
        name: stated[name] for name, billions in PUBLISHED.items() if abs(stated[name] / 1e9 / billions - 1) > 0.05
    }
    # The published count of DiT leaves out the second layer of its modulation that diffusers gives every block.
    assert wrong.keys() <= {"dit-xl-2"}


def test_the_catalogue_knows_which_attention_transformers_takes():
    names = ("bert-base", "gpt2", "opt-125m", "llama-3.2-1b", "mistral-7b", "t5-small", "switch-base-4", "vit-base")
    assert {catalogue_config(info.name)["model_type"] for info in list_workloads()} == {
        *(catalogue_config(name)["model_type"] for name in names), "resnet", "alexnet", "vgg"
    }  # fmt: skip
    taken = {name: build(name, attention="").config._attn_implementation for name in names}
    assert {name: own_attention(catalogue_config(name)) for name in names} == taken


def test_gpt3_has_the_sizes_of_its_paper():
    # Brown et al. 2020, table 2.1: layers and width; 24 heads of 128 are not 2048 wide, so that there are 16.
    paper = {
        "small": (12, 768), "medium": (24, 1024), "large": (24, 1536), "xl": (24, 2048), "2.7b": (32, 2560),
        "6.7b": (32, 4096), "13b": (40, 5140), "175b": (96, 12288),
    }  # fmt: skip
    configs = {size: catalogue_config(f"gpt3-{size}") for size in paper}
    shapes = {size: (config["n_layer"], config["n_embd"]) for size, config in configs.items()}
    # 5140 does not divide into 40 heads.
    assert shapes == paper | {"13b": (40, 5120)}
    assert configs["xl"]["n_embd"] // configs["xl"]["n_head"] == 128


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
