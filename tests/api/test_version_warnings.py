"""Warnings of what hangs on the version of a library."""

import pytest
import torch

from neusight import Predictor


@pytest.mark.parametrize(("layout", "groups", "warned"), [("nhwc", 2, True), ("nchw", 2, False), ("nhwc", 64, False)])
def test_gradients_of_grouped_filters_in_nhwc_are_warned_of(layout: str, groups: int, warned: bool) -> None:
    module = torch.nn.Conv2d(64, 64, 3, padding=1, groups=groups)
    images = torch.empty(32, 64, 56, 56, device="meta")
    told = Predictor.load().estimate(module, "l4", inputs=[images], dtype="amp", layout=layout, mode="training")
    assert any("grouped filters" in text for text in told.warnings) == warned
