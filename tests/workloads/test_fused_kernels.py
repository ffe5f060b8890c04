"""Kernels of libraries that a GPU runs where this machine has a reference: recurrences, convolutions, attention."""

import json

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neusight.devices import load_device
from neusight.kernels import Attention, Elementwise, Gemm, Kernel
from neusight.kernels.operators import ELEMENTWISE
from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.chunks import SCAN_FLOPS, delta_rule_product, scan_product
from neusight.workloads.rules import kernels_of
from neusight.workloads.target import TargetDevice
from neusight.workloads.tensors import Call, TensorSpec
from neusight.workloads.trace.tracing import trace

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 32


class Attends(nn.Module):
    """Attention by ``flex_attention`` of heads from one projection."""

    def __init__(self, mask=None, attend=flex_attention, early=False):
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.mask, self.attend, self.blocks = mask, attend, self.made(mask, "cpu") if early else None

    def made(self, mask, device):
        return create_block_mask(mask, None, None, LENGTH, LENGTH, device=device) if mask else None

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        blocks = self.blocks or self.made(self.mask, x.device)
        return self.attend(query, key, value, block_mask=blocks).transpose(1, 2).flatten(2)


class Documents(Attends):
    """Attention within documents of 64 tokens."""

    def forward(self, x):
        document = torch.arange(LENGTH, device=x.device) // 64
        self.mask = lambda batch, head, query, key: document[query] == document[key]
        return super().forward(x)


def causal(batch, head, query, key):
    return query >= key


def attention_of(module, mode="inference", **options) -> list[Kernel]:
    inputs = (torch.randn(BATCH, LENGTH, HEADS * WIDTH),)
    step = trace(module, inputs, Request.of("attends", mode=mode, **options))
    return [kernel for node in step.nodes for kernel in node.kernels if kernel.family == "attention"]


def attention(**seen):
    return Attention(
        batch=BATCH, heads=HEADS, kv_heads=HEADS, q_len=LENGTH, kv_len=LENGTH, head_dim=WIDTH, **seen
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "seen"),
    [
        (lambda: Attends(), {}),
        (lambda: Attends(causal), {"causal": True}),
        (lambda: Attends(causal, early=True), {"causal": True}),
        (lambda: Attends(causal, torch.compile(flex_attention)), {"causal": True}),
        (lambda: Attends(lambda b, h, q, k: (q >= k) & (q - k < 64)), {"causal": True, "window": 64}),
        (lambda: Attends(lambda b, h, q, k: k < 128), {"selected": 128}),
        (lambda: Documents(), {"selected": 64}),
    ],
)
def test_flex_attention_is_one_kernel_over_the_keys_of_its_mask(module, seen):
    assert attention_of(module()) == [attention(**seen)]


def test_flex_attention_has_one_kernel_backward():
    expected = [attention(op=op, causal=True) for op in ("forward", "backward")]
    assert attention_of(Attends(causal), "training") == expected


def test_flex_attention_is_written_out_on_request():
    assert attention_of(Attends(causal), attention="eager") == []


def test_flex_attention_takes_all_keys_of_an_unknown_mask():
    class Masked(Attends):
        def forward(self, x):
            level = x.mean()
            self.mask = lambda batch, head, query, key: (query >= key) & (level > 0)
            return super().forward(x)

    step = load_workload(Masked(), inputs=(TensorSpec((BATCH, LENGTH, HEADS * WIDTH)),))
    assert [k for n in step.nodes for k in n.kernels if k.family == "attention"] == [attention()]
    assert "the mask of flex_attention depends on values of tensors: every key is taken to count" in step.warnings


def call(name, operands, shape, sizes, backward=False):
    """An operator as a trace records it."""
    given = ((TensorSpec(shape),) if backward else ()) + (operands,) + (() if backward else (shape,)) + (sizes,)
    outputs = operands if backward else (TensorSpec(shape),)
    return Call(f"triton::{name}{'_backward' if backward else ''}", "default", given, {}, outputs)


