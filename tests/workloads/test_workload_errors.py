"""Models that cannot be what they are said to be: one line that names the key or function, and a remedy."""

import json
import re
from collections.abc import Callable

import pytest

from neusight.engines.torch import TORCH
from neusight.errors import CoverageError, ModelError
from neusight.workloads import load_workload, resolve
from neusight.workloads.resolve import step_dtype

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


def refusal(ask: Callable[[], object]) -> str:
    """The line that refuses a question; that it was accepted where it was."""
    try:
        return f"accepted: {ask()!r:.60}"
    except (ModelError, CoverageError) as error:
        return str(error)


def differing(messages: dict[str, str]) -> dict[str, str]:
    """Refusals, by the pattern that they should match, that do not."""
    return {pattern: line for pattern, line in messages.items() if not re.search(pattern, line)}


def test_options_out_of_range(config):
    wrong = {
        "batch 0 of gpt2: give a whole number of at least 1": {"batch": 0},
        "batch -2 of gpt2": {"batch": -2},
        "sequence length 0 of gpt2: give a whole number of at least 1": {"seq_len": 0},
        "sequence length 1025 is longer than gpt2 allows: at most 1024": {"seq_len": 1025},
        "'trainin' .*did you mean training": {"mode": "trainin"},
        "'float33'; did you mean float32": {"dtype": "float33"},
        "'adamm' .*did you mean": {"optimizer": "adamm", "mode": "training"},
        "'flashy' .*did you mean flash": {"attention": "flashy"},
    }
    assert not differing({line: refusal(lambda o=o: load_workload("gpt2", **o)) for line, o in wrong.items()})
    others = {
        "resnet-50 reads images.*leave out --seq-len": lambda: load_workload("resnet-50", seq_len=128),
        "at most 64": lambda: load_workload(config(), seq_len=65),
        "no fused attention in transformers: use --attention eager": lambda: load_workload(
            "switch-base-4", attention="sdpa"
        ),
        "no flash attention in transformers: use --attention sdpa": lambda: load_workload(
            "t5-small", attention="flash", cache=False
        ),
    }
    assert not differing({line: refusal(ask) for line, ask in others.items()})
    assert load_workload("t5-small", seq_len=4096).request.seq_len == 4096


def test_files_that_are_no_configuration(tmp_path):
    file = tmp_path / "config.json"
    texts = {
        "{": "is not JSON",
        "[1, 2]": "states no model_type",
        '{"hidden_size": 8}': "states no model_type",
        '{"model_type": 3}': "states no model_type",
        '{"model_type": ' + "[" * 6000: "is not JSON .nested too deeply",
    }
    for text, message in texts.items():
        file.write_text(text)
        assert not differing({message: refusal(lambda: resolve(str(file)))})
        assert not differing({message: refusal(lambda: resolve(str(tmp_path)))})
    assert "cannot read nowhere/config.json: No such file" in refusal(lambda: resolve("./nowhere/config.json"))
    assert "unknown model 'xxx" in refusal(lambda: resolve("x" * 20_000))


def test_numbers_that_no_model_has(config):
    wrong = {
        "config.json: n_layer = 1000000000 cannot be: give a number from 1 to 10,000": {"n_layer": 10**9},
        "n_layer = 0 cannot be": {"n_layer": 0},
        "n_embd = -32 cannot be": {"n_embd": -32},
        "vocab_size = 0 cannot be": {"vocab_size": 0},
        "n_inner = -1 cannot be": {"n_inner": -1},
        "n_layer = '12' must be a whole number": {"n_layer": "12"},
        "n_embd = 1.5 must be a whole number": {"n_embd": 1.5},
        "n_head = True must be a whole number": {"n_head": True},
        "n_embd = 32 is not a multiple of n_head = 3: change one of them": {"n_head": 3},
        "n_head = 2 is not a multiple of num_key_value_heads = 4": {"num_key_value_heads": 4},
        "sizes make 40,000 trillion parameters": {"n_layer": 10_000, "n_embd": 10**6},
        "n_layer = 0 cannot be: give a number": {"text_config": {"n_layer": 0}},
        "unknown dtype 'float33'": {"torch_dtype": "float33"},
    }
    assert not differing({line: refusal(lambda c=c: resolve(config(**c))) for line, c in wrong.items()})


def test_what_transformers_refuses_is_told_with_its_reason(config):
    wrong = {
        "model_type 'gpt22' .*did you mean .*gpt2": {"model_type": "gpt22"},
        "sam_mask_decoder. has no class of its own": {"model_type": "sam_mask_decoder", "n_embd": None, "n_head": None},
        "GPT2LMHeadModel cannot be built.*poetry": {"activation_function": "poetry"},
        "stages of a vgg lists the channels": {"model_type": "vgg", "stages": [[64, "x"]], "image_size": 224},
        "multiple of the number of attention heads": {
            "model_type": "llama", "hidden_size": 100, "num_attention_heads": 3, "head_dim": None,
            "hidden_dim": None, "n_head": None, "n_embd": None, "q_lora_rank": 1, "kv_channels": 1,
        },
    }  # fmt: skip
    load = {line: refusal(lambda c=c: load_workload(config(**c), cache=False)) for line, c in wrong.items()}
    assert not differing(load)


