"""Program of decoders in training, and sums over their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from small_decoders import config_of

from neusight.engines import Engine, engine_named
from neusight.kernels.work import work_of
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import units_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import Part, Program, Segment

SEQUENCES, LENGTH = 2, 64
TOKENS = SEQUENCES * LENGTH
PRODUCTS = ("gemm", "grouped_gemm")
GPT = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 8, "vocab_size": 256, "n_positions": LENGTH}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
MIXTURE = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def built(config: dict[str, Any] | str, engine: Engine | str = "megatron-te", **local: Any) -> tuple[Decoder, Program]:
    """A model on a rank that has ``SEQUENCES`` sequences of ``LENGTH`` tokens."""
    decoder = decoder_of(config_of(config) if isinstance(config, str) else config)
    how = engine if isinstance(engine, Engine) else engine_named(engine)
    return decoder, units_of(decoder, Local(**{"batch": SEQUENCES, "seq_len": LENGTH, **local}), how)


def every(units: Program) -> Iterator[tuple[Segment, int]]:
    """Program with how many of each a rank would run that has all layers."""
    yield units.before, 1
    for kind, unit in enumerate(units.layers):
        yield unit, units.order.count(kind)
    yield units.after, 1


def flops(units: Program, *passes: str, families: tuple[str, ...] = PRODUCTS) -> float:
    return total(units, lambda part: float(work_of(part.batch).flops[0]), *passes, families=families)


def total(units: Program, value: Callable[[Part], float], *passes: str, families: tuple[str, ...] = PRODUCTS) -> float:
    """Of parts of some passes (all unless told) and families, each as often as it runs."""
    return sum(
        count * part.runs * value(part)
        for unit, count in every(units)
        for part in unit.parts
        if part.batch.family in families and (not passes or part.phase in passes)
    )


def parameters(units: Program) -> int:
    return sum(count * unit.parameters for unit, count in every(units))


def expert_parameters(units: Program) -> int:
    return sum(count * unit.expert_parameters for unit, count in every(units))


def exchanged(unit: Segment, which: str) -> list[tuple[str, str, int, bool]]:
    """Collectives of a pass: operator, group, bytes, and whether they run beside kernels."""
    return [
        (str(part.batch["op"][0]), part.group, int(part.batch["bytes"][0]) * part.runs, part.overlapped)
        for part in unit.of(which)  # type: ignore[arg-type]
        if part.group
    ]
