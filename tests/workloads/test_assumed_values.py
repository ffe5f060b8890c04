"""Results that depend on values: as large as they can be, and said so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import kernels
from torch import nn
from torch.nn import functional

from neusight.errors import ModelError, UndecidedError
from neusight.requests import Request
from neusight.workloads import Workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace import sizes
from neusight.workloads.trace.tracing import trace

ROWS, COLS = 6, 10


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def traced(function: Callable[..., Any], *inputs: TensorSpec) -> Workload:
    given = inputs or (TensorSpec((ROWS, COLS)),)
    return trace(Applied(function), given, Request.of("m"))


SHAPES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "nonzero": (lambda x: x.nonzero(), (ROWS * COLS, 2)),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), (ROWS * COLS,)),
    "index": (lambda x: x[x[:, 0] > 0], (ROWS, COLS)),
    "unique": (lambda x: torch.unique(x), (ROWS * COLS,)),
    "unique of rows": (lambda x: torch.unique(x, dim=0), (ROWS, COLS)),
    "bincount": (lambda x: torch.bincount(x.long().flatten(), minlength=7), (7,)),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x[:, 0].long()), (ROWS,)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_as_much_is_selected_as_there_can_be_and_a_warning_names_it(name: str) -> None:
    function, shape = SHAPES[name]
    seen: list[tuple[int, ...]] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        result = function(x)
        seen.append(tuple(result.shape))
        return result

    workload = traced(watched)
    assert seen == [shape]
    (warning,) = workload.warnings
    assert "depends on data: taken as large as it can be" in warning and "the model calls aten." in warning


def test_a_condition_is_false_and_a_number_one() -> None:
    workload = traced(lambda x: x.exp() if (x > 0).any() else x * x.sum().item())
    assert not [k for k in kernels(workload) if k.op == "exp"]
    assert [w.rpartition(": ")[2] for w in workload.warnings] == ["taken as False", "taken as 1.0"]


def test_many_assumptions_are_told_in_short() -> None:
    layers = nn.Sequential(*(Applied(lambda x: x * x.sum().item()) for _ in range(9)))
    warnings = trace(layers, [TensorSpec((ROWS, COLS))], Request.of("m")).warnings
    assert len(warnings) == 5 and warnings[-1].startswith("5 more results depend on data")


def test_alignments_have_two_states_and_one_for_each_target() -> None:
    steps, batch, classes, targets = 20, 3, 8, 5

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.ctc_loss(x, y, (steps,) * batch, (targets,) * batch)

    workload = traced(loss, TensorSpec((steps, batch, classes)), TensorSpec((batch, targets), "int64"))
    (loss,) = [k for k in kernels(workload) if k.op == "ctc_loss"]
    assert (loss.passes, loss.elements * loss.passes) == (steps, batch * steps * (2 * targets + 1))


def test_what_has_no_largest_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "RESULTS", {})
    with pytest.raises(ModelError, match=r"the model calls aten\.nonzero.*shape depends on data: give"):
        traced(lambda x: x.nonzero())


def test_all_elements_are_taken_to_hold_and_none_to_be_wrong() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        if not (x >= 0).all() or torch.isnan(x).any():
            raise ValueError("wrong")
        return x + 1

    assert "add_scalar" in [kernel.op for kernel in kernels(traced(checked))]


def test_shares_that_values_decide_are_even() -> None:
    def split(x: torch.Tensor) -> list[torch.Tensor]:
        counts = torch.bincount(x[:, 0].long(), minlength=4).tolist()
        return [part + 1 for part in x.split(counts)]

    step = traced(split)
    assert [k.elements for k in kernels(step) if k.op == "add_scalar"] == [2 * COLS, 2 * COLS, COLS, COLS]
    assert any("even shares" in line for line in step.warnings)


def test_a_refusal_after_an_assumption_is_told_apart() -> None:
    def refused(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    def undecided(x: torch.Tensor) -> torch.Tensor:
        return x.view(int(x.sum()), -1, 7)

    with pytest.raises(UndecidedError):
        traced(undecided)
    with pytest.raises(ModelError) as caught:
        traced(refused)
    assert not isinstance(caught.value, UndecidedError)