def test_a_file_s_dtype_and_quantization_count(config):
    def stated(requested="", **changes):
        dtype, defaults = step_dtype(resolve(config(**changes)), TORCH, requested)
        return dtype, {name: str(default) for name, default in defaults.items()}

    assert stated() == ("float32", {"dtype": "float32, as the configuration states none"})
    assert stated(torch_dtype="bfloat16") == ("bfloat16", {"dtype": "bfloat16, as the configuration states"})
    assert stated(dtype="torch.bfloat16") == stated(torch_dtype="bfloat16")
    assert stated("fp16", torch_dtype="bfloat16") == ("float16", {})
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert "(gptq, 4 bit)" in refusal(lambda: stated(**quantized))
    assert "give --dtype" in refusal(lambda: stated(**quantized))
    assert stated("half", **quantized) == ("float16", {"quantization": "none, gptq, 4 bit is set aside"})


def test_a_module_needs_inputs():
    from torch import nn

    assert "Linear needs inputs=" in refusal(lambda: load_workload(nn.Linear(2, 3)))
    assert "cannot use int as a model" in refusal(lambda: load_workload(3))


def test_functions_that_give_no_model(module):
    bodies = {
        "fails": "raise ValueError('too small')",
        "leaves": "import sys; sys.exit(3)",
        "number": "return 1",
        "numbers": "return 1, 2",
        "alone": "return None, None",
        "recurs": "return recurs()",
    }
    module("models_here", "".join(f"def {name}():\n    {body}\n" for name, body in bodies.items()))
    module("raises_on_import", "raise RuntimeError('no licence')\n")
    module("leaves_on_import", "raise SystemExit(0)\n")
    wrong = {
        "no module 'models_there'": "models_there:tiny",
        "has no function 'numbber'; did you mean number": "models_here:numbber",
        "write package.module:function": "models_here:not a name",
        "models_here:fails raised ValueError: too small": "models_here:fails",
        "models_here:leaves raised SystemExit: 3": "models_here:leaves",
        "returned int: return a module and its example inputs": "models_here:number",
        "returned tuple: return a module and its example inputs": "models_here:numbers",
        "recurs raised RecursionError": "models_here:recurs",
        "RuntimeError: no licence": "raises_on_import:model",
        "SystemExit": "leaves_on_import:model",
    }
    assert not differing({line: refusal(lambda n=n: load_workload(n)) for line, n in wrong.items()})
    assert "takes no seq_len" in refusal(lambda: load_workload("models_here:alone", seq_len=8))
    assert "takes no batch, it decides that itself" in refusal(lambda: load_workload("models_here:alone", batch=8))


FILE = "import torch\n\n\ndef ready(batch=1):\n    return torch.nn.Linear(8, 8), torch.randn(batch, 8)\n"


@pytest.mark.parametrize("text", ["{file}.py:ready", "./{file}.py:ready", "{folder}/{file}.py:ready", "{file}:ready"])
def test_resolve_finds_functions_by_their_file(module, tmp_path, text):
    module("modules_in_file", FILE)
    step = load_workload(text.format(folder=tmp_path, file="modules_in_file"), batch=4)
    assert (step.request.model, step.request.batch) == ("modules_in_file:ready", 4)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("modules_in_file.py", "is a Python file: name a function .*: modules_in_file:ready$"),
        ("modules_in_fil.py:ready", "no file 'modules_in_fil.py'; did you mean modules_in_file.py"),
        ("modules_in_file.py:redy", "has no function 'redy'; did you mean ready"),
        ("modules_in_file.py:other", "has no function 'other': it has ready$"),
        ("{file}:ready", "is not below this folder: run in .*, and name modules_in_file:ready$"),
    ],
)
def test_resolve_says_which_function_of_a_file_there_is(module, tmp_path, monkeypatch, text, pattern):
    module("modules_in_file", FILE)
    if "{" in text:
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
    line = refusal(lambda: load_workload(text.format(file=tmp_path / "modules_in_file.py")))
    assert re.search(pattern, line), line


def test_a_function_s_model_takes_no_memory_and_may_read_values(module):
    head = "import torch\n\n\ndef model(batch):\n    width = {}\n"
    body = head + "    return torch.nn.Linear(width, width, bias=False), torch.zeros(batch, width)\n"
    module("huge_model", body.format(400_000))
    assert load_workload("huge_model:model", batch=2, cache=False).parameters == 400_000**2
    module("half_model", body.format(8).replace("bias=False)", "bias=False, dtype=torch.bfloat16)"))
    assert load_workload("half_model:model", batch=2, cache=False).request.dtype == "bfloat16"
    module("reads_model", body.format("int(torch.linspace(4, 8, 2).sum())"))
    assert load_workload("reads_model:model", batch=2, cache=False).parameters == 12**2


def test_a_ready_workload_with_another_number_names_those_that_it_has():
    assert resolve("bert-base@max_position_embeddings=4096").max_seq_len == 4096
    assert resolve("bert-base@max_position_embeddings=512").catalogue == "bert-base"
    for option in ("positions=4096", "max_position_embeddings=many", "hidden_act=3"):
        line = refusal(lambda option=option: resolve(f"bert-base@{option}"))
        assert option in line
        assert "max_position_embeddings" in line
