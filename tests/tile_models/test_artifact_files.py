"""Artifacts on disk: read back bit-equal, replaced whole or not at all, refused in one line where they don't fit."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tile_models_toys import FEATURES, manifest, planted

from neusight.devices import load_device
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


def refusal(folder: Path, expected: FeatureContract | None = None) -> str:
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder, expected)
    return str(caught.value)


def one_line(message: str, *words: object) -> bool:
    return "\n" not in message and all(str(word) in message for word in words)


def test_round_trip(saved: Saved, fitted: Callable[[str], Any]) -> None:
    data = planted(seed=5)
    for backend in BACKENDS:
        folder = saved(backend)
        again = load_artifact(folder)
        expected = fitted(backend).logits(data.features, data.prior)
        assert np.array_equal(again.model.logits(data.features, data.prior), expected), backend
        weights = again.model.weights_file
        assert sorted(p.name for p in folder.iterdir()) == sorted(["card.md", "manifest.json", weights])
        assert again.manifest.weights_sha256 == file_sha256(folder / weights)
        assert vars(again.manifest) == vars(manifest(backend)) | {"weights_sha256": again.manifest.weights_sha256}
        assert again.folder == folder


def test_saving_replaces_the_whole_folder_or_nothing(saved: Saved) -> None:
    folder = saved("linear")
    (folder / "stray").write_text("")
    assert saved("gbm") == folder
    assert sorted(p.name for p in folder.iterdir()) == ["card.md", "manifest.json", "weights.txt"]
    assert all(stat.S_IMODE(p.stat().st_mode) & 0o444 == 0o444 for p in (folder, *folder.iterdir()))
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


def test_malformed_manifests(saved: Saved, tmp_path: Path) -> None:
    assert one_line(refusal(tmp_path / "toy"), tmp_path / "toy", "neusight train")
    folder = saved()
    for content in (b"", b"{", b"[]", b'{"protocol": 1}', b"\xff\xfe\x00\x81"):
        (folder / "manifest.json").write_bytes(content)
        assert one_line(refusal(folder), folder, "manifest.json", "neusight train")


WRONG: list[tuple[Callable[[dict[str, Any]], Any], tuple[str, ...]]] = [
    (lambda m: m.update(protocol=99), ("protocol 99 is not 7", "neusight train")),
    (lambda m: m.update(colour="blue"), ("colour",)),
    (lambda m: m.update(parameters={"depth": 7}), ("depth", "neusight train")),
    (lambda m: m["contract"].update(target="latency"), ("target 'latency'",)),
    (lambda m: m["contract"]["features"].__setitem__(1, "colour"), ("feature 'colour' is unknown", "neusight train")),
    (lambda m: m["contract"].update(features=[*FEATURES, "log2_depth"]), ("take 3 features, the manifest names 4",)),
    (lambda m: m.update(contract={"family": "gemm"}), ("manifest.json", "a feature contract has the keys")),
    (lambda m: m.pop("doubts"), ("doubts", "neusight train")),
    (lambda m: m.pop("contract"), ("contract", "neusight train")),
]


def test_manifests_with_a_wrong_part(saved: Saved) -> None:
    for change, said in WRONG:
        folder = saved()
        edit(folder, change)
        assert one_line(refusal(folder), folder, *said)


def test_damaged_weights(saved: Saved) -> None:
    path = saved() / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert one_line(refusal(path.parent), path.parent, "weights.safetensors", "sha256")
    path.unlink()
    assert one_line(refusal(path.parent), path.parent, "weights.safetensors is missing")


def contract(*features: str) -> FeatureContract:
    return FeatureContract(family="gemm", version=1, target="logit_utilisation", features=features)


def test_other_features_than_expected_name_the_leaf(saved: Saved) -> None:
    folder = saved()
    assert load_artifact(folder, contract(*FEATURES)).manifest.name == "toy"
    swapped = contract(FEATURES[0], "log2_depth", FEATURES[2])
    assert one_line(refusal(folder, swapped), folder, "wave_efficiency where log2_depth is expected")
    assert one_line(refusal(folder, contract(*FEATURES[:2])), folder, "features differ: their number")


def test_a_directory_of_models(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no tile models in .*neusight train"):
        artifact_folders(tmp_path)
    folder = saved()
    (tmp_path / "tile_choice.json").write_text("{}")
    (tmp_path / ".training").mkdir()
    assert artifact_folders(tmp_path) == [folder]
    assert list(load_artifacts(tmp_path)) == ["toy"]


def test_what_was_only_met_limited_by_power_tells_nothing_where_power_is_shared(saved: Saved) -> None:
    artifact = load_artifact(saved())
    limited = replace(artifact, manifest=replace(artifact.manifest, limited=["t4/linear"]))
    t4, p4 = (load_device(gpu) for gpu in ("t4", "p4"))
    assert limited.effect(t4, "linear") == 0.25
    assert limited.effect_sharing_power(t4, "linear") == 0.0
    assert limited.effect_sharing_power(t4, "bmm") == 0.75
    assert limited.effect_sharing_power(p4, "linear") == artifact.effect_sharing_power(p4, "linear") == -0.5


def test_errors_of_gpus_left_out_count_each_gpu_and_kind_once(saved: Saved) -> None:
    manifest = load_artifact(saved()).manifest
    metrics = {"physics": {"t4": {"linear": 10.0, "bmm": 20.0}, "l4": {"linear": 60.0}}, "sibling": {}}
    assert replace(manifest, metrics=metrics).left_out() == {"physics": 30.0}


def work(flops: np.ndarray, read_bytes: np.ndarray) -> Work:
    return Work(flops=flops, least_flops=flops, read_bytes=read_bytes, write_bytes=np.zeros(len(flops)))


def test_the_domain_is_the_range_in_training_with_a_little_slack(saved: Saved) -> None:
    artifact = load_artifact(saved())
    inside, edge, beyond = [0.0, 0.0, 0.0], [1.03, -1.03, 0.0], [0.0, 1.2, 0.0]
    name = artifact.manifest.contract.features[1]
    large, small = np.array([1.0, 1.0, 1.0, 1.0, 2.0**40]), np.full(5, 2.0**10)
    words = name.removeprefix("log2_").replace("_", " ")
    expected = [f"{words} {side} the range of training" for side in ("above", "below")]
    expected.append("bytes above the range of training")
    found = artifact.beyond(np.array([inside, edge, beyond, [0.0, -1.2, 1.1], inside]), work(small, large))
    assert found.tolist() == ["", "", *expected]


def test_a_vendor_with_one_training_device_is_known_by_that_device_alone(saved: Saved) -> None:
    known = manifest("linear", training_gpus=["t4", "p4", "mi100"], vendors={"nvidia": 2, "amd": 1})
    artifact = Artifact(known, load_artifact(saved()).model)
    asked = [("l4", "nvidia"), ("mi300x", "amd"), ("mi100", "amd")]
    assert [artifact.lone_vendor(*pair) for pair in asked] == [False, True, False]


def test_shipped_cards_are_those_of_their_manifests() -> None:
    shipped = load_artifacts()
    assert shipped.keys() == {"attention", "conv2d", "gemm", "matrix", "moe", "stream"}
    for artifact in shipped.values():
        assert artifact.folder is not None
        assert (artifact.folder / "card.md").read_text() == render_card(artifact.manifest)
        assert ", ".join(artifact.manifest.training_gpus) in render_card(artifact.manifest)
