"""Pruning: which weights go, and that they stay away."""

from itertools import product

import pytest
import torch
from torch import nn

from neusight.collect.sparsity import prune_module, pruning
from neusight.collect.sparsity.prune import Grouped, Unstructured, hold_pruned
from neusight.collect.sparsity.streams import as_filters, operand_streams
from neusight.errors import DataError
from neusight.executors.tensordash.masks import clustering_of


def test_text_becomes_a_rate_or_n_of_m() -> None:
    assert pruning("0.8") == Unstructured(0.8)
    assert pruning("2:4") == Grouped(2, 4)
    for text in ("", "half", "1", "-0.1", "nan", "2:", ":4", "2:4:8", "5:4", "0:4", "2.5:4"):
        with pytest.raises(DataError, match=r"write (it like|a rate like)") as raised:
            pruning(text)
        assert "\n" not in str(raised.value)


def test_a_rate_takes_the_smallest_magnitudes() -> None:
    weights = torch.tensor([[0.3, -0.1, 2.0, -0.5, 0.2], [-3.0, 0.4, 0.0, 1.0, -0.6]])
    kept = Unstructured(0.5).kept(weights)
    assert (weights * kept).tolist() == torch.tensor([[0, 0, 2.0, -0.5, 0], [-3.0, 0, 0, 1.0, -0.6]]).tolist()
    assert Unstructured(0.0).kept(weights).all()


def test_a_rate_is_met_among_equal_magnitudes() -> None:
    weights = torch.randint(-2, 3, (40, 50), generator=torch.Generator().manual_seed(1)).float()
    for rate in (0.1, 0.5, 0.9):
        kept = Unstructured(rate).kept(weights)
        assert int((~kept).sum()) == round(rate * 2000)
        assert weights[kept].abs().min() >= weights[~kept].abs().max()


def test_n_of_m_keeps_the_largest_of_every_group() -> None:
    weights = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.1, 0.2, 0.3]])
    assert Grouped(2, 4).kept(weights).tolist() == [[False, True, True, False, False, True, True]]
    # An incomplete group, of fewer than n, stays as it is.
    assert Grouped(2, 4).kept(torch.zeros(1, 5)).tolist() == [[True, True, False, False, True]]


def test_groups_keep_their_share_in_every_layer() -> None:
    layers = [nn.Conv2d(48, 24, 3), nn.Conv2d(32, 16, 1, groups=2), nn.Linear(96, 10)]
    ways = [Grouped(2, 4), Grouped(1, 4), Grouped(4, 8), Grouped(3, 3)]
    whole = [(layer, how) for layer, how in product(layers, ways) if as_filters(layer).shape[-1] % how.group == 0]
    assert len(whole) == 11
    for layer, how in whole:
        with torch.no_grad():
            layer.weight.normal_(generator=torch.Generator().manual_seed(0))
        prune_module(layer, how)
        streams = operand_streams(layer, "weights", layer.weight, 100, None)
        assert (streams.reshape(-1, how.group).sum(dim=1) == how.count).all()
        assert streams.float().mean().item() == pytest.approx(how.count / how.group)
        assert clustering_of(streams.numpy()) <= 0


def test_pruned_weights_stay_zero() -> None:
    layer = nn.Linear(8, 4)
    masks = prune_module(layer, Grouped(2, 4))
    (mask,) = masks.values()
    with torch.no_grad():
        layer.weight.add_(1.0)
    hold_pruned(layer, masks)
    assert ((layer.weight == 0) == ~mask).all()
