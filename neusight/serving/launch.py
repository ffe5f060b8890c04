"""Command lines that start a deployment as an estimate has it: every limit that it assumed is stated.

Options are those of the engines' documentation: vLLM 0.11 (Engine Arguments), SGLang 0.5 (Server Arguments),
TensorRT-LLM 1.0 (``trtllm-serve``, ``--extra_llm_api_options``).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neusight.errors import ModelError
from neusight.serving import dynamo
from neusight.serving.deployment import Deployment
from neusight.serving.speculation import LOOKUP, OWN_LAYER

EAGLE_HEAD = "EAGLE_HEAD"
_ACROSS = {
    "vllm": "start Ray on each first, then this on the first",
    "sglang": "on each, RANK from 0 on and FIRST the address of the first",
    "tensorrt-llm": "where MPI reaches all of them",
}
"""How a replica is started on several nodes (vLLM, Parallelism and Scaling; SGLang, Server Arguments; TensorRT-LLM,
``trtllm-serve``, Multi-node Serving)."""
Option = tuple[str, object]
"""Its name and value; None for a switch."""
_ONLINE = ("fp8", "fp8_row")
"""Schemes to which vLLM and SGLang quantise a 16-bit checkpoint as they load it (``--quantization fp8``)."""
_CACHES = {
    "vllm": {"float8": "fp8"},
    "sglang": {"float8": "fp8_e4m3", "float4": "fp4_e2m1"},
    "tensorrt-llm": {"float8": "fp8", "float4": "nvfp4"},
}
"""What engines call dtypes of the cache."""


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """Remarks that stand above a command, the command with its options, and lines of its YAML file."""

    command: str
    options: list[Option]
    remarks: list[str]
    yaml: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Of its options, as a shell splits them."""
        return [word for name, value in self.options for word in (f"--{name}", *shlex.split(str(value or "")))]

    def __str__(self) -> str:
        """As a shell takes it."""
        words = [f"--{name}" if value is None else f"--{name} {value}" for name, value in self.options]
        command = " \\\n  ".join([self.command, *words])
        file = ["cat > llm.yaml <<'EOF'", *self.yaml, "EOF"] if self.yaml else []
        return "\n".join([*(f"# {remark}" for remark in self.remarks), *file, command])


def launch_command(deployment: Deployment) -> str:
    """What starts one replica of a deployment, in lines for a shell; remarks say what no option does. Of prompts on
    devices apart the graph of both pools.

    Raises:
        ModelError: an engine without a known command.
    """
    name = deployment.replica.engine.name
    if deployment.server.memory_of == "sequences":
        return f"# {name} is called by a program, with the sequences that it is to continue"
    if name not in _WRITERS:
        raise ModelError(f"no launch command of {name} is known: one of {', '.join(_WRITERS)}")
    if deployment.prefill is None:
        return str(_WRITERS[name](deployment))
    if name not in dynamo.ENGINES:
        return f"# workers of {name} take their limits from files: no graph of them is written"
    pools = {"prefill": deployment.prefill, "decode": deployment}
    return dynamo.graph_of(pools, {role: _WRITERS[name](pool).words for role, pool in pools.items()})


def _vllm(d: Deployment) -> _Launch:
    plan, limits = d.replica.plan, _limits(d)
    degrees = {"tensor-parallel-size": plan.tp, "pipeline-parallel-size": plan.pp, "data-parallel-size": plan.dp}
    options = [*_above_one(degrees), *_switches({"enable-expert-parallel": plan.ep > 1}), *_quantised(d)]
    options += _named_cache(d, "kv-cache-dtype")
    options += [
        ("max-model-len", limits["longest"]), ("max-num-seqs", limits["seqs"]),
        ("max-num-batched-tokens", limits["tokens"]), ("gpu-memory-utilization", limits["share"]),
    ]  # fmt: skip
    options += _switches(
        {"no-enable-chunked-prefill": not d.options.chunked_prefill, "enforce-eager": not d.server.decode_graphs}
    )
    options += _vllm_speculation(d)
    if copies := _copies(d):
        stated = json.dumps({"num_redundant_experts": copies})
        options += [("enable-eplb", None), ("eplb-config", f"'{stated}'")]
    if slots := d.replica.decoder.slots:
        options += [("enable-lora", None), ("max-loras", slots.number), ("max-lora-rank", slots.rank)]
    if images := d.replica.images:
        options.append(("limit-mm-per-prompt", f"'{json.dumps({'image': images.number})}'"))
    options += [("distributed-executor-backend", "ray")] if d.replica.cluster else []
    spread = [] if plan.ep in (1, plan.tp * plan.dp) else [_other_experts(d, plan.tp * plan.dp)]
    return _Launch(command=f"vllm serve {_model(d)}", options=options, remarks=[*_remarks(d), *spread])


