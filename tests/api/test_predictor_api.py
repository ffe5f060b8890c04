"""``Predictor``: the same answers by every way in, remembered, and within physics."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neusight import Estimate, Predictor, load_device
from neusight.devices import to_toml
from neusight.errors import CoverageError, DeviceError, ModelError
from neusight.kernels import Gemm, KernelBatch


@pytest.fixture(scope="module")
def predictor() -> Iterator[Predictor]:
    return Predictor.load()


def test_kernel_by_name_and_by_value_agree(predictor: Predictor) -> None:
    kernel = Gemm(m=512, n=256, k=128)
    by_value = predictor.kernel(kernel, "l4")
    assert predictor.kernel("gemm", load_device("l4"), m=512, n=256, k=128) == by_value
    (latency_s,) = predictor.kernels(KernelBatch.of([kernel]), "l4").latency_s
    assert by_value.latency_s == pytest.approx(latency_s)


def test_no_kernel_beats_its_bound(predictor: Predictor) -> None:
    sizes = 2 ** np.random.default_rng(0).integers(0, 14, (3, 200))
    batch = KernelBatch.from_columns("gemm", m=sizes[0], n=sizes[1], k=sizes[2])
    for gpu in ("p4", "l4", "h100-sxm-80gb", "mi300x", "arc-pro-b60"):
        found = predictor.kernels(batch, gpu)
        device = load_device(gpu)
        flops = 2.0 * sizes.astype(float).prod(axis=0)
        assert (found.latency_s >= flops / device.gemm_flops_per_s("float32")).all()
        assert (found.latency_s >= found.bound_s).all()
        assert (found.low_s <= found.latency_s).all()
        assert (found.latency_s <= found.high_s).all()


def test_estimate_by_id_name_file_and_spec_agree(predictor: Predictor, tmp_path: Path) -> None:
    spec = load_device("t4")
    file = tmp_path / "t4.toml"
    file.write_text(to_toml(spec))
    expected = predictor.estimate("gpt2", "t4")
    for gpu in (spec.name, file, str(file), spec):
        assert predictor.estimate("gpt2", gpu) == expected


def test_a_changed_device_file_is_read_again(predictor: Predictor, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = to_toml(load_device("l4"))
    file.write_text(text)
    before = predictor.estimate("gpt2", file)
    file.write_text(text.replace('dram_bandwidth = "300 GB/s"', 'dram_bandwidth = "30 GB/s"'))
    assert predictor.estimate("gpt2", file).latency_s > before.latency_s


def test_estimate_is_plain_data_that_reads_back(predictor: Predictor) -> None:
    step = predictor.estimate("bert-base", "l4", mode="training", batch=2)
    assert Estimate.from_json(step.to_json()) == step


def test_a_batch_of_four_is_no_faster_than_four_of_one_by_much_and_no_slower(predictor: Predictor) -> None:
    one, four = (predictor.estimate("gpt2-large", "l4", batch=batch) for batch in (1, 4))
    assert one.latency_s < four.latency_s
    assert four.samples_per_s > 0.8 * one.samples_per_s


def test_more_bandwidth_is_never_slower(predictor: Predictor) -> None:
    speeds = [
        predictor.estimate("gpt2", "l4", overrides=[f"dram_bandwidth={gb}GB/s"]).bound_s for gb in (100, 300, 900)
    ]
    assert speeds == sorted(speeds, reverse=True)


def test_module_with_inputs(predictor: Predictor) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    step = predictor.estimate(module, "l4", mode="training", batch=32, inputs=[torch.zeros(32, 64)])
    gemms = {(k.kernel.split()[1], k.phase) for k in step.by_kernel if k.family == "gemm"}
    assert ("32x128x64", "forward") in gemms
    assert ("32x10x128", "forward") in gemms
    assert step.by_phase["backward"] > 0


def test_function_in_the_current_folder(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ndef build(batch):\n    return torch.nn.Linear(8, 4), {'input': torch.zeros(batch, 8)}\n"
    (tmp_path / "my_own_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    step = predictor.estimate("my_own_model:build", "l4", batch=16)
    assert [k.kernel for k in step.by_kernel if k.family == "gemm"] == ["linear 16x4x8 tn +bias"]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (DeviceError, lambda p: p.estimate("gpt2", "l44")),
        (DeviceError, lambda p: p.estimate("gpt2", load_device("l4"), overrides=["sm_count=3"])),
        (DeviceError, lambda p: p.estimate("gpt2", "t4", dtype="bfloat16")),
        (DeviceError, lambda p: p.kernel("gemm", "t4", m=1, n=1, k=1, dtype="bfloat16")),
        (ModelError, lambda p: p.estimate("gtp2", "l4")),
        (ModelError, lambda p: p.estimate("gpt2", "l4", batch=0)),
        (ModelError, lambda p: p.estimate("gpt2", "l4", seq_len=10**6)),
        (ModelError, lambda p: p.estimate("gpt2", "l4", mode="dreaming")),
        (CoverageError, lambda p: p.kernel("gem", "l4")),
    ],
)
def test_mistakes_have_their_class(predictor: Predictor, kind: type[Exception], call: object) -> None:
    with pytest.raises(kind):
        call(predictor)


def test_sweep_is_the_grid_in_order(predictor: Predictor) -> None:
    seen = []
    table = predictor.sweep(
        ["gpt2"], ["l4", "t4"], [1, 2], seq_lens=[128, 256], progress=lambda done, of: seen.append((done, of))
    )
    assert list(zip(table.gpu, table.batch, table.seq_len, strict=True)) == [
        (gpu, batch, length) for gpu in ("l4", "t4") for batch in (1, 2) for length in (128, 256)
    ]
    assert seen == [(n, 8) for n in range(1, 9)]
    direct = predictor.estimate("gpt2", "t4", batch=2, seq_len=256)
    assert table.latency_ms.iloc[-1] == pytest.approx(direct.latency_s * 1e3)
    assert table.samples_per_s.iloc[-1] == pytest.approx(direct.samples_per_s)


def test_sweep_rows_with_errors_do_not_fit(predictor: Predictor) -> None:
    table = predictor.sweep(["gpt2"], ["l4"], [1, 0])
    assert table.fits.tolist() == [True, False]
    assert "batch 0" in table.error.iloc[1]
    assert len(table[table.fits]) == 1
