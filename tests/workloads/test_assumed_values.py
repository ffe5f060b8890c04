"""Results that depend on values: as large as they can be, and said so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
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


EXPERTS, TOKENS, CHOSEN = 8, 128, 2


class Routed(nn.Module):
    """A layer for the tokens of each expert, which a function finds by the scores of all."""

    def __init__(self, route: Callable[..., Any]) -> None:
        super().__init__()
        self.scores, self.layer, self.route = nn.Linear(COLS, EXPERTS), nn.Linear(COLS, COLS), route

    def forward(self, x: torch.Tensor) -> Any:
        return self.route(self, x, self.scores(x).topk(CHOSEN)[1])


def rows_of(step: Workload) -> list[int]:
    """Rows of the products of experts."""
    return [kernel.m for kernel in kernels(step) if kernel.family == "gemm"][1:]


def each(module: Any, x: torch.Tensor, parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([module.layer(x[rows]) for rows in parts])


def by_where(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    return each(module, x, (torch.where(chosen == expert)[0] for expert in range(EXPERTS)))


def by_mask(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    return each(module, x, (mask for e in range(EXPERTS) if (mask := (chosen == e).any(-1)).any()))


def by_one_hot(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    mask = functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    used = (mask.sum(dim=(-1, -2)) > 0).nonzero()
    return each(module, x, (torch.where(mask[expert].squeeze(0))[1] for expert in used))


def by_scatter(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    mask = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter_(1, chosen, True)
    return each(module, x, (mask[:, expert].nonzero().squeeze(-1) for expert in range(EXPERTS)))


def by_weight(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    weights = torch.zeros(TOKENS, EXPERTS).scatter(1, chosen, torch.rand(TOKENS, CHOSEN))
    return each(module, x, (weights[:, expert].nonzero().squeeze(-1) for expert in range(EXPERTS)))


def by_count(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    counts = chosen.flatten().bincount(minlength=EXPERTS).tolist()
    return each(module, x, (chosen.flatten().argsort() // CHOSEN).split(counts))


def by_offset(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
    order, ends = chosen.flatten().argsort(), torch.histc(chosen.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0)
    bounds = [0, *(int(end) for end in ends)]
    return each(module, x, (order[a:b] // CHOSEN for a, b in pairwise(bounds)))


@pytest.mark.parametrize("route", [by_where, by_mask, by_one_hot, by_scatter, by_weight, by_count, by_offset])
def test_trace_expects_an_even_share_of_tokens_for_each_expert(route: Callable[..., Any]) -> None:
    step = trace(Routed(route), [TensorSpec((TOKENS, COLS))], Request.of("m"))
    assert rows_of(step) == [TOKENS * CHOSEN // EXPERTS] * EXPERTS
    assert step.warnings and any("taken as an even share of each value" in line for line in step.warnings)


def test_trace_takes_no_more_distinct_values_than_an_index_has() -> None:
    def first(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> Any:
        return module.layer(x[: len(chosen.unique())])

    assert rows_of(trace(Routed(first), [TensorSpec((TOKENS, COLS))], Request.of("m"))) == [EXPERTS]


SELECTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nonzero": lambda x: x[(x[:, 0] > 0).nonzero().squeeze(-1)],
    "index": lambda x: x[x[:, 0] > 0],
    "masked_select": lambda x: x.masked_select(x[:, :1] > 0).view(-1, COLS),
    "unique": lambda x: torch.unique(x, dim=0),
}


@pytest.mark.parametrize("operator", SELECTED)
@pytest.mark.parametrize(("named", "rows"), [("operator", 32), ("1", 32), ("*", 32), ("", TOKENS)])
def test_trace_takes_the_share_that_is_given(operator: str, named: str, rows: int) -> None:
    model = nn.Sequential(nn.Linear(COLS, COLS), Applied(SELECTED[operator]), nn.Linear(COLS, COLS))
    name = operator.replace("unique", "unique_dim") if named == "operator" else named
    request = Request.of("m", share={name: 0.25} if name else None)
    step = trace(model, [TensorSpec((TOKENS, COLS))], request)
    assert rows_of(step) == [rows]
    assert bool(step.warnings) == (not name)
    assert all(f"{operator}" in line and "--share 1=0.5 takes half of all" in line for line in step.warnings)


def test_trace_never_selects_nothing() -> None:
    step = trace(
        Applied(lambda x: (x[x[:, 0] > 0]).exp()), [TensorSpec((4, COLS))], Request.of("m", share={"index": 1e-9})
    )
    assert [kernel.elements for kernel in kernels(step) if kernel.op == "exp"] == [COLS]


def test_trace_refuses_shares_of_what_depends_on_no_unknown_values() -> None:
    def asked(function: Callable[..., Any], **share: float) -> None:
        trace(Applied(function), [TensorSpec((TOKENS, COLS))], Request.of("m", share=share))

    with pytest.raises(ModelError, match=r"--share where: no result of that name .*: one of index"):
        asked(lambda x: x[x[:, 0] > 0], where=0.5)
    with pytest.raises(ModelError, match="leave it out"):
        asked(lambda x: x[torch.arange(TOKENS) > 3], index=0.5)
    with pytest.raises(ModelError, match="share index=2: give a number above 0, and at most 1"):
        asked(lambda x: x[x[:, 0] > 0], index=2)


def test_trace_keeps_apart_how_many_are_true_and_that_any_is() -> None:
    seen: list[Any] = []

    def asked(x: torch.Tensor) -> torch.Tensor:
        mask = x[:, 0] > 0
        seen.extend([int(mask.sum()), bool(mask.any()), bool(torch.isnan(x).any())])
        return x

    assert len(traced(asked, TensorSpec((TOKENS, COLS))).warnings) == 2
    assert seen == [TOKENS, False, False]