def _vllm_speculation(d: Deployment) -> Iterator[Option]:
    if s := d.replica.speculation:
        method = {} if _draft(d) and s.draft not in OWN_LAYER else {"method": s.draft}
        stated = method | _draft(d, "model") | {"num_speculative_tokens": s.tokens}
        yield "speculative-config", f"'{json.dumps(stated)}'"


def _sglang(d: Deployment) -> _Launch:
    """Its degree of tensor parallelism counts all devices of a stage, its limits all groups of attention."""
    plan, limits = d.replica.plan, _limits(d)
    chunk = plan.dp * int(limits["tokens"]) if d.options.chunked_prefill else -1
    degrees = {"tp-size": plan.tp * plan.dp, "pp-size": plan.pp, "ep-size": plan.ep, "dp-size": plan.dp}
    options = [*_above_one(degrees), *_switches({"enable-dp-attention": plan.dp > 1}), *_quantised(d)]
    options += _named_cache(d, "kv-cache-dtype")
    options += [
        ("context-length", limits["longest"]), ("max-running-requests", plan.dp * int(limits["seqs"])),
        ("chunked-prefill-size", chunk), ("mem-fraction-static", limits["share"]),
    ]  # fmt: skip
    options += _switches({"disable-cuda-graph": not d.server.decode_graphs})
    if copies := _copies(d):
        options += [("enable-eplb", None), ("ep-num-redundant-experts", copies)]
    options += [*_switches({"enable-multimodal": bool(d.replica.images)}), *_sglang_speculation(d)]
    if cluster := d.replica.cluster:
        options += [("nnodes", cluster.nodes), ("node-rank", "$RANK"), ("dist-init-addr", "$FIRST:20000")]
    if slots := d.replica.decoder.slots:
        options += [("enable-lora", None), ("max-loras-per-batch", slots.number), ("max-lora-rank", slots.rank)]
    command = f"python -m sglang.launch_server --model-path {_model(d)}"
    return _Launch(command=command, options=options, remarks=_remarks(d))


def _sglang_speculation(d: Deployment) -> Iterator[Option]:
    if s := d.replica.speculation:
        algorithm = {"mtp": "NEXTN", "eagle": "EAGLE", LOOKUP: "NGRAM"}.get(s.draft, "STANDALONE")
        stated = {"algorithm": algorithm, **_draft(d, "draft-model-path"), "num-steps": s.levels}
        stated |= {} if s.draft == LOOKUP else {"eagle-topk": 1}
        yield from ((f"speculative-{name}", value) for name, value in stated.items())
        yield "speculative-num-draft-tokens", s.queries


def _tensorrt_llm(d: Deployment) -> _Launch:
    plan, limits, precision, slots = d.replica.plan, _limits(d), d.replica.precision, d.replica.decoder.slots
    degrees = {"tp_size": plan.tp * plan.dp, "pp_size": plan.pp, "ep_size": plan.ep}
    options = [
        *_above_one(degrees), ("max_seq_len", limits["longest"]), ("max_batch_size", limits["seqs"]),
        ("max_num_tokens", limits["tokens"]), ("kv_cache_free_gpu_memory_fraction", limits["share"]),
        ("extra_llm_api_options", "llm.yaml"),
    ]  # fmt: skip
    cache = _cache_name(d)
    policy = "MAX_UTILIZATION" if d.server.scheduler.reserved_output == 0 else "GUARANTEED_NO_EVICT"
    yaml = (
        f"enable_chunked_prefill: {str(d.options.chunked_prefill).lower()}",
        f"scheduler_config: {{capacity_scheduler_policy: {policy}}}",
        *(("enable_attention_dp: true",) if plan.dp > 1 else ()),
        *(() if d.server.decode_graphs else ("cuda_graph_config: null",)),
        *((f"kv_cache_config: {{dtype: {cache}}}",) if cache else ()),
        *((f"dtype: {precision.dtype}",) if precision.dtype != d.replica.decoder.served_dtype else ()),
        *_trtllm_speculation(d),
        *_trtllm_slots(d),
        *((f"lora_config: {{max_loras: {slots.number}, max_lora_rank: {slots.rank}}}",) if slots else ()),
    )
    mixed = plan.dp > 1 and plan.tp > 1
    remarks = _remarks(d) + (["attention is shared by all GPUs or by none of them here"] if mixed else [])
    across = f"mpirun -n {plan.world} trtllm-llmapi-launch " if d.replica.cluster else ""
    return _Launch(command=f"{across}trtllm-serve {_model(d)}", options=options, remarks=remarks, yaml=yaml)


