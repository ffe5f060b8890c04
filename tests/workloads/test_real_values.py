"""Numbers that a module reads from tensors with values, and random ones: they are what they are when it runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from small_models import kernels
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from neusight.errors import ModelError
from neusight.workloads import Workload, load_workload
from neusight.workloads.functions import call_function
from neusight.workloads.trace.values import MOST_INTEGERS

WIDTH = 64
X = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))


class Layered(nn.Module):
    """One linear layer, and a function that says what becomes of it."""

    def __init__(self, run: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.run = run
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.run(self, *given, **named)


def rows_of(step: Workload) -> list[int]:
    """Rows of each product of the forward pass."""
    forward = [node for node in step.nodes if node.phase == "forward"]
    return [k.m for node in forward for k in node.kernels for _ in range(node.copies) if k.family == "gemm"]


def loop(module: Any, x: Any, count: Any) -> Any:
    for _ in range(count):
        x = module.layer(x)
    return x


def if_true(module: Any, x: Any, flag: Any) -> Any:
    return module.layer(module.layer(x)) if flag else module.layer(x)


def by_offsets(module: Any, x: Any, offsets: Any) -> Any:
    return torch.cat([module.layer(x[a:b]) for a, b in pairwise(offsets)])


def by_lengths(module: Any, x: Any, lengths: Any) -> Any:
    ends = lengths.cumsum(0).tolist()
    return torch.cat([module.layer(x[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)])


def by_label(module: Any, x: Any, labels: Any) -> Any:
    return torch.cat([module.layer(x[labels == one]) for one in labels.unique()])


def by_shape(module: Any, x: Any) -> Any:
    return loop(module, x, x.shape[0] // 8 + len(x) // 16)


def constants(module: Any, x: Any) -> Any:
    return loop(module, x, torch.tensor(3) + torch.tensor([1, 2]).max())


def counted(module: Any, x: Any) -> Any:
    counts = x.new_zeros(3, dtype=torch.long)
    counts[1] = 4
    return loop(module, x, int(counts.sum()))


def padded(module: Any, x: Any, lengths: Any) -> Any:
    mask = torch.arange(len(x)) < lengths[:, None]
    return module.layer(x[mask.any(0)])


LENGTHS, OFFSETS = torch.tensor([3, 9]), torch.tensor([0, 3, 9, 16])
READS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[int]]] = {
    "range of a tensor": (loop, (X, torch.tensor(5)), [16] * 5),
    "range of int32": (loop, (X, torch.tensor(5, dtype=torch.int32)), [16] * 5),
    "range of item": (lambda m, x, n: loop(m, x, n.item()), (X, torch.tensor([5])), [16] * 5),
    "float": (lambda m, x, n: loop(m, x, round(float(n))), (X, torch.tensor(4.6)), [16] * 5),
    "condition": (if_true, (X, torch.tensor(True)), [16, 16]),
    "false condition": (if_true, (X, torch.tensor(False)), [16]),
    "early exit": (lambda m, x: if_true(m, x, (x > 0).all()), (X.abs() + 1,), [16, 16]),
    "no early exit": (lambda m, x: if_true(m, x, (x > 0).all()), (X,), [16]),
    "slice": (lambda m, x, n: m.layer(x[:n]), (X, torch.tensor(7)), [7]),
    "slice by the longest": (lambda m, x, n: m.layer(x[: int(n.max())]), (X, LENGTHS), [9]),
    "array": (lambda m, x, n: m.layer(x[: n.cpu().numpy().max()]), (X, LENGTHS), [9]),
    "numpy": (lambda m, x, n: m.layer(x[: n.max()]), (X, np.array([3, 9])), [9]),
    "offsets": (by_offsets, (X, OFFSETS), [3, 6, 7]),
    "lengths": (by_lengths, (X, torch.tensor([3, 6, 7])), [3, 6, 7]),
    "labels": (by_label, (X, torch.tensor([0, 0, 1, 2] * 4)), [8, 4, 4]),
    "mask": (lambda m, x, mask: m.layer(x[mask]), (X, torch.arange(16) < 6), [6]),
    "computed mask": (padded, (X, LENGTHS), [9]),
    "where": (lambda m, x, n: m.layer(x[torch.where(n >= 1)[0]]), (X, torch.tensor([0, 1] * 8)), [8]),
    "masked select": (
        lambda m, x, mask: m.layer(m.layer(x).masked_select(mask[:, None]).view(-1, WIDTH)),
        (X, torch.arange(16) < 6),
        [16, 6],
    ),
    "shape": (by_shape, (X,), [16] * 3),
    "constants": (constants, (X,), [16] * 5),
    "written": (counted, (X.repeat(2048, 1),), [2048 * 16] * 4),
    "list of tensors": (lambda m, xs: m.layer(torch.cat(xs)), ([X, X],), [32]),
}


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", READS)
def test_load_workload_reads_values_of_inputs(name: str, mode: str) -> None:
    run, inputs, rows = READS[name]
    step = load_workload(Layered(run), inputs=inputs, mode=mode)
    assert (rows_of(step), step.warnings) == (rows, ())


@pytest.mark.parametrize(
    ("run", "value", "rows"),
    [
        (lambda m, x: if_true(m, x, m.value), torch.tensor(True), 2),
        (lambda m, x: loop(m, x, m.value), torch.tensor(4), 4),
        (lambda m, x: loop(m, x, max(m.value.tolist())), torch.tensor([1, 3]), 3),
        (lambda m, x: if_true(m, x, x.mean() > m.value), torch.tensor(-5.0), 2),
    ],
)
def test_load_workload_reads_values_of_buffers(run: Callable[..., Any], value: torch.Tensor, rows: int) -> None:
    step = load_workload(Layered(run, value=value), inputs=X)
    assert (rows_of(step), step.warnings) == ([16] * rows, ())


def test_load_workload_leaves_buffers_and_inputs_as_they_are() -> None:
    def counting(module: Any, x: Any, count: Any) -> Any:
        module.steps += 1
        count += 1
        return loop(module, x, int(module.steps) + int(count))

    module, count = Layered(counting, steps=torch.tensor(1)), torch.tensor(1)
    assert [rows_of(load_workload(module, inputs=(X, count))) for _ in range(2)] == [[16] * 4] * 2
    assert (int(module.steps), int(count)) == (1, 1)


def test_load_workload_forgets_values_that_others_are_written_over() -> None:
    def run(module: Any, x: Any) -> Any:
        counts = torch.zeros(4, dtype=torch.long)
        chosen = module.layer(x).argmax(-1) % 4
        counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        return module.layer(x[: int(counts.max())])

    (warning,) = load_workload(Layered(run), inputs=X).warnings
    assert "the result of aten.max that is not known" in warning


@pytest.mark.parametrize("lengths", [[10, 5, 2], [10, 10, 10]])
def test_load_workload_packs_sequences_of_their_lengths(lengths: list[int]) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.cells = nn.Embedding(100, 32), nn.LSTM(32, 32, batch_first=True)
            self.layer = nn.Linear(32, 32)

        def forward(self, ids: Any, lengths: Any) -> Any:
            packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
            return self.layer(pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0])

    step = load_workload(Packed(), inputs=(torch.randint(0, 100, (3, 10)), torch.tensor(lengths)))
    first, *steps, last = rows_of(step)
    # Each step has the mean number of sequences that are not over.
    mean = -(-sum(lengths) // max(lengths))
    assert (first, len(steps), last) == (max(lengths) * mean, max(lengths), 3 * max(lengths))


DRAWN: dict[str, Callable[..., Any]] = {
    "uniform": lambda m, x: loop(m, x, int(torch.empty(1).uniform_(1, 9).item())),
    "randint": lambda m, x: loop(m, x, torch.randint(1, 9, ()).item()),
    "permutation": lambda m, x: m.layer(x[torch.randperm(len(x))[:5]]),
    "rows that are kept": lambda m, x: m.layer(x[torch.rand(len(x)) < 0.5]),
    "rows by noise": lambda m, x: m.layer(x[torch.rand_like(x[:, 0]).argsort()[:5]]),
    "layer that is dropped": lambda m, x: if_true(m, x, torch.rand(()) < 0.5),
    "own generator": lambda m, x: loop(m, x, torch.randint(1, 9, (), generator=m.generator).item()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_load_workload_draws_the_same_numbers_each_time(name: str) -> None:
    module = Layered(DRAWN[name])
    module.generator = torch.Generator()  # type: ignore[assignment]
    first = load_workload(module, inputs=X)
    torch.rand(3)
    assert rows_of(first) == rows_of(load_workload(module, inputs=X)) and rows_of(first) and not first.warnings


def test_load_workload_computes_no_values_of_many_elements() -> None:
    def run(module: Any, x: Any) -> Any:
        many = torch.arange(MOST_INTEGERS + 1)
        return module.layer(x[: int(many.max())])

    (warning,) = load_workload(Layered(run), inputs=X).warnings
    assert "taken as 1" in warning


HEAD = "import os, torch\nfrom torch import nn\n\n"
LOOP = (
    HEAD
    + """
