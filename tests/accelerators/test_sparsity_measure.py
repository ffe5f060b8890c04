"""Measuring: known zeros are found, streams are TensorDash's, and real networks of every kind run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from neusight.collect.sparsity import SparsityProfile, measure, measure_course, pruning
from neusight.collect.sparsity.streams import operand_streams
from neusight.errors import ModelError
from neusight.executors.tensordash.masks import CLUSTERS, clustering_of, random_mask
from neusight.executors.tensordash.streams import streams_of
from neusight.kernels import Conv2d, KernelBatch
from neusight.transforms.sparsity import OPERANDS
from neusight.workloads import load_workload


class Known(nn.Module):
    """Every second feature is cut off by a rectifier, whatever the input: by a bias that no update can overcome."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.act = nn.ReLU(inplace=inplace)
        self.last = nn.Linear(8, 4)
        with torch.no_grad():
            self.first.bias.copy_(torch.tensor([-1e6, 1e6] * 4))
            self.last.weight[1] = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)) * 1e-6)


def test_zeros_that_are_known() -> None:
    inputs = torch.ones(10, 6)
    inputs[:, 0] = 0.0
    inputs[::2, 1] = 0.0
    for inplace in (False, True):
        profile = measure(Known(inplace), inputs=(inputs,), warmup=0, steps=1)
        first, last = profile.of("first"), profile.of("last")
        zeros = [getattr(layer, name).sparsity for layer in (first, last) for name in OPERANDS]
        expected = {"activations": (0.25, 0.5), "gradients": (0.5, 0.0), "weights": (0.0, 0.25)}
        assert zeros == [expected[name][place] for place in (0, 1) for name in OPERANDS]
        # The same units are cut off in every position: all streams share their zeros.
        assert (last.activations.cluster, last.activations.clustering) == ("slot", pytest.approx(1.0))
        assert profile.default.activations.sparsity == 0.0
        profile.check(["first", "last"])


