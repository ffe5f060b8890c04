"""Engines that serve requests, or generate for one user."""

from __future__ import annotations

from dataclasses import replace

from neusight.engines.engine import Engine
from neusight.engines.server import ALL_AT_ONCE, NATIVE_OPERATOR_S, TRTLLM, VLLM, Server
from neusight.engines.server import SGLANG as SGLANG_SCHEDULER

SERVING = Engine(
    name="vllm",
    library="vllm",
    launch="graph",
    attention="flash",
    residual="add_norm",
    quantises_in_products=True,
    dispatcher="allgather",
    attention_does="write",
    vocabulary_multiple=64,
    master_weights=False,
    sequence_parallel=False,
    server=Server(scheduler=VLLM),
)
"""vLLM, with limits of ``defaults.toml``; vocabularies are padded to ``DEFAULT_VOCAB_PADDING_SIZE`` (cited: vLLM,
``vocab_parallel_embedding.py``)."""
SGLANG = replace(
    SERVING, name="sglang", library="sglang", server=Server(scheduler=SGLANG_SCHEDULER, memory_of="weights")
)
TENSORRT_LLM = replace(
    SERVING,
    name="tensorrt-llm",
    vendors=("nvidia",),
    library="trtllm",
    calibrated_scales=True,
    fused_cache_write=True,
    attention_does="rotate",
    server=Server(scheduler=TRTLLM, memory_of="free"),
)
"""TensorRT-LLM. It rotates and writes to the cache in one kernel (``applyBiasRopeUpdateKVCache``). Models come to it
through ModelOpt, which calibrates scales of tensors (``examples/quantization/quantize.py``)."""
TRANSFORMERS = replace(
    SERVING,
    name="transformers",
    library="",
    launch="eager",
    attention="sdpa",
    joined_projections=False,
    residual="eager",
    attention_does="",
    quantises_in_products=False,
    grouped_queries=False,
    eager_passes=True,
    grown_cache=True,
    vocabulary_multiple=1,
    server=Server(scheduler=ALL_AT_ONCE, memory_of="sequences", block_tokens=1, decode_graphs=False),
)
"""``generate`` of transformers in eager PyTorch: modules as ``modeling_llama.py`` writes them, ``repeat_kv`` before
attention, ``DynamicCache``, which joins each new key to those before it (cited: transformers, ``cache_utils.py``)."""
GPT_FAST = replace(
    TRANSFORMERS,
    name="gpt-fast",
    launch="graph",
    joined_projections=True,
    residual="norm",
    grouped_queries=True,
    eager_passes=False,
    grown_cache=False,
    server=Server(scheduler=ALL_AT_ONCE, memory_of="sequences", block_tokens=1),
)
"""gpt-fast and what torchao generates with: ``wqkv`` in one, a cache of the longest sequence that is written in place,
each token one CUDA graph of what ``torch.compile(mode="reduce-overhead")`` generates; prompts run eagerly unless
``--compile_prefill`` (cited: gpt-fast, ``generate.py``)."""
TINYCHAT = replace(
    TRANSFORMERS,
    name="tinychat",
    vendors=("nvidia",),
    joined_projections=True,
    grouped_queries=True,
    eager_passes=False,
    grown_cache=False,
    attention_does="rotate",
)
"""TinyChat of AWQ (Lin et al. 2024, section 5): PyTorch with fused norms, ``QuantLlamaAttentionFused``, whose attention
rotates and writes to the cache (``awq_inference_engine``), launched kernel by kernel."""
LLAMA_CPP = replace(
    GPT_FAST,
    name="llama.cpp",
    joined_projections=False,
    residual="eager",
    server=Server(
        scheduler=ALL_AT_ONCE, memory_of="sequences", block_tokens=1, max_num_batched_tokens=512,
        operator_s=NATIVE_OPERATOR_S, decode_graphs=False, embedding_on_host=True,
    ),
)  # fmt: skip
"""llama.cpp: ``ggml-cuda`` launches a kernel for each node of its graph, from C++; prompts in passes of ``n_ubatch``
tokens, 512 unless stated; the input layer is always the CPU's (cited: ``dev_input`` of ``src/llama-model.cpp``)."""
EXLLAMAV2 = replace(
    LLAMA_CPP,
    name="exllamav2",
    attention="flash",
    residual="norm",
    server=replace(LLAMA_CPP.serving, max_num_batched_tokens=2048, embedding_on_host=False),
)
"""ExLlamaV2: extensions in C++ that launch kernel by kernel, one for attention's part of a layer and one for the rest
(``exllamav2_ext``), FlashAttention, prompts in chunks (cited: ``ExLlamaV2Config.max_input_len``)."""
MLC_LLM = replace(
    LLAMA_CPP,
    name="mlc-llm",
    joined_projections=True,
    residual="norm",
    server=replace(LLAMA_CPP.serving, max_num_batched_tokens=2048, decode_graphs=True, embedding_on_host=False),
)
"""MLC LLM: kernels that TVM compiles for a model, which fuse what is element by element; each token one CUDA graph
(``CompilationConfig``, ``cudagraph``); prompts in chunks (cited: ``prefill_chunk_size``)."""
LMDEPLOY = replace(
    SERVING,
    name="lmdeploy",
    vendors=("nvidia",),
    library="",
    launch="eager",
    server=Server(scheduler=VLLM, memory_of="free", operator_s=NATIVE_OPERATOR_S, decode_graphs=False),
)
"""LMDeploy with TurboMind, its engine in C++, which launches kernel by kernel and takes new sequences between passes
(lmdeploy documentation, TurboMind: persistent batch); limits as in ``defaults.toml``."""
TRANSFORMERS_NEURONX = replace(
    SERVING,
    name="transformers-neuronx",
    vendors=("aws",),
    library="",
    residual="norm",
    attention_does="",
    quantises_in_products=False,
    joined_projections=False,
    vocabulary_multiple=1,
    ranks="core",
    buckets=True,
    padded_heads=True,
    server=Server(scheduler=ALL_AT_ONCE, memory_of="sequences", block_tokens=1),
)
"""Transformers NeuronX: a program of Neuron's compiler for each length of the cache, powers of two from 128 on, and of
prompts (cited: Developer Guide, Bucketing: ``n_positions``, ``context_length_estimate``); ``tp_degree`` counts cores,
among which heads are padded to be shared evenly."""
OPTIMUM_HABANA = replace(
    GPT_FAST,
    name="optimum-habana",
    vendors=("intel",),
    joined_projections=False,
    server=Server(scheduler=ALL_AT_ONCE, memory_of="sequences", block_tokens=1, decode_graphs=True),
)
"""``generate`` of Optimum for Intel Gaudi with HPU graphs: ``reuse_cache`` writes in place into a cache of the longest
sequence, of which attention reads buckets of 128 tokens (cited: ``bucket_size``, ``bucket_internal``); prompts of a
batch are one pass."""
