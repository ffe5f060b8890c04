"""The perceptrons of the published predictor."""

import numpy as np
import pytest
import torch

from neusight.lab.baselines.networks import Recipe, TrainedNetwork, symmetric_error, train_network

RECIPE = Recipe(learning_rate=1e-2, steps=200, batch_rows=64, width=16, layers=3)


def trained(recipe: Recipe = RECIPE, seed: int = 0, n: int = 400) -> tuple[TrainedNetwork, np.ndarray, np.ndarray]:
    """A network of inverse utilisations that rise with two inputs, those inputs, and its relative errors."""
    rng = np.random.default_rng(0)
    inputs, waves = rng.uniform(0, 1, (n, 2)), rng.integers(1, 9, n).astype(float)
    target = (1.5 + inputs.sum(axis=1)) / (1.0 - 0.2 / waves)
    network = train_network(inputs, waves, target, recipe, seed)
    alpha, gamma = 1.0 / (1.0 + np.exp(-network.outputs(inputs).T))
    return network, inputs, 1.0 / (gamma - alpha / waves) / target - 1.0


def test_train_network_learns_inverse_utilisations() -> None:
    network, _, errors = trained()
    assert network.error < 0.05
    assert np.abs(errors).mean() < 0.05


def test_outputs_are_those_of_torch() -> None:
    network, *_ = trained()
    (w1, b1), (w2, b2), (w3, b3) = (tuple(map(torch.tensor, layer)) for layer in network.weights)
    x = torch.rand(10000, 2)
    expected = torch.relu(torch.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
    assert network.outputs(x.numpy()) == pytest.approx(expected.numpy(), abs=1e-5)


def test_train_network_follows_its_seed_and_leaves_the_callers_random_state() -> None:
    torch.manual_seed(7)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first, again, other = (trained(seed=seed)[0] for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.weights[0], again.weights[0], strict=True))
    assert not np.array_equal(first.weights[0][0], other.weights[0][0])
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("rate", "n"), [(1.0, 400), (1e-3, 400), (1e-2, 1)])
def test_train_network_keeps_the_weights_that_validate_best(rate: float, n: int) -> None:
    network, *_ = trained(Recipe(learning_rate=rate, steps=60, batch_rows=64, width=16, layers=3), n=n)
    assert np.isfinite(network.error)


def test_symmetric_error_by_hand() -> None:
    prediction, target = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 6.0])
    assert float(symmetric_error(prediction, target)) == pytest.approx((1 / 3 + 1 / 3) / 2)
