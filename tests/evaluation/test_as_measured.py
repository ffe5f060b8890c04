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
    operators = measured(tmp_path, "truediv", "add")
    assert changes(operators, RECORD, launches("mul_scalar", "add")) == []
    assert changes(operators, {**RECORD, "batch": 1}, launches("add")) == []
    assert changes(tmp_path / "none.parquet", RECORD, launches("add")) == []


def test_a_mask_that_is_chosen_takes_the_place_of_one_that_is_added(tmp_path: Path) -> None:
    operators = measured(tmp_path, "where")
    found = {(c.op, c.phase, c.count) for c in changes(operators, RECORD, launches("add"))}
    assert found == {
        ("add", "forward", -LAYERS),
        ("masked_fill", "forward", LAYERS),
        ("masked_fill", "backward", LAYERS),
    }


def test_a_gradient_of_dropout_that_takes_twice_its_forward_is_three_kernels(tmp_path: Path) -> None:
    dropout = Elementwise(
        op="dropout_backward", elements=SCORES, read_bytes=5 * SCORES, write_bytes=4 * SCORES, flops=1
    )
    launch = Launch(kernel=dropout, operator="aten", phase="backward", count=LAYERS)
    measured(tmp_path, "where", "dropout")
    for backward_ms, count in ((2.9, LAYERS), (1.0, 0)):
        rows = pd.read_parquet(tmp_path / "operators.parquet").assign(forward_ms=1.0, backward_ms=backward_ms)
        own = tmp_path / f"{count}.parquet"
        rows.to_parquet(own)
        found = changes(own, RECORD, [*launches("masked_fill"), launch])
        assert sum(c.count for c in found if c.op == "mul") == count
        moved = sum(c.count * int(kernel_of(c)["read_bytes"][0] + kernel_of(c)["write_bytes"][0]) for c in found)
        # A mask of a byte becomes a number, is scaled, and multiplied: 5 + 8 + 12 bytes for 9.
        assert moved == count * (25 - 9) * SCORES
