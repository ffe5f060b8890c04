"""Evaluation on collected sets: errors by formula, on a device that only the set knows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from collected_sets import STAND_IN, rows_of, write_rows
from kernel_grids import MAKERS, grid

from neusight import Predictor
from neusight.devices import DeviceSpec, load_device, to_toml
from neusight.errors import DataError, DeviceError
from neusight.evaluation import evaluate_kernels
from neusight.kernels import Conditions, KernelBatch, work_of

ROWS = 12


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def predicted_rows(
    predictor: Predictor, batch: KernelBatch, factor: float, alone: float, name: str, device: DeviceSpec = STAND_IN
) -> pd.DataFrame:
    """Rows that took ``factor`` times what is predicted, and without the launch ``alone`` times; as a collection runs
    them, launched alone, on one set of operands again and again.
    """
    conditions = Conditions.of(len(batch), cycled_bytes=work_of(batch).bytes, recorded=True)
    costs = predictor.kernels(batch, device, conditions=conditions)
    times = {"latency_ms": 1e3 * factor * costs.latency_s}
    return rows_of(batch, name, device).assign(**times, execution_ms=1e3 * alone * (costs.latency_s - costs.overhead_s))


@pytest.fixture(scope="module")
def made(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every family in two dtypes: predictions are 25 % above what was measured, 50 % below without the launch."""
    folder = tmp_path_factory.mktemp("sets") / "made"
    (folder / "devices").mkdir(parents=True)
    (folder / "devices" / "stand-in.toml").write_text(to_toml(STAND_IN))
    for family in MAKERS:
        rows = [
            predicted_rows(predictor, grid(family, ROWS, d), 0.8, 2.0, f"{family}-{d}") for d in ("float32", "bfloat16")
        ]
        again = rows[0].assign(repeat=1, sample=[f"{family}-again-{i}" for i in range(ROWS)], latency_ms=1e6)
        write_rows(folder / "kernels" / f"{family}.parquet", pd.concat([*rows, again], ignore_index=True))
    return folder


def test_every_family_op_and_dtype_is_compared_on_the_sets_own_device(predictor: Predictor, made: Path) -> None:
    found = evaluate_kernels(made, predictor)
    assert found["skipped"] == []
    assert found["total"]["count"] == len(MAKERS) * 2 * ROWS  # repetitions count once
    assert found["total"]["mape"] == pytest.approx(25)
    assert found["total"]["bias"] == pytest.approx(25)
    assert found["total"]["execution_mape"] == pytest.approx(50)
    assert {(row["family"], row["dtype"]) for row in found["by_family"]} == {
        (family, dtype) for family in MAKERS for dtype in ("float32", "bfloat16")
    }
    assert all(row["count"] == ROWS and row["mape"] == pytest.approx(25) for row in found["by_family"])
    keys = [(row["gpu"], row["family"], row["op"], row["dtype"]) for row in found["rows"]]
    assert len(set(keys)) == len(keys)
    assert {family for _, family, op, _ in keys if op == "forward"} == {"attention", "conv2d", "grouped_gemm"}
    assert sum(row["count"] for row in found["rows"]) == found["total"]["count"]
    single = evaluate_kernels(made / "kernels" / "memory.parquet", predictor)
    assert single["total"] == pytest.approx(_of_both(found, "memory"), rel=1e-9)


def _of_both(found: dict[str, Any], family: str) -> dict[str, float]:
    """Means over a family's two dtypes, which have as many rows each."""
    parts = [row for row in found["by_family"] if row["family"] == family]
    keys = ("mape", "median_ape", "bias", "roofline_mape", "inside", "execution_mape")
    return {"count": 2 * ROWS, **{key: float(np.mean([part[key] for part in parts])) for key in keys}}


def test_execution_counts_where_it_was_measured(predictor: Predictor, tmp_path: Path) -> None:
    parts = (
        predicted_rows(predictor, grid("gemm", ROWS, dtype), 0.8, 2.0, dtype, load_device("l40s"))
        for dtype in ("float32", "bfloat16")
    )
    rows = pd.concat(parts, ignore_index=True)
    rows.loc[rows["dtype"] == "float32", "execution_ms"] = np.nan
    found = evaluate_kernels(write_rows(tmp_path / "gemm.parquet", rows), predictor)
    alone = {row["dtype"]: row["execution_mape"] for row in found["by_family"]}
    assert alone["float32"] is None
    assert alone["bfloat16"] == found["total"]["execution_mape"] == pytest.approx(50)


def test_what_cannot_be_compared_is_skipped_with_its_reason(predictor: Predictor, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    t4 = pd.read_parquet(made / "kernels" / "attention.parquet").assign(gpu="t4")
    write_rows(folder / "attention.parquet", t4)
    write_rows(folder / "memory.parquet", pd.read_parquet(made / "kernels" / "memory.parquet").assign(gpu="t4"))
    nccl = {"gpu": "t4", "nccl_version": "2.27", "collective": "all_reduce", "dtype": "half", "num_gpus": 2}
    pd.DataFrame([nccl | {"bytes": 1024, "latency_ms": 0.01, "sample": "x"}]).to_parquet(folder / "nccl.parquet")
    found = evaluate_kernels(tmp_path, predictor)
    skipped = {(row["family"], row["dtype"]): (row["count"], row["reason"]) for row in found["skipped"]}
    assert skipped.keys() == {("attention", "bfloat16")}
    assert skipped["attention", "bfloat16"][0] == ROWS
    assert "t4 does not compute in bfloat16" in skipped["attention", "bfloat16"][1]
    # Copies need no arithmetic: every device has them.
    assert {(row["family"], row["dtype"]) for row in found["by_family"]} >= {("memory", "bfloat16"), ("nccl", "half")}
    assert [row["op"] for row in found["rows"] if row["family"] == "nccl"] == ["nccl all_reduce"]
    alone = write_rows(tmp_path / "alone.parquet", t4[t4["dtype"] == "bfloat16"])
    with pytest.raises(DataError, match="t4 does not compute in bfloat16"):
        evaluate_kernels(alone, predictor)


def test_a_device_that_neither_the_set_nor_the_catalogue_has(predictor: Predictor, made: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "gemm.parquet", pd.read_parquet(made / "kernels" / "gemm.parquet"))
    with pytest.raises(DeviceError, match=r"stand-in.*devices/"):
        evaluate_kernels(tmp_path, predictor)
