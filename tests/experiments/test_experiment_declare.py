"""Declarations: closed, and every mistake one line with file and key."""

from pathlib import Path

import pytest

from neusight.errors import DataError
from neusight.experiments import find_experiment, list_experiments

GOOD = """
title = "Mine"
question = "How wrong?"
steps = ["models"]

[data]
name = "mine"
latency = "latency.parquet"
configs = "configs"
published = "published.parquet"

[split]
training = ["t4"]
held_out = ["l4"]

[targets]
model_mean_percent = 10
model_worst_percent = 40
kernel_share_of_roofline = 0.5
"""


def declare(root: Path, text: str, name: str = "mine") -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "experiment.toml").write_text(text, encoding="utf-8")
    return root


def test_defaults_are_the_tile_models_that_ship(tmp_path: Path) -> None:
    found = find_experiment("mine", declare(tmp_path, GOOD))
    assert (found.id, found.folder) == ("mine", tmp_path / "mine")
    assert found.declared.tile_models.train is False
    assert found.declared.split.other_vendor == ()
    assert found.declared.readme is False


def test_all_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        declare(tmp_path, GOOD, name)
    (tmp_path / "not-one").mkdir()
    assert [e.id for e in list_experiments(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[split]", "[split]\ntrainin = 1", "unknown key 'split.trainin'; did you mean training?"),
        ('title = "Mine"', 'title = "Mine"\nzzz = 1', "unknown key 'zzz': use one of title, question, steps"),
        ("[targets]", "[target]", "targets is missing: add it"),
        ('steps = ["models"]', 'steps = ["modles"]', "steps.0 = 'modles'"),
        ('held_out = ["l4"]', "held_out = []", "split.held_out"),
        ('held_out = ["l4"]', 'held_out = ["l4", "t4"]', "t4 both trained on and held out"),
        ('published = "published.parquet"', "", "step 'models' needs data.published"),
        ("model_mean_percent = 10", "model_mean_percent = -1", "targets.model_mean_percent = -1"),
        ("[data]", "[data", "not TOML"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    root = declare(tmp_path, GOOD.replace(old, new))
    with pytest.raises(DataError) as caught:
        find_experiment("mine", root)
    assert said in str(caught.value)
    assert "experiment.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_experiment_names_the_nearest(tmp_path: Path) -> None:
    root = declare(tmp_path, GOOD, "held-out-fp32")
    with pytest.raises(DataError, match="no experiment 'held-out-fp16'; did you mean held-out-fp32"):
        find_experiment("held-out-fp16", root)
    with pytest.raises(DataError, match="one of none"):
        find_experiment("mine", tmp_path / "nowhere")
