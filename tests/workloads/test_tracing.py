"""Tracing real modules: the kernels add up to what formulas say, and only what a GPU would run is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import BATCH, HEADS, HIDDEN, LENGTH, POSITIONS, VOCABULARY, kernels, ops, recording, storages, traced
from torch import nn

from neusight.errors import CoverageError, ModelError
from neusight.kernels import Attention, Conv2d, Gemm, Kernel
from neusight.requests import Request
from neusight.workloads import Workload, load_workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

LAYERS = 4


def step(build: Any, *shape: int, mode: str = "training", optimizer: str = "none", **how: Any) -> Workload:
    inputs = how.pop("inputs", [TensorSpec(shape)])
    return trace(build, inputs, Request.of("m", mode=mode, optimizer=optimizer, attention="eager"), **how)


def two_linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)


class Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def gemm_flops(run: Iterable[Kernel]) -> int:
    return sum(2 * k.batch * k.m * k.n * k.k for k in run if isinstance(k, Gemm))


def gpt2_gemm_flops(batch: int, seq_len: int, layers: int) -> int:
    """Projections hold 12 h² weights a layer, the head h V; scores and values are s² h products a sample each."""
    tokens = batch * seq_len
    attention = 2 * 2 * tokens * seq_len * HIDDEN * layers
    return 2 * tokens * (12 * layers * HIDDEN**2 + HIDDEN * VOCABULARY) + attention


def test_gemms_of_gpt2_do_the_work_of_the_formula_and_twice_that_backward() -> None:
    for layers, batch, seq_len in ((4, 2, 32), (2, 3, 48)):
        formula = gpt2_gemm_flops(batch, seq_len, layers)
        training, inference = (
            traced("gpt2", layers, batch=batch, seq_len=seq_len, mode=m) for m in ("training", "inference")
        )
        assert gemm_flops(kernels(training, "forward")) == gemm_flops(kernels(inference, "forward")) == formula
        # Every product has two operands that need a gradient; the embedding comes before the first one.
        assert gemm_flops(kernels(training, "backward")) == 2 * formula


def test_linear_layers_use_the_layouts_of_cublas_and_the_first_needs_no_input_gradient() -> None:
    workload = step(two_linear, 32, 8)
    layouts = {p: [k.layout for k in kernels(workload, p) if isinstance(k, Gemm)] for p in ("forward", "backward")}
    assert layouts["forward"] == ["tn", "tn"]
    assert sorted(layouts["backward"]) == ["nn", "nt", "nt"]
    assert not any(k.op == "copy" for k in kernels(workload))
    first, second = 2 * 32 * 8 * 16, 2 * 32 * 16 * 4
    assert gemm_flops(kernels(workload, "backward")) == first + 2 * second


def test_backward_operators_belong_to_the_layer_of_their_forward_pass() -> None:
    # Batch norm counts batches, which takes no gradient and no place in the order of those that do.
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    def heavy(workload: Workload, phase: str) -> list[str]:
        steps = [(n, copy) for n, copy in workload.expanded() if n.phase == phase]
        return [n.layer.name(copy) for n, copy in steps if any(isinstance(k, Gemm | Conv2d) for k in n.kernels)]

    small, gpt2 = step(build, 2, 3, 16, 16), traced("gpt2", mode="training")
    assert (heavy(small, "forward"), heavy(small, "backward")) == (["0", "3"], ["3", "0"])
    assert set(heavy(gpt2, "forward")) == set(heavy(gpt2, "backward"))
    assert "transformer.h.3.mlp.c_fc" in heavy(gpt2, "forward")


def test_dropout_runs_in_training_only_as_one_kernel_each_way() -> None:
    assert not {"dropout", "random"} & ops(traced("gpt2"))
    training = traced("gpt2", mode="training")
    # One on the embedding, three a layer: attention weights, attention output, MLP output.
    assert sum(k.op == "dropout" for k in kernels(training, "forward")) == 1 + 3 * LAYERS
    assert sum(k.op == "dropout_backward" for k in kernels(training, "backward")) == 1 + 3 * LAYERS
    functional = step(encoder_layer, 2, 8, 16)  # inside functional attention too
    assert sum(k.op == "dropout" for k in kernels(functional, "forward")) == 4
    assert "random" not in ops(training) | ops(functional)


def test_fused_attention_is_one_causal_kernel_a_layer_and_eager_writes_its_scores() -> None:
    shape = {"batch": BATCH, "heads": HEADS, "kv_heads": HEADS, "q_len": LENGTH, "kv_len": LENGTH}
    for attention, dtype in (("sdpa", "float32"), ("sdpa", "bfloat16"), ("flash", "float32"), ("flash", "bfloat16")):
        workload = traced("gpt2", mode="training", attention=attention, dtype=dtype)
        for op in ("forward", "backward"):
            fused = [k for k in kernels(workload, op) if isinstance(k, Attention)]
            expected = Attention(op=op, head_dim=HIDDEN // HEADS, causal=True, dtype=dtype, **shape)
            assert fused == [expected] * LAYERS, (attention, dtype)
        assert not {"bmm", "softmax"} & ops(workload), (attention, dtype)
    assert {"bmm", "softmax"} <= ops(traced("gpt2"))


def test_half_precision_computes_in_half_precision() -> None:
    workload = traced("gpt2", dtype="bfloat16")
    assert {k.dtype for k in kernels(workload) if isinstance(k, Gemm)} == {"bfloat16"}
    assert workload.memory.weights == 2 * workload.parameters


def test_bert_adam_updates_one_parameter_after_another() -> None:
    workload = traced("gpt2", mode="training", optimizer="bert_adam")
    update = [k for n in workload.nodes if n.phase == "optimizer" for k in n.kernels for _ in range(n.copies)]
    each = [k for k in update if k.family == "elementwise"]
    norms = [k for k in update if k.family == "optimizer"]
    assert [k.op for k in norms] == ["foreach_norm"]
    # Two that scale, two for each moment, a root, a sum, a quotient, three of the update; two more where it decays.
    tables = sum(t.copies for t in workload.tensors if t.kind == "weight" and len(t.shape) > 1)
    vectors = sum(t.copies for t in workload.tensors if t.kind == "weight" and len(t.shape) == 1)
    assert len(each) == 12 * (tables + vectors) + 2 * tables


def test_an_optimizer_is_one_fused_pass_or_the_multi_tensor_kernels_of_cuda() -> None:
    for optimizer, bytes_each in (("adamw", 28), ("adam", 28), ("sgd", 20)):
        fused = traced("gpt2", mode="training", optimizer=optimizer, form="fused")
        (update,) = [k for k in kernels(fused, "optimizer") if k.op.endswith("_fused")]
        assert update.elements == fused.parameters
        assert update.read_bytes + update.write_bytes == bytes_each * fused.parameters, optimizer
    foreach = traced("gpt2", mode="training", optimizer="adamw")
    update = kernels(foreach, "optimizer")
    # Decay, first moment, second moment in two, its root, bias correction, epsilon, update.
    expected = ["mul", "lerp", "mul", "addcmul", "sqrt", "div", "add", "addcdiv"]
    assert [k.op.removeprefix("foreach_") for k in update] == expected
    assert {k.elements for k in update} == {foreach.parameters}
    assert not kernels(traced("gpt2", mode="training"), "optimizer")


def test_loss_is_part_of_the_step_unless_it_is_not_timed() -> None:
    timed, untimed = (traced("gpt2", mode="training", time_loss=timed) for timed in (True, False))
    assert {"log_softmax", "nll_loss"} <= {k.op for k in kernels(timed, "forward", layer="loss")}
    assert not {"log_softmax", "nll_loss"} & ops(untimed, "forward")
    assert kernels(timed, "backward") == kernels(untimed, "backward")
    assert "log_softmax_backward" in ops(untimed, "backward")
    assert timed.memory == untimed.memory


def test_gradients_are_stored_not_accumulated() -> None:
    assert not {"add", "copy"} & ops(step(lambda: nn.Linear(4, 4), 8, 4), "backward")


@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_of_one_s_own_accumulates_clips_and_averages(parts: int) -> None:
    def learn(model: nn.Module, optimizer: Any, samples: torch.Tensor) -> None:
        for part in samples.chunk(parts):
            (model(part).pow(2).mean() / parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = [torch.zeros_like(one) for one in model.parameters()]
        torch._foreach_lerp_(mean, [one.detach() for one in model.parameters()], 0.1)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))

    own, usual = (step(build, 8, 4, optimizer="sgd", step=function) for function in (learn, None))
    assert {"mean"} <= ops(own, "forward") and "log_softmax" not in ops(own, "forward")
    for phase in ("forward", "backward"):
        products = [sum(isinstance(k, Gemm) for k in kernels(one, phase)) for one in (own, usual)]
        assert products[0] == parts * products[1] > 0
    assert ("foreach_lerp" in ops(own, "optimizer")) and ops(usual, "optimizer") < ops(own, "optimizer")
    added = [k for k in kernels(own, "backward") if k.op.startswith("add")]
    assert len(added) == (parts - 1) * 4


def test_tied_weights_count_once_and_their_gradients_are_added() -> None:
    workload, h = traced("gpt2", mode="training"), HIDDEN
    assert workload.parameters == VOCABULARY * h + POSITIONS * h + LAYERS * (12 * h * h + 13 * h) + 2 * h
    adds = [k for k in kernels(workload, "backward") if k.op == "add" and k.elements == VOCABULARY * h]
    assert len(adds) == 1


def test_what_a_step_reads_was_written_before_and_leads_back_to_every_product() -> None:
    """By the tensors of the workload itself: the update depends on every product, through the gradients."""
    workload = traced("gpt2", 12, mode="training", optimizer="adamw")
    needed: set[tuple[int, int]] = set()
    for node, copy in reversed(list(workload.expanded())):
        reads, writes = (set(storages(workload, node, copy, of)) for of in (node.reads, node.writes))
        if "addcdiv" in node.operator or needed & writes:
            needed |= reads
        elif any(isinstance(k, Gemm) for k in node.kernels):
            pytest.fail(f"{node.operator} of {node.layer.name(copy)} leads to no update")
    nodes = recording("gpt2", 12, mode="training", optimizer="adamw").nodes
    assert all(source < place for place, node in enumerate(nodes) for source in node.inputs)


def test_an_operator_reads_and_writes_the_tensors_behind_its_views() -> None:
    workload = step(lambda: nn.Linear(4, 6), 8, 4, mode="inference")
    (node,) = [n for n in workload.nodes if n.kernels]
    read, written = ([workload.tensors[r.tensor] for r in of] for of in (node.reads, node.writes))
    assert [(t.shape, t.kind, t.dtype) for t in (*read, *written)] == [
        ((6,), "weight", "float32"), ((8, 4), "input", "float32"), ((6, 4), "weight", "float32"),
        ((8, 6), "intermediate", "float32"),
    ]  # fmt: skip


def test_module_given_by_hand_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    before = [p.detach().clone() for p in module.parameters()]
    workload = step(module, optimizer="sgd", inputs=[torch.zeros(8, 4)])
    assert workload.parameters == 20 and "dropout" in ops(workload)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert not module.training and all(p.grad is None for p in module.parameters())
    assert module(torch.zeros(8, 4)).shape == (8, 4)


def test_weights_are_never_allocated() -> None:
    # 4 PB of weights.
    workload = step(lambda: nn.Linear(2**25, 2**25, bias=False), 1, 2**25, mode="inference")
    assert workload.memory.weights == 2**52


def test_operator_without_rule_is_named_with_its_layer_and_allowed_on_request() -> None:
    def build() -> nn.Module:
        return nn.Sequential(Applied(torch.special.bessel_j0))

    with pytest.raises(CoverageError, match=r"aten\.special_bessel_j0.*layer '0', forward"):
        step(build, 4, 16, mode="inference")
    workload = step(build, 4, 16, mode="inference", allow_fallback=True)
    assert workload.uncovered == ("aten.special_bessel_j0",)
    (kernel,) = [k for k in kernels(workload) if k.op == "fallback"]
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * 16 * 4, 4 * 16 * 4)


def test_what_cannot_be_traced_is_one_line_that_says_where() -> None:
    cases: list[tuple[Any, tuple[int, ...], dict[str, Any], str]] = [
        (lambda: nn.Linear(4, 4), (8, 5), {}, "cannot trace 'm'"),
        (lambda: 3, (), {}, "returned int"),
        (lambda: nn.Linear(4, 4), (8, 4), {"optimizer_form": "fast"}, "unknown optimizer form 'fast': one of"),
    ]
    for build, shape, how, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            step(build, *shape, mode="inference", **how)
        assert "\n" not in str(caught.value)


def test_a_refused_shape_names_the_layer_and_what_it_was_called_with(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.ReLU(), nn.Linear(32, 8)))
    with pytest.raises(ModelError) as caught:
        step(module, 4, 64)
    message = str(caught.value)
    assert message.startswith("cannot trace 'm': layer '1.1' (Linear) called with input 4x64: RuntimeError: ")
    assert message.endswith("; check that the inputs fit its forward()") and "\n" not in message
    # PyTorch's own log of where it failed says nothing to whoever wrote the module.
    assert not caplog.records


class Attending(nn.Module):
    """Calls fused attention, or writes it out."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused, self.project = fused, nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v


