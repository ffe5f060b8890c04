"""Models that are traced by name, and parts of diffusion pipelines."""

import json
import sys
from importlib.util import find_spec

import pytest
import torch

from neusight.errors import ModelError
from neusight.requests import Extents, Request
from neusight.workloads import list_traced, list_workloads, load_workload, resolve
from neusight.workloads.catalogue import KINDS, list_hub, traced_config, traced_name
from neusight.workloads.huggingface import build_model
from neusight.workloads.models.recommendation import Dlrm, expected_rows
from neusight.workloads.models.recommendation import inputs as dlrm_inputs
from neusight.workloads.sources.diffusion_inputs import DenoiserStep, inputs_of
from neusight.workloads.sources.diffusion_models import from_path

with_diffusers = pytest.mark.skipif(find_spec("diffusers") is None, reason="needs the extra diffusers")
TINY = {"module": "dlrm", "dense_features": 3, "bottom": [8], "embedding_dim": 4, "top": [8], "tables": [50, 7, 900]}
TINY_UNET = {
    "_class_name": "UNet2DConditionModel", "sample_size": 8, "in_channels": 4, "out_channels": 4,
    "block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": 16, "attention_head_dim": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip


def test_names_stand_for_one_model_each():
    names = [name for info in (*list_workloads(), *list_traced()) for name in (info.name, *info.aliases)]
    assert len(names) == len(set(names))
    assert all(info.kind in KINDS and info.parameters > 0 for info in list_traced())
    assert all(resolve(name).catalogue is None for info in list_traced() for name in (info.name, *info.aliases))
    assert traced_name("openai/CLIP_ViT_base_patch32") == "clip-vit-b-32"


# What the authors of the models (or the papers) state.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("clip-vit-b-32", 151_277_313), ("whisper-small", 241_734_912), ("convnext-tiny", 28_589_128),
        ("efficientnet-b0", 5_288_548), ("swin-tiny", 28_288_354), ("lstm-ptb-large", 66_034_000),
        ("dlrm-kaggle", 540_677_217), ("waveglow", 267_999_848),
    ],
)  # fmt: skip
def test_models_have_the_parameters_that_their_authors_state(name, parameters):
    stated = {info.name: info.parameters for info in list_traced()}
    assert load_workload(name, cache=False).parameters == stated[name] == parameters


def test_names_of_the_hub_are_those_of_no_other_model():
    assert {resolve(name).name for name in list_hub()} == set(list_hub())
    assert resolve("distilbert-base-uncased").config == resolve("distilbert/DistilBERT-base-uncased").config


# What the models' cards on the hub, or their papers, state.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("distilbert-base-uncased", 66_985_530), ("microsoft/biogpt", 346_763_264),
        ("facebook/deit-base-distilled-patch16-224", 87_338_192), ("google/mobilenet_v2_1.0_224", 3_506_153),
        ("hustvl/yolos-tiny", 6_488_736), ("google/electra-small-discriminator", 13_549_313),
    ],
)  # fmt: skip
def test_models_of_the_hub_have_the_parameters_that_their_cards_state(name, parameters):
    with torch.device("meta"):
        built = build_model(resolve(name).config, "inference", "")
    assert sum(p.numel() for p in built.parameters()) == pytest.approx(parameters, rel=2e-3)


def test_a_bag_reads_as_many_rows_as_are_asked_for_but_no_more_than_its_table_has():
    step = _step(batch=64)
    bags = [k for n in step.nodes for k in n.kernels if getattr(k, "op", "") == "embedding_bag"]
    rows = [min(64, table) for table in TINY["tables"]]
    places = 2 * 64 * 8  # an index and where its bag begins
    assert [k.read_bytes - places for k in bags] == [4 * 4 * count for count in rows]
    assert {k.elements for k in bags} == {64 * 4}


def test_skewed_lookups_read_fewer_rows():
    expected = [sum(1 - (1 - p) ** 300 for p in _zipf(rows, 1.2)) for rows in (7, 900)]
    assert [expected_rows(rows, 300, 1.2) for rows in (7, 900)] == [round(e) for e in expected]
    large = sum(1 - (1 - p) ** 2000 for p in _zipf(50_000, 1.05))
    assert expected_rows(50_000, 2000, 1.05) == pytest.approx(large, rel=0.01)
    assert expected_rows(10**7, 2000, 0.0) == 2000


