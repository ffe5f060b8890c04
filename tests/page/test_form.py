"""Fields by themselves, defaults that fit a model, and names of files that are dropped: without a browser."""

import json
import shlex
from pathlib import Path

import pytest

from neusight import Predictor
from neusight.errors import ModelError, NeusightError
from neusight.page import answers, decide
from neusight.page.form import DEVICE, MODES, Form
from neusight.page.kept import keep_model
from neusight.workloads.catalogue import KINDS, list_workloads
from tests.cli_runs import as_json, run

BERT = {"model_type": "bert", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2}
GPT = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 1000, "n_positions": 128}
SERVED = "model=llama-3.1-8b gpu=h100-sxm-80gb mode=serving"


def form(text: str) -> Form:
    return Form.of(tuple(word.split("=", 1)) for word in text.split())  # type: ignore[misc]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"batch": "x"}, "batch 'x': give a whole number"),
        ({"batch": "0"}, "give a whole number"),
        ({"mode": "foo"}, "unknown mode 'foo'"),
        ({"sequence": "9999"}, "unknown field 'sequence'"),
        ({"rate": "nan"}, "give a number above 0"),
        ({"rate": "-1"}, "give a number above 0"),
        ({"engine": "vlm"}, "did you mean vllm"),
        ({"launch": "fast"}, "unknown launch"),
    ],
)
def test_read_keeps_the_fields_that_are_good(bad: dict[str, str], reason: str) -> None:
    good = {"model": "gpt2", "gpu": "l4", "seq_len": "64"}
    read, mistakes = Form.read([*bad.items(), *good.items()])
    assert read == Form.of(good.items())
    assert list(mistakes) == list(bad)
    assert reason in str(mistakes[next(iter(bad))])
    with pytest.raises(ModelError):
        Form.of([*good.items(), *bad.items()])


def test_read_takes_a_field_once_and_several_changes() -> None:
    _, mistakes = Form.read([("batch", "1"), ("batch", "2")])
    assert "given twice" in str(mistakes["batch"])
    assert form("changes=price=1$/h changes=tdp=300W").changes == ("price=1$/h", "tdp=300W")


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        ("model=gpt2-large", (768, 256)),
        ("model=gpt2-large isl=1000", (1000, 24)),
        ("model=gpt2-large osl=1000", (24, 1000)),
        ("model=opt-125m", (1024, 256)),
        ("model=llama-3.1-8b", (1024, 256)),
        ("model=resnet-50", (1024, 256)),
        ("model=gpt2-large isl=5000", (5000, 1)),
    ],
)
def test_lengths_fit_the_context(words: str, lengths: tuple[int, int]) -> None:
    assert form(words).lengths == lengths
    assert [form(words).assumed(name) for name in ("isl", "osl")] == [str(tokens) for tokens in lengths]


@pytest.mark.parametrize("model", {info.kind: info.name for info in reversed(list_workloads())}.values())
def test_each_mode_answers_with_its_defaults(predictor: Predictor, model: str) -> None:
    for mode in MODES:
        asked = form(f"model={model} gpu=a100-sxm-80gb mode={mode}")
        try:
            (answer,) = answers.answered(predictor, asked)
        except NeusightError as mistake:
            assert mode == "serving", mistake
            assert "serve" in str(mistake)
        else:
            assert answer.estimate


def test_kinds_of_ready_models_are_asked() -> None:
    assert len({info.kind for info in list_workloads()} & set(KINDS)) >= 5


