"""Columns of kernels are read as each of their rows by itself."""

from typing import Any

import numpy as np
import pytest

from neusight.kernels.named import ColumnError, kernel_named, kernels_of

ROWS: dict[str, list[dict[str, Any]]] = {
    "gemm": [{"op": "linear", "m": 3, "n": 4, "k": 5}, {"op": "bmm", "batch": 7, "m": 3, "n": 4, "k": 5}],
    "elementwise": [
        {"op": "gelu", "rows": 8, "cols": 9},
        {"op": "add", "elements": 12, "dtype": "float16"},
        {"op": "made_up", "elements": 2, "flops": 3, "read_bytes": 4, "write_bytes": 5},
    ],
    "row_reduction": [
        {"op": "softmax", "rows": 8, "cols": 9},
        {"op": "layer_norm", "rows": 3, "cols": 5, "dtype": "bf16"},
    ],
    "attention": [
        {"heads": 8, "seq_len": 16, "head_dim": 64},
        {"heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 99, "head_dim": 64, "batch": 4, "causal": True},
    ],
    "conv2d": [{"in_channels": 3, "out_channels": 8, "size": 9, "kernel": 3}],
    "collective": [{"op": "send_recv", "bytes": 64}, {"op": "all_reduce", "bytes": 64, "ranks": 8, "per_node": 4}],
    "moe": [{"tokens": 8, "hidden": 8, "ffn": 8, "experts": 4, "top_k": 2}],
}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, np.ma.MaskedArray[Any, Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    usual = {name: next(row[name] for row in rows if name in row) for name in names}
    return {
        name: np.ma.array([row.get(name, usual[name]) for row in rows], mask=[name not in row for row in rows])
        for name in names
    }


@pytest.mark.parametrize("family", ROWS)
def test_kernels_of_equals_requested(family: str) -> None:
    batch = kernels_of(family, columns_of(ROWS[family]))
    alone = [kernel_named(family, row) for row in ROWS[family]]
    for name, column in batch.columns.items():
        assert column.tolist() == [one[name][0] for one in alone], name


@pytest.mark.parametrize("family", ROWS)
def test_kernels_of_reads_columns_of_kernels_back(family: str) -> None:
    batch = kernels_of(family, columns_of(ROWS[family]))
    again = kernels_of(family, {name: np.ma.array(column) for name, column in batch.columns.items()})
    assert {name: column.tolist() for name, column in again.columns.items()} == {
        name: column.tolist() for name, column in batch.columns.items()
    }


def test_kernels_of_marks_rows_at_fault() -> None:
    columns = columns_of([{"m": 1, "n": 1, "k": 1}, {"m": 0, "n": 1, "k": 1}, {"n": 1, "k": 1}])
    with pytest.raises(ColumnError, match="m=0: must be at least 1") as caught:
        kernels_of("gemm", columns)
    assert caught.value.rows.tolist() == [False, True, False]


def test_kernels_of_reads_numbers_of_texts() -> None:
    columns = {name: np.ma.array([text, "8"]) for name, text in {"m": "16", "n": "16.0", "k": "many"}.items()}
    with pytest.raises(ColumnError, match="k=many: not a whole number") as caught:
        kernels_of("gemm", columns)
    assert caught.value.rows.tolist() == [True, False]
    assert kernels_of("gemm", columns | {"k": columns["n"]})["n"].tolist() == [16, 8]