class Loop(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.register_buffer("on", torch.tensor(True))

    def forward(self, x, count):
        for _ in range(int(count) if self.on else 0):
            x = self.layer(x)
        return x

"""
)


@pytest.fixture
def functions(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)

    return write


def test_load_workload_stores_no_trace_that_values_from_elsewhere_decide(
    functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "def model():\n    return Loop(nn.Linear(8, 8)), (torch.randn(4, 8), torch.tensor(int(os.environ['COUNT'])))\n"
    )
    functions("loops_by_environment", LOOP + body)
    for count in (3, 5, 3):
        monkeypatch.setenv("COUNT", str(count))
        assert rows_of(load_workload("loops_by_environment:model")) == [4] * count


def test_load_workload_reads_values_of_functions_whose_weights_take_no_memory(functions: Any) -> None:
    body = (
        "def model():\n    many = [nn.Linear(200_000, 200_000, bias=False) for _ in range(3)]\n"
        "    return Loop(nn.Sequential(*many)), (torch.randn(4, 200_000), torch.tensor(2))\n"
    )
    functions("loops_of_large", LOOP + body)
    assert rows_of(load_workload("loops_of_large:model", cache=False)) == [4] * 6


def test_call_function_draws_the_same_inputs_each_time(functions: Any) -> None:
    functions("draws_inputs", HEAD + "def model():\n    return nn.Linear(8, 8), torch.randint(0, 99, (4, 8))\n")
    first, again = (call_function("draws_inputs:model", 1, None)[1] for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("inputs", [X, (X,), [X], {"input": X}])
def test_load_workload_takes_a_tensor_as_the_only_input(inputs: Any) -> None:
    assert rows_of(load_workload(nn.Linear(WIDTH, 8), inputs=inputs)) == [16]


def test_load_workload_keeps_kernels_of_float16_and_channels_last() -> None:
    def run(module: Any, images: Any, count: Any) -> Any:
        return module.layer(images.flatten(0, 2)[: int(count)])

    images = torch.randn(2, 4, 4, WIDTH)
    step = load_workload(Layered(run), inputs=(images, torch.tensor(9)), dtype="float16", layout="nhwc")
    assert (rows_of(step), {k.dtype for k in kernels(step) if k.family == "gemm"}) == ([9], {"float16"})


class UntilSmall(torch.nn.Module):
    """Halves its input until it is small, which no shape tells."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.abs().max().item() > 0.5:
            x = x * 0.5
        return x


def test_trace_refuses_a_loop_that_ends_by_unknown_data() -> None:
    with pytest.raises(ModelError, match="a loop that ends by data"):
        load_workload(UntilSmall(), inputs=(torch.empty(8, 8, device="meta"),))
