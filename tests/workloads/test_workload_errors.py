import json

import pytest

from neusight.errors import ModelError
from neusight.workloads import load_graph, resolve

TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 100}


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({k: v for k, v in (TINY | changes).items() if v is not None}))
        return str(file)

    return write


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)

    return write


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch 0 of gpt2: give at least 1"),
        ({"batch": -2}, "batch -2 of gpt2"),
        ({"seq_len": 0}, "sequence length 0 of gpt2: give at least 1"),
        ({"seq_len": 1025}, "sequence length 1025 is longer than gpt2 allows: at most 1024"),
        ({"mode": "trainin"}, "unknown mode 'trainin'; did you mean training"),
        ({"dtype": "float33"}, "unknown dtype 'float33'; did you mean float32"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm'; did you mean"),
        ({"attention": "flashy"}, "unknown attention 'flashy'; did you mean flash"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ModelError, match=message):
        load_graph("gpt2", **options)


def test_images_have_no_sequence():
    with pytest.raises(ModelError, match=r"resnet-50 reads images.*leave out --seq-len"):
        load_graph("resnet-50", seq_len=128)


def test_the_limit_of_a_configuration_file_holds_too(config):
    with pytest.raises(ModelError, match="at most 64"):
        load_graph(config(), seq_len=65)


def test_relative_positions_set_no_limit():
    assert load_graph("t5-small", seq_len=4096).seq_len == 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "states no model_type"),
        ('{"hidden_size": 8}', "states no model_type"),
        ('{"model_type": 3}', "states no model_type"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=message):
        resolve(str(file))
    with pytest.raises(ModelError, match=message):
        resolve(str(tmp_path))


def test_missing_file():
    with pytest.raises(ModelError, match=r"cannot read .*nowhere/config.json: No such file"):
        resolve("./nowhere/config.json")


def test_unknown_model_type_gets_the_nearest_one(config):
    with pytest.raises(ModelError, match=r"model_type 'gpt22' .*did you mean .*gpt2"):
        load_graph(config(model_type="gpt22"), cache=False)


def test_a_type_without_a_usable_head(config):
    with pytest.raises(ModelError, match="no language-model or image-classification head"):
        load_graph(config(model_type="encodec", n_embd=None, n_head=None), cache=False)


def test_fused_attention_that_a_model_does_not_have():
    with pytest.raises(ModelError, match="no fused attention in transformers: use --attention eager"):
        load_graph("switch-base-4", attention="sdpa")


def test_a_module_needs_inputs():
    from torch import nn

    with pytest.raises(ModelError, match="Linear needs inputs="):
        load_graph(nn.Linear(2, 3))
    with pytest.raises(ModelError, match="cannot use int as a model"):
        load_graph(3)


def test_functions_that_cannot_be_found(module):
    module("models_here", "def tiny():\n    return 1\n")
    with pytest.raises(ModelError, match="no module 'models_there'"):
        resolve("models_there:tiny")
    with pytest.raises(ModelError, match="has no function 'tinny'; did you mean tiny"):
        load_graph("models_here:tinny")
    with pytest.raises(ModelError, match=r"write package.module:function"):
        resolve("models_here:not a name")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('too small')", "raised ValueError: too small"),
        ("return 1", "returned int: return a module and its example inputs"),
    ],
)
def test_functions_that_do_not_give_a_model(module, body, message):
    name = f"broken_{len(body)}"
    module(name, f"def model():\n    {body}\n")
    with pytest.raises(ModelError, match=message):
        load_graph(f"{name}:model")


def test_a_function_without_seq_len_refuses_one(module):
    module("plain_function", "def model(batch=1):\n    return None, None\n")
    with pytest.raises(ModelError, match="takes no seq_len"):
        load_graph("plain_function:model", seq_len=8)


def test_a_module_that_cannot_be_imported(module):
    module("raises_on_import", "raise RuntimeError('no licence')\n")
    with pytest.raises(ModelError, match="RuntimeError: no licence"):
        load_graph("raises_on_import:model")


def test_a_function_s_model_takes_no_memory_and_may_read_values(module):
    head = "import torch\n\n\ndef model(batch):\n    width = {}\n"
    body = head + "    return torch.nn.Linear(width, width, bias=False), torch.zeros(batch, width)\n"
    module("huge_model", body.format(400_000))
    graph = load_graph("huge_model:model", batch=2, cache=False)
    assert graph.parameters == 400_000**2
    module("reads_model", body.format("int(torch.linspace(4, 8, 2).sum())"))
    assert load_graph("reads_model:model", batch=2, cache=False).parameters == 12**2
