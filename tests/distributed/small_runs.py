"""A small model on a few GPUs, and its training step under any plan."""

from __future__ import annotations

from typing import Any

from neusight.devices import Cluster, cluster_of
from neusight.distributed.training_run import TrainingRun, usual_run
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.decoder import Decoder

GPU = "h100-sxm-80gb"
CONFIG = {
    "model_type": "gpt2", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8,
    "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


def small_decoder() -> Decoder:
    return decoder_of(CONFIG, "small")


def some_gpus(nodes: int = 1, per_node: int = 4, network: str = "200Gb/s", overrides: tuple[str, ...] = ()) -> Cluster:
    return cluster_of(GPU, per_node, nodes, network if nodes > 1 else "", overrides)


def small_run(cluster: Cluster | None = None, engine: str = "megatron-te", **told: Any) -> TrainingRun:
    """On one GPU unless told, with four micro-batches of one sequence a replica."""
    place = cluster or some_gpus(per_node=1)
    defaults = {"micro_batches": 4, "seq_len": 2048}
    return usual_run(small_decoder(), place, {**defaults, **told}, engine)
