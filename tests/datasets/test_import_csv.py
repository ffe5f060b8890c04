from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from neusight.datasets import About, import_csv, load_kernels, to_batches, verify
from neusight.errors import DataError, DeviceError
from neusight.kernels import Gemm

PROFILE = "Torch Version,CUDA Version,Kernel Name,Grid x,Grid y,Grid z,Block x,Block y,Block z"
SEEN = "p2.1.0,cu121,some_kernel,1,2,3,128,1,1"
FILES = {
    "test/linear.csv": f"OPName,Latency,Device,{PROFILE},B,M,N,K\nlinear,1.25,NVIDIA L4,{SEEN},2,3,7,5\n",
    "train/bmm.csv": f"OPName,Latency,Device,{PROFILE},B,M,N,K\nbmm,0.5,Tesla P4,{SEEN},2,3,7,5\n",
    "train/elem.csv": f"OPName,Latency,Device,{PROFILE},B,H\naddu,0.05,Tesla T4,{SEEN},6,10\n"
    f"add,0.06,Tesla T4,{SEEN},6,10\n",
    "train/ln.csv": f"OPName,Latency,Device,{PROFILE},B,H\nln,0.07,Tesla V100-PCIE-32GB,{SEEN},6,10\n",
    "train/collect/ln/p2.1.0/x.csv": f"OPName,Latency,Device,{PROFILE},B,H\nln,0.07,Tesla V100-PCIE-32GB,{SEEN},6,10\n",
    "train/conv.csv": "OPName,Latency,Device,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding\n"
    "conv,2.0,NVIDIA A100 80GB PCIe,4,16,32,3,14,1,1\n",
    "dims/train_bmm.csv": "1;2;3;4\n",
}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "artifact" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "artifact"


def by_op(frame: pd.DataFrame, op: str) -> pd.Series:
    return frame[frame["op"] == op].iloc[0]


def test_the_artifact_comes_in_our_names(artifact, tmp_path):
    manifest = import_csv(artifact, tmp_path / "out")
    frame = load_kernels(tmp_path / "out")
    assert len(frame) == manifest.rows == 6  # layer_norm is in two files, and once here
    assert set(frame["gpu"]) == {"l4", "p4", "t4", "v100-pcie-32gb", "a100-pcie-80gb"}
    assert set(frame["op"]) == {"linear", "bmm", "add", "add_scalar", "layer_norm", "conv2d"}
    assert dict(zip(frame["op"], frame["split"], strict=True))["linear"] == "test"
    linear = by_op(frame, "linear")
    assert (linear["m"], linear["k"], linear["n"], linear["batch"]) == (6, 7, 5, 1)
    assert linear["latency_ms"] == 1.25 and linear["framework"] == "torch 2.1.0+cu121"
    assert (linear["grid_x"], linear["grid_y"], linear["grid_z"]) == (1, 2, 3)
    bmm = by_op(frame, "bmm")
    assert (bmm["batch"], bmm["m"], bmm["k"], bmm["n"]) == (2, 3, 7, 5)
    assert tuple(by_op(frame, "layer_norm")[["rows", "cols"]]) == (6, 10)
    assert tuple(by_op(frame, "conv2d")[["batch", "in_channels", "input_size", "padding"]]) == (4, 16, 14, 1)


def test_a_roundtrip_through_own_columns(artifact, tmp_path):
    import_csv(artifact, tmp_path / "first")
    frame = load_kernels(tmp_path / "first", ["gemm"]).drop(columns="family")
    frame.to_csv(tmp_path / "own.csv", index=False)
    import_csv(tmp_path / "own.csv", tmp_path / "second")
    again = load_kernels(tmp_path / "second").drop(columns="family")
    pd.testing.assert_frame_equal(frame, again)


def test_the_result_verifies_and_computes(artifact, tmp_path):
    import_csv(artifact, tmp_path / "out", about=About(title="Mine", origin="my desk", licence="CC0"))
    report = verify(tmp_path / "out")
    assert report.ok and set(report.hashes.values()) == {"ok"}
    kernels = [b.kernel(i) for b, _ in to_batches(load_kernels(tmp_path / "out")) for i in range(len(b))]
    assert Gemm(op="linear", m=6, n=5, k=7, bias=True) in kernels


def test_files_without_gpu_take_the_one_given(tmp_path):
    (tmp_path / "mine.csv").write_text("op,latency_ms,m,n,k\nlinear,1.0,8,8,8\n")
    with pytest.raises(DataError, match="no column gpu"):
        import_csv(tmp_path / "mine.csv", tmp_path / "out")
    import_csv(tmp_path / "mine.csv", tmp_path / "out", gpu="t4", dtype="float16")
    frame = load_kernels(tmp_path / "out")
    assert frame.loc[0, ["gpu", "dtype", "split"]].tolist() == ["t4", "float16", ""]


BAD = {
    "header": ("a,b\n1,2\n", "no column op"),
    "op": ("op,gpu,latency_ms,m,n,k\nlinaer,t4,1,1,1,1\n", "did you mean linear"),
    "shape": ("op,gpu,latency_ms,m,n\nlinear,t4,1,1,1\n", "lacks k for linear"),
    "number": ("op,gpu,latency_ms,m,n,k\nlinear,t4,1,1,1,1\nlinear,t4,fast,1,1,1\n", "row 2: latency_ms is 'fast'"),
    "fraction": ("op,gpu,latency_ms,m,n,k\nlinear,t4,1,1.5,1,1\n", "whole numbers"),
    "negative": ("op,gpu,latency_ms,m,n,k\nlinear,t4,-1,1,1,1\n", "row 1: latency or extent is not positive"),
    "hole": ("op,gpu,latency_ms,m,n,k\nlinear,t4,1,1,,1\nlinear,t4,1,2,2,2\n", "n is empty"),
    "empty": ("", "cannot be read as CSV"),
}


def test_bad_files_leave_nothing_behind(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.csv").write_text("op,gpu,latency_ms,rows,cols\nadd,t4,1,1,1\n")
    for fault, (text, said) in BAD.items():
        (tmp_path / "in" / "rows.csv").write_text(text)
        with pytest.raises(DataError, match=said) as error:
            import_csv(tmp_path / "in", tmp_path / "out")
        assert "\n" not in str(error.value), fault
        assert [p.name for p in tmp_path.iterdir()] == ["in"], fault
    (tmp_path / "rows.csv").write_text("op,gpu,latency_ms,m,n,k\nlinear,Tesla P5,1,1,1,1\n")
    with pytest.raises(DeviceError, match="Tesla P5"):
        import_csv(tmp_path / "rows.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_is_invented(artifact, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="is there already"):
        import_csv(artifact, tmp_path / "out")
    with pytest.raises(DataError, match="holds no CSV"):
        import_csv(artifact / "dims", tmp_path / "new")
    with pytest.raises(DataError, match="is not there"):
        import_csv(tmp_path / "nowhere", tmp_path / "new")