@pytest.mark.parametrize(
    ("fused", "attention", "kernels", "stated"),
    [
        (True, None, 1, "sdpa"), (True, "sdpa", 1, "sdpa"), (True, "flash", 1, "flash"), (True, "eager", 0, "eager"),
        (False, None, 0, "eager"),
    ],
)  # fmt: skip
def test_attention_is_what_the_module_does_unless_told(
    fused: bool, attention: str | None, kernels: int, stated: str
) -> None:
    workload = load_workload(Attending(fused), inputs=[torch.zeros(2, 32, 64)], attention=attention)
    assert sum(k.family == "attention" for node in workload.nodes for k in node.kernels) == kernels
    assert workload.request.attention == stated


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, "sdpa"),
        ({"_attn_implementation": "eager"}, "eager"),
        ({"attn_implementation": "flash_attention_2"}, "flash"),
    ],
)
def test_attention_is_what_a_configuration_states(stated: dict[str, str], expected: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 1}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 99, "dtype": "bfloat16", **sizes, **stated}))
    workload = load_workload(str(file), seq_len=16, cache=False)
    assert (workload.request.attention, workload.request.dtype) == (expected, "bfloat16")
    fused = any(k.family == "attention" for node in workload.nodes for k in node.kernels)
    assert fused == (expected != "eager")


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, "bfloat16"), (torch.float32, "float32")])
def test_a_module_is_traced_in_its_own_dtype(dtype: torch.dtype, expected: str) -> None:
    module, inputs = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to(dtype), [torch.zeros(4, 8)]
    workload = load_workload(module, inputs=inputs)
    assert workload.request.dtype == expected
    assert {k.dtype for node in workload.nodes for k in node.kernels} == {expected}
    for other in ("float16", torch.float16):
        assert load_workload(module, inputs=inputs, dtype=other).request.dtype == "float16"
    # A module without parameters has the dtype of its inputs.
    bare = load_workload(nn.Softmax(-1), inputs=[torch.zeros(4, 8, dtype=dtype)])
    assert bare.request.dtype == expected
    with pytest.raises(ModelError, match="in float64, in which no whole model is estimated"):
        load_workload(nn.Linear(8, 8, dtype=torch.float64), inputs=inputs)


