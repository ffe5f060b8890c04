import sys
from importlib.util import find_spec

import pytest

from neusight.errors import ModelError
from neusight.workloads import load_workload
from neusight.workloads.image_models import ImageModel, image_model
from neusight.workloads.resolve import resolve

with_timm = pytest.mark.skipif(find_spec("timm") is None, reason="needs the extra timm")
with_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs the extra vision")


def test_other_names_are_no_image_models():
    assert image_model("gpt2-large") is None
    assert image_model("package.module:function") is None


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_its_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=rf"{library} cannot be imported.*pip install 'neusight\[(timm|vision)\]'"):
        resolve(f"{library}:resnet18")


@pytest.mark.parametrize("size", ["x", "0", "-3", "1e9", "99999999"])
def test_a_size_is_a_number_of_pixels(size):
    with pytest.raises(ModelError, match="as pixels"):
        image_model(f"torchvision:resnet18@{size}")


@with_torchvision
def test_unknown_names_get_the_nearest():
    with pytest.raises(ModelError, match="did you mean resnet50"):
        image_model("torchvision:resnet5")


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
    assert image_model("timm:tf_efficientnet_b0_ns") == ImageModel(library="timm", name="tf_efficientnet_b0")


@with_timm
def test_positions_are_made_for_the_size_asked_for():
    known = [image_model(f"timm:vit_tiny_patch16_224{at}") for at in ("", "@384")]
    tokens = [model.build().pos_embed.shape[1] for model in known]
    assert tokens == [14 * 14 + 1, 24 * 24 + 1]
