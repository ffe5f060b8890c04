"""Kernels written by hand against PyTorch's operators. Those of Liger are layers and losses by themselves, timed by
``triton.testing.do_bench`` in a loop of the host, memory as ``torch.cuda.max_memory_allocated`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neusight.engines import Engine, Host
from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, metric_of, reads, whole
from neusight.measured.score import Row
from neusight.plans.states import workspace_bytes
from neusight.questions.step import step_question
from neusight.transforms import phases, sliced, written
from neusight.transforms.passes import EARLY, LATE, Pass
from neusight.what_if.questions import StepQuestion

_FLUSHED_BYTES = 256e6
"""Of the buffer that is zeroed before each call (``triton.testing.do_bench``)."""
_LAST = LATE + 10
Told = Mapping[str, str]
Sizes = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class _Benchmark:
    """How a kernel is measured.

    ``block`` by its sizes; ``change`` what the kernel does of it, ``of`` another block where it takes less;
    ``cleared``: the gradient of the input is dropped before each call; ``retained``: what was saved stays; ``whole``:
    a backward pass is timed with its forward pass.
    """

    block: str
    sizes: Callable[[Told], Sizes]
    change: Callable[[Told, str], Pass]
    of: str = ""
    dtype: str = "bfloat16"
    cleared: bool = False
    retained: bool = False
    whole: bool = False


def _fused(part: str, change: Callable[..., object]) -> Callable[[Told, str], Pass]:
    return lambda told, name: Pass(part=part, order=EARLY, change=change)  # type: ignore[arg-type]


def _chunks(rule: Callable[[Told], int]) -> Callable[[Told, str], Pass]:
    return lambda told, name: Pass(part="loss", order=EARLY, change=sliced.chunked_loss, arguments=(rule(told),))


def _number(told: Told, *names: str) -> int:
    for name in names:
        if name in told:
            return whole(told[name], name)
    raise UnnamedModelError(f"{' or '.join(names)} is not told")


def _rows(tokens: tuple[str, ...], hidden: tuple[str, ...]) -> Callable[[Told], Sizes]:
    """Tokens as the product of some extents."""

    def sizes(told: Told) -> Sizes:
        rows = 1
        for name in tokens:
            rows *= _number(told, name)
        return {"tokens": rows, "hidden": _number(told, *hidden)}

    return sizes


def _of_head(told: Told) -> Sizes:
    rows = {"batch": _number(told, "b"), "tokens": _number(told, "t")} if "b" in told else {}
    rows = rows or {"batch": 1, "tokens": _number(told, "bt")}
    return rows | {"hidden": _number(told, "h"), "vocabulary": _number(told, "v")}


def _of_distillation(told: Told) -> Sizes:
    return {name: size for name, size in _of_head(told).items() if name != "batch"}


def _of_mlp(told: Told) -> Sizes:
    return {
        "tokens": _number(told, "t") * _number(told, "bsz"),
        "hidden": _number(told, "hidden_size"),
        "intermediate": _number(told, "intermediate_size"),
    }


def _of_gate(told: Told) -> Sizes:
    """Both halves side by side."""
    return {"tokens": _number(told, "s") * _number(told, "b"), "hidden": 2 * _number(told, "ffn_local")}


def _of_neighbours(told: Told) -> Sizes:
    return {
        "batch": _number(told, "batch_size"),
        "tokens": _number(told, "seq_len"),
        "hidden": _number(told, "hidden_size"),
        "heads": _number(told, "num_heads"),
    }


_IN_PLACE = Pass(part="gate", order=EARLY, change=written.fused_gates_in_place)
"""Liger's, whose backward kernel writes over what went into the gate (``liger_kernel/ops/swiglu.py``)."""


def _mlp(told: Told, name: str) -> Pass:
    """A gate in one kernel, or a whole MLP in slices."""
    if "tiled" not in name.lower():
        return _IN_PLACE
    shards = _number(told, "num_shards") if "num_shards" in told else sliced.SHARDS
    return Pass(part="MLP", order=LATE, change=sliced.tiled_mlps, arguments=(shards,))


