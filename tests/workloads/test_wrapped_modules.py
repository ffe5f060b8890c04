"""Wrappers around modules, and what cannot be traced: honoured, named in one line, or refused with the true reason."""

import re

import pytest
import torch
from torch import nn

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.target import TargetReader
from neusight.workloads.trace import library_forms
from neusight.workloads.trace.tracing import trace

INPUTS = (torch.randn(64, 32),)


def block():
    return nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))


def compiled(**options):
    module = block()
    module.compile(**options)
    return module


@pytest.mark.parametrize(
    ("wrapped", "launch"),
    [
        (lambda: torch.compile(block()), "compiled"),
        (lambda: torch.compile(block(), mode="reduce-overhead"), "graph"),
        (lambda: torch.compile(block(), mode="max-autotune-no-cudagraphs"), "compiled"),
        (lambda: torch.compile(block(), backend="cudagraphs"), "cudagraphs"),
        (lambda: torch.compile(block(), backend="aot_eager"), "eager"),
        (lambda: compiled(), "compiled"),
        (lambda: compiled(mode="max-autotune"), "graph"),
        (lambda: torch.compile(nn.DataParallel(block())), "compiled"),
    ],
)
def test_load_workload_launches_as_the_wrapper_does(wrapped, launch):
    workload = load_workload(wrapped(), inputs=INPUTS)
    plain = load_workload(block(), inputs=INPUTS, launch=launch)
    assert workload.request.engine == plain.request.engine
    assert workload.nodes == plain.nodes


def test_launch_that_is_requested_counts_first():
    workload = load_workload(torch.compile(block()), inputs=INPUTS, launch="cudagraphs")
    assert workload.request.engine.name == "torch-cudagraphs"


class Calls(nn.Module):
    """A layer and a function of its result."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x))


def in_part():
    module = block()
    module[0].compile()
    module[2] = torch.compile(module[2])
    return module


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (lambda: nn.DataParallel(block()), "DataParallel around the module is left out: one device runs the whole"),
        (in_part, "layer '0' and 1 more layers are compiled by torch.compile but priced as written"),
        (lambda: Calls(torch.compile(lambda x: x.relu())), r"function '\S*<lambda>' is compiled by torch.compile but"),
        (lambda: torch.compile(block(), backend=lambda graph, _: graph), "backend '<lambda>' of torch.compile is not"),
    ],
)
def test_load_workload_names_what_a_wrapper_would_change(module, line):
    workload = load_workload(module(), inputs=INPUTS)
    assert workload.request.engine.launch == "eager"
    assert len(workload.warnings) == 1
    assert re.search(line, workload.warnings[0])


def test_notes_on_parts_do_not_hold_of_a_compiled_step():
    assert load_workload(in_part(), inputs=INPUTS, launch="compiled").warnings == ()


def test_a_user_s_module_keeps_its_wrappers():
    module = in_part()
    load_workload(module, inputs=INPUTS)
    assert module[0]._compiled_call_impl is not None
    assert hasattr(module[2], "_orig_mod")


def test_split_weights_are_refused():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = block()

    with pytest.raises(ModelError, match=r"weights of FullyShardedDataParallel are split up .* --shard zero3"):
        load_workload(FullyShardedDataParallel(), inputs=INPUTS)


def refusal(function, mode="inference", inputs=INPUTS):
    with pytest.raises(ModelError) as caught:
        trace(Calls(function), inputs, Request.of("calls", mode=mode))
    line = str(caught.value)
    assert "\n" not in line
    assert not re.search("0x[0-9a-f]{6}", line)
    return line


def raised(error):
    def function(x):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.cond(x.sum() > 0, torch.relu, torch.exp, (x,)), "it calls cond, an operator on functions"),
        (lambda x: torch.cuda.CUDAGraph(), "that part of torch.cuda is not traced: leave it out"),
        (raised(ValueError(f"odd {object()}\nmore")), r"ValueError: odd object \(test_wrapped_modules.py, line"),
        (raised(KeyError("weight")), r"KeyError: 'weight' \(test_wrapped_modules.py, line"),
        (lambda x: torch.ops.none.such(x), "'_OpNamespace' 'none' object has no attribute 'such'"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "nested .jagged. tensors are not traced"),
    ],
)
def test_explained_names_what_is_not_traced(function, reason):
    line = refusal(function)
    assert re.search(reason, line)
    assert "check that the inputs fit" not in line


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ torch.zeros(31, 32),
        lambda x: x + torch.zeros(63, 32),
        lambda x: x.view(7, -1),
        lambda x: torch.cat([x, torch.zeros(64, 32, 1)]),
        lambda x: nn.functional.conv2d(x, torch.zeros(3, 3, 3, 3)),
    ],
)
def test_explained_blames_inputs_whose_shapes_do_not_fit(function):
    assert "check that the inputs fit its forward()" in refusal(function)


def test_explained_blames_missing_inputs():
    assert "check that the inputs fit" in refusal(torch.relu, inputs=())


def test_nested_inputs_are_refused():
    jagged = torch.nested.nested_tensor([torch.zeros(3, 32), torch.zeros(5, 32)], layout=torch.jagged)
    assert "pad them instead" in refusal(torch.relu, inputs=(jagged,))


def frozen():
    return block().requires_grad_(False)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.GELU, "has no weights, so there is nothing to train: ask for inference"),
        (frozen, "has only frozen weights (requires_grad=False), so there is nothing to train"),
        (lambda: Calls(torch.detach), "the loss does not depend on its weights, so there is nothing to train"),
    ],
)
def test_training_needs_weights(module, reason):
    with pytest.raises(ModelError) as caught:
        trace(module(), INPUTS, Request.of("m", mode="training"))
    assert reason in str(caught.value)
    if module is not frozen:
        assert trace(module(), INPUTS, Request.of("m")).nodes


def test_trace_begins_again_when_a_library_comes_late(tmp_path, monkeypatch):
    (tmp_path / "late_library.py").write_text("def scale():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(library_forms, "_WITH_FORMS", ("late_library",))
    calls = []

    def function(x):
        import late_library

        calls.append(late_library.scale())
        return x

    reader = TargetReader()
    first = trace(Calls(function), INPUTS, Request.of("calls"), reader=reader)
    assert len(calls) == 2
    assert trace(Calls(function), INPUTS, Request.of("calls"), reader=reader) == first
    assert len(calls) == 3