class Halved(nn.Module):
    """A convolution whose output half of the loss does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv(x))[:, :, :4].sum(dim=(2, 3))


def test_gradients_through_a_rectifier_and_a_cut() -> None:
    module, x = Halved(), torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    profile = measure(module, inputs=[x], warmup=0, steps=1)
    alive = (module.conv(x)[:, :, :4] > 0).float().mean().item()
    assert profile.of("conv").gradients.sparsity == pytest.approx(1 - alive / 2, abs=1e-4)
    assert profile.of("conv").gradients.clustering > 0.1


def test_planted_clustering_is_recovered() -> None:
    for cluster in CLUSTERS:
        mask = random_mask(np.random.default_rng(2), (200, 32, 16), 0.4, 0.5, cluster)
        # Of a linear layer, a row of 512 features is a stream of 32 steps.
        x = torch.from_numpy(mask.reshape(200, 512)).float()
        found = measure(nn.Linear(512, 4), inputs=(x,), warmup=0, steps=1).of("").activations
        assert found.sparsity == pytest.approx(1 - mask.mean(), abs=1e-4)
        assert found.cluster == cluster
        assert found.clustering == pytest.approx(clustering_of(mask, cluster), abs=1e-4)


def test_windows_are_streams_with_channels_innermost() -> None:
    conv = nn.Conv2d(6, 4, (3, 2), stride=2, dilation=(1, 2), groups=2)
    values = torch.randn(2, 6, 9, 8, generator=torch.Generator().manual_seed(0)).clamp(min=0)
    found = operand_streams(conv, "activations", values, 10**6, None)
    # functional.unfold has the taps innermost.
    windows = functional.unfold(values, (3, 2), dilation=(1, 2), stride=2)
    expected = windows.reshape(2, 2, 3, 6, -1).permute(0, 4, 1, 3, 2).reshape(-1, 6, 3) != 0
    assert (found == expected).all()


def test_gradient_streams_are_as_long_as_the_longest_phase() -> None:
    for stride, dilation in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (2, 3)):
        conv = nn.Conv2d(32, 16, 3, stride=stride, dilation=dilation, padding=dilation)
        kernel = Conv2d(
            op="input_grad", batch=1, in_channels=32, height=24, width=24, out_channels=16, kernel_height=3,
            kernel_width=3, stride=stride, padding=dilation, dilation=dilation, groups=1, dtype="float32",
        )  # fmt: skip
        streams = streams_of(KernelBatch.of([kernel]))
        found = operand_streams(conv, "gradients", torch.ones(1, 16, 12, 12), 5, torch.Generator().manual_seed(0))
        assert found.shape == (5, streams.taps.max(), 16), (stride, dilation)


def test_small_tensors_have_the_taps_that_fit() -> None:
    conv = nn.Conv2d(4, 8, 5, padding=2)
    assert operand_streams(conv, "activations", torch.ones(3, 4, 2, 2), 99, None).shape == (3, 4, 4)
    assert operand_streams(conv, "weights", conv.weight, 99, None).shape == (8, 25, 4)


@pytest.fixture(scope="module")
def alexnet() -> SparsityProfile:
    return measure("alexnet", 1, image_size=96, steps=1, warmup=1, pruning=pruning("2:4"))


def test_a_real_network_whose_pruned_weights_stay_pruned(alexnet: SparsityProfile) -> None:
    nodes = load_workload("alexnet", mode="training", batch=1).nodes
    alexnet.check(n.layer.name() for n in nodes for k in n.kernels if k.family in ("conv2d", "gemm"))
    # Images have no zeros; rectifiers leave about half; the pool passes one gradient of nine.
    assert alexnet.of("features.0").activations.sparsity == 0
    assert 0.3 < alexnet.of("features.8").activations.sparsity < 0.7
    assert alexnet.of("features.0").gradients.sparsity > 0.7
    assert alexnet.of("classifier.6").gradients.sparsity == 0
    weights = {name: layer.weights for name, layer in alexnet.layers.items()}
    # Three input channels are a group that lacks one.
    assert weights.pop("features.0").sparsity == pytest.approx(1 / 3, abs=1e-3)
    assert {w.sparsity for w in weights.values()} == {0.5}
    assert max(w.clustering for w in weights.values()) < 0.02


def test_the_source_says_what_was_done(alexnet: SparsityProfile) -> None:
    assert alexnet.model == "alexnet"
    said = (
        "1 training step after 1 update by SGD",
        "random initialisation",
        "2:4",
        "random inputs of batch 1",
        "96x96",
    )
    assert [words for words in said if words not in alexnet.source] == []


TINY = """{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 16, "vocab_size": 50,
"activation_function": "relu", "bos_token_id": 0, "eos_token_id": 0}"""


def test_a_seed_gives_one_profile_and_leaves_other_randomness_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(TINY)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one = measure(file, seed=3)
    assert (torch.random.get_rng_state() == before).all()
    assert measure(file, seed=3) == one
    assert measure(file, seed=4).layers != one.layers


def test_transformers_own_linear_layers(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(TINY)
    profile = measure(file, 2, steps=1, pruning=pruning("2:4"))
    assert list(profile.layers) == [
        "transformer.h.0.attn.c_attn",
        "transformer.h.0.attn.c_proj",
        "transformer.h.0.mlp.c_fc",
        "transformer.h.0.mlp.c_proj",
        "lm_head",
    ]
    assert {layer.weights.sparsity for layer in profile.layers.values()} == {0.5}
    assert 0.3 < profile.of("transformer.h.0.mlp.c_proj").activations.sparsity < 0.7
    assert 0.3 < profile.of("transformer.h.0.mlp.c_fc").gradients.sparsity < 0.7
    assert "16 tokens" in profile.source


def test_a_function_is_run_with_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\ndef net(batch=1):\n    return torch.nn.Linear(4, 3), torch.zeros(batch, 4)\n"
    (tmp_path / "sparse_net.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    profile = measure("sparse_net:net", 5, steps=1)
    assert profile.of("").activations.sparsity == 1
    assert profile.of("").gradients.sparsity == 0
    assert "given inputs" in profile.source


def test_weights_that_are_given_are_what_is_measured() -> None:
    module = nn.Linear(4, 3)
    weights = {"weight": torch.tensor([[1.0, 0, 0, 0]] * 3), "bias": torch.zeros(3)}
    profile = measure(module, inputs=(torch.ones(2, 4),), weights=weights, warmup=0, steps=1)
    assert profile.of("").weights.sparsity == 0.75
    assert "given weights" in profile.source
    assert module.weight.count_nonzero() == 12


class Idle(nn.Module):
    """One of its layers never runs, and is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_layer_that_does_not_run_is_left_out() -> None:
    assert list(measure(Idle(), inputs=(torch.ones(2, 4),), steps=1).layers) == ["used"]


