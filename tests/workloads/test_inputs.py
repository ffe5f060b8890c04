"""What models are given follows from class and configuration; a step runs as many tokens, pixels and samples."""

import json
from math import prod

import pytest
import torch

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.depths import architectures, shallow_config
from neusight.workloads.huggingface import input_sets_of
from neusight.workloads.inputs import described, missing_input
from neusight.workloads.inputs.given import given_inputs
from neusight.workloads.tensors import Known, TensorSpec

FED = {
    "vit": {"pixel_values": (2, 3, 224, 224)},
    "videomae": {"pixel_values": (2, 16, 3, 224, 224)},
    "whisper": {"input_features": (2, 80, 3000), "decoder_input_ids": (2, 448)},
    "wav2vec2": {"input_values": (2, 160_000)},
    "clip": {"input_ids": (2, 77), "pixel_values": (2, 3, 224, 224)},
    "bart": {"input_ids": (2, 1024), "decoder_input_ids": (2, 1024)},
    "sam": {"pixel_values": (2, 3, 1024, 1024), "input_points": (2, 1, 1, 2), "input_labels": (2, 1, 1)},
    "patchtst": {"past_values": (2, 32, 1)},
    "layoutlm": {"input_ids": (2, 512), "bbox": (2, 512, 4)},
    # Its 160 features are those of a part that hears; both are the same ten seconds.
    "neucodec": {"input_values": (2, 160_000), "input_features": (2, 1000, 160)},
    # A block of 16 tokens, after states of five layers of the model that it drafts for.
    "muse_glimmer_assistant": {"noise_embeds": (2, 16, 6656), "context_hidden_states": (2, 2048, 5 * 6656)},
    "decision_transformer": {"states": (2, 341, 17), "actions": (2, 341, 4)},
}


def first(kind: str, **extents: object) -> dict[str, object]:
    return input_sets_of(shallow_config(kind), Request.of(kind, batch=2, **extents)).sets[0]


def shapes(inputs: dict[str, object]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in inputs.items() if isinstance(value, TensorSpec)}


@pytest.mark.parametrize("kind", FED)
def test_shapes_follow_from_the_default_configuration(kind):
    assert shapes(first(kind)).items() >= FED[kind].items()


def test_patches_are_as_many_as_their_grid_has():
    inputs = first("qwen2_5_vl", image_size=280)
    grid = inputs["image_grid_thw"]
    assert isinstance(grid, Known) and len(grid.values) == 2
    patches, width = inputs["pixel_values"].shape
    assert patches == sum(prod(rows) for rows in grid.values)
    # Channels, two frames as one, and patches of 14 x 14 pixels; the edge is 20 of them.
    assert (grid.values[0], width) == ([1, 20, 20], 3 * 2 * 14 * 14)


def test_what_was_asked_for_comes_before_the_configuration():
    assert first("videomae", frames=8, image_size=112)["pixel_values"].shape == (2, 8, 3, 112, 112)
    assert first("wav2vec2", seconds=2.5)["input_values"].shape == (2, 40_000)
    assert first("whisper", seconds=7.0, seq_len=9)["input_features"].shape == (2, 80, 700)
    given = first("vit", given=("pixel_values=5x3x32x64",))
    assert given == {"pixel_values": TensorSpec((5, 3, 32, 64))}


@pytest.mark.parametrize(
    ("extents", "why"),
    [
        ({"seq_len": 7}, "no input of ViT.* depends on --seq-len"),
        ({"frames": 7}, "no input of ViT.* depends on --frames"),
        ({"seconds": 7.0}, "no input of ViT.* depends on --seconds"),
        ({"given": ("pixels=1x3",)}, "takes no input 'pixels'.*did you mean pixel_values"),
        ({"given": ("pixel_values=big",)}, "not NAME=SHAPE:DTYPE"),
        ({"given": ("pixel_values=3:float3",)}, "unknown dtype 'float3'"),
    ],
)
def test_an_extent_without_a_meaning_is_refused(extents, why):
    with pytest.raises(ModelError, match=why):
        first("vit", **extents)