@pytest.mark.parametrize(
    ("name", "config", "called"),
    [
        ("config.json", GPT, "gpt2-0.172m"),
        ("anything.json", BERT, "bert-3x64"),
        ("config.json", {"model_type": "../x y"}, "..-x-y"),
    ],
)
def test_keep_model_names_a_configuration_by_type_and_size(name: str, config: dict[str, object], called: str) -> None:
    path = keep_model(name, json.dumps(config).encode())
    assert (path.name, path.parent.name) == ("config.json", called)
    assert keep_model(name, json.dumps(config).encode()) == path


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"{", "^a.json is not JSON"),
        ("b.json", b"[1]", "^b.json states no model_type"),
        ("c.json", b'{"model_type": "gpt2", "n_layer": -1}', "n_layer"),
        ("../d.json", b"\xff\xfe", "^d.json is not"),
    ],
)
def test_keep_model_refuses_in_a_line(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as mistake:
        keep_model(name, content)
    assert "dropped" not in str(mistake.value)


def test_a_dropped_configuration_is_asked_by_its_command(predictor: Predictor) -> None:
    path = keep_model("config.json", json.dumps(GPT).encode())
    asked = Form(model=str(path), gpu="l4", batch=2)
    (answer,) = answers.answered(predictor, asked)
    assert answer.estimate
    assert answer.estimate.model == path.parent.name
    assert as_json(*shlex.split(asked.command)[1:])["latency_s"] == answer.estimate.latency_s


@pytest.mark.parametrize("more", ["", " concurrency=200", " pp=2 replicas=2", " engine=sglang tp=2"])
def test_memory_of_a_served_model_is_that_of_the_command(predictor: Predictor, more: str) -> None:
    asked = form(SERVED + more)
    (answer,) = answers.answered(predictor, asked)
    assert answer.estimate
    printed = " ".join(run(*shlex.split(asked.command)[1:]).stdout.split())
    for line in answer.estimate.memory_lines:  # type: ignore[union-attr]
        assert line in printed
    shown = answers.memory(asked, [answer.estimate]).rows[0]
    memory = as_json(*shlex.split(asked.command)[1:])["memory"]
    assert (shown["capacity"], shown["KV cache"]) == (memory["capacity"], memory["kv_cache"])


@pytest.mark.parametrize(
    ("words", "devices", "options"),
    [
        ("gpu=l40s,a10g", ["l40s", "a10g"], "--gpu l40s,a10g"),
        ("gpu=l4 tp=1", ["l4"], "--tp 1 --slo"),
        ("gpu=h100-sxm-80gb changes=price=1$/h", ["h100-sxm-80gb"], "--set price=1$/h"),
        ("concurrency=8", None, "--concurrency 8"),
    ],
)
def test_a_service_level_takes_all_that_is_given(
    monkeypatch: pytest.MonkeyPatch, words: str, devices: list[str] | None, options: str
) -> None:
    asked = form(f"model=llama-3.1-8b mode=serving slo=ttft=1s {words}")
    called: list[object] = []
    monkeypatch.setattr(Predictor, "cheapest", lambda self, *given, **setup: called.extend((*given, setup)))
    with pytest.raises(TypeError):
        decide.ask(object.__new__(Predictor), asked)
    _, gpus, demand, setup = called
    assert (None if gpus is None else [gpu.id for gpu in gpus]) == devices  # type: ignore[attr-defined]
    assert demand.concurrency == asked.concurrency  # type: ignore[attr-defined]
    assert setup == ({"tp": 1} if asked.tp else {})
    assert options in decide.command(asked).replace("'", "")
    assert (devices is None) == ("--gpu" not in decide.command(asked))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("mode=serving rate=5 concurrency=2", ["concurrency", "rate"]),
        ("mode=serving rate=5 slo=ttft=1s", []),
        ("mode=training cluster=dgx-h100 gpu=l4 tp=2 optimizer=sgd", ["gpu", "tp"]),
        ("mode=training space=gpu cluster=dgx-h100 dtype=bf16 apply=bf16", ["apply", "dtype", "cluster"]),
        ("mode=training gpu=l4 tp=2", []),
    ],
)
def test_unused_names_what_does_not_count(words: str, names: list[str]) -> None:
    assert decide.unused(form(words)) == names


def test_plans_take_the_optimizer(predictor: Predictor) -> None:
    asked = form("model=gpt2 mode=training cluster=dgx-h100 batch=16 optimizer=sgd")
    best = answers.planned(predictor, asked).best[0]
    plan, *_ = as_json(*shlex.split(decide.command(asked))[1:])["best"]
    assert plan["latency_s"] == best.latency_s


def test_a_question_without_devices_is_of_the_usual_one() -> None:
    assert form("model=gpt2").gpus == (DEVICE,)
    assert "gpu=" not in form("model=gpt2").query
    assert form(f"gpu={DEVICE}").query == f"model=gpt2-large&gpu={DEVICE}"


def test_a_folder_of_a_dropped_file_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path))
    assert keep_model("m.json", json.dumps(GPT).encode()).is_relative_to(tmp_path)