def test_what_cannot_be_measured_is_one_line() -> None:
    linear, ones = nn.Linear(4, 3), torch.ones(2, 4)
    for model, options, words in (
        ("alexnet", {"batch": 0}, ["batch 0", "at least 1"]),
        ("alexnet", {"steps": 0}, ["steps 0"]),
        ("alexnet", {"warmup": -1}, ["warm-up -1"]),
        ("alexnet", {"image_size": 0}, ["image size 0"]),
        ("alexnet", {"seq_len": 5}, ["alexnet reads images"]),
        ("gpt2", {"image_size": 5}, ["gpt2 reads tokens"]),
        ("gpt2", {"seq_len": 5000}, ["5000", "at most 1024"]),
        ("alexxnet", {}, ["did you mean alexnet"]),
        ("alexnet", {"image_size": 8}, ["cannot train 'alexnet'"]),
        ("llama-3.1-405b", {}, ["GB for weights", "this host has"]),
        (linear, {"inputs": (torch.ones(2, 5),)}, ["cannot train 'Linear'"]),
        (linear, {"inputs": (3,)}, ["hold no tensor"]),
        (linear, {"inputs": ones, "image_size": 3}, ["leave out the image size"]),
        (linear, {"inputs": torch.full((2, 4), torch.inf)}, ["the loss of Linear is"]),
        (linear, {"inputs": ones, "weights": {"w": torch.ones(1)}}, ["not those of Linear"]),
        (linear, {"inputs": ones, "loss": lambda result: result}, ["cannot train"]),
        (nn.Softmax(dim=-1), {"inputs": ones}, ["no convolution and no linear layer"]),
        (nn.LSTM(4, 3), {"inputs": ones}, ["nothing to measure"]),
    ):
        with pytest.raises(ModelError) as raised:
            measure(model, **options)
        assert "\n" not in str(raised.value)
        assert all(word in str(raised.value) for word in words), raised.value


def test_digits_are_learned_and_have_their_classes() -> None:
    profile = measure("torchvision:squeezenet1_1@64", 8, inputs="digits", steps=1, warmup=6)
    first, last = (float(text) for text in profile.source.split("loss ")[1].split(";")[0].split(" to "))
    assert last < first and "handwritten digits of batch 8, 64x64 pixels" in profile.source
    with pytest.raises(ModelError, match="reads tokens"):
        measure("opt-125m", 1, inputs="digits", seq_len=8, steps=1)


def test_a_course_is_of_trainings_with_fewer_updates() -> None:
    module = Known(inplace=False)
    inputs = (torch.ones(10, 6),)
    course = measure_course(module, inputs=inputs, updates=(0, 3, 6))
    assert course == {count: measure(module, inputs=inputs, warmup=count) for count in (0, 3, 6)}
    for updates in ((6, 0), (5, 6), (6, 6)):
        with pytest.raises(ModelError, match="rising numbers, 2 apart"):
            measure_course(module, inputs=inputs, updates=updates)


class Drawing(nn.Linear):
    """Draws what it learns from."""

    def samples(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Signs of numbers.

        More of them.
        """
        x = torch.randn(32, 4)
        return (x.clamp(min=0),), (x[:, 0] > 0).long()


def test_a_module_that_draws_its_samples_learns_from_them() -> None:
    profile = measure(Drawing(4, 2), inputs=(torch.zeros(32, 4),), warmup=3000, steps=1)
    assert "by Adam" in profile.source and "; Signs of numbers; " in profile.source
    first, last = (float(text) for text in profile.source.split("loss ")[1].split(";")[0].split(" to "))
    assert last < first - 0.1
    assert 0.3 < profile.of("").activations.sparsity < 0.7
