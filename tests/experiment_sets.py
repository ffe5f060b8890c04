"""Kernels and a whole model with latencies that follow from formulas: what the tests of experiments run on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import neusight
from neusight.devices import load_device

GPUS = ("t4", "v100-pcie-32gb", "l4")
SHARE = 0.6
"""Of the roofline that every kernel reaches, whatever its GPU."""
FLOOR_MS = 0.008
STEP_MS = {"t4": 40.0, "v100-pcie-32gb": 20.0, "l4": 30.0, "mi100": 25.0}
GPT2 = Path(neusight.__file__).parent / "workloads" / "configs" / "gpt2.json"
"""Of twelve layers. Its trace ships: no test waits for one."""
STEP = {"model": "mine", "mode": "inference", "batch": 2, "seq_len": 128}


def kernels(gpu: str, op: str, rows: int) -> pd.DataFrame:
    """Random shapes of an operator; half of them are of split test."""
    rng = np.random.default_rng(sum(map(ord, gpu + op)))
    device, split = load_device(gpu), np.where(np.arange(rows) % 2, "test", "train")
    if op in ("linear", "bmm"):
        frame = pd.DataFrame({name: 32 * rng.integers(4, 65, rows) for name in ("m", "n", "k")})
        frame["batch"] = 4 if op == "bmm" else 1
        flops = 2.0 * frame[["batch", "m", "n", "k"]].astype(float).prod(axis=1)
        moved = 4.0 * frame["batch"] * (frame["m"] * frame["k"] + frame["k"] * frame["n"] + frame["m"] * frame["n"])
    else:
        frame = pd.DataFrame({"rows": 512 * rng.integers(4, 65, rows), "cols": 256 * rng.integers(1, 9, rows)})
        flops = 0.0 * frame["rows"]
        moved = 4.0 * frame["rows"] * frame["cols"] * (3 if op == "add" else 2)
    limit_s = np.maximum(flops / device.gemm_flops_per_s("float32"), moved / device.dram_bandwidth_bytes_per_s)
    return frame.assign(gpu=gpu, op=op, dtype="float32", split=split, latency_ms=FLOOR_MS + 1e3 * limit_s / SHARE)


def declare(root: Path, text: str, name: str = "mine") -> Path:
    """A folder of experiments with one of that declaration."""
    (root / name).mkdir(parents=True)
    (root / name / "experiment.toml").write_text(text, encoding="utf-8")
    return root