X = TensorSpec((2, 64, 100))
TOKENS = TensorSpec((2, 100, 4, 16))


@pytest.mark.parametrize(
    ("name", "operands", "sizes", "flops"),
    [
        ("causal_conv1d", (X, TensorSpec((64, 4))), (), ELEMENTWISE["silu"].flops + 2 * 4),
        ("selective_scan", (X, X, TensorSpec((64, 16))), (16,), SCAN_FLOPS * 16),
        ("state_steps", (X, TensorSpec((2, 64, 16))), (16,), 6 * 16),
        ("wkv", (X, X), (), 4 * ELEMENTWISE["exp"].flops + 19),
    ],
)
def test_streams_of_recurrences_read_their_operands_once(name, operands, sizes, flops):
    (kernel,) = kernels_of(call(name, operands, X.shape, sizes))
    assert isinstance(kernel, Elementwise)
    assert kernel.read_bytes == sum(one.nbytes for one in {id(one): one for one in operands}.values())
    assert kernel.write_bytes == X.nbytes
    assert kernel.flops == flops * X.elements
    (backward,) = kernels_of(call(name, operands, X.shape, sizes, backward=True))
    assert backward.flops == 3 * kernel.flops


@pytest.mark.parametrize(
    ("name", "operands", "sizes", "product"),
    [
        ("chunk_delta_rule", (TOKENS, TOKENS, TensorSpec((2, 100, 4, 8))), (8,), delta_rule_product(8, 16)),
        ("chunk_scan", (TOKENS, TensorSpec((2, 100, 1, 32))), (50,), scan_product(16, 32, 0.5, 50)),
    ],
)
def test_chunks_are_products_of_all_heads(name, operands, sizes, product):
    m, n, k = product
    expected = Gemm(op="bmm", batch=2 * -(-100 // m) * 4, m=m, n=n, k=k, layout="nn")
    assert kernels_of(call(name, operands, TOKENS.shape, sizes)) == (expected,)
    assert kernels_of(call(name, operands, TOKENS.shape, sizes, backward=True)) == (expected,) * 3


MAMBA = {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 128}
HYBRIDS = {
    "mamba": (MAMBA, {"causal_conv1d", "selective_scan"}),
    "falcon_mamba": (MAMBA, {"causal_conv1d", "selective_scan"}),
    "mamba2": (MAMBA | {"num_heads": 8, "head_dim": 16, "n_groups": 1}, {"causal_conv1d", "chunk_scan"}),
    "rwkv": ({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "context_length": 64}, {"wkv"}),
    "qwen3_next": (
        {
            "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 128, "num_attention_heads": 4, "head_dim": 16,
            "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32, "intermediate_size": 64, "linear_num_value_heads": 4,
            "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        },
        {"causal_conv1d", "chunk_delta_rule"},
    ),
}  # fmt: skip


def fused_operators(kind, folder, target, **options):
    """Names of fused operators of a step, and the operators in all."""
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": kind, **HYBRIDS[kind][0]}))
    step = load_workload(str(file), seq_len=40, cache=False, target=target, dtype="bfloat16", **options)
    names = {node.operator.split(".")[1] for node in step.nodes if node.operator.startswith("triton.")}
    return names, step.length


@pytest.mark.parametrize("kind", HYBRIDS)
def test_recurrent_models_run_the_kernels_of_a_gpu(kind, tmp_path):
    gpu, tpu = (TargetDevice.of(load_device(name)) for name in ("h100-sxm-80gb", "tpu-v5e"))
    names, operators = fused_operators(kind, tmp_path, gpu)
    assert names == HYBRIDS[kind][1]
    trained, _ = fused_operators(kind, tmp_path, gpu, mode="training")
    assert trained == {*names, *(f"{name}_backward" for name in names)}
    others, more_operators = fused_operators(kind, tmp_path, tpu)
    assert others == set()
    assert more_operators > operators
