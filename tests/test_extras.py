"""What needs more than the five packages of the core says which extra installs it, and nothing else needs more."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from neusight.errors import NeusightError
from neusight.extras import EXTRAS, MissingExtraError

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"sklearn": "scikit-learn", "pynvml": "nvidia-ml-py"} | dict.fromkeys(
    ("fastapi", "starlette", "uvicorn"), "nicegui"
)
"""Where a package is installed under another name than it is imported."""


def packages_of(requirements: list[str], extras: dict[str, list[str]]) -> set[str]:
    """Names of required packages, those of this package's own extras among them."""
    names: set[str] = set()
    for text in requirements:
        if inner := re.fullmatch(r"neusight\[(.*)\]", text):
            for extra in inner[1].split(","):
                names |= packages_of(extras[extra], extras)
        else:
            names.add(re.split(r"[<>=]", text)[0])
    return names


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED_BY = {
    extra: packages_of(wanted, PROJECT["optional-dependencies"])
    for extra, wanted in PROJECT["optional-dependencies"].items()
}
CORE = packages_of(PROJECT["dependencies"], {})


def third_party() -> set[str]:
    """Packages that any statement of the code imports, beside Python's own."""
    names = set()
    for path in (ROOT / "neusight").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"neusight"}


def test_every_import_is_of_the_core_or_of_an_extra():
    assert {"numpy", "pydantic", "typer", "rich", "safetensors"} == CORE
    assert third_party() - CORE <= EXTRAS.keys()
    assert [name for name, extra in EXTRAS.items() if DISTRIBUTIONS.get(name, name) not in INSTALLED_BY[extra]] == []


def test_extra_all_has_every_other_and_dev_has_all():
    others = set().union(*(names for extra, names in INSTALLED_BY.items() if extra not in ("all", "dev")))
    assert INSTALLED_BY["all"] == others
    assert INSTALLED_BY["dev"] > others


@pytest.mark.parametrize("name", EXTRAS)
def test_import_of_a_missing_package_names_its_extra(name, monkeypatch):
    find_spec = PathFinder.find_spec
    monkeypatch.setattr(
        PathFinder, "find_spec", lambda given, *rest: None if given == name else find_spec(given, *rest)
    )
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(
        MissingExtraError, match=rf"^measuring a device needs .*: pip install 'neusight\[{EXTRAS[name]}\]'$"
    ):
        exec(f"import {name}", {"__name__": "neusight.collect.anything"})
    with pytest.raises(ModuleNotFoundError) as others:
        exec(f"import {name}", {"__name__": "elsewhere"})
    assert not isinstance(others.value, NeusightError)


BARE = """
import contextlib, io, json, sys
from importlib.machinery import PathFinder
hidden, commands = json.loads(sys.argv[1])
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in hidden else find_spec(name, *rest)
from neusight.cli.app import command_line
answers = []
for command in commands:
    words = command.split()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line(words[0])(words, prog_name="neusight")
        except SystemExit as end:
            answers.append([end.code or 0, len(out.getvalue()), err.getvalue()])
json.dump([answers, sorted(sys.modules.keys() & set(hidden))], sys.stdout)
"""
ANSWERED = (
    "predict gpt3-xl --gpu h100-sxm-80gb",
    "predict gpt2 --gpu l4 --mode training --launch compiled",
    "memory llama-2-7b --gpu l4",
    "kernel gemm m=4096 n=4096 k=4096 --gpu l4",
    "serving llama-3.1-8b --gpu h100-sxm-80gb --isl 512 --osl 64 --concurrency 4",
    "training gpt3-13b --cluster dgx-h100 --nodes 1 --tp 8 --global-batch-size 64",
    "plan gpt3-13b --cluster dgx-h100 --nodes 1 --global-batch-size 64",
    "what-if gpt2 --gpu l4 --apply bf16",
    "what-if gpt2 --gpu l4 --list",
    "sweep gpt2 --gpu l4,t4",
    "sweep gpt2 --gpu l4 --format csv",
    "devices list",
    "clusters list",
    "models list",
    "tile-models list",
    "datasets list",
    "experiments list",
)
REFUSED = {
    "predict qwen2.5-7b --gpu l4": "tracing a module needs PyTorch: pip install 'neusight[trace]'",
    "predict json:loads --gpu l4": "tracing a module needs PyTorch: pip install 'neusight[trace]'",
    "what-if gpt2 --gpu l4 --apply amp": "tracing a module needs PyTorch: pip install 'neusight[trace]'",
    "predict timm:resnet50 --gpu l4": "tracing a module needs timm: pip install 'neusight[timm]'",
    "predict torchvision:resnet50 --gpu l4": "tracing a module needs torchvision: pip install 'neusight[vision]'",
    "predict sd-1.5-unet --gpu l4": "tracing a module needs diffusers: pip install 'neusight[diffusers]'",
    "predict resnet50 --gpu tensordash": "this device needs numba: pip install 'neusight[tensordash]'",
    "devices draft": "measuring a device needs PyTorch: pip install 'neusight[trace]'",
    "evaluate x.parquet": "reading measurements needs pyarrow: pip install 'neusight[learn]'",
    "sweep gpt2 --gpu l4 --ray local": "work on a cluster needs Ray: pip install 'neusight[ray]'",
    "page --no-show": "the page needs uvicorn: pip install 'neusight[page]'",
    "page --export {folder}/site": "a figure needs matplotlib: pip install 'neusight[figures]'",
    "predict {folder}/model.onnx --gpu l4": "tracing a module needs onnx: pip install 'neusight[onnx]'",
    "predict {folder}/model.tflite --gpu l4": "tracing a module needs tflite: pip install 'neusight[tflite]'",
}


@pytest.fixture(scope="module")
def bare_answers(tmp_path_factory):
    """Exit code, size of stdout, and stderr of each command where the five packages of the core are all there is."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("model.onnx", "model.tflite"):
        (folder / name).touch()
    commands = [command.format(folder=folder) for command in (*ANSWERED, *REFUSED)]
    given = json.dumps([list(EXTRAS), commands])
    # No trace that another test has stored may answer.
    options = {"cwd": ROOT, "env": os.environ | {"NEUSIGHT_CACHE": str(folder)}}
    done = subprocess.run([sys.executable, "-c", BARE, given], capture_output=True, text=True, check=True, **options)
    answers, loaded = json.loads(done.stdout)
    assert loaded == []
    return dict(zip((*ANSWERED, *REFUSED), answers, strict=True))


@pytest.mark.parametrize("command", ANSWERED)
def test_core_answers_without_any_extra(bare_answers, command):
    code, size, messages = bare_answers[command]
    assert (code, size > 100) == (0, True), messages


@pytest.mark.parametrize(("command", "says"), REFUSED.items())
def test_command_that_needs_an_extra_says_so_in_one_line(bare_answers, command, says):
    assert bare_answers[command] == [1, 0, f"error: {says}\n"]
