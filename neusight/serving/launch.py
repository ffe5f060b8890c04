"""Command lines that start a deployment as an estimate has it: every limit that it assumed is stated.

Options are those of ``neusight/engines/flags``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neusight.engines.launch_flags import Flags, flags_of
from neusight.serving import dynamo
from neusight.serving.deployment import Deployment
from neusight.serving.speculation import LOOKUP, OWN_LAYER

EAGLE_HEAD = "EAGLE_HEAD"
_ONLINE = ("fp8", "fp8_row")
"""Schemes to which vLLM and SGLang quantise a 16-bit checkpoint as they load it (``--quantization fp8``)."""
_SHORT = {"float8": "fp8", "float4": "fp4"}
"""Dtypes of the cache in words of a question."""
_FILE = "llm.yaml"


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """A command that starts a deployment, with values by field, which options give, and remarks that stand above it."""

    of: Deployment
    values: Mapping[str, Any]
    remarks: Sequence[str]

    @classmethod
    def for_deployment(cls, d: Deployment) -> _Launch:
        """The command by the conventions of the deployment's engine."""
        values = _values(d)
        return cls(of=d, values=values, remarks=[*_remarks(d), *_CONVENTIONS[d.replica.engine.name](d, values)])

    @property
    def flags(self) -> Flags:
        """Options of the engine."""
        return flags_of(self.of.replica.engine.name)

    @property
    def options(self) -> list[tuple[str, str | None]]:
        """Names and words; None for a switch."""
        file = {self.flags.file_options[0]: _FILE} if self.flags.file else {}
        options = _nested(self.flags.written(self.values)) | file
        objects = {name: f"'{json.dumps(value)}'" for name, value in options.items() if isinstance(value, dict)}
        return list((options | objects).items())

    @property
    def file(self) -> list[str]:
        """Lines of the file that an option names."""
        keys = _nested(self.flags.written(self.values, in_file=True))
        return [f"{key}: {_flow(value)}" for key, value in keys.items()]

    @property
    def words(self) -> list[str]:
        """Words of its options, as a shell splits them."""
        return [word for name, value in self.options for word in (f"--{name}", *shlex.split(str(value or "")))]

    def __str__(self) -> str:
        """The text for a shell."""
        words = [f"--{name}" if value is None else f"--{name} {value}" for name, value in self.options]
        across = self.flags.before_across.format(ranks=self.of.replica.plan.world) if self.of.replica.cluster else ""
        aiter, variable = self.of.setup.aiter, self.flags.fields.get("aiter", ())
        variables = f"{variable[0]}={int(aiter)} " if variable and aiter is not None else ""
        start = f"{variables}{across}{self.flags.command} {self.of.replica.decoder.name}"
        command = " \\\n  ".join([start, *words])
        file = [f"cat > {_FILE} <<'EOF'", *self.file, "EOF"] if self.file else []
        return "\n".join([*(f"# {remark}" for remark in self.remarks), *file, command])


def _nested(options: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Options by name, ``a.b`` as key ``b`` of an object."""
    values: dict[str, Any] = {}
    for name, value in options:
        *above, last = name.split(".")
        inner = values
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return values


def _flow(value: Any) -> str:
    """A value as YAML writes it in a line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(inner)}' for key, inner in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def launch_command(deployment: Deployment) -> str:
    """What starts one replica of a deployment, in lines for a shell; remarks say what no option does. Of prompts on
    devices apart the graph of both pools.
    """
    name = deployment.replica.engine.name
    if deployment.server.memory_of == "sequences":
        return f"# {name} is called by a program, with the sequences that it is to continue"
    if name not in _CONVENTIONS:
        return f"# no launch command of {name} is known: of {', '.join(_CONVENTIONS)} there are"
    if deployment.prefill is None:
        return str(_Launch.for_deployment(deployment))
    if name not in dynamo.ENGINES:
        return f"# workers of {name} take their limits from files: no graph of them is written"
    pools = {"prefill": deployment.prefill, "decode": deployment}
    words = {role: _Launch.for_deployment(pool).words for role, pool in pools.items()}
    return "\n".join(dynamo.graph_of(pools, words))


def _vllm(d: Deployment, values: dict[str, Any]) -> Iterator[str]:
    plan = d.replica.plan
    values |= {"ep": "all" if plan.ep > 1 else None, "draft": values["draft"] or None}
    if d.server.tokens_of_context:
        values["chunked_prefill"] = d.setup.chunked_prefill
    if plan.ep not in (1, plan.tp * plan.dp):
        yield f"the estimate spreads experts over {plan.ep} GPUs, this engine over all {plan.tp * plan.dp}"


