"""Declarations: closed, and every mistake one line with file and key."""

from pathlib import Path

import pytest
from experiment_sets import declare

from neusight.errors import DataError
from neusight.experiments import find_experiment, list_experiments
from neusight.experiments.folds import LEARNERS, code_sha256
from neusight.paths import checkout_dir

MEASURED = """
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

[[targets]]
target = "whole models"
table = "models.groups"
figure = "mean"
at_most = 10
"""


def test_a_fold_trains_on_every_gpu_that_it_does_not_hold_out(tmp_path: Path) -> None:
    found = find_experiment("mine", declare(tmp_path, MEASURED))
    assert (found.id, found.folder) == ("mine", tmp_path / "mine")
    assert found.declared.training(found.declared.folds[0]) == ("t4", "v100-pcie-32gb")
    assert (found.declared.models_on, found.declared.readme) == ("held-out", False)


def test_trainings_of_several_seeds_are_told_apart(tmp_path: Path) -> None:
    text = MEASURED.replace('name = "ours"', 'name = "ours"\nseeds = [0, 3]')
    (contestant,) = find_experiment("mine", declare(tmp_path, text)).declared.predictors
    assert [contestant.label(seed) for seed in contestant.seeds] == ["ours/0", "ours/3"]
    assert contestant.model_copy(update={"seeds": (3,)}).label(3) == "ours"


def test_all_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        declare(tmp_path, MEASURED, name)
    (tmp_path / "not-one").mkdir()
    assert [e.id for e in list_experiments(tmp_path)] == ["a", "b"]


OURS = 'name = "ours"\noptions = { backend = "linear" }'
MISTAKES = [
    (MEASURED, 'held_out = ["l4"]', 'held_out = ["l4"]\nheld = 1', "key 'folds.0.held'; did you mean held_out?"),
    (MEASURED, 'title = "Mine"', 'title = "Mine"\nzzz = 1', "unknown key 'zzz': use one of title, question"),
    (MEASURED, "[data]", "[date]", "data is missing: add it"),
    (MEASURED, '"models"]', '"modles"]', "report.1 = 'modles'"),
    (MEASURED, 'held_out = ["l4"]', "held_out = []", "folds.0.held_out"),
    (MEASURED, 'held_out = ["l4"]', 'held_out = ["l4", "t4", "v100-pcie-32gb"]', "'without l4' holds out every GPU"),
    (MEASURED, 'latency = "latency.parquet"\n', "", "report 'models' needs data.latency"),
    (MEASURED, '"models"]', '"operators"]', "report 'operators' needs report 'models'"),
    (MEASURED, '"models"]', '"few-shot"]', "report 'few-shot' needs few_shot.points"),
    (MEASURED, "[[targets]]", '[[predictors]]\nname = "ours"\n[[targets]]', "two of predictors are called 'ours'"),
    (
        MEASURED,
        'backend = "linear"',
        'backen = "linear"',
        "'options.backen' of predictor 'ours'; did you mean backend",
    ),
    (MEASURED, 'backend = "linear"', "seed = 3", "unknown key 'options.seed'"),
    (MEASURED, 'name = "ours"', 'name = "li"\nkind = "li"', "'li' of kind 'li' has no options: drop 'backend'"),
    (
        MEASURED,
        OURS,
        f'{OURS}\nphysics = {{ "cuda_cores.overlp" = 1.0 }}',
        "'physics.cuda_cores.overlp' of predictor 'ours'; did you mean cuda_cores.overlap",
    ),
    (
        MEASURED,
        OURS,
        'name = "li"\nkind = "li"\nphysics = { "cuda_cores.overlap" = 1.0 }',
        "has no physics: drop 'cuda_cores.overlap'",
    ),
    (MEASURED, "at_most = 10", 'at_most = "x"', "targets.0.at_most = 'x'"),
    (MEASURED, "at_most = 10", f'at_most = "{"x" * 9999}"', "targets.0.at_most = 'xxx"),
    (MEASURED, "at_most = 10", "", "give one of at_most, between and reported"),
    (
        MEASURED,
        'name = "ours"\noptions = { backend = "linear" }',
        'name = "t"\nkind = "trees"',
        "predicts no models: drop",
    ),
    (MEASURED, 'name = "mine"\n', 'sets = ["a", "b"]\n', "report 'models' needs data.name"),
    (MEASURED, 'name = "mine"\n', 'name = "mine"\nsets = ["a"]\n', "data needs either a name or sets"),
    (MEASURED, "[data]", "[data", "not TOML"),
]


def test_a_mistake_is_one_line_with_file_and_key(tmp_path: Path) -> None:
    wrong = []
    for place, (good, old, new, said) in enumerate(MISTAKES):
        assert old in good
        with pytest.raises(DataError) as caught:
            find_experiment(f"e{place}", declare(tmp_path, good.replace(old, new), f"e{place}"))
        line = str(caught.value)
        if said not in line or "experiment.toml" not in line or "\n" in line or len(line) > 600:
            wrong.append((said, line))
    assert not wrong


def test_what_is_left_out_in_turn_makes_the_folds(tmp_path: Path) -> None:
    text = MEASURED.replace('[[folds]]\nname = "without l4"\nheld_out = ["l4"]\n', "")
    text = text.replace('"v100-pcie-32gb", "l4"]', '"v100-pcie-32gb", "v100-sxm2-16gb", "mi100"]')
    expected = {
        "gpu": {f"without {gpu}": (gpu,) for gpu in ("t4", "v100-pcie-32gb", "v100-sxm2-16gb", "mi100")},
        "generation": {"turing": ("t4",), "volta": ("v100-pcie-32gb", "v100-sxm2-16gb"), "cdna": ("mi100",)},
        "vendor": {"nvidia": ("t4", "v100-pcie-32gb", "v100-sxm2-16gb"), "amd": ("mi100",)},
    }
    for by, folds in expected.items():
        declared = find_experiment(by, declare(tmp_path, f'leave_out = "{by}"\n{text}', by)).declared
        assert {fold.name: fold.held_out for fold in declared.folds} == folds
    with pytest.raises(DataError, match=r"experiment.toml: unknown device 'mi99'"):
        find_experiment("x", declare(tmp_path, 'leave_out = "gpu"\n' + text.replace("mi100", "mi99"), "x"))


def test_an_unknown_experiment_names_the_nearest(tmp_path: Path) -> None:
    root = declare(tmp_path, MEASURED, "held-out-fp32")
    for name, where, said in (
        ("held-out-fp16", root, "no experiment 'held-out-fp16'; did you mean held-out-fp32"),
        ("mine", tmp_path / "nowhere", "one of none"),
        ("x" * 20000, root, "one of held-out-fp32"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            find_experiment(name, where)
        assert len(str(caught.value)) < 200


def test_everything_that_decides_what_is_learned_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    package = checkout_dir("neusight")
    assert all(list((package / room).rglob("*.py")) for room in LEARNERS)
    before = code_sha256()
    monkeypatch.setattr("neusight.experiments.folds.LEARNERS", LEARNERS[1:])
    assert code_sha256() != before