def _gate(told: Told, name: str) -> Pass:
    change = written.fused_gates_in_place if "in_place" in name else written.fused_gates
    return Pass(part="gate", order=EARLY, change=change)


def _norm(told: Told, name: str) -> Pass:
    change = written.fused_added_norms if "add" in name else written.fused_norms
    return Pass(part="norm", order=EARLY, change=change)


_PAIRS = _chunks(lambda told: max(1, _number(told, "b") // 2))
"""A chosen and a rejected sequence at a time (``LigerFusedLinearPreferenceBase``, chunk_size 1)."""
_SEQUENCES = _chunks(lambda told: _number(told, "b"))
_THOUSANDS = _chunks(lambda told: max(1, _number(told, "bt") // 1024))
"""``LigerFusedLinearDistillationBase``, chunk_size 1024."""
_LOSS = _fused("loss", written.fused_chains)
_BENCHMARKS: dict[str, _Benchmark] = {
    "rms_norm": _Benchmark(block="rms-norm", sizes=_rows(("m",), ("h",)), change=_norm, cleared=True, retained=True),
    "fused_add_rms_norm": _Benchmark(
        block="add-rms-norm", sizes=_rows(("m",), ("h",)), change=_norm, dtype="float32", cleared=True
    ),
    "megatron_rms_norm": _Benchmark(block="torch-rms-norm", sizes=_rows(("s", "b"), ("h",)), change=_norm, whole=True),
    "megatron_swiglu": _Benchmark(
        block="gate", sizes=_of_gate, change=_gate, cleared=True, whole=True
    ),
    "swiglu": _Benchmark(block="swiglu", sizes=_of_mlp, change=_mlp, cleared=True, retained=True),
    "geglu": _Benchmark(block="geglu", sizes=_of_mlp, change=_mlp, cleared=True, retained=True),
    "tiled_swiglu": _Benchmark(block="swiglu", sizes=_of_mlp, change=_mlp, cleared=True, retained=True),
    "tiled_geglu": _Benchmark(block="geglu", sizes=_of_mlp, change=_mlp, cleared=True, retained=True),
    "softmax": _Benchmark(
        block="softmax", sizes=_rows(("m",), ("n",)), change=_fused("pointwise", written.fused_chains), cleared=True
    ),
    "relu_squared": _Benchmark(
        block="relu-squared", sizes=_rows(("m",), ("n",)), change=_fused("pointwise", written.fused_chains),
        cleared=True, retained=True,
    ),
    "sparsemax": _Benchmark(
        block="sparsemax", sizes=_rows(("b", "t"), ("v",)), change=_fused("pointwise", written.fused_chains),
        dtype="float32", cleared=True,
    ),
    "cross_entropy": _Benchmark(block="cross-entropy", sizes=_rows(("b", "t"), ("v",)), change=_LOSS, dtype="float32"),
    "kl_div": _Benchmark(
        block="kl-div", sizes=_rows(("b", "t"), ("v",)), change=_LOSS, dtype="float32", retained=True
    ),
    "jsd": _Benchmark(
        block="jsd", sizes=_rows(("b", "t"), ("v",)), change=_fused("loss", written.fused_early), dtype="float32",
        retained=True,
    ),
    "fused_linear_cross_entropy": _Benchmark(
        block="linear-cross-entropy", sizes=_of_head, change=_chunks(lambda told: 0)
    ),
    **{
        f"fused_linear_{name}_loss": _Benchmark(block=f"linear-{name}", sizes=_of_head, change=_PAIRS)
        for name in ("orpo", "cpo", "simpo")
    },
    "fused_linear_grpo_loss_token": _Benchmark(block="linear-grpo", sizes=_of_head, change=_SEQUENCES),
    **{
        f"distill_{name}_loss": _Benchmark(
            block=f"distill-{name}", sizes=_of_distillation, change=_THOUSANDS, of=f"distill-{name}-frozen"
        )
        for name in ("cosine", "jsd")
    },
}  # fmt: skip


@reads("fused_kernels_liger")
def of_liger(record: Row, stated: dict[str, str]) -> Pair:
    """A kernel of Liger, Megatron or DeepSpeed for a block of PyTorch's operators."""
    name = str(record["model"])
    if name == "fused_moe":
        raise UnnamedModelError("the number of tokens, or of experts, is not told")
    if name == "fused_neighborhood_attention":
        return _neighbourhood(record, stated)
    if name not in _BENCHMARKS:
        raise DataError(f"{name} is not written as a block")
    benchmark = _BENCHMARKS[name]
    before = _question(record, stated, benchmark, benchmark.block)
    kernel = str(record["as_written"])
    if name == "megatron_rms_norm":
        # PyTorch has a kernel for it, and Megatron calls that.
        before = before.changed_by(Pass(part="norm", order=EARLY, change=written.fused_norms, arguments=("aten",)))
    if kernel.endswith("megatron") and name == "megatron_rms_norm":
        after = before
    elif kernel.endswith("liger_rms_norm"):
        after = _question(record, stated, benchmark, "add-rms-norm-scaled").changed_by(_norm(stated, ""))
    else:
        plain = _question(record, stated, benchmark, benchmark.of or benchmark.block)
        after = plain.changed_by(benchmark.change(stated, kernel.rpartition(": ")[2]))
        if kernel == "tiled MLP":
            after = after.changed_by(_IN_PLACE)
    return Pair(before=before, after=after, applied=(kernel,), metric=metric_of(record))


def _question(record: Row, told: Told, benchmark: _Benchmark, block: str) -> StepQuestion:
    """A block in its loop, of which one phase, or both, are measured."""
    timed, mode = record["metric"] == "time", str(record["mode"])
    there = 0 if mode == "forward" else 1 if timed and benchmark.cleared else 2
    step = _step(record, told, block, benchmark.sizes(told) | {"round": there}, benchmark.dtype)
    return _in_mode(step, mode if not (benchmark.whole and mode == "backward") else "full", benchmark.retained)


def _in_mode(step: StepQuestion, mode: str, retained: bool) -> StepQuestion:
    """One phase or both, with cuBLAS' workspaces of the thread of the forward pass and that of the backward pass."""
    nbytes = int(workspace_bytes(step.device, step.request.engine))
    step = step.changed_by(Pass(part="workspace", order=_LAST, change=phases.with_workspaces, arguments=(nbytes,)))
    if mode in ("forward", "backward"):
        return step.changed_by(Pass(part="phase", order=_LAST, change=phases.alone, arguments=(mode,)))
    return step.changed_by(Pass(part="saved", order=_LAST, change=phases.retained)) if retained else step


def _step(record: Row, told: Told, block: str, sizes: Sizes, dtype: str) -> StepQuestion:
    """With a host that is ahead by the time in which the device empties its cache; events before and after a call see
    the start of one kernel.
    """
    words = ",".join(f"{name}={size}" for name, size in sizes.items())
    step = step_question(f"block:{block}@{words}", gpu_of(record), mode="training", dtype=told.get("dtype", dtype))
    ahead_s = _FLUSHED_BYTES / step.device.dram_bandwidth_bytes_per_s
    own = Engine()
    call_s = step.device.launch_overhead_s
    host = Host(call_s=call_s, operator_s=own.host_s_per_operator, spread=own.host_spread, ahead_s=ahead_s)
    return step.under(host=host)


def _neighbourhood(record: Row, told: Told) -> Pair:
    """Kernels of Liger for attention whose mask a loop of the host writes, cell by cell."""
    sizes, (neighbours, apart) = _of_neighbours(told), (_number(told, "kernel_size"), _number(told, "dilation"))
    length, half = sizes["tokens"], neighbours // 2
    cells = sum(1 for i in range(length) for j in range(-half, half + 1) if 0 <= i + j * apart < length)
    timed, mode = record["metric"] == "time", str(record["mode"])
    step = _in_mode(_step(record, told, "neighbourhood", sizes | {"round": 1 if timed else 2}, "float32"), mode, True)
    after = step.changed_by(Pass(part="mask", order=EARLY, change=phases.without, arguments=("block.hidden",)))
    after = after.changed_by(Pass(part="scores", change=written.fused_scores))
    if mode != "backward":
        loop = Pass(part="loop", order=_LAST + 1, change=phases.looped, arguments=("block.hidden.mask", cells))
        step = step.changed_by(loop)
    return Pair(before=step, after=after, applied=(str(record["as_written"]),), metric=metric_of(record))


_ENCODERS = {"BERT-large encoder layer": {"hidden": 1024, "heads": 16}}
_OF_LAYERS = ("data movement recipe", "DeepSpeed fused transformer kernel")


@reads(
    "training_ladder_hf_issues_and_small_tables", of=lambda record: str(record["model"]).endswith("encoder layer")
)  # fmt: skip
def of_encoder_layers(record: Row, stated: dict[str, str]) -> Pair:
    """A layer of an encoder forward and backward, between whose products each chain of operators is one kernel (Ivanov
    et al. 2021, Data movement is all you need, table 3).
    """
    sizes, words = _ENCODERS.get(str(record["model"])), str(record["as_written"])
    if sizes is None or not words.startswith(_OF_LAYERS):
        raise DataError(f"'{words}' of {record['model']} is not read")
    batch, length = _number(stated, "batch"), _number(stated, "seq")
    given = {"batch": batch, "tokens": length, "round": 1} | sizes
    name = f"block:encoder-layer@{','.join(f'{key}={size}' for key, size in given.items())}"
    dtype = {"fp16": "float16", "fp32": "float32"}.get(stated.get("dtype", ""), stated.get("dtype"))
    step = step_question(name, gpu_of(record), mode="training", dtype=dtype, attention="eager")
    return Pair.of(record, step, ["fused-pointwise"])


_FINE_TUNED = {"Llama-2-7B": "llama-2-7b", "Mixtral-8x7B": "mixtral-8x7b"}
_OF_TRANSFORMER_ENGINE = ("fused-norm", "fused-rope", "fused-glu", "flash")


@reads("misc_ladders", of=lambda record: str(record["as_written"]).endswith("(HF -> TE)"))
def of_transformer_engine(record: Row, stated: dict[str, str]) -> Pair:
    """Fine-tuning by Hugging Face's layers, whose attention was written out, against ``te.TransformerLayer``."""
    model = _FINE_TUNED.get(str(record["model"]))
    if model is None or stated.get("dtype") != "bf16":
        raise UnnamedModelError(f"the model '{record['model']}' or its dtype is not told")
    before = step_question(
        model,
        gpu_of(record),
        mode="training",
        batch=_number(stated, "batch"),
        seq_len=_number(stated, "seq"),
        dtype="bfloat16",
        optimizer="adamw",
        attention="eager",
    )
    return Pair.of(record, before, _OF_TRANSFORMER_ENGINE)


@reads("misc_ladders", of=lambda record: str(record["as_written"]) == "LightSeq fused kernels")
def of_lightseq(record: Row, stated: dict[str, str]) -> Pair:
    """Transformers of LightSeq.

    Raises:
        UnnamedModelError: the source says no more than that.
    """
    raise UnnamedModelError(f"layers and widths of the model '{record['model']}' are not told")


@reads("horizontal_fusion_hfuse")
def of_hfuse(record: Row, stated: dict[str, str]) -> Pair:
    """Two kernels side by side on one multiprocessor (Li et al. 2022, Automatic horizontal fusion for GPU kernels).

    Raises:
        UnnamedModelError: shapes and resources of kernels are not told.
    """
    raise UnnamedModelError(f"shapes and instructions of the kernels {record['model']} are not told")
