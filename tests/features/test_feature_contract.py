"""Contracts: declared in files, checked against the formulas that there are."""

from pathlib import Path
from typing import Any

import pytest

from neusight.errors import ArtifactError
from neusight.executors.gpu.features import FORMULAS, FeatureContract, load_contract
from neusight.executors.gpu.tile_models import load_artifacts
from neusight.learn.training_data import MODELS
from neusight.paths import checkout_dir

GOOD: dict[str, Any] = {
    "family": "gemm",
    "version": 1,
    "target": "logit_utilisation",
    "features": ["log2_waves", "log2_depth"],
}


def test_every_tile_model_has_a_contract_and_there_are_no_others(subtests: pytest.Subtests) -> None:
    for model in MODELS:
        with subtests.test(model=model):
            contract = load_contract(model)
            assert (contract.family, contract.target) == (model, "logit_utilisation")
            assert len(set(contract.features)) == len(contract.features) > 0
            assert set(contract.features) <= FORMULAS.keys()
    declared = {path.stem for path in checkout_dir("features").glob("*.toml")}
    assert declared == {*MODELS, "tensordash"}


def test_declared_contracts_are_what_shipped_models_were_trained_on() -> None:
    artifacts = load_artifacts()
    assert {*artifacts} == {*MODELS}
    for model, artifact in artifacts.items():
        assert artifact.manifest.contract == load_contract(model)


def test_round_trip() -> None:
    contract = FeatureContract.from_dict(GOOD, "here")
    assert contract.to_dict() == GOOD
    assert FeatureContract.from_dict(contract.to_dict(), "there") == contract
    assert contract.features == ("log2_waves", "log2_depth")


def test_other_contracts_are_refused_in_one_line(subtests: pytest.Subtests) -> None:
    for content, said in [
        ({**GOOD, "extra": 1}, "has the keys family, features, target, version"),
        ({k: v for k, v in GOOD.items() if k != "version"}, "has the keys"),
        ({**GOOD, "target": "latency"}, "target 'latency' is not logit_utilisation"),
        ({**GOOD, "features": ["log2_waves", "colour"]}, "feature 'colour' is unknown"),
    ]:
        with subtests.test(content=content, said=said):
            with pytest.raises(ArtifactError, match=f"^here: .*{said}") as caught:
                FeatureContract.from_dict(content, "here")
            assert "\n" not in str(caught.value)


def test_files_that_are_no_contract_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conv2d.toml").write_text("")
    with pytest.raises(ArtifactError, match=r"no feature contract 'gemm' in .*: one of conv2d"):
        load_contract("gemm", tmp_path)
    (tmp_path / "gemm.toml").write_text("family = ")
    with pytest.raises(ArtifactError, match=r"cannot read the feature contract .*gemm\.toml"):
        load_contract("gemm", tmp_path)
    (tmp_path / "gemm.toml").write_text('family = "gemm"')
    with pytest.raises(ArtifactError, match=r"gemm\.toml: a feature contract has the keys"):
        load_contract("gemm", tmp_path)