def test_an_input_that_nobody_can_make_is_named():
    with pytest.raises(ModelError, match=r"needs 'inference_session'.*--input inference_session="):
        first("sam3_tracker_video")


def test_what_a_refusal_names_is_what_was_missing_input():
    refusal = ModelError("both pixel_values and bbox should be specified")
    assert missing_input(refusal, ("bbox", "visual_pos")) == "bbox"
    assert missing_input(refusal, ("visual_pos",)) is None


def test_the_line_that_met_a_none_names_what_was_missing_input(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def forward(bbox=None):\n    return bbox.sum(-1)\n")
    scope: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(AttributeError) as caught:
        scope["forward"]()
    refused = ModelError("cannot trace")
    refused.__cause__ = caught.value
    assert missing_input(refused, ("pixel_values", "bbox")) == "bbox"


def test_a_model_gets_what_it_asks_for(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shallow_config("blip_2_qformer")))
    step = load_workload(str(file), seq_len=16, cache=False)
    assert [text.partition("=")[0] for text in step.inputs] == ["query_embeds", "encoder_hidden_states"]


def test_a_cut_that_a_type_refuses_leaves_the_rest():
    # Its adapter names layers 18 and 24 of the tower, which two layers do not have.
    config = shallow_config("molmo2")
    assert "vision_config" not in config and config["text_config"]["num_hidden_layers"] == 2


def test_what_was_fed_can_be_given_again():
    inputs = {"input_ids": TensorSpec((1, 8), "int64"), "pixel_values": TensorSpec((1, 3, 4, 4))}
    texts = described(inputs, "bfloat16")
    assert texts == ("input_ids=1x8:int64", "pixel_values=1x3x4x4:bfloat16")
    again = given_inputs(texts, inputs)
    assert [(name, spec.shape) for name, spec in again.items()] == [(n, s.shape) for n, s in inputs.items()]


def test_layers_are_cut_in_every_part_of_a_model():
    config = shallow_config("clip")
    assert config["text_config"]["num_hidden_layers"] == config["vision_config"]["num_hidden_layers"] == 2
    # The last 15 of 35 layers use keys and values of the 20 before them, of which two leave none to do so.
    assert (
        shallow_config("gemma3n")["text_config"].items() >= {"num_hidden_layers": 2, "num_kv_shared_layers": 0}.items()
    )
    assert shallow_config("swin")["depths"] == [2, 2, 2, 2]
    assert shallow_config("bart") == {"model_type": "bart", "encoder_layers": 2, "decoder_layers": 2} | dict.fromkeys(
        shallow_config("bart").keys() & {"num_hidden_layers"}, 2
    )


def test_parts_that_only_others_build_are_no_architectures():
    known = architectures()
    assert {"llama", "whisper", "clip", "sam", "autoformer"} <= set(known)
    assert "sam_mask_decoder" not in known
    assert known == sorted(set(known))


@pytest.mark.parametrize("kind", ["convnext", "audio-spectrogram-transformer", "blip-2", "patchtst", "lilt"])
def test_a_step_runs_with_what_it_is_fed_and_says_so(kind, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shallow_config(kind)))
    step = load_workload(str(file), batch=1, cache=False)
    assert step.launches and step.inputs
    twice = load_workload(str(file), batch=2, cache=False)
    assert [text.replace("=1x", "=2x") for text in step.inputs] == list(twice.inputs)


def test_an_image_may_come_as_what_becomes_a_token(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shallow_config("inkling2_vision")))
    # 240 pixels are 6 x 6 tokens of 2 x 2 patches of 20 pixels each.
    inputs = load_workload(str(file), image_size=240, cache=False).inputs
    assert inputs == ("pixel_values=36x40x40x3:float32", "image_grid_thw=[[1, 6, 6]]")


