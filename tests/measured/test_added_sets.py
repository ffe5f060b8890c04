"""Sets of one's own that are added to a folder of measured rows."""

from pathlib import Path

import pandas as pd

from neusight.devices import GpuSpec, load_device, to_toml
from neusight.devices.spec import SystolicSpec
from neusight.measured.folder import device_in, hashes, is_of_lone_launches, kernel_files, step_files

ROW = {"family": "gemm", "m": 64, "n": 64, "k": 64, "gpu": "l4", "timer": "events", "latency_ms": 1.0}


def written(path: Path, **changes: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([ROW | changes]).to_parquet(path)
    return path


def test_added_sets_count_with_devices_of_their_own(tmp_path: Path) -> None:
    shared = written(tmp_path / "kernels" / "gemm.parquet")
    mine = written(tmp_path / "mine" / "kernels" / "gemm.parquet", gpu="new")
    steps = written(tmp_path / "mine" / "steps" / "steps.parquet", gpu="new")
    (tmp_path / "mine" / "devices").mkdir()
    device = load_device("l4").model_copy(update={"id": "new", "name": "New", "aliases": ()})
    (tmp_path / "mine" / "devices" / "new.toml").write_text(to_toml(device))

    assert kernel_files(tmp_path, kind=GpuSpec) == [shared, mine]
    assert kernel_files(tmp_path, lambda family, gpu: gpu == "new") == [mine]
    assert kernel_files(tmp_path, kind=SystolicSpec) == []
    assert step_files(tmp_path, GpuSpec) == [steps]
    assert device_in(mine, "new").id == "new" and device_in(shared, "l4").id == "l4"
    assert [*hashes([shared, mine])] == ["kernels/gemm.parquet", "mine/kernels/gemm.parquet"]


def test_lone_launches_are_known_by_any_name_of_their_timer(tmp_path: Path) -> None:
    names = {"events": True, "stream": True, "cuda_graph": False, "graph": False}
    for name, alone in names.items():
        assert is_of_lone_launches(written(tmp_path / f"{name}.parquet", timer=name)) == alone


def test_kernel_files_know_families_by_operators(tmp_path: Path) -> None:
    kept = tmp_path / "kernels" / "mine.parquet"
    kept.parent.mkdir()
    row = {name: value for name, value in ROW.items() if name != "family"}
    pd.DataFrame([row | {"op": "linear"}]).to_parquet(kept)
    pd.DataFrame([row]).to_parquet(kept.with_name("other.parquet"))
    assert kernel_files(tmp_path, lambda family, gpu: (family, gpu) == ("gemm", "l4")) == [kept]