def _trtllm_speculation(d: Deployment) -> Iterator[str]:
    if s := d.replica.speculation:
        kind = {"mtp": "MTP", "eagle": "Eagle", LOOKUP: "NGram"}.get(s.draft, "DraftTarget")
        length = "num_nextn_predict_layers" if kind == "MTP" else "max_draft_len"
        stated = {"decoding_type": kind, length: s.tokens, **_draft(d, "speculative_model_dir")}
        yield f"speculative_config: {{{', '.join(f'{name}: {value}' for name, value in stated.items())}}}"


def _copies(d: Deployment) -> int:
    """Of experts with most tokens."""
    part = d.replica.decoder.mixture
    return part.redundant if part else 0


def _trtllm_slots(d: Deployment) -> Iterator[str]:
    part = d.replica.decoder.mixture
    if part is not None and part.redundant:
        yield f"moe_config: {{load_balancer: {{num_slots: {part.experts + part.redundant}}}}}"


def _draft(d: Deployment, option: str = "") -> dict[str, str]:
    """The checkpoint that drafts, none where the model itself or a look-up does."""
    s = d.replica.speculation
    if s is None or s.draft in ("mtp", LOOKUP):
        return {}
    return {option: EAGLE_HEAD if s.draft == "eagle" else s.draft}


_WRITERS: Mapping[str, Callable[[Deployment], _Launch]] = {
    "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm
}  # fmt: skip


def _model(d: Deployment) -> str:
    return d.replica.decoder.name


def _limits(d: Deployment) -> dict[str, float]:
    """Of each scheduler: the longest sequence, sequences and new tokens of a pass, and its share of the memory."""
    return {
        "longest": d.options.max_model_len or d.longest,
        "seqs": d.limits.max_num_seqs,
        "tokens": d.max_num_batched_tokens,
        "share": d.options.gpu_memory_utilization or d.server.memory_share,
    }


def _above_one(degrees: Mapping[str, int]) -> list[Option]:
    return [(name, degree) for name, degree in degrees.items() if degree > 1]


def _switches(switches: Mapping[str, bool]) -> list[Option]:
    return [(name, None) for name, on in switches.items() if on]


def _quantised(d: Deployment) -> list[Option]:
    """The dtype of activations, and a scheme that is made at loading, where the model's configuration has others."""
    precision, decoder = d.replica.precision, d.replica.decoder
    options: list[Option] = [("dtype", precision.dtype)] if precision.dtype != decoder.served_dtype else []
    return options + ([("quantization", "fp8")] if _scheme(d) in _ONLINE else [])


def _scheme(d: Deployment) -> str:
    """That the model's configuration does not have."""
    method = d.replica.precision.quantisation.method
    return "" if method == d.replica.decoder.quantisation.method else method


def _cache_name(d: Deployment) -> str:
    precision = d.replica.precision
    if precision.kv_cache == precision.dtype:
        return ""
    return _CACHES[d.replica.engine.name].get(precision.kv_cache, precision.kv_cache)


def _named_cache(d: Deployment, option: str) -> list[Option]:
    name = _cache_name(d)
    return [(option, name)] if name else []


def _remarks(d: Deployment) -> list[str]:
    """What no option does."""
    scheme, remarks = _scheme(d), []
    if scheme and (scheme not in _ONLINE or d.replica.engine.name == "tensorrt-llm"):
        remarks.append(f"needs a checkpoint of {_model(d)} in {scheme}: name it instead")
    if EAGLE_HEAD in _draft(d).values():
        remarks.append(f"{EAGLE_HEAD}: name a head that was trained for {_model(d)}")
    if cluster := d.replica.cluster:
        remarks.append(f"over {cluster.nodes} nodes of {cluster.per_node} GPUs: {_ACROSS[d.replica.engine.name]}")
    if d.replicas > 1:
        remarks.append(f"on each of {d.replicas} replicas, behind a {d.router} router")
    return remarks


def _other_experts(d: Deployment, ranks: int) -> str:
    return f"the estimate spreads experts over {d.replica.plan.ep} GPUs, this engine over all {ranks}"