def test_the_request_has_the_tokens_of_the_inputs(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shallow_config("clip")))
    assert load_workload(str(file), cache=False).request.seq_len == 77
    file.write_text(json.dumps(shallow_config("vit")))
    assert load_workload(str(file), cache=False).request.seq_len is None


def test_a_stored_step_keeps_its_inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shallow_config("vit")))
    options = {"image_size": 64, "batch": 3}
    first_time = load_workload(str(file), **options)
    assert load_workload(str(file), **options) == first_time
    assert first_time.inputs == ("pixel_values=3x3x64x64:float32",)
    assert load_workload(str(file), batch=3).inputs == ("pixel_values=3x3x224x224:float32",)


def test_ready_workloads_say_their_inputs():
    assert load_workload("gpt2-large", batch=2, seq_len=64).inputs == ("input_ids=2x64:int64",)
    assert load_workload("vgg16", batch=2).inputs == ("pixel_values=2x3x224x224:float32",)


def test_inputs_that_are_written_out_decide_length_and_batch():
    written = load_workload("gpt2", given=("input_ids=3x8:int64",))
    assert written.inputs == ("input_ids=3x8:int64",)
    assert (written.request.batch, written.request.seq_len) == (3, 8)
    assert written.launches == load_workload("gpt2", batch=3, seq_len=8, dtype="float32", attention="sdpa").launches
    # Ids need no dtype, and the other side of a model of two is as long.
    assert load_workload("t5-small", given=("input_ids=2x8",)).inputs == (
        "decoder_input_ids=2x8:int64",
        "input_ids=2x8:int64",
    )
    with pytest.raises(ModelError, match="hold 3 samples where a batch of 2"):
        load_workload("gpt2", given=("input_ids=3x8:int64",), batch=2)


class Nested(torch.nn.Module):
    """Takes what a loader of batches often gives: tensors in dictionaries and lists."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, batch):
        return self.layer(batch["one"]["x"]) + self.layer(batch["more"][0])


def test_a_batch_may_be_nested():
    batch = {"one": {"x": torch.zeros(4, 64)}, "more": [torch.zeros(4, 64)]}
    step = load_workload(Nested(), inputs={"batch": batch}, mode="training", optimizer="adamw")
    assert step.inputs == ("batch.one.x=4x64:float32", "batch.more.0=4x64:float32")
    assert step.request.batch == 4
    assert [k.m for node in step.nodes for k in node.kernels if k.family == "gemm"][:2] == [4, 4]


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_a_cache_of_keys_and_values_is_an_input_and_stays_as_it_was(kind):
    import transformers

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96}
    config = transformers.LlamaConfig(num_hidden_layers=2, vocab_size=99, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    static = kind == "StaticCache"
    cache = transformers.StaticCache(config=config, max_cache_len=48) if static else transformers.DynamicCache()
    for layer in range(2):
        cache.update(*(torch.zeros(3, 4, 20, 16, dtype=torch.bfloat16) for _ in range(2)), layer)
    inputs = {"input_ids": torch.ones(3, 1, dtype=torch.long), "past_key_values": cache}
    step = load_workload(model, inputs=inputs)
    seen = {k.kv_len for node in step.nodes for k in node.kernels if k.family == "attention"}
    assert seen == {48 if static else 21}
    assert cache.get_seq_length() == 20
    assert step.inputs[1].startswith(f"past_key_values={kind}(4 of 3x4x{48 if static else 20}x16:bfloat16")
    assert (step.request.batch, step.request.dtype, step.request.attention) == (3, "bfloat16", "sdpa")


@pytest.mark.parametrize("kind", ["vit", "clip", "segformer", "detr"])
def test_images_have_two_edges(kind):
    assert shapes(first(kind, image_size="320x224"))["pixel_values"] == (2, 3, 224, 320)
