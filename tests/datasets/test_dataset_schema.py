from __future__ import annotations

import re

import pandas as pd
import pytest

from neusight.datasets import load_kernels, load_models
from neusight.datasets.schema import KERNEL_TABLES, MODEL_TABLE, TABLE_OF_OP
from neusight.errors import DataError


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    message = str(error.value)
    assert "\n" not in message and ":" in message
    return message


def test_a_good_file_loads_with_its_family(rows, parquet):
    frame = load_kernels(parquet(rows({"op": "linear"}, {"op": "bmm"})))
    assert list(frame["family"]) == ["gemm", "gemm"] and list(frame["op"]) == ["linear", "bmm"]


def test_a_folder_is_one_frame_and_families_select(rows, parquet):
    folder = parquet(rows({"op": "linear"}), "all/gemm.parquet").parent
    parquet(rows({"op": "conv2d"}), "all/conv2d.parquet")
    assert set(load_kernels(folder)["family"]) == {"gemm", "conv2d"}
    assert set(load_kernels(folder, ["conv2d"])["op"]) == {"conv2d"}


def test_a_truncated_file_is_named(rows, parquet):
    path = parquet(rows(*[{"m": m} for m in range(1, 400)]))
    whole = path.read_bytes()
    for keep in (0.1, 0.5, 0.98):
        path.write_bytes(whole[: int(len(whole) * keep)])
        with pytest.raises(DataError, match="truncated") as error:
            load_kernels(path)
        assert str(path) in one_line(error), keep


def test_damage_inside_is_an_error_too(rows, parquet):
    path = parquet(rows({}))
    whole = bytearray(path.read_bytes())
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    whole[footer : footer + 40] = b"\xff" * 40
    path.write_bytes(bytes(whole))
    with pytest.raises(DataError, match="cannot be read") as error:
        load_kernels(path)
    one_line(error)


def test_what_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    for content, said in ((b"", "is empty"), (b"op,latency_ms\nlinear,1\n", "not a parquet file")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=said) as error:
            load_kernels(path)
        one_line(error)
    path.unlink()
    with pytest.raises(DataError, match="is not there"):
        load_kernels(tmp_path / "nothing.parquet")
    with pytest.raises(DataError, match="holds no parquet"):
        load_kernels(tmp_path)


def test_a_missing_column_is_named_and_a_foreign_table_refused(rows, parquet):
    for column in ("gpu", "latency_ms", "m", "k", "dtype"):
        with pytest.raises(DataError, match=rf"lacks {column}\b") as error:
            load_kernels(parquet(rows({}).drop(columns=column)))
        one_line(error)
    path = parquet(pd.DataFrame({"petal_length": [1.0], "species": ["setosa"]}))
    with pytest.raises(DataError, match="no kernel table") as error:
        load_kernels(path)
    one_line(error)


def test_wrong_types_unknown_names_and_empty_cells_are_located(rows, parquet):
    hole = rows({}, {}, {})
    hole.loc[1, "gpu"] = None
    wrong = {
        r"latency_ms is .*string, not number": rows({}).assign(latency_ms="fast"),
        "did you mean linear": rows({}).assign(op="linaer"),
        "gpu is empty in row 1": hole,
    }
    for said, frame in wrong.items():
        with pytest.raises(DataError, match=said):
            load_kernels(parquet(frame))
    with pytest.raises(DataError, match="did you mean gemm"):
        load_kernels(parquet(rows({})), ["gem"])


def test_files_without_op_are_known_by_their_columns(parquet):
    row = {"gpu": "l40s", "nccl_version": "2.27", "collective": "all_reduce", "dtype": "half"}
    frame = load_kernels(parquet(pd.DataFrame([row | {"num_gpus": 2, "bytes": 1024, "latency_ms": 0.01}])))
    assert list(frame["family"]) == ["nccl"]


def model_row(**changes):
    row = {"gpu": "l4", "model": "bert", "mode": "inference", "batch": 1, "seq_len": 128, "e2e_ms": 3.0}
    return pd.DataFrame([row | changes])


def test_models_get_their_defaults(parquet):
    frame = load_models(parquet(model_row()))
    assert frame.loc[0, "dtype"] == "float32" and frame.loc[0, "option"] == "" and pd.isna(frame.loc[0, "forward_ms"])


def test_models_refuse_kernels_and_unknown_modes(rows, parquet):
    with pytest.raises(DataError, match=r"lacks model, mode"):
        load_models(parquet(rows({})))
    with pytest.raises(DataError, match="did you mean inference"):
        load_models(parquet(model_row(mode="inferense"), "modes.parquet"))


def test_schemas_carry_units_and_every_op_has_one_table():
    for table in (*KERNEL_TABLES.values(), MODEL_TABLE):
        times = [f for f in table.arrow() if re.search(r"_ms$", f.name)]
        assert times and all(f.metadata[b"unit"] == b"ms" for f in times)
    assert len(TABLE_OF_OP) == sum(len(t.ops) for t in KERNEL_TABLES.values())
