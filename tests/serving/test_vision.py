"""Images of prompts: tokens, patches and sizes by the encoders' own arithmetic, and what encoding adds to a prompt."""

import numpy as np
import pytest

from neusight import Predictor
from neusight.errors import ModelError
from neusight.serving import Static, serve
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.vision import Images, vision_of

MODEL, GPU = "Qwen/Qwen3-VL-8B-Instruct", "h100-sxm-80gb"
TEXT = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
CLIP = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 336, "patch_size": 14}  # fmt: skip


def test_tokens_and_patches_are_those_of_the_encoders() -> None:
    """336 / 14 squared in LLaVA 1.5; 28 x 28 pixels a token in Qwen2-VL; 256 tokens of 64 x 64 patches in Gemma 3."""
    square = Images(number=1, width=280, height=560)
    llava = vision_of({"vision_config": CLIP})
    assert llava is not None
    assert (llava.tokens(square), llava.patches(square), llava.gated) == (576, 576, False)
    qwen2 = vision_of({
        "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16,
                          "patch_size": 14, "spatial_merge_size": 2}
    })  # fmt: skip
    assert qwen2 is not None
    assert (qwen2.hidden, qwen2.ffn, qwen2.tokens(square), qwen2.patches(square)) == (1280, 5120, 200, 800)
    gemma = vision_of({"vision_config": CLIP | {"image_size": 896}, "mm_tokens_per_image": 256})
    assert gemma is not None
    assert (gemma.tokens(square), gemma.patches(square)) == (256, 4096)


def test_configurations_that_do_not_tell_have_no_encoder() -> None:
    assert vision_of({}) is None
    assert vision_of({"vision_config": {}}) is None
    assert vision_of({"vision_config": CLIP | {"image_size": None}}) is None
    assert known_decoder("Qwen/Qwen3-8B").vision is None
    composed = decoder_of({"model_type": "llava", "text_config": TEXT, "vision_config": CLIP}, "composed")
    assert composed.vision == vision_of({"vision_config": CLIP})


def test_a_tower_weighs_what_vit_does(predictor: Predictor) -> None:
    """ViT-L has 302 M parameters in its layers: 4 h² + 2 h f, their biases and norms."""
    tower = decoder_of({"model_type": "llava", "text_config": TEXT, "vision_config": CLIP}).vision_tower
    assert tower is not None
    h, f = 1024, 4096
    layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h
    assert tower.parameters == pytest.approx(24 * layer, rel=1e-3)
    without = predictor.deployment("Qwen/Qwen3-8B", GPU, 4096).memory.weights
    weights = predictor.deployment(MODEL, GPU, 4096).memory.weights
    vision = known_decoder(MODEL).vision_tower
    assert vision is not None
    assert weights - without == pytest.approx(2 * vision.parameters)


def test_images_delay_first_tokens_and_nothing_else(predictor: Predictor) -> None:
    def served(images: str) -> tuple[float, float]:
        deployment = predictor.deployment(MODEL, GPU, 3100, images=images)
        estimate = serve(deployment, Static(batch=1, isl=3000, osl=100))
        return estimate.ttft_s.mean, estimate.tpot_s.mean

    times = [served(images) for images in ("", "1", "2", "2,size=2048x1024")]
    first = np.diff([ttft_s for ttft_s, _ in times])
    assert (first > 0).all()
    assert first[0] < 0.05
    assert [tpot_s for _, tpot_s in times] == pytest.approx([times[0][1]] * 4)
    flop = 2 * 4096 * 27 * (4 * 1152**2 + 2 * 1152 * 4304 + 2 * 4096 * 1152)
    assert first[0] > flop / 989e12


def test_encoding_is_a_part_of_passes_with_prompts(predictor: Predictor) -> None:
    estimate = serve(predictor.deployment(MODEL, GPU, 3100, images="2"), Static(batch=4, isl=3000, osl=20))
    assert estimate.prefill is not None
    assert 0.1 < estimate.prefill.parts["vision encoder"] < 0.6
    assert estimate.decode is not None
    assert estimate.decode.parts.get("vision encoder", 0) == 0


def test_images_are_read_and_refused(predictor: Predictor) -> None:
    assert Images.parse("2") == Images(number=2, width=1024, height=1024)
    assert Images.parse("3, size=1280x720") == Images(number=3, width=1280, height=720)
    for wrong in ("", "x", "1,1280x720", "1,size=1280", "0", "1,size=0x5", "1,size=99999x5", "-1"):
        with pytest.raises(ModelError, match=r"like 2,size=1280x720|is not from 1"):
            Images.parse(wrong)
    with pytest.raises(ModelError, match="tells of no vision encoder"):
        predictor.serving("Qwen/Qwen3-8B", GPU, Static(batch=1, isl=3000, osl=2), images="1")
