"""A training step in words: objects, what is recorded of its engine and model, mistakes, and its words once more."""

import json
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor, cluster_of, load_device
from neusight.distributed.sources import memory
from neusight.questions import FieldError, Training
from neusight.questions.files import questions_of, read_entries

STEP = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "per_node": 4, "global_batch_size": 8, "seq_len": 512}
NORM = {"is": "Norm"}
SMALL = {
    "is": "Decoder", "name": "small", "family": "llama", "hidden": 512, "vocab": 1024, "tied": False, "max_len": 512,
    "layers": [[{
        "is": "Layer", "attention": {"is": "SelfAttention", "heads": 8, "kv_heads": 8, "head_dim": 64},
        "feed_forward": {"is": "FeedForward", "ffn": 2048, "activation": "silu", "gated": True},
    }, 4]], "order": [0, 0, 0, 0],
}  # fmt: skip


def step(**words: Any) -> Training:
    return Training.named({**STEP, **words})


def test_training_answers_words_and_names_them(predictor: Predictor, tmp_path: Path) -> None:
    """Devices by name, as a cluster or as an object are the same; the words that an answer names give it once more."""
    named = predictor.training(STEP["model"], **{name: value for name, value in STEP.items() if name != "model"})
    (tmp_path / "answer.json").write_text(json.dumps(named.to_dict()))
    (again,) = map(predictor.ask, questions_of(*read_entries(tmp_path / "answer.json")[0]))
    assert again.to_dict() == named.to_dict()
    assert named.question == {"kind": "training", **STEP}
    for words in (
        {"gpu": load_device("h100-sxm-80gb")},
        {"gpu": "", "per_node": "", "cluster": cluster_of("h100-sxm-80gb", 4)},
    ):
        assert predictor.training(**{**STEP, **words}).latency_s == named.latency_s


def test_recorded_traits_change_the_step() -> None:
    usual = step(pp=2).resolve()
    run = step(
        pp=2, engine_options='{"offloads_activations": true, "written_out": ["bias"]}', attention_kernel="eager",
        dropout=True, graphed="attn", chunk_layers="6,10", chunk_group=4,
    ).resolve()  # fmt: skip
    assert (run.engine.offloads_activations, run.engine.written_out) == (True, ("bias",))
    assert (run.engine.attention, run.engine.hidden_dropout, run.graphed) == ("eager", True, ("attn",))
    assert (run.chunk_layers, run.chunk_group) == ((6, 10), 4)
    assert memory(step(pp=2, chunk_layers="6,10").resolve())[-1].weights > memory(usual)[-1].weights


def test_models_are_described_in_json() -> None:
    described = step(decoder=json.dumps(SMALL)).resolve()
    assert (described.decoder.name, described.decoder.depth) == ("small", 4)
    config = {"model_type": "gpt2", "n_embd": 256, "n_head": 4, "n_layer": 3, "vocab_size": 1000, "n_positions": 512}
    assert step(config=json.dumps(config)).resolve().decoder.depth == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu": ""}, "cluster or gpu is missing"),
        ({"cluster": "dgx-a100", "per_node": ""}, "gpu is named by --cluster, which has a100-sxm-80gb"),
        ({"cluster": "dgx-h100"}, "per_node is decided by --cluster"),
        ({"micro_batches": 4}, "micro_batches is given in place of global_batch_size"),
        ({"adapter": "qlora"}, "adapters without a rank"),
        ({"engine_options": "{"}, "is no JSON"),
        ({"engine_options": "[]"}, "give a JSON object"),
        ({"engine_options": '{"atention": "flash"}'}, "unknown trait 'atention'; did you mean attention"),
        ({"engine_options": '{"loss": "none"}'}, "loss = none: give one of written out, torch"),
        ({"engine_options": '{"handles": true}'}, "handles = True: give a whole number"),
        ({"engine_options": '{"loss_chunks": 0}'}, "loss_chunks = 0: give a number above 0"),
        ({"engine_options": '{"attention": "fast"}'}, "attention = fast: give one of eager, sdpa"),
        ({"graphed": "attn,norm"}, "graphed 'norm' is unknown"),
        ({"config": "[1]"}, "config is no JSON object"),
        ({"chunk_layers": "a,b"}, "chunk_layers 'a,b': give whole numbers"),
        ({"config": "{"}, "config is no JSON"),
        ({"decoder": "{"}, "is no description"),
        ({"decoder": json.dumps({**SMALL, "layers": []})}, "is no description"),
        ({"decoder": json.dumps({**SMALL, "layers": [[{"is": "Layer", "attention": 3}, 4]]})}, "is no description"),
        ({"decoder": '{"is": "Norm"}'}, "begin it with"),
        ({"decoder": '{"is": "Norm"}', "config": "{}"}, "leave out one of them"),
        (
            {"engine": "torch-eager", "dropout": True},
            "dropout has no effect under torch-eager",
        ),
    ],
)
def test_resolve_names_what_is_wrong(words: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        step(**words).resolve()
    assert "\n" not in str(caught.value)


def test_unplanned_refuses_what_a_search_decides() -> None:
    assert step().unplanned().plan.global_batch_size == 8
    for words, message in (({"tp": 2}, "tp is searched for"), ({"global_batch_size": None}, "is missing")):
        with pytest.raises(FieldError, match=message):
            step(**words).unplanned()


def test_fields_without_effect_are_warned_of(predictor: Predictor) -> None:
    words = {"network": "400Gb/s", "embedding_shard": "rows", "vp": 2, "offload": "optimizer", "optimizer": "none"}
    lines = predictor.ask(step(**words)).warnings
    for name in words.keys() - {"optimizer"}:
        assert [line for line in lines if line.startswith(name) and "has no effect" in line], name
