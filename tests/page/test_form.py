"""Fields by themselves, defaults that fit a model, and names of files that are dropped: without a browser."""

import json
import random
import shlex
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from neusight import Predictor
from neusight.errors import ModelError, NeusightError
from neusight.page import answers, decide
from neusight.page.fields import HEAD, panels
from neusight.page.form import DEVICE, Form, PageWords
from neusight.page.kept import keep_model
from neusight.questions import FieldError, Serving, Step
from neusight.workloads.catalogue import KINDS, list_workloads
from tests.cli_runs import as_json, run
from tests.questions.test_round_trips import drawn

BERT = {"model_type": "bert", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2}
GPT = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 1000, "n_positions": 128}
MODES = PageWords.fields()["mode"].field.choices
SERVED = "model=llama-3.1-8b gpu=h100-sxm-80gb mode=serving"


def form(text: str) -> Form:
    return Form.read(tuple(word.split("=", 1)) for word in text.split())  # type: ignore[misc]


OFFERED = [
    (mode, name) for mode in MODES for group in panels(form(f"mode={mode}")).values() for name in (*HEAD, *group)
]


@pytest.mark.parametrize(("mode", "name"), OFFERED)
def test_every_offered_field_is_typed_and_comes_back_from_the_address(mode: str, name: str) -> None:
    asked = form(f"mode={mode}")
    one, generator = asked.declared(name), random.Random(f"{mode} {name}")
    assert one is not None
    for _ in range(5):
        value = one.field.check(name, drawn(one.field, generator))
        text = "\n".join(value) if one.field.kind == "texts" else one.field.write(value)
        typed = asked.changed(**{name: text})
        assert not typed.mistakes
        assert typed.text(name) == text
        assert Form.read(parse_qsl(typed.query)) == typed
        if name != "mode":
            assert getattr(typed.question, name) == value


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"batch": "x"}, "batch 'x' is not a whole number"),
        ({"batch": "0"}, "batch 0 is out of range"),
        ({"mode": "foo"}, "one of inference, training, serving"),
        ({"sequence": "9999"}, "sequence is no field"),
        ({"launch": "fast"}, "launch 'fast' is unknown"),
    ],
)
def test_read_keeps_the_fields_that_are_good(bad: dict[str, str], reason: str) -> None:
    good = {"model": "gpt2", "gpu": "l4", "seq_len": "64"}
    read = Form.read([*bad.items(), *good.items()])
    assert read == Form.of(good.items())
    assert {name: mistake.text for name, mistake in read.mistakes.items()} == bad
    assert reason in str(read.mistakes[next(iter(bad))].error)
    with pytest.raises(FieldError):
        Form.of([*good.items(), *bad.items()])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [("request_rate=nan", "give a number"), ("rate=-1", "out of range"), ("engine=vlm", "did you mean vllm")],
)
def test_read_names_the_mistake_of_a_load_or_an_engine(bad: str, reason: str) -> None:
    (mistake,) = form(f"{SERVED} {bad}").mistakes.values()
    assert reason in str(mistake.error)


def test_a_mistake_stays_as_typed_until_its_field_changes() -> None:
    asked = form("batch=x seq_len=64").changed(seq_len="128")
    assert asked.text("batch") == "x"
    assert list(asked.mistakes) == ["batch"]
    assert not asked.changed(batch="2").mistakes


def test_read_takes_a_field_once_and_several_changes() -> None:
    assert "given twice" in str(form("batch=1 batch=2").mistakes["batch"].error)
    assert form("changes=price=1$/h changes=tdp=300W").question.overrides == ("price=1$/h", "tdp=300W")


def test_former_names_in_an_address_are_those_of_today() -> None:
    asked = form(f"{SERVED} rate=5 max_len=9000 memory_fraction=0.8")
    today = {"request_rate": "5", "max_model_len": "9000", "gpu_memory_utilization": "0.8"}
    assert today.items() <= dict(parse_qsl(asked.query)).items()


def test_words_of_another_mode_come_back_with_it() -> None:
    asked = form("model=gpt2 seq_len=64 batch=8 isl=7")
    served = asked.changed(mode="serving")
    assert (served.question.isl, served.question.batch, served.aside) == (7, None, (("seq_len", "64"),))  # type: ignore[union-attr]
    assert served.changed(mode="inference").question == asked.changed(batch="").question


