"""Declarations: closed, and every mistake one line with file and key."""

from pathlib import Path

import pytest

from neusight.errors import DataError
from neusight.experiments import find_experiment, list_experiments

GOOD = """
title = "Mine"
question = "How wrong?"
report = ["kernels", "models"]
gpus = ["t4", "v100-pcie-32gb", "l4"]

[data]
name = "mine"
kernels = "kernels"
latency = "latency.parquet"
configs = "configs"

[[folds]]
name = "without l4"
held_out = ["l4"]

[[predictors]]
name = "ours"
options = { backend = "linear" }

[targets]
model_mean = 10
"""


def declare(root: Path, text: str, name: str = "mine") -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "experiment.toml").write_text(text, encoding="utf-8")
    return root


def test_a_fold_trains_on_every_gpu_that_it_does_not_hold_out(tmp_path: Path) -> None:
    found = find_experiment("mine", declare(tmp_path, GOOD))
    assert (found.id, found.folder) == ("mine", tmp_path / "mine")
    assert found.declared.training(found.declared.folds[0]) == ("t4", "v100-pcie-32gb")
    assert found.declared.models_on == "held-out"
    assert found.declared.readme is False


def test_trainings_of_several_seeds_are_told_apart(tmp_path: Path) -> None:
    found = find_experiment("mine", declare(tmp_path, GOOD.replace('name = "ours"', 'name = "ours"\nseeds = [0, 3]')))
    (contestant,) = found.declared.predictors
    assert [contestant.label(seed) for seed in contestant.seeds] == ["ours/0", "ours/3"]
    assert contestant.model_copy(update={"seeds": (3,)}).label(3) == "ours"


def test_all_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        declare(tmp_path, GOOD, name)
    (tmp_path / "not-one").mkdir()
    assert [e.id for e in list_experiments(tmp_path)] == ["a", "b"]


def test_every_experiment_of_the_checkout_is_well_declared() -> None:
    expected = {"ablation", "asplos25", "cross-vendor", "leave-one-architecture-out", "leave-one-gpu-out"}
    assert expected <= {e.id for e in list_experiments()}


def test_leave_one_gpu_out_leaves_every_gpu_out_once() -> None:
    for name in ("leave-one-gpu-out", "ablation"):
        declared = find_experiment(name).declared
        assert [fold.held_out for fold in declared.folds] == [(gpu,) for gpu in declared.gpus]
    by_architecture = find_experiment("leave-one-architecture-out").declared
    held = [gpu for fold in by_architecture.folds for gpu in fold.held_out]
    assert sorted(held) == sorted(by_architecture.gpus)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('held_out = ["l4"]', 'held_out = ["l4"]\nheld = 1', "unknown key 'folds.0.held'; did you mean held_out?"),
        ('title = "Mine"', 'title = "Mine"\nzzz = 1', "unknown key 'zzz': use one of title, question, report"),
        ("[data]", "[date]", "data is missing: add it"),
        ('"models"]', '"modles"]', "report.1 = 'modles'"),
        ('held_out = ["l4"]', "held_out = []", "folds.0.held_out"),
        ('held_out = ["l4"]', 'held_out = ["l4", "t4", "v100-pcie-32gb"]', "fold 'without l4' holds out every GPU"),
        ('latency = "latency.parquet"\n', "", "report 'models' needs data.latency"),
        ('"models"]', '"operators"]', "report 'operators' needs report 'models'"),
        ('"models"]', '"few-shot"]', "report 'few-shot' needs few_shot.points"),
        ("[targets]", '[[predictors]]\nname = "ours"\n[targets]', "two of predictors are called 'ours'"),
        ('backend = "linear"', 'backen = "linear"', "unknown option 'backen'; did you mean backend?"),
        ('backend = "linear"', "seed = 3", "unknown option 'seed'"),
        ('name = "ours"', 'name = "li"\nkind = "li"', "predictor 'li' of kind 'li' has no options: drop 'backend'"),
        (
            'name = "ours"',
            'name = "ours"\nphysics = { overlp = 1.0 }',
            "unknown physics 'overlp'; did you mean overlap, stream_overlap?",
        ),
        (
            'name = "ours"\noptions = { backend = "linear" }',
            'name = "li"\nkind = "li"\nphysics = { overlap = 1.0 }',
            "predictor 'li' of kind 'li' has no physics: drop 'overlap'",
        ),
        ("model_mean = 10", 'model_mean = "x"', "targets.model_mean = 'x'"),
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