def _zipf(rows, skew):
    weights = [i**-skew for i in range(1, rows + 1)]
    total = sum(weights)
    return [w / total for w in weights]


def test_dlrm_trains_with_gradients_of_the_rows_it_looked_up():
    step = _step(batch=64, mode="training")
    assert step.memory.gradients < 4 * sum(TINY["tables"]) * 4
    assert "aten._embedding_bag_backward.default" in {n.operator for n in step.nodes if n.phase == "backward"}


def test_dlrm_multiplies_all_pairs():
    model, given = _tiny(batch=2)
    tensors = {n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for n, s in given.items()}
    tensors["offsets"] += torch.arange(2)
    assert model(**tensors).shape == (2,)
    assert model.top[0].in_features == 4 + 4 * 3 // 2  # four vectors: three tables and the dense one


def _tiny(batch):
    return Dlrm(TINY), dlrm_inputs(TINY, batch)


def _step(batch, **options):
    model, inputs = _tiny(batch)
    return load_workload(model, inputs=inputs, batch=batch, **options)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("dlrm-kaggle@steep", {}, "write dlrm-terabyte@1.05"),
        ("lstm@1.0", {}, "Zipf"),
        ("dlrm-kaggle", {"seq_len": 3}, "has no sequence"),
        ("lstm", {"image_size": 64}, "leave it out"),
    ],
)
def test_what_a_model_does_not_have_is_refused(name, options, says):
    with pytest.raises(ModelError, match=says):
        load_workload(name, cache=False, **options)


def test_diffusers_that_are_not_installed_are_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ModelError, match=r"pip install 'neusight\[diffusers\]'"):
        load_workload("sd-1.5-unet", cache=False)


def test_a_pipeline_stands_for_its_denoiser(tmp_path):
    for part, config in (("unet", TINY_UNET), ("vae", {"_class_name": "AutoencoderKL"})):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps(config))
    assert resolve(f"diffusers:{tmp_path}").described.config == TINY_UNET
    assert from_path(tmp_path / "vae" / "config.json").kind == "AutoencoderKL"
    (tmp_path / "unet" / "config.json").unlink()
    with pytest.raises(ModelError, match="it has vae: name one as FOLDER/PART"):
        resolve(f"diffusers:{tmp_path}")


@pytest.mark.parametrize(
    ("content", "says"), [("{}", "states no _class_name"), ("[]", "no JSON object"), ("x", "JSON")]
)
def test_other_files_are_no_parts_of_pipelines(tmp_path, content, says):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ModelError, match=says):
        resolve(f"diffusers:{file}")


