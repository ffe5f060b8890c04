"""Steps of attention as measured: what the workload lacks is added, what only it has is taken."""

from pathlib import Path

import numpy as np
import pandas as pd

from neusight.evaluation.as_measured import changed_s, changes, kernel_of
from neusight.kernels import Elementwise, RowReduction
from neusight.workloads.workload import Launch

SCORES = 2 * 4 * 16 * 16
LAYERS = 3
RECORD = {"model": "mine", "mode": "training", "batch": 2, "seq_len": 16}


def launches(*ops: str) -> list[Launch]:
    """Steps over the scores, and the softmax, in every layer."""
    steps = [Elementwise(op=op, elements=SCORES, read_bytes=4 * SCORES, write_bytes=4 * SCORES, flops=1) for op in ops]
    softmax = RowReduction(
        op="softmax", rows=SCORES // 16, cols=16, read_bytes=4 * SCORES, write_bytes=4 * SCORES, flops=1
    )
    return [Launch(kernel=k, operator="aten", phase="forward", count=LAYERS) for k in (*steps, softmax)]


def measured(path: Path, *functions: str) -> Path:
    shape = "(2, 4, 16, 16)"
    rows = [
        {"gpu": "l4", **RECORD, "kind": "call_function", "target": f"<built-in function {name}>", "output_shape": shape}
        for name in (*functions, "softmax")
    ]
    pd.DataFrame(rows).to_parquet(path / "operators.parquet")
    return path / "operators.parquet"


def test_steps_that_the_workload_lacks_are_added_and_those_that_only_it_has_are_taken(tmp_path: Path) -> None:
    found = changes(measured(tmp_path, "add", "max"), RECORD, launches("mul_scalar", "add"))
    forward = {(c.op, c.count) for c in found if c.phase == "forward"}
    assert forward == {("mul_scalar", -LAYERS), ("clamp_min", LAYERS)}
    moved = {c.op: kernel_of(c)["read_bytes"][0] + kernel_of(c)["write_bytes"][0] for c in found}
    backward = sum(moved[c.op] * c.count for c in found if c.phase == "backward")
    # The gradient of max moves five times the bytes of its forward, that of the scale as many.
    assert backward == LAYERS * (5 * 8 - 8) * SCORES
    added = changed_s(found, lambda batch: np.full(len(batch), 1.0))
    assert added == {"forward": 0.0, "backward": LAYERS * (5 - 1)}


def test_where_the_same_was_measured_or_nothing_nothing_changes(tmp_path: Path) -> None:
    operators = measured(tmp_path, "truediv", "where")
    assert changes(operators, RECORD, launches("mul_scalar", "add")) == []
    assert changes(operators, {**RECORD, "batch": 1}, launches("add")) == []
    assert changes(tmp_path / "none.parquet", RECORD, launches("add")) == []
