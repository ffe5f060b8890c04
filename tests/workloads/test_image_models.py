import sys
from importlib.util import find_spec

import pytest

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.sources.image_models import image_model

with_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs the extra timm")
with_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs the extra vision")


def test_other_names_are_no_image_models():
    assert image_model("gpt2-large") is None
    assert image_model("package.module:function") is None


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_its_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=rf"{library} cannot be imported.*pip install 'neusight\[(timm|vision)\]'"):
        load_workload(f"{library}:resnet18", cache=False)


@pytest.mark.parametrize("size", ["x", "0", "-3", "1e9", "99999999"])
def test_a_size_is_a_number_of_pixels(size):
    with pytest.raises(ModelError, match="as pixels"):
        image_model(f"torchvision:resnet18@{size}")


@with_torchvision
def test_unknown_names_get_the_nearest():
    with pytest.raises(ModelError, match="did you mean resnet50"):
        load_workload("torchvision:resnet5", cache=False)


@with_torchvision
def test_a_larger_image_has_more_pixels_and_the_same_parameters():
    small, large = (load_workload(f"torchvision:resnet18@{edge}", batch=2) for edge in (64, 128))
    assert small.parameters == large.parameters == 11_689_512  # He et al. 2016, table 1, with 1000 classes
    convolutions = [[k for n in w.nodes for k in n.kernels if k.family == "conv2d"] for w in (small, large)]
    assert [2 * k.height for k in convolutions[0]] == [k.height for k in convolutions[1]]


@with_torchvision
def test_images_have_no_sequence():
    with pytest.raises(ModelError, match="no sequence"):
        load_workload("torchvision:resnet18", seq_len=8)


@with_timm
def test_names_of_older_versions_stand_for_todays():
    assert image_model("timm:tf_efficientnet_b0_ns").exact() == "tf_efficientnet_b0"


@with_timm
def test_positions_are_made_for_the_size_asked_for():
    known = [image_model(f"timm:vit_tiny_patch16_224{at}") for at in ("", "@384")]
    tokens = [model.build(Request()).pos_embed.shape[1] for model in known]
    assert tokens == [14 * 14 + 1, 24 * 24 + 1]


@with_timm
def test_settings_that_constructors_compute_are_those_of_the_published_model():
    workload = load_workload("timm:regnety_032", cache=False)
    assert workload.parameters == 19_436_338  # as counted from the weights that timm publishes


@with_torchvision
@pytest.mark.parametrize(
    ("name", "frames", "fed"),
    [
        ("deeplabv3_mobilenet_v3_large", None, ("2x3x520x520:float32",)),
        ("r3d_18", 8, ("2x3x8x112x112:float32",)),
        ("raft_small", None, ("2x3x520x960:float32", "2x3x520x960:float32")),
        ("ssdlite320_mobilenet_v3_large", None, ("3x480x640:float32", "3x480x640:float32")),
    ],
)
def test_every_task_of_torchvision_is_fed_what_it_takes(name, frames, fed):
    workload = load_workload(f"torchvision:{name}", batch=2, frames=frames, cache=False)
    assert workload.inputs == fed
    assert not workload.uncovered


@with_torchvision
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("fcos_resnet50_fpn", {"mode": "training"}, "lists of boxes.*ask for inference"),
        ("resnet18", {"frames": 4}, "reads single images: leave out --frames"),
        ("resnet18", {"seconds": 1.0}, "leave out|leave it out"),
    ],
)
def test_what_a_model_of_torchvision_does_not_have_is_refused(name, options, says):
    with pytest.raises(ModelError, match=says):
        load_workload(f"torchvision:{name}", cache=False, **options)


@with_torchvision
def test_a_suppression_of_boxes_compares_every_pair():
    workload = load_workload("torchvision:ssdlite320_mobilenet_v3_large", cache=False)
    compared = next(k for n in workload.nodes for k in n.kernels if getattr(k, "op", "") == "nms")
    boxes = compared.read_bytes // (4 * 4)  # four corners of four bytes
    assert compared.elements == boxes * (boxes + 1) // 2
