"""Steps as MLPerf Tiny and AWS Neuron publish them, in the columns of ``neusight.datasets.benchmarks``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from neusight.datasets.benchmarks import STEP_NEEDED
from neusight.datasets.rows import Row, read_rows
from neusight.errors import DataError

WHAT = "measured steps"
INFERENCES = "accelerators/tiny.parquet"
"""Below the folder of data sets."""
TINY_READ = frozenset(("board", "task", "latency_ms", "clock_mhz", "framework", "system"))
TINY_NOTES = frozenset((
    "round", "division", "submitter", "mode", "inf_per_s", "energy_uj", "power_mw", "file", "soc", "processor", "clock",
    "accelerator", "accel_clock", "system_file", "clock_source", "reference_model", "reference_macs_about",
    "reference_params_about",
))  # fmt: skip
NEURON_READ = frozenset(("accelerator", "model", "batch", "seq", "latency_p50_ms"))
NEURON_NOTES = frozenset((
    "instance", "chips_in_instance", "cores_in_instance", "dtype", "autocast", "framework", "run_mode",
    "throughput_per_s", "latency_p99_ms", "kind", "neuron",
))  # fmt: skip
STREAMED = "sww"
"""A task that is measured by the second of sound, not by the inference."""


def measured_steps(path: Path) -> list[dict[str, Any]]:
    """Rows of a table of steps, of MLPerf Tiny's results or of Neuron's, in the columns of ``benchmark_step``.

    Raises:
        DataError: no such file, or another table.
    """
    for columns, canonical in ((TINY_READ, _of_tiny), (NEURON_READ, _of_neuron)):
        try:
            return [canonical(row) for row in read_rows(path, columns, WHAT)]
        except DataError:
            continue
    return read_rows(path, STEP_NEEDED, WHAT)


def _of_neuron(row: Row) -> dict[str, Any]:
    """A worker's inference, while one like it runs on each other core; products are rounded to bfloat16
    (``autocast``), which the compiler does to weights once.
    """
    names = {"gpu": row["accelerator"], "worker": "core", "workload": "inference", "precision": "bfloat16"}
    return {**row, **names, "step_ms": row["latency_p50_ms"]}


def _of_tiny(row: Row) -> dict[str, Any]:
    """A streamed task stays without a time, which is refused where it is compared."""
    library = _library(f"{row.get('framework', '')} {row.get('system', '')}")
    times = {"step_ms": row["latency_ms"]} if "latency_ms" in row and row["task"] != STREAMED else {}
    names = {"gpu": str(row["board"]).lower(), "model": f"mlperf-tiny-{row['task']}", "library": library}
    return {**row, **names, **times}


def _library(words: str) -> str:
    """Name and version of the library, as its words tell: ``x-cube-ai 8.1``; "" where none is named."""
    native = " native" if "native" in words.lower() else ""
    for name in ("X-CUBE-AI", "TensorFlow Lite", "microTVM", "ONNC", "HALE", "Plumerai"):
        if name.lower() in words.lower():
            number = re.search(r"(\d+)\.(\d+)", words[words.lower().index(name.lower()) :])
            return f"{name.lower()}{native} {'.'.join(number.groups()) if number else ''}".strip()
    return ""