class Widened(nn.Module):
    """A norm that is kept in float32 within a module of 16 bit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x).float())


def test_parts_of_a_module_keep_their_own_dtype() -> None:
    workload = load_workload(Widened(), inputs=[torch.zeros(4, 8)])
    assert workload.request.dtype == "bfloat16"
    dtypes = {k.op: k.dtype for node in workload.nodes for k in node.kernels}
    assert (dtypes["linear"], dtypes["layer_norm"]) == ("bfloat16", "float32")


def test_cpu_fast_path_of_transformer_layers_is_not_taken() -> None:
    workload = step(encoder_layer, 2, 8, 16, mode="inference")
    assert sum(isinstance(k, Gemm) and k.op == "linear" for k in kernels(workload)) == 4
    assert torch.backends.mha.get_fastpath_enabled()


def test_convolutions_do_the_work_of_the_formula() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 5, stride=2), nn.Flatten(),
            nn.Linear(4 * 6 * 6, 10),
        )  # fmt: skip

    workload = step(build, 2, 3, 32, 32)
    convolutions = [k for k in kernels(workload) if isinstance(k, Conv2d)]
    shapes = [(k.op, k.in_channels, k.out_channels, k.height, k.kernel_height, k.stride) for k in convolutions]
    first, second = (3, 8, 32, 3, 1), (8, 4, 16, 5, 2)
    assert sorted(shapes) == sorted(
        [("forward", *first), ("forward", *second), ("weight_grad", *first), ("weight_grad", *second),
         ("input_grad", *second)]
    )  # fmt: skip
    assert {"max_pool2d", "max_pool2d_backward", "relu", "relu_backward"} <= ops(workload)
