"""Served models as AWS Neuron, Intel and TPU recipes publish them, in the columns of ``neusight.datasets.cells``."""

from __future__ import annotations

from typing import Any

from neusight.datasets.rows import Row

ENGINES = {"optimum-habana, hpu graphs, static batch": "optimum-habana", "vllm-tpu": "vllm"}
"""Where they have other names here."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def canonical_cell(row: Row) -> dict[str, Any]:
    """A row in the columns of ``serving_cell``: of Neuron, whose plans count cores, else of one with cards or chips."""
    if "tp_cores" in row:
        return _neuron(row)
    return _cards(row)


def _common(row: Row) -> dict[str, Any]:
    engine = str(row["engine"])
    kept = ("model", "isl", "osl")
    return {
        **{name: row[name] for name in kept if name in row},
        "gpu": row["accelerator"],
        "engine": ENGINES.get(engine, engine.lower().replace(" ", "-")),
        **({"tokens_per_s": row["output_tokens_per_s"]} if "output_tokens_per_s" in row else {}),
    }


def _name(source: str, row: Row, load: object) -> str:
    return f"{source}/{row['model']} {load} x {row.get('isl')}+{row.get('osl')}"


def _neuron(row: Row) -> dict[str, Any]:
    """One batch after another; times are medians over tokens."""
    medians = {name: row[name] for name in ("ttft_p50_ms", "tpot_p50_ms") if name in row}
    weights = str(row.get("weights", row["dtype"])).lower()
    return {
        **_common(row),
        "cell": _name("neuron", row, row["batch"]),
        "engine_version": str(row.get("neuron", "")),
        "tp": int(row["tp_cores"]),
        "weight_dtype": DTYPES.get(weights, weights),
        "mode": "static",
        "concurrency": int(row["batch"]),
        **medians,
    }


def _cards(row: Row) -> dict[str, Any]:
    """A static batch on Gaudi, with its cache in the precision of the weights; clients that wait for answers on TPU."""
    batch, precision = row.get("batch"), str(row.get("precision", "bf16"))
    medians = {f"{name}_p50_ms": row[f"{name}_ms"] for name in ("ttft", "tpot") if f"{name}_ms" in row}
    clients = int(row["concurrency"] if batch is None else batch)
    return {
        **_common(row),
        "cell": _name(str(row["accelerator"]).split("-")[0], row, clients),
        "tp": int(row["cards"] if "cards" in row else row["chips"]),
        "weight_dtype": DTYPES.get(precision, precision),
        "kv_dtype": DTYPES.get(precision, precision),
        "mode": "closed" if batch is None else "static",
        "concurrency": clients,
        **medians,
    }
