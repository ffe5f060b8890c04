"""The perceptrons that the learned baselines share."""

import numpy as np
import pytest
import torch

from neusight.lab.baselines.networks import Lesson, Recipe, relative_error, symmetric_error, train_network


def lesson(n: int = 400) -> Lesson:
    """Targets that are one plus the sum of two inputs, times a constant of the row."""
    rng = np.random.default_rng(0)
    inputs, constants = rng.uniform(0, 1, (n, 2)), rng.uniform(1, 2, (n, 1))
    return Lesson(
        inputs=inputs,
        constants=constants,
        target=(1 + inputs.sum(axis=1)) * constants[:, 0],
        outputs=1,
        answer=lambda outputs, constant: outputs[:, 0] * constant[:, 0],
        loss=relative_error,
    )


RECIPE = Recipe(learning_rate=1e-2, steps=200, batch_rows=64, width=16, layers=3)


def test_a_network_learns_what_its_answer_makes_of_the_outputs() -> None:
    task = lesson()
    network = train_network(task, RECIPE, seed=0)
    assert network.error < 0.05
    predicted = network.outputs(task.inputs)[:, 0] * task.constants[:, 0]
    assert np.abs(predicted / task.target - 1).mean() < 0.05


def test_numpy_gives_what_torch_would() -> None:
    network = train_network(lesson(), RECIPE, seed=0)
    (w1, b1), (w2, b2), (w3, b3) = (tuple(map(torch.tensor, layer)) for layer in network.weights)
    x = torch.rand(10000, 2)
    expected = torch.relu(torch.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
    assert network.outputs(x.numpy()) == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_seed_decides_and_the_callers_random_state_stays() -> None:
    torch.manual_seed(7)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first, again, other = (train_network(lesson(), RECIPE, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.weights[0], again.weights[0], strict=True))
    assert not np.array_equal(first.weights[0][0], other.weights[0][0])
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_weights_that_validate_best_are_kept() -> None:
    wild = Recipe(learning_rate=1.0, steps=60, batch_rows=64, width=16, layers=3)
    calm = Recipe(learning_rate=1e-3, steps=60, batch_rows=64, width=16, layers=3)
    assert all(np.isfinite(train_network(lesson(), recipe, seed=0).error) for recipe in (wild, calm))
    assert train_network(lesson(), RECIPE, seed=0).error <= train_network(lesson(), calm, seed=0).error


def test_one_row_is_enough() -> None:
    assert np.isfinite(train_network(lesson(1), RECIPE, seed=0).error)


def test_losses_by_hand() -> None:
    prediction, target = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 6.0])
    assert float(relative_error(prediction, target)) == pytest.approx((1.0 + 0.5) / 2)
    assert float(symmetric_error(prediction, target)) == pytest.approx((1 / 3 + 1 / 3) / 2)