def test_a_field_without_effect_is_offered_only_where_it_is_given() -> None:
    def names(text: str) -> set[str]:
        return {name for group in panels(form(text)).values() for name in group}

    assert "optimizer" not in names("mode=inference")
    assert "optimizer" in names("mode=training") & names("optimizer=adam")
    assert not {"host_call_us", "isl"} & names("mode=training")
    assert {"engine", "engine_version", "pp", "ep", "replicas", "kv_dtype", "max_num_seqs"} <= names("mode=serving")
    assert {"recompute", "shard", "pp", "schedule"} <= names("mode=training")


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
    asked = form(f"mode=serving {words}")
    assert isinstance(asked.complete, Serving)
    assert (asked.complete.isl, asked.complete.osl) == lengths
    assert [asked.assumed(name) or asked.text(name) for name in ("isl", "osl")] == [str(tokens) for tokens in lengths]


@pytest.mark.parametrize("model", {info.kind: info.name for info in reversed(list_workloads())}.values())
def test_each_mode_answers_with_its_defaults(predictor: Predictor, model: str) -> None:
    for mode in MODES:
        asked = form(f"model={model} gpu=a100-sxm-80gb mode={mode}")
        try:
            (answer,) = answers.answer_form(predictor, asked)
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
    asked = Form(question=Step(model=str(path), gpu="l4", batch=2))
    (answer,) = answers.answer_form(predictor, asked)
    assert answer.estimate
    assert answer.estimate.model == path.parent.name
    assert as_json(*shlex.split(asked.command)[1:])["latency_s"] == answer.estimate.latency_s


@pytest.mark.parametrize("more", ["", " concurrency=200", " pp=2 replicas=2", " engine=sglang tp=2"])
def test_memory_of_a_served_model_is_that_of_the_command(predictor: Predictor, more: str) -> None:
    asked = form(SERVED + more)
    (answer,) = answers.answer_form(predictor, asked)
    assert answer.estimate
    printed = " ".join(run(*shlex.split(asked.command)[1:]).stdout.split())
    for line in answer.estimate.memory_lines:  # type: ignore[union-attr]
        assert line in printed
    shown = answers.charts(asked, [answer.estimate])[0].rows[0]
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
    assert demand.concurrency == asked.question.concurrency  # type: ignore[attr-defined, union-attr]
    assert setup == ({"tp": 1} if "tp=1" in words else {})
    assert options in decide.command(asked).replace("'", "")
    assert (devices is None) == ("--gpu" not in decide.command(asked))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("mode=serving rate=5 concurrency=2", ["concurrency", "request_rate"]),
        ("mode=serving rate=5 slo=ttft=1s", []),
        ("mode=training cluster=dgx-h100 tp=2 optimizer=sgd apply=bf16", ["apply", "tp"]),
        ("mode=training space=gpu cluster=dgx-h100 dtype=bf16 apply=bf16", ["apply", "dtype", "cluster"]),
        ("mode=training gpu=l4 tp=2", []),
    ],
)
def test_unused_names_what_does_not_count(words: str, names: list[str]) -> None:
    assert sorted(decide.unused(form(words))) == sorted(names)


def test_plans_take_the_optimizer(predictor: Predictor) -> None:
    asked = form("model=gpt2 mode=training cluster=dgx-h100 batch=16 optimizer=sgd")
    shown = decide.ask(predictor, asked).charts[0].rows
    plan, *_ = as_json(*shlex.split(decide.command(asked))[1:])["best"]
    assert plan["latency_s"] == min(row["latency_s"] for row in shown)


def test_a_question_without_devices_is_of_the_usual_one() -> None:
    assert form("model=gpt2").gpus == (DEVICE,)
    assert "gpu=" not in form("model=gpt2").query
    assert form(f"gpu={DEVICE}").query == f"model=gpt2-large&gpu={DEVICE}"


def test_a_folder_of_a_dropped_file_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path))
    assert keep_model("m.json", json.dumps(GPT).encode()).is_relative_to(tmp_path)
