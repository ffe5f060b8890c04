"""A calibration on disk: what is read is what was written, and what does not fit is refused in a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from calibration_toys import measured, pointwise, products

from neusight.api import Predictor
from neusight.devices import DeviceSpec, load_device
from neusight.errors import ArtifactError
from neusight.executors.gpu.calibration import Calibration
from neusight.executors.gpu.calibration.calibration import load_calibrations
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.learn.calibration import fit_calibration
from neusight.learn.calibration.fit import parts_of
from neusight.units import scaled


@pytest.fixture(scope="module")
def calibration(predictor: KernelPredictor, device: DeviceSpec) -> Calibration:
    frame = pd.concat([products(20), pointwise(10)], ignore_index=True)
    rows = measured(frame, predictor, device, 1.3)
    return fit_calibration(predictor, device, rows, sha256={"gemm.parquet": "ab" * 32})


def test_what_is_read_predicts_the_same(
    calibration: Calibration, predictor: KernelPredictor, device: DeviceSpec, tmp_path: Path
) -> None:
    read = Calibration.load(calibration.save(tmp_path / "deep" / "rtx-a6000.json"))
    for part in parts_of(measured(products(30, seed=1), predictor, device), device):
        batch = part.batch
        one, other = (
            replace(predictor, corrections={"rtx-a6000": c}).predict(batch, device) for c in (calibration, read)
        )
        for name in ("latency_s", "low_s", "high_s", "overhead_s", "spread"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert read.described() == calibration.described() == "30 kernels measured on rtx-a6000 (abababababab)"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["rtx-a6000.json"]
    assert (tmp_path / "deep" / "rtx-a6000.json").stat().st_size < 40e3


def test_another_tile_model_is_refused(calibration: Calibration, predictor: KernelPredictor, tmp_path: Path) -> None:
    path = calibration.save(tmp_path / "rtx-a6000.json")
    gemm = predictor.artifacts["gemm"]
    retrained = replace(gemm, manifest=replace(gemm.manifest, weights_sha256="0" * 64))
    other = replace(predictor, artifacts={**predictor.artifacts, "gemm": retrained})
    with pytest.raises(
        ArtifactError, match=r"rtx-a6000\.json was fitted on another 'gemm' tile model.*neusight calibrate"
    ):
        load_calibrations(path, other)
    without = replace(predictor, artifacts={"gemm": gemm})
    with pytest.raises(ArtifactError, match="another 'attention' tile model"):
        load_calibrations(path, without)
    assert list(load_calibrations(path, predictor)) == ["rtx-a6000"]


def test_other_figures_of_the_device_are_refused(
    calibration: Calibration, predictor: KernelPredictor, device: DeviceSpec
) -> None:
    (part,) = parts_of(measured(products(3), predictor, device), device)
    batch = part.batch
    changed = device.model_copy(update={"sm_count": device.sm_count - 2})
    with pytest.raises(ArtifactError, match="calibration of rtx-a6000 was fitted with another sm_count of the device"):
        replace(predictor, corrections={"rtx-a6000": calibration}).predict(batch, changed)
    renamed = device.model_copy(update={"notes": "bought in spring", "price_usd_per_hour": 1.5})
    replace(predictor, corrections={"rtx-a6000": calibration}).predict(batch, renamed)


def test_a_variant_of_a_device_keeps_its_correction(
    calibration: Calibration, predictor: KernelPredictor, device: DeviceSpec
) -> None:
    (part,) = parts_of(measured(products(3), predictor, device), device)
    batch = part.batch
    figure = f"dram_bandwidth={scaled(2 * device.dram_bandwidth_bytes_per_s, 'B/s')}"
    changed = load_device("rtx-a6000", (figure,))
    calibrated = replace(predictor, corrections={"rtx-a6000": calibration})
    factor = [p.predict(batch, device).execution_s for p in (calibrated, predictor)]
    changed_s = [p.predict(batch, changed).execution_s for p in (calibrated, predictor)]
    assert (np.abs(np.log(factor[0] / factor[1])) > 0.05).all()
    assert changed_s[0] / changed_s[1] == pytest.approx(factor[0] / factor[1])


DAMAGES: tuple[tuple[Callable[[dict[str, Any]], Any], str], ...] = (
    (lambda content: content.update(protocol=99), "protocol 99 is not 3"),
    (lambda content: content["observations"][0].pop("log_ratio"), "no calibration of this version"),
    (lambda content: content["observations"][0]["inputs"].extend(100 * [0.0]), "no calibration of this version"),
    (lambda content: content["observations"][0].update(own="much"), "much"),
)


def test_a_damaged_file_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    path = calibration.save(tmp_path / "rtx-a6000.json")
    whole = path.read_text()
    for damage, said in DAMAGES:
        content = json.loads(whole)
        damage(content)
        path.write_text(json.dumps(content))
        with pytest.raises(ArtifactError, match=rf"^[^\n]*rtx-a6000\.json[^\n]*{said}[^\n]*$"):
            Calibration.load(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match=r"rtx-a6000\.json"):
        Calibration.load(path)
    with pytest.raises(ArtifactError, match="nowhere"):
        load_calibrations(tmp_path / "nowhere.json", KernelPredictor.load())


def test_a_folder_gives_each_gpu_its_own(
    calibration: Calibration, predictor: KernelPredictor, device: DeviceSpec, tmp_path: Path
) -> None:
    calibration.save(tmp_path / "rtx-a6000.json")
    calibration.save(tmp_path / "t4.json")
    (tmp_path / "l4.json").write_text("{")
    found = load_calibrations(tmp_path, predictor)
    assert found["rtx-a6000"].gpu == "rtx-a6000"
    assert found.get("a100-pcie-40gb") is None
    assert sorted(found) == ["l4", "rtx-a6000", "t4"]
    # What is wrong with one concerns those alone who ask for its GPU.
    with pytest.raises(ArtifactError, match="calibration of rtx-a6000: name the file after its GPU"):
        found.get("t4")
    with pytest.raises(ArtifactError, match=r"l4\.json"):
        found.get("l4")


def test_an_estimate_says_what_corrected_it(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path / "rtx-a6000.json")
    plain, corrected = Predictor.load(), Predictor.load(calibrations=tmp_path)
    before, after = plain.estimate("gpt2", "rtx-a6000"), corrected.estimate("gpt2", "rtx-a6000")
    assert before.provenance.calibration == ""
    assert after.provenance.calibration == calibration.described()
    assert after.latency_s > 1.1 * before.latency_s
    assert (before + after).provenance.calibration == calibration.described()
    assert corrected.estimate("gpt2", "l4").latency_s == plain.estimate("gpt2", "l4").latency_s
    assert corrected.estimate("gpt2", "l4").provenance.calibration == ""