def _sglang(d: Deployment, values: dict[str, Any]) -> Iterator[str]:
    """Its degree of tensor parallelism counts all devices of a stage, its limits all groups of attention."""
    plan = d.replica.plan
    values |= {name: plan.dp * values[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    values["tp"] = _above_one(plan.tp * plan.dp)
    if not d.setup.chunked_prefill:
        values["max_num_batched_tokens"] = -1
    yield from ()


def _tensorrt_llm(d: Deployment, values: dict[str, Any]) -> Iterator[str]:
    plan = d.replica.plan
    values |= {"tp": _above_one(plan.tp * plan.dp), "chunked_prefill": d.setup.chunked_prefill}
    if values["draft"] == "mtp":
        values["draft_layers"] = values.pop("draft_tokens")
    if plan.dp > 1 and plan.tp > 1:
        yield "attention is shared by all GPUs or by none of them here"


_CONVENTIONS: Mapping[str, Callable[[Deployment, dict[str, Any]], Iterator[str]]] = {
    "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm
}  # fmt: skip
"""How engines count and write values, which they change; each yields remarks for what it cannot say."""


def _values(d: Deployment) -> dict[str, Any]:
    """Values by field: limits, and what is not as it is by default, else None. Engines without a field ignore it."""
    plan, precision, decoder, images = d.replica.plan, d.replica.precision, d.replica.decoder, d.replica.images
    cache = _SHORT.get(precision.kv_cache, precision.kv_cache)
    values: dict[str, Any] = {name: _above_one(getattr(plan, name)) for name in ("tp", "pp", "dp", "ep")}
    values |= {
        "max_model_len": d.setup.max_model_len or d.longest,
        "max_num_seqs": d.limits.max_num_seqs,
        "max_num_batched_tokens": d.max_num_batched_tokens,
        "gpu_memory_utilization": d.setup.gpu_memory_utilization or d.server.memory_share,
        "dtype": None if precision.dtype == decoder.served_dtype else precision.dtype,
        "quantization": "fp8" if _scheme(d) in _ONLINE else None,
        "kv_dtype": None if precision.kv_cache == precision.dtype else cache,
        "chunked_prefill": None if d.setup.chunked_prefill else False,
        "graphs": None if d.server.decode_graphs else False,
        "overlap": d.setup.overlap,
        "scheduler_recv_interval": _above_one(d.setup.scheduler_recv_interval),
        "batch_wait_timeout_iters": d.setup.batch_wait_timeout_iters or None if plan.dp == 1 else None,
        "attention_dp": True if plan.dp > 1 else None,
        "policy": "GUARANTEED_NO_EVICT" if d.server.scheduler.reserved_output else "MAX_UTILIZATION",
        "draft": None,
    }
    if (part := decoder.mixture) is not None and part.redundant:
        slots = part.experts + part.redundant
        values |= {"eplb": True, "redundant_experts": part.redundant, "slots": slots}
    if images:
        values |= {"multimodal": True, "most_images": images.number}
    if decoder.slots:
        values |= {"lora": True, "adapters": decoder.slots.number, "adapter_rank": decoder.slots.rank}
    if s := d.replica.speculation:
        method = s.draft if s.draft in (*OWN_LAYER, LOOKUP) else ""
        values |= {"draft": method, "draft_model": _draft(d) or None, "draft_tokens": s.tokens}
        branches = None if s.draft == LOOKUP else 1
        values |= {"draft_depth": s.levels, "draft_queries": s.queries, "draft_branches": branches}
    if cluster := d.replica.cluster:
        values |= {"executor": "ray", "nodes": cluster.nodes, "rank": "$RANK", "first": "$FIRST:20000"}
    return values


def _above_one(degree: int) -> int | None:
    return degree if degree > 1 else None


def _draft(d: Deployment) -> str:
    """The checkpoint that drafts, "" where the model itself or a look-up does."""
    s = d.replica.speculation
    if s is None or s.draft in ("mtp", LOOKUP):
        return ""
    return EAGLE_HEAD if s.draft == "eagle" else s.draft


def _scheme(d: Deployment) -> str:
    """The scheme of weights that the model's configuration does not have."""
    method = d.replica.precision.quantisation.method
    return "" if method == d.replica.decoder.quantisation.method else method


def _remarks(d: Deployment) -> list[str]:
    """Lines for what no option does."""
    scheme, remarks = _scheme(d), []
    if scheme and (scheme not in _ONLINE or d.replica.engine.name == "tensorrt-llm"):
        remarks.append(f"needs a checkpoint of {d.replica.decoder.name} in {scheme}: name it instead")
    if _draft(d) == EAGLE_HEAD:
        remarks.append(f"{EAGLE_HEAD}: name a head that was trained for {d.replica.decoder.name}")
    if cluster := d.replica.cluster:
        how = flags_of(d.replica.engine.name).across_nodes
        remarks.append(f"over {cluster.nodes} nodes of {cluster.per_node} GPUs: {how}")
    if (wait := d.setup.batch_wait_timeout_iters) and d.replica.plan.dp > 1:
        remarks.append(f"attention_dp_config: enable_balance: true, timeout_iters: {wait}")
    if d.setup.replicas > 1:
        remarks.append(f"on each of {d.setup.replicas} replicas, behind a {d.setup.router} router")
    return remarks
