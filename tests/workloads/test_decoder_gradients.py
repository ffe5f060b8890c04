"""What runs backward follows from what runs forward: products, pointwise operators, data movement, collectives."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.engines import engine_named
from neusight.errors import CoverageError
from neusight.workloads.decoders.operations import (
    ADJOINTS,
    GRADIENTS,
    exchange,
    move,
    over_rows,
    pointwise,
    product_gradients,
)
from neusight.workloads.decoders.rank import Rank
from neusight.workloads.decoders.shares import Local

M, N, K = 5, 3, 4
RANK = Rank.for_training(64, Local(batch=2, seq_len=8, tp=2, ep=2, sequence_parallel=True), engine_named("megatron-te"))


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_gradients_of_a_product_are_the_products_of_calculus(layout: str) -> None:
    """Of the sum of G * Y: a change of one operand's entry changes it by that entry of its gradient."""
    draw = np.random.default_rng(3).normal
    left, right, gradient = draw(size=(M, K)), draw(size=(N, K) if layout == "tn" else (K, N)), draw(size=(M, N))
    (of_left, how_left), (of_right, how_right) = product_gradients((M, N, K), layout)
    products = {"tn": lambda a, b: a @ b.T, "nn": lambda a, b: a @ b, "nt": lambda a, b: a.T @ b}
    d_left = products[how_left](gradient, right)
    d_right = products[how_right](*((gradient, left) if layout == "tn" else (left, gradient)))
    assert (*d_left.shape, N) == of_left
    assert (*d_right.shape, M) == of_right

    def total(a: np.ndarray, b: np.ndarray) -> float:
        return float((gradient * products[layout](a, b)).sum())

    step = np.zeros_like(left)
    step[2, 1] = 1.0
    assert total(left + step, right) - total(left, right) == pytest.approx(d_left[2, 1])
    step = np.zeros_like(right)
    step[1, 2] = 1.0
    assert total(left, right + step) - total(left, right) == pytest.approx(d_right[1, 2])


@pytest.mark.parametrize("op", [*GRADIENTS, "silu", "gelu", "relu", "swiglu", "geglu", "bias_gelu"])
def test_every_operator_has_the_gradients_of_its_table(op: str) -> None:
    make = over_rows if op == "add_rms_norm" else pointwise
    done = make(RANK, "some", op, 16, 64)
    (forward,) = done.forward
    assert str(forward.batch["op"][0]) == op
    expected = GRADIENTS.get(op, (f"{op}_backward",))
    ran = [str(part.batch["op"][0]) for part in done.backward for _ in range(int(part.runs))]
    assert ran == list(expected)
    assert {part.name for part in done.backward} <= {"some gradient"}


def test_an_operator_without_a_gradient_is_refused_and_not_free() -> None:
    with pytest.raises(CoverageError, match="unknown operator 'cumsum_backward'"):
        over_rows(RANK, "some", "cumsum", 16, 64)
    with pytest.raises(CoverageError, match="unknown operator 'maximum_backward'"):
        pointwise(RANK, "some", "maximum", 16, 64)


@pytest.mark.parametrize("op", [*ADJOINTS, "all_reduce"])
def test_collectives_have_their_adjoints(op: str) -> None:
    done = exchange(RANK, "some", op, "tp", 1024)
    assert [str(part.batch["op"][0]) for part in done.forward] == [op]
    back = [str(part.batch["op"][0]) for part in done.backward]
    assert back == ([ADJOINTS[op]] if op in ADJOINTS else [])
    assert all(ADJOINTS[ADJOINTS[each]] == each for each in ADJOINTS)
    assert {int(part.batch["bytes"][0]) for part in (*done.forward, *done.backward)} == {1024}


def test_what_is_moved_moves_back() -> None:
    part = RANK.copy("some", 16, 64)
    done = move(part)
    (back,) = done.backward
    assert back.batch is part.batch
    assert back.name == "some gradient"
