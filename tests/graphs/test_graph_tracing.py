"""Tracing real modules: the kernels add up to what formulas say, and only what a GPU would run is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from neusight.errors import CoverageError, ModelError
from neusight.kernels import Attention, Conv2d, Gemm, Kernel
from neusight.workloads.graph import Graph
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

HIDDEN, HEADS, VOCABULARY = 64, 4, 500


def kernels(graph: Graph, *phases: str, layer: str = "") -> list[Kernel]:
    return [k for n in graph.nodes if (not phases or n.phase in phases) and layer in n.layer for k in n.kernels]


def ops(graph: Graph, *phases: str) -> set[str]:
    return {k.op for k in kernels(graph, *phases)}


def gemm_flops(found: Iterable[Kernel]) -> int:
    return sum(2 * k.batch * k.m * k.n * k.k for k in found if isinstance(k, Gemm))


def gpt2_gemm_flops(batch: int, seq_len: int, layers: int) -> int:
    """Projections hold 12 h² weights a layer, the head h V; scores and values are s² h products a sample each."""
    tokens = batch * seq_len
    attention = 2 * 2 * tokens * seq_len * HIDDEN * layers
    return 2 * tokens * (12 * layers * HIDDEN**2 + HIDDEN * VOCABULARY) + attention


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("batch", "seq_len", "layers"), [(2, 32, 4), (3, 48, 2)])
def test_gpt2_forward_gemms_do_the_work_of_the_formula(
    gpt2: Callable[..., Graph], mode: str, batch: int, seq_len: int, layers: int
) -> None:
    graph = gpt2(batch, seq_len, layers, mode=mode)
    assert gemm_flops(kernels(graph, "forward")) == gpt2_gemm_flops(batch, seq_len, layers)


def test_backward_gemms_do_twice_the_work_of_forward(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training")
    # Every product has two operands that need a gradient; the embedding comes before the first one.
    assert gemm_flops(kernels(graph, "backward")) == 2 * gpt2_gemm_flops(2, 32, 4)


def test_first_layer_of_a_network_needs_no_input_gradient() -> None:
    graph = trace(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), [TensorSpec((32, 8))], name="m",
                  mode="training")  # fmt: skip
    first, second = 2 * 32 * 8 * 16, 2 * 32 * 16 * 4
    assert gemm_flops(kernels(graph, "backward")) == first + 2 * second


def test_backward_operators_belong_to_the_layer_of_their_forward_pass() -> None:
    # Batch norm counts batches, which takes no gradient and no place in the order of those that do.
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    graph = trace(build, [TensorSpec((2, 3, 16, 16))], name="m", mode="training")
    found = {
        phase: [n.layer for n in graph.nodes if n.phase == phase and any(isinstance(k, Conv2d) for k in n.kernels)]
        for phase in ("forward", "backward")
    }
    assert found == {"forward": ["0", "3"], "backward": ["3", "0"]}


def test_linear_layers_use_the_layouts_of_cublas(gpt2: Callable[..., Graph]) -> None:
    graph = trace(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), [TensorSpec((32, 8))], name="m",
                  mode="training")  # fmt: skip
    layouts = {p: [k.layout for k in kernels(graph, p) if isinstance(k, Gemm)] for p in ("forward", "backward")}
    assert layouts["forward"] == ["tn", "tn"]
    assert sorted(layouts["backward"]) == ["nn", "nt", "nt"]
    assert not any(k.op == "copy" for k in kernels(graph))


def test_dropout_runs_in_training_only_as_one_kernel_each_way(gpt2: Callable[..., Graph]) -> None:
    layers = 4
    assert not {"dropout", "random"} & ops(gpt2(layers=layers))
    training = gpt2(layers=layers, mode="training")
    # One on the embedding, three a layer: attention weights, attention output, MLP output.
    assert sum(k.op == "dropout" for k in kernels(training, "forward")) == 1 + 3 * layers
    assert sum(k.op == "dropout_backward" for k in kernels(training, "backward")) == 1 + 3 * layers
    assert "random" not in ops(training)


def test_dropout_inside_functional_attention_is_fused_too() -> None:
    graph = trace(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), [TensorSpec((2, 8, 16))], name="m",
                  mode="training")  # fmt: skip
    assert "random" not in ops(graph)
    assert sum(k.op == "dropout" for k in kernels(graph, "forward")) == 4


@pytest.mark.parametrize("attention", ["sdpa", "flash"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_attention_is_one_causal_kernel_a_layer(gpt2: Callable[..., Graph], attention: str, dtype: str) -> None:
    graph = gpt2(mode="training", attention=attention, dtype=dtype)
    for phase, op in (("forward", "forward"), ("backward", "backward")):
        found = [k for k in kernels(graph, phase) if isinstance(k, Attention)]
        shape = Attention(op=op, batch=2, heads=HEADS, kv_heads=HEADS, q_len=32, kv_len=32, head_dim=HIDDEN // HEADS,
                          causal=True, dtype=dtype)  # fmt: skip
        assert found == [shape] * 4
    assert "bmm" not in ops(graph) and "softmax" not in ops(graph)


def test_eager_attention_writes_its_scores(gpt2: Callable[..., Graph]) -> None:
    assert {"bmm", "softmax"} <= ops(gpt2(attention="eager"))


def test_half_precision_computes_in_half_precision(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(dtype="bfloat16")
    assert {k.dtype for k in kernels(graph) if isinstance(k, Gemm)} == {"bfloat16"}
    assert graph.memory.weights == 2 * graph.parameters


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("adamw", 28), ("adam", 28), ("sgd", 20)])
def test_fused_optimizer_is_one_pass(gpt2: Callable[..., Graph], optimizer: str, bytes_each: int) -> None:
    graph = gpt2(mode="training", optimizer=optimizer, optimizer_form="fused")
    (step,) = [k for k in kernels(graph, "optimizer") if k.op.endswith("_fused")]
    assert step.elements == graph.parameters
    assert step.read_bytes + step.write_bytes == bytes_each * graph.parameters


def test_foreach_adamw_runs_the_multi_tensor_kernels_of_cuda(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training", optimizer="adamw")
    found = kernels(graph, "optimizer")
    # Decay, first moment, second moment in two, its root, bias correction, epsilon, update.
    expected = ["mul", "lerp", "mul", "addcmul", "sqrt", "div", "add", "addcdiv"]
    assert [k.op.removeprefix("foreach_") for k in found] == expected
    assert {k.elements for k in found} == {graph.parameters}


def test_optimizer_is_left_out_of_inference_and_when_none(gpt2: Callable[..., Graph]) -> None:
    assert gpt2(optimizer="adamw").optimizer == "none"
    assert not kernels(gpt2(mode="training"), "optimizer")


def test_loss_is_part_of_the_step_unless_it_is_not_timed(gpt2: Callable[..., Graph]) -> None:
    timed, untimed = gpt2(mode="training"), gpt2(mode="training", time_loss=False)
    assert {"log_softmax", "nll_loss"} <= {k.op for k in kernels(timed, "forward", layer="loss")}
    assert not {"log_softmax", "nll_loss"} & ops(untimed, "forward")
    assert kernels(timed, "backward") == kernels(untimed, "backward")
    assert "log_softmax_backward" in ops(untimed, "backward")
    assert timed.memory == untimed.memory


def test_loss_of_the_caller_is_used() -> None:
    graph = trace(
        lambda: nn.Linear(4, 4), [TensorSpec((8, 4))], name="m", mode="training", loss=lambda y: y.pow(2).mean()
    )
    assert "mean" in ops(graph, "forward") and "log_softmax" not in ops(graph)


def test_gradients_are_stored_not_accumulated() -> None:
    graph = trace(lambda: nn.Linear(4, 4), [TensorSpec((8, 4))], name="m", mode="training")
    assert not {"add", "copy"} & ops(graph, "backward")


def test_tied_weights_count_once_and_their_gradients_are_added(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training")
    h, layers = HIDDEN, 4
    assert graph.parameters == VOCABULARY * h + 128 * h + layers * (12 * h * h + 13 * h) + 2 * h
    adds = [k for k in kernels(graph, "backward") if k.op == "add" and k.elements == VOCABULARY * h]
    assert len(adds) == 1


def test_backward_nodes_carry_the_layer_of_their_forward(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training")
    layers = {n.layer for n in graph.nodes if n.phase == "forward" and any(isinstance(k, Gemm) for k in n.kernels)}
    behind = {n.layer for n in graph.nodes if n.phase == "backward" and any(isinstance(k, Gemm) for k in n.kernels)}
    assert layers == behind
    assert "transformer.h.3.mlp.c_fc" in layers


def test_dependencies_point_backwards_and_connect_the_step(gpt2: Callable[..., Graph]) -> None:
    graph = gpt2(mode="training", optimizer="adamw")
    assert all(i < n.id for n in graph.nodes for i in n.inputs)
    reached, todo = set(), [n.id for n in graph.nodes if n.phase == "optimizer" and "addcdiv" in n.operator]
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += graph.nodes[node].inputs
    # The update depends on every product of the forward pass, through the gradients.
    products = {n.id for n in graph.nodes if n.phase == "forward" and any(isinstance(k, Gemm) for k in n.kernels)}
    assert products <= reached


def test_node_holds_shapes_dtypes_and_strides_of_arguments_then_results() -> None:
    graph = trace(lambda: nn.Linear(4, 6), [TensorSpec((8, 4))], name="m")
    (node,) = [n for n in graph.nodes if n.kernels]
    assert node.shapes == ((6,), (8, 4), (4, 6), (8, 6))
    assert node.strides == ((1,), (4, 1), (1, 4), (6, 1))
    assert node.dtypes == ("float32",) * 4


def test_module_given_by_hand_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    before = [p.detach().clone() for p in module.parameters()]
    graph = trace(module, [torch.zeros(8, 4)], name="m", mode="training", optimizer="sgd")
    assert graph.parameters == 20 and "dropout" in ops(graph)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert not module.training and all(p.grad is None for p in module.parameters())
    assert module(torch.zeros(8, 4)).shape == (8, 4)


def test_weights_are_never_allocated() -> None:
    # 4 PB of weights.
    graph = trace(lambda: nn.Linear(2**25, 2**25, bias=False), [TensorSpec((1, 2**25))], name="m")
    assert graph.memory.weights == 2**52


def test_operator_without_rule_is_named_with_its_layer_and_allowed_on_request() -> None:
    class Fourier(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs()

    with pytest.raises(CoverageError, match=r"aten\._fft_r2c.*layer '0', forward"):
        trace(lambda: nn.Sequential(Fourier()), [TensorSpec((4, 16))], name="m")
    graph = trace(lambda: nn.Sequential(Fourier()), [TensorSpec((4, 16))], name="m", allow_fallback=True)
    assert graph.uncovered == ("aten._fft_r2c",)
    assert graph.fold().uncovered == graph.uncovered
    (kernel,) = [k for k in kernels(graph) if k.op == "fallback"]
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * 16 * 4, 4 * 9 * 8)


def test_reading_values_is_refused_with_the_layer() -> None:
    class Reader(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if (x > 0).any() else -x

    with pytest.raises(ModelError, match="layer '0' reads a value"):
        trace(lambda: nn.Sequential(Reader()), [TensorSpec((4,))], name="m")


def test_shapes_that_depend_on_data_are_refused() -> None:
    class Chooser(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    with pytest.raises(ModelError, match="shape depends on data"):
        trace(Chooser, [TensorSpec((4,))], name="m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "trainig"}, "unknown mode 'trainig'.*did you mean training"),
        ({"optimizer": "adamv"}, "unknown optimizer 'adamv'.*adamw"),
        ({"attention": "flesh"}, "unknown attention 'flesh'.*flash"),
        ({"dtype": "float31"}, "unknown dtype 'float31'.*float32"),
    ],
)
def test_unknown_options_name_the_known_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace(lambda: nn.Linear(4, 4), [TensorSpec((8, 4))], name="m", **options)


def test_inputs_that_do_not_fit_are_one_line_with_the_model() -> None:
    with pytest.raises(ModelError, match="cannot trace 'small'") as caught:
        trace(lambda: nn.Linear(4, 4), [TensorSpec((8, 5))], name="small")
    assert "\n" not in str(caught.value)


def test_function_that_builds_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match="returned int"):
        trace(lambda: 3, [], name="m")


def test_cpu_fast_path_of_transformer_layers_is_not_taken() -> None:
    graph = trace(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), [TensorSpec((2, 8, 16))], name="m")
    assert sum(isinstance(k, Gemm) and k.op == "linear" for k in kernels(graph)) == 4
    assert torch.backends.mha.get_fastpath_enabled()


def test_convolutions_do_the_work_of_the_formula() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 5, stride=2), nn.Flatten(),
            nn.Linear(4 * 6 * 6, 10),
        )  # fmt: skip

    graph = trace(build, [TensorSpec((2, 3, 32, 32))], name="m", mode="training")
    convolutions = [k for k in kernels(graph) if isinstance(k, Conv2d)]
    shapes = [(k.op, k.in_channels, k.out_channels, k.height, k.kernel_height, k.stride) for k in convolutions]
    first, second = (3, 8, 32, 3, 1), (8, 4, 16, 5, 2)
    assert sorted(shapes) == sorted(
        [("forward", *first), ("forward", *second), ("weight_grad", *first), ("weight_grad", *second),
         ("input_grad", *second)]
    )  # fmt: skip
    assert {"max_pool2d", "max_pool2d_backward", "relu", "relu_backward"} <= ops(graph)
