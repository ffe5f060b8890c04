"""The TensorDash paper's networks: what they compute, and that their samples are real and fit them."""

import pytest
import torch
from torch.nn import functional

from neusight.collect.sparsity.inputs import digits
from neusight.lab import networks


@pytest.mark.parametrize(
    ("function", "batch"), [("sentence_pairs", 3), ("captioner", 2), ("gated_convolution", 2), ("graph_convolution", 1)]
)
def test_samples_are_what_a_network_learns_from(function: str, batch: int) -> None:
    torch.manual_seed(0)
    module, example = getattr(networks, function)(batch)
    inputs, classes = module.samples()
    assert [(x.dim(), x.dtype, len(x)) for x in inputs] == [(x.dim(), x.dtype, len(x)) for x in example]
    logits = module(*inputs)
    assert logits.shape[:-1] == classes.shape
    assert torch.isfinite(functional.cross_entropy(logits.flatten(0, -2), classes.flatten()))


def test_a_layer_of_long_short_term_memory_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, torchs = networks.Lstm(5, 7), torch.nn.LSTM(5, 7, batch_first=True)
    with torch.no_grad():
        # Gates of torch stand in the order input, forget, cell, output, as ours.
        torchs.weight_ih_l0.copy_(ours.input.weight)
        torchs.bias_ih_l0.copy_(ours.input.bias)
        torchs.weight_hh_l0.copy_(ours.state.weight)
        torchs.bias_hh_l0.zero_()
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(ours(x), torchs(x)[0])


def test_a_gated_convolution_sees_nothing_that_follows() -> None:
    torch.manual_seed(0)
    module, _ = networks.gated_convolution(1, 12)
    words = torch.randint(networks.WORDS, (1, 12))
    other = words.clone()
    other[0, 8:] = 0
    before, after = module(words), module(other)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_captions_say_what_is_seen() -> None:
    torch.manual_seed(1)
    module, _ = networks.captioner(4)
    (images, shown), told = module.samples()
    assert images.shape == (4, 3, networks.TRAINED_PIXELS, networks.TRAINED_PIXELS)
    words = [networks.CAPTION_WORDS[i] for i in (*shown[0].tolist(), told[0, -1].item())]
    assert words[0] == "begin" and words[4::4] == ["then", "then", "end"]
    assert (shown[:, 1:] == told[:, :-1]).all()
    assert set(words[3::4]) <= set(networks.DIGIT_WORDS)


def test_the_text_is_prose_in_sentences() -> None:
    topics = networks.documentation()
    assert len(topics) > 50 and min(map(len, topics)) > 1
    numbers = {word for topic in topics for sentence in topic for word in sentence}
    assert numbers == set(range(1, networks.WORDS))
    assert min(len(sentence) for topic in topics for sentence in topic) >= 5
    assert len(digits()[0]) == networks.NODES
