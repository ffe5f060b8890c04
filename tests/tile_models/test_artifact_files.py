"""Artifacts on disk: read back bit-equal, replaced whole or not at all, refused in one line where they don't fit."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tile_models_toys import FEATURES, manifest, planted

from neusight.errors import ArtifactError
from neusight.executors.gpu.features import FeatureContract
from neusight.executors.gpu.tile_models import BACKENDS, Artifact, load_artifact, load_artifacts, save_artifact
from neusight.executors.gpu.tile_models.artifact import artifact_folders, file_sha256
from neusight.kernels.work import Work
from neusight.learn.card import render_card

Saved = Callable[..., Path]


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused(folder: Path, *said: str, expected: FeatureContract | None = None) -> None:
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder, expected)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in (str(folder), *said)), message


@pytest.mark.parametrize("backend", BACKENDS)
def test_round_trip(backend: str, saved: Saved, fitted: Callable[[str], Any]) -> None:
    data, folder = planted(seed=5), saved(backend)
    again = load_artifact(folder)
    expected = fitted(backend).logits(data.features, data.prior)
    assert np.array_equal(again.model.logits(data.features, data.prior), expected)
    weights = again.model.weights_file
    assert sorted(p.name for p in folder.iterdir()) == sorted(["card.md", "manifest.json", weights])
    assert again.manifest.weights_sha256 == file_sha256(folder / weights)
    assert vars(again.manifest) == vars(manifest(backend)) | {"weights_sha256": again.manifest.weights_sha256}
    assert again.folder == folder


def test_everyone_may_read_what_was_saved(saved: Saved) -> None:
    folder = saved("mlp")
    assert stat.S_IMODE(folder.stat().st_mode) & 0o555 == 0o555
    assert all(stat.S_IMODE(p.stat().st_mode) & 0o444 == 0o444 for p in folder.iterdir())


def test_saving_replaces_the_whole_folder(saved: Saved) -> None:
    folder = saved("linear")
    (folder / "stray").write_text("")
    assert saved("gbm") == folder
    assert sorted(p.name for p in folder.iterdir()) == ["card.md", "manifest.json", "weights.txt"]
    assert [p.name for p in folder.parent.iterdir()] == ["toy"]


def test_a_save_that_fails_leaves_the_old_one(saved: Saved) -> None:
    folder = saved("linear")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    class Broken:
        weights_file = "weights.txt"

        def save(self, folder: Path) -> None:
            (folder / self.weights_file).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_artifact(Artifact(manifest("gbm"), Broken()), folder, "card")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == ["toy"]


def test_another_protocol(saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m.update(protocol=99))
    refused(folder, "protocol 99 is not 2", "neusight train")


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '{"protocol": 1}'])
def test_malformed_manifests(content: str, saved: Saved) -> None:
    folder = saved()
    (folder / "manifest.json").write_text(content)
    refused(folder, "manifest.json", "neusight train")


@pytest.mark.parametrize("content", [4, None, [], {}, {"family": "gemm"}])
def test_malformed_contracts(content: Any, saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m.update(contract=content))
    refused(folder, "manifest.json", "a feature contract has the keys family, features, target, version")


def test_a_manifest_that_is_not_text(saved: Saved) -> None:
    folder = saved()
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00\x81")
    refused(folder, "manifest.json")


def test_a_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "toy", "cannot read the tile model", "neusight train")


@pytest.mark.parametrize("key", ["backend", "levels", "interval", "domain", "contract", "launch_floors_s"])
def test_a_manifest_without_a_part(key: str, saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m.pop(key))
    refused(folder, key, "neusight train")


def test_a_manifest_with_a_part_too_many(saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m.update(colour="blue"))
    refused(folder, "colour")


def test_an_unknown_backend(saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m.update(backend="forest"))
    with pytest.raises(ArtifactError, match="no tile-model backend 'forest': one of mlp"):
        load_artifact(folder)


def test_tampered_weights(saved: Saved) -> None:
    folder = saved()
    path = folder / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(folder, "weights.safetensors", "sha256")


def test_truncated_weights(saved: Saved) -> None:
    folder = saved("gbm")
    path = folder / "weights.txt"
    path.write_bytes(path.read_bytes()[:100])
    refused(folder, "weights.txt", "sha256")


def test_missing_weights(saved: Saved) -> None:
    folder = saved()
    (folder / "weights.safetensors").unlink()
    refused(folder, "weights.safetensors is missing")


def test_an_unknown_feature(saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m["contract"]["features"].__setitem__(1, "colour"))
    refused(folder, "feature 'colour' is unknown", "neusight train")


def test_another_target(saved: Saved) -> None:
    folder = saved()
    edit(folder, lambda m: m["contract"].update(target="latency"))
    refused(folder, "target 'latency'")


def contract(*features: str) -> FeatureContract:
    return FeatureContract(family="gemm", version=1, target="logit_utilisation", features=features)


def test_other_features_than_expected_name_the_leaf(saved: Saved) -> None:
    folder = saved()
    assert load_artifact(folder, contract(*FEATURES)).manifest.name == "toy"
    swapped = contract(FEATURES[0], "log2_depth", FEATURES[2])
    refused(folder, "wave_efficiency where log2_depth is expected", expected=swapped)
    refused(folder, "features differ: their number", expected=contract(*FEATURES[:2]))


@pytest.mark.parametrize("backend", ["mlp", "linear"])
def test_weights_of_another_width(backend: str, saved: Saved) -> None:
    folder = saved(backend)
    edit(folder, lambda m: m["contract"].update(features=[*FEATURES, "log2_depth"]))
    refused(folder, "weights take 3 features, the manifest names 4")


def test_parameters_that_the_backend_lacks(saved: Saved) -> None:
    folder = saved("linear", parameters={"depth": 7})
    refused(folder, "depth", "neusight train")


def test_a_directory_of_models(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no tile models in .*neusight train"):
        artifact_folders(tmp_path)
    folder = saved()
    (tmp_path / "tile_choice.json").write_text("{}")
    (tmp_path / ".training").mkdir()
    assert artifact_folders(tmp_path) == [folder]
    assert list(load_artifacts(tmp_path)) == ["toy"]


def test_levels_of_training_devices_only(saved: Saved) -> None:
    artifact = load_artifact(saved())
    assert artifact.level("t4", "linear") == 0.25
    assert artifact.level("t4", "conv") == 0.5  # the mean of what it ran
    assert artifact.level("p4", "bmm") == -0.5
    assert artifact.level("l4", "linear") is None
    assert artifact.level("t", "linear") is None


def work(flops: np.ndarray, read_bytes: np.ndarray) -> Work:
    return Work(flops=flops, least_flops=flops, read_bytes=read_bytes, write_bytes=np.zeros(len(flops)))


def test_the_domain_is_the_range_in_training_with_a_little_slack(saved: Saved) -> None:
    artifact = load_artifact(saved())
    inside, edge, beyond = [0.0, 0.0, 0.0], [1.03, -1.03, 0.0], [0.0, 1.2, 0.0]
    name = artifact.manifest.contract.features[1]
    large, small = np.array([1.0, 1.0, 1.0, 1.0, 2.0**40]), np.full(5, 2.0**10)
    expected = [f"{name} above all in training", f"{name} below all in training", "log2_bytes above all in training"]
    found = artifact.beyond(np.array([inside, edge, beyond, [0.0, -1.2, 1.1], inside]), work(small, large))
    assert found.tolist() == ["", "", *expected]


@pytest.mark.parametrize(
    ("gpu", "vendor", "alone"), [("l4", "nvidia", False), ("mi300x", "amd", True), ("mi100", "amd", False)]
)
def test_a_vendor_with_one_training_device_is_known_by_that_device_alone(
    gpu: str, vendor: str, alone: bool, saved: Saved
) -> None:
    known = manifest("linear", training_gpus=["t4", "p4", "mi100"], vendors={"nvidia": 2, "amd": 1})
    assert Artifact(known, load_artifact(saved()).model).lone_vendor(gpu, vendor) is alone


def test_the_card_shows_features_gpus_errors_and_intervals(saved: Saved) -> None:
    card = (saved() / "card.md").read_text()
    for word in (*FEATURES, "p4", "t4", "linear", "bmm", "float32", "toy.parquet", "ab" * 32, "12.3", "2.25", "1.5"):
        assert word in card
    assert "{" not in card
    table = [line for line in card.splitlines() if line.startswith("| p4")]
    assert table == ["| p4 |  | 12.3 |"]  # bmm was not measured there


def test_the_card_of_one_gpu_says_that_nothing_was_held_out() -> None:
    assert "Not measured: the model was trained on one GPU, so that none was left out." in render_card(
        manifest("linear", metrics={})
    )


@pytest.mark.parametrize("name", ["conv2d", "elementwise", "gemm", "row_reduction"])
def test_shipped_cards_are_those_of_their_manifests(name: str) -> None:
    artifact = load_artifacts()[name]
    assert artifact.folder is not None
    assert (artifact.folder / "card.md").read_text() == render_card(artifact.manifest)
    assert ", ".join(artifact.manifest.training_gpus) in render_card(artifact.manifest)