def test_denoisers_are_fed_latents_and_text():
    def forward(self, hidden_states, timestep, encoder_hidden_states=None, img_ids=None, txt_ids=None): ...

    config = traced_config("flux-dev")
    request = Request(batch=2, extents=Extents(image_size=512), seq_len=256)
    inputs = inputs_of(forward, DenoiserStep(kind=config["_class_name"], config=config, request=request))
    tokens = (512 // 16) ** 2
    assert {name: spec.shape for name, spec in inputs.items()} == {
        "hidden_states": (2, tokens, 64),
        "timestep": (2,),
        "encoder_hidden_states": (2, 256, 4096),
        "img_ids": (tokens, 3),
        "txt_ids": (256, 3),
    }


@pytest.mark.parametrize(
    ("kind", "config", "shape"),
    [
        ("AutoencoderKL", {"in_channels": 3}, (1, 3, 256, 256)),
        ("UNet2DConditionModel", {"in_channels": 4}, (1, 4, 32, 32)),
        ("UNet3DConditionModel", {"in_channels": 4}, (1, 4, 5, 32, 32)),
        ("CogVideoXTransformer3DModel", {"in_channels": 16, "sample_height": 60}, (1, 5, 16, 32, 32)),
    ],
)
def test_pictures_are_pixels_or_latents_and_clips_have_a_time(kind, config, shape):
    def forward(self, sample): ...

    request = Request(extents=Extents(image_size=256, frames=17))
    assert inputs_of(forward, DenoiserStep(kind=kind, config=config, request=request))["sample"].shape == shape


@pytest.mark.parametrize(
    ("kind", "config", "name", "shape"),
    [
        ("UNet2DConditionModel", {"in_channels": 4}, "sample", (1, 4, 64, 96)),
        ("AutoencoderKL", {"in_channels": 3}, "sample", (1, 3, 512, 768)),
        ("FluxTransformer2DModel", {"in_channels": 64, "axes_dims_rope": [16, 56, 56]}, "img_ids", (32 * 48, 3)),
        ("ControlNetModel", {"in_channels": 4}, "controlnet_cond", (1, 3, 512, 768)),
    ],
)
def test_pictures_have_two_edges(kind, config, name, shape):
    def forward(self, sample, img_ids, controlnet_cond): ...

    request = Request(extents=Extents(image_size="768x512"))
    assert inputs_of(forward, DenoiserStep(kind=kind, config=config, request=request))[name].shape == shape


@pytest.mark.parametrize(("frames", "patch", "latents"), [(81, 2, 22), (81, None, 21), (85, 2, 22), (5, 4, 4)])
def test_clips_are_as_long_as_whole_tokens(frames, patch, latents):
    def forward(self, hidden_states, image_rotary_emb): ...

    config = {"in_channels": 16, "patch_size": 2, "patch_size_t": patch, "attention_head_dim": 64,
              "sample_height": 96, "sample_width": 170, "use_rotary_positional_embeddings": True}  # fmt: skip
    request = Request(extents=Extents(frames=frames))
    inputs = inputs_of(forward, DenoiserStep(kind="CogVideoXTransformer3DModel", config=config, request=request))
    assert inputs["hidden_states"].shape == (1, latents, 16, 96, 170)
    assert inputs["image_rotary_emb"][0].shape == (latents // (patch or 1) * 48 * 85, 64)


def test_an_input_that_nobody_can_make_is_named():
    def forward(self, sample, mystery): ...

    with pytest.raises(ModelError, match="needs 'mystery'"):
        inputs_of(forward, DenoiserStep(kind="UNet2DModel", config={"in_channels": 3}, request=Request()))


@with_diffusers
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_denoiser_is_traced(mode, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY_UNET))
    step = load_workload(f"diffusers:{tmp_path}", mode=mode, batch=3, image_size=128, cache=False)
    assert step.inputs == ("sample=3x4x16x16:float32", "timestep=3:int64", "encoder_hidden_states=3x77x16:float32")
    assert not step.uncovered


def test_a_flow_of_samples_runs_the_products_of_its_paper():
    """Prenger et al. 2019, section 3: 12 flows of 8 dilated convolutions of width 3, over groups of 8 samples."""
    step = load_workload("waveglow", batch=2, cache=False)
    convolutions = [k for n in step.nodes for _ in range(n.copies) for k in n.kernels if k.family == "conv2d"]
    dilated = [k for k in convolutions if k.kernel_width * k.kernel_height == 3]
    assert len(dilated) == 12 * 8
    assert {(k.in_channels, k.out_channels, k.height * k.width) for k in dilated} == {(512, 1024, 1000)}
    assert sorted({k.dilation for k in dilated}) == [2**n for n in range(8)]


@with_diffusers
def test_a_pipeline_holds_all_of_its_parts_and_peaks_where_it_decodes():
    request = Request.of("sd-1.5-pipeline", dtype="bfloat16")
    whole, denoiser = (load_workload(name, request) for name in ("sd-1.5-pipeline", "sd-1.5-unet"))
    counted = {info.name: info.parameters for info in list_traced()}["sd-1.5-pipeline"]
    assert whole.memory.weights == pytest.approx(2 * counted, rel=1e-3)
    # Of the decoder's last block: a map of 128 channels at 512 x 512, twice at least.
    assert whole.memory.peak - whole.memory.weights > 2 * 2 * 128 * 512**2
    assert whole.memory.peak - whole.memory.weights > denoiser.memory.peak - denoiser.memory.weights
    assert {spec.shape for spec in resolve("sd-1.5-pipeline").described.inputs(request)["prompts"]} == {(2, 77)}
