"""The layout is the architecture: imports go one way, data folders hold no code, the wheel carries what it needs."""

import ast
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "neusight"

# The rooms from the ground up: each may import those before it and itself. ``learn`` is loaded by no prediction.
ROOMS = [
    "quick_dataclasses",
    "torchvision_import",
    "errors",
    "extras",
    "units",
    "paths",
    "figures",
    "workers",
    "kernels",
    "devices",
    "laws",
    "engines",
    "defaults",
    "requests",
    "workloads",
    "transforms",
    "plans",
    "executors",
    "schedule",
    "estimates",
    "serving",
    "distributed",
    "steps",
    "questions",
    "what_if",
    "api",
    "design",
    "measured",
    "check",
    "learn",
    "collect",
    "lab",
    "page",
    "benchmark",
    "cli",
]


MODULES = {
    ".".join(("neusight", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
POSITIONAL, NAMED = 5, 12
"""Arguments that a function may take by place, and in all."""


def statements(path: Path) -> Iterator[ast.AST]:
    """Every statement of a module, those inside functions too, but for what only a type checker reads."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        todo += ast.iter_child_nodes(node)


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules of the package that statements import: a name that is one, else the module that it comes from."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in MODULES else node.module for name in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys()


def room_of(module: str) -> str:
    return (*module.split("."), "")[1]


def test_imports_go_one_way() -> None:
    """Wherever they stand, in functions and for types alone too."""
    rank = {room: number for number, room in enumerate(("", *ROOMS))}
    wrong = []
    for module, path in MODULES.items():
        if room_of(module) in ("", "__main__"):
            continue
        below = imported(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        wrong += [f"{module} imports {name}" for name in below if rank[room_of(name)] > rank[room_of(module)]]
    assert wrong == []
    assert {room_of(module) for module in MODULES} == {"", "__main__", *ROOMS}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor by imports that functions delay."""
    graph = {module: imported(statements(path)) - {module, "neusight"} for module, path in MODULES.items()}
    circles = []
    while graph:
        try:
            TopologicalSorter(graph).prepare()
            break
        except CycleError as error:
            circle = error.args[1]
            circles.append(" imports ".join(reversed(circle)))
            graph[circle[1]] = graph[circle[1]] - {circle[0]}
    assert circles == []


def commands(app: Any) -> Iterator[Any]:
    """Functions behind the commands of a typer application, whose options are parameters."""
    yield from (command.callback for command in app.registered_commands)
    if app.registered_callback:
        yield app.registered_callback.callback
    for group in app.registered_groups:
        yield from commands(group.typer_instance)


PUBLIC_QUESTIONS = {("neusight.api.predictor", "estimate")}
"""What people call with a few of many options, all of which their editor completes."""


def test_no_function_takes_more_than_five_arguments_by_place_or_twelve_by_name() -> None:
    """Those of a command are by name."""
    from neusight.cli.app import app

    by_name = {(command.__module__, command.__name__) for command in commands(app)}
    assert len(by_name) > 20
    wrong = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or (module, node.name) in PUBLIC_QUESTIONS:
                continue
            places = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
            most = NAMED if (module, node.name) in by_name else POSITIONAL
            if len(places) > most or len(places) + len(node.args.kwonlyargs) > NAMED:
                wrong.append(f"{module}.{node.name}: {len(places)} by place, {len(node.args.kwonlyargs)} by name alone")
    assert wrong == []


def test_data_folders_hold_no_code() -> None:
    folders = ("datasets", "features", "tile_models", "experiments")
    assert [path for folder in folders for path in (ROOT / folder).rglob("*.py")] == []


def imported_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running ``code``."""
    text = f"{code}\nimport sys; print('\\n' + '\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split("\n")}


HEAVY = {"torch", "transformers", "lightgbm", "sklearn", "scipy", "numba", "pandas", "pyarrow", "matplotlib"}


def test_public_names_load_nothing_heavy() -> None:
    assert imported_by("import neusight") & (HEAVY | {"numpy"}) == set()
    loaded = imported_by("from neusight import Predictor, Estimate, DeviceSpec, load_device")
    assert "numpy" in loaded
    assert loaded & HEAVY == set()


def test_every_public_name_resolves() -> None:
    import neusight

    assert all(getattr(neusight, name) for name in neusight.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = neusight.nonsense


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the build backend is part of the dev extra")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("neusight-*.whl")
    return built


def test_the_wheel_holds_every_resource(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    catalogue = {f"neusight/devices/catalogue/{p.name}" for p in (PACKAGE / "devices" / "catalogue").glob("*.toml")}
    workloads = {
        p.relative_to(ROOT).as_posix() for p in (PACKAGE / "workloads").rglob("*") if p.suffix in (".json", ".gz")
    }
    models = {
        f"neusight/_pretrained/{p.relative_to(ROOT / 'tile_models').as_posix()}"
        for p in (ROOT / "tile_models").rglob("*")
        if p.is_file()
    }
    assert catalogue
    assert workloads
    assert models
    assert catalogue | workloads | models <= names
    assert {f"neusight/_features/{p.name}" for p in (ROOT / "features").glob("*.toml")} <= names
    assert {f"neusight/_datasets/{p.parent.name}/card.md" for p in (ROOT / "datasets").glob("*/card.md")} <= names
    assert "neusight/py.typed" in names
    assert not any(name.startswith(("tests/", "tile_models/", "datasets/")) for name in names)


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 5e6


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked elsewhere, as an installation would lie."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def run_installed(site: Path, *arguments: str) -> Any:
    """JSON that the unpacked wheel prints, with the checkout out of reach."""
    code = f"import neusight; assert neusight.__file__.startswith({str(site)!r}); "
    code += "from neusight.cli import main; main()"
    environment = {"PYTHONPATH": str(site), "NEUSIGHT_CACHE": str(site / "cache"), "PATH": ""}
    command = [sys.executable, "-c", code, *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=site, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_alone_predicts(installed: Path) -> None:
    assert run_installed(installed, "predict", "gpt2", "--gpu", "l4")["coverage"]["trained"] > 0.5


def test_the_wheel_alone_knows_its_data_sets_and_contracts(installed: Path) -> None:
    known = {p.parent.name for p in (ROOT / "datasets").glob("*/manifest.json")}
    assert {row["name"] for row in run_installed(installed, "datasets", "list")} == known
    declared = {p.parent.name for p in (ROOT / "experiments").glob("*/experiment.toml")}
    assert {row["id"] for row in run_installed(installed, "experiments", "list")} == declared
    code = "from neusight.executors.gpu.features import load_contract; print(load_contract('gemm').family)"
    environment = {"PYTHONPATH": str(installed), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=installed, env=environment)
    assert done.stdout == "gemm\n", done.stderr


def test_the_package_shows_what_people_use_and_nothing_else() -> None:
    import neusight
    import neusight.api

    assert neusight.api and dir(neusight) == sorted(neusight.__all__)


def test_what_contributing_names_is_there() -> None:
    """Every file, and every name in code, whatever was moved."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`@?([A-Za-z_][\w./]*)(?:\([^`]*\))?`", text))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in MODULES.values())
    files = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[!.]*/**/*") if "__pycache__" not in path.parts]
    known = {name for name in names if "/" in name and any(f"/{name.rstrip('/')}" in file for file in files)}
    known |= {name for name in names if "/" not in name and re.search(rf"\b{name.split('.')[-1]}\b", sources)}
    known |= {name for name in names if any(file.endswith(f"/{name}") for file in files)}
    assert len(known) > 60
    assert names - known == set()


BUDGETS = ROOT / "tests" / "room_budgets.toml"
"""Code lines of each room, which may only fall; ``python tests/test_layout.py`` writes today's."""


def code_lines(path: Path) -> int:
    """Lines of a module that hold code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    strings = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    free = {
        number
        for node in strings
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(
        number not in free and bool(line.strip()) and not line.lstrip().startswith("#") for number, line in lines
    )


def lines_by_room() -> dict[str, int]:
    counts: dict[str, int] = {}
    for path in MODULES.values():
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "top"
        counts[room] = counts.get(room, 0) + code_lines(path)
    return dict(sorted(counts.items()))


def test_no_room_outgrows_its_budget() -> None:
    budgets = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["code_lines"]
    counts = lines_by_room()
    assert {room: lines for room, lines in counts.items() if lines > budgets.get(room, 0)} == {}


def write_budgets() -> None:
    rooms = "".join(f"{room} = {lines}\n" for room, lines in lines_by_room().items())
    head = "# Code lines of each room, which may only fall. Written by: python tests/test_layout.py"
    BUDGETS.write_text(f"{head}\n[code_lines]\n{rooms}", encoding="utf-8")


def test_a_class_name_stands_once() -> None:
    places: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


if __name__ == "__main__":
    write_budgets()
