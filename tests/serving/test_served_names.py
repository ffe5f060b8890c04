"""Every decoder that a workload names can be served, by the same name."""

import pytest

from neusight import Predictor
from neusight.errors import ModelError
from neusight.serving import Static
from neusight.workloads import list_traced, list_workloads
from neusight.workloads.catalogue import WorkloadInfo
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.known import known_decoder, known_decoders
from neusight.workloads.resolve import resolve

DECODERS = [info for info in (*list_workloads(), *list_traced()) if info.kind == "causal-lm"]


@pytest.mark.parametrize("info", DECODERS, ids=lambda info: info.name)
def test_a_decoder_of_the_catalogue_is_served_by_its_name(info: WorkloadInfo) -> None:
    for name in (info.name, *info.aliases):
        decoder = known_decoder(name)
        # Names of the hub come first: theirs may have another vocabulary or longer context, never other layers.
        assert decoder.parameters == pytest.approx(info.parameters, rel=0.01)


def test_a_mixture_of_the_catalogue_is_served(predictor: Predictor) -> None:
    estimate = predictor.serving("mixtral-8x7b", "h100-sxm-80gb", Static(batch=1, isl=64, osl=2), tp=2)
    assert estimate.model == "mixtral-8x7b"


def test_passes_without_attention_are_told_apart_by_their_prompts(predictor: Predictor) -> None:
    estimate = predictor.serving("mamba2-370m", "l4", Static(batch=1, isl=4096, osl=16))
    assert estimate.prefill is not None
    assert estimate.decode is not None
    assert "chunks of prompts" in estimate.prefill.parts
    assert estimate.prefill.parts["chunks of prompts"] > 0
    assert estimate.decode.parts["chunks of prompts"] == 0


def test_what_is_served_is_predicted_by_the_same_name() -> None:
    for name in known_decoders():
        source = resolve(name.rsplit("/", 1)[-1].lower())
        assert source.config is not None
        assert decoder_of(source.config).parameters == known_decoder(source.name).parameters
    assert resolve("Qwen3-8B-FP8").quantization == "fp8"
    with pytest.raises(ModelError, match="did you mean Qwen/Qwen3-8B"):
        resolve("qwen3-9b")


@pytest.mark.parametrize("name", ["bert-base", "dlrm-terabyte", "timm:resnet50", "torchvision:vgg16", "whisper-base"])
def test_what_is_no_decoder_says_so(name: str) -> None:
    with pytest.raises(ModelError, match=f"{name}: .* is no decoder that engines serve.*by 'predict'"):
        known_decoder(name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("bigscience/bloom-560m", 559_214_592), ("distilgpt2", 81_912_576), ("google/mt5-small", 172_119_424)],
)
def test_what_a_hub_configuration_leaves_out_is_as_its_type_has_it(name: str, parameters: int) -> None:
    assert known_decoder(name).parameters == parameters
