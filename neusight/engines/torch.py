"""Engines that run modules of PyTorch and graphs of TensorFlow, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neusight.engines.engine import Engine

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

TORCH = Engine(
    name="torch-eager",
    kernel_timing="stream",
    attention="sdpa",
    joined_projections=False,
    activation="eager",
    rotary="complex",
    module_dropout=True,
    master_weights=False,
    foreach_optimizer=True,
    balanced_stages=True,
    sequence_parallel=False,
)
"""A module of the transformers library in plain PyTorch: ``q_proj``, ``k_proj``, ``v_proj``, ``gate_proj`` and
``up_proj`` apart, ``scaled_dot_product_attention``, rotation written out, ``F.cross_entropy`` of logits in float32;
weights, gradients and the optimizer's states in the module's dtype."""
TORCHSCRIPT = replace(TORCH, name="torchscript", host_s_per_operator=0.52 * TORCH.host_s_per_operator)
"""The same operators called by an interpreter in C++ (``torch.jit.trace``), without modules in Python: those of a BERT
of 12 layers, on numbers so small that they count for nothing, take one thread of a CPU 0.54 ms instead of 1.75 (fitted:
calls of PyTorch 2.13); each of the 210 kernels of a GPU adds a launch of 3.8 us to both (A. Gray 2019, Getting started
with CUDA graphs, NVIDIA's developer blog)."""
TORCH_COMPILED = replace(
    TORCH,
    name="torch-compiled",
    launch="compiled",
    host_s_per_call=4e-5,
    activation="fused",
    residual="norm",
    rotary="fused",
    loss="generated",
    generated=True,
    keeps_activated_gate=False,
    logit_bytes=4.0,
    held_logit_bytes=2.0,
)
"""The same through ``torch.compile``: pointwise operators and norms are fused (cited: Ansel et al. 2024, PyTorch 2,
section 4); what is cheap is computed again from what goes into it (ibid., section 5.4). A call costs what ``neusight
evaluate programs`` fits to calls of compiled programs beyond those of eager ones: 19 to 66 us on nine hosts, 29 to 90
where a graph is started; the middle of all is taken."""
TORCH_GRAPH = replace(TORCH_COMPILED, name="torch-graph", launch="graph", copies_inputs=True)
"""The same as one CUDA graph (``mode="reduce-overhead"``), whose replays copy what is not a weight to where the graph
reads it (``torch/_inductor/cudagraph_trees.py``, ``_copy_inputs_and_remove_from_src``)."""
TORCH_PROGRAM = replace(TORCH_GRAPH, name="torch-program", copies_inputs=False, epilogues=True)
"""A module through XLA, Neuron's compiler or Synapse: one program a step (PyTorch/XLA, lazy tensors; AWS Neuron,
``torch-neuronx``; Intel Gaudi, HPU graphs), in which pointwise work is fused with what it follows from, products among
it (XLA, ``InstructionFusion``)."""
TORCH_CUDAGRAPHS = replace(
    TORCH, name="torch-cudagraphs", launch="graph", copies_inputs=True, host_s_per_call=TORCH_GRAPH.host_s_per_call
)
"""Operators as they are, recorded as one such graph (``torch.compile(backend="cudagraphs")``)."""
TORCH_STATIC = replace(
    TORCH_COMPILED,
    name="torch-static",
    launch="static",
    host_s_per_call=0.0,
    host_s_per_operator=0.0,
    joined_projections=True,
    epilogues=True,
)
"""The same through a compiler that works ahead of time: C++ that calls kernels whose epilogues have bias, activation
and addition (cited: AITemplate; TensorRT, Layer fusion). A kernel costs its host a launch and nothing else, which is
the device's interval."""
TENSORFLOW_XLA = replace(
    TORCH_STATIC,
    name="tensorflow-xla",
    attention="eager",
    host_s_per_operator=TORCH.host_s_per_operator,
    joined_projections=False,
    epilogues=False,
    written_out=("bias", "reductions"),
)
"""A graph of TensorFlow with ``global_jit_level``: XLA fuses pointwise chains into the reduction that ends them, never
past one (XLA, ``InstructionFusion``), and calls cuBLAS and cuDNN for the rest, without bias."""
TENSORFLOW = replace(TORCH, name="tensorflow", attention="eager", written_out=("bias",))
"""The same graph without it: each operator is a kernel, bias and transposition among them."""


def torch_engine(attention: str = "", launch: str = "eager", layout: str = "nchw") -> Engine:
    """PyTorch, by its forms of attention and of launching, and the layout of images."""
    return replace(_BY_LAUNCH[launch], attention=attention, layout=layout)


def run_on(device: DeviceSpec, engine: Engine) -> Engine:
    """An engine as it runs steps on a device: through the compiler of one that runs whole programs alone."""
    if not device.runs_programs or engine.server is not None or engine.launch not in ("eager", "compiled", "graph"):
        return engine
    return replace(TORCH_PROGRAM, attention=engine.attention, layout=engine.layout)


_BY_LAUNCH = {
    "eager": TORCH, "compiled": TORCH_COMPILED, "graph": TORCH_GRAPH, "cudagraphs": TORCH_CUDAGRAPHS,
    "static": TORCH_STATIC,
}  # fmt: skip


TORCH_NEURONX = replace(TORCH_COMPILED, name="torch-neuronx", ranks="core")
"""PyTorch through Neuron's compiler, which sees each core of a chip as a device."""
