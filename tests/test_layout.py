"""The layout is the architecture: imports go one way, data folders hold no code, the wheel carries what it needs."""

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "neusight"

# The rooms from the ground up: each may import those before it and itself. ``learn`` is loaded by no prediction.
ROOMS = [
    "errors",
    "units",
    "paths",
    "kernels",
    "devices",
    "laws",
    "datasets",
    "requests",
    "workloads",
    "transforms",
    "plans",
    "executors",
    "schedule",
    "estimates",
    "api",
    "learn",
    "evaluation",
    "benchmark",
    "collect",
    "experiments",
    "cli",
]


def allowed(room: str) -> set[str]:
    return set(ROOMS[: ROOMS.index(room) + 1])


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms of neusight that a module imports, wherever in the file; type-checking imports count as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "neusight" else [f"neusight.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("neusight.")}
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if room_of(p) not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    assert imports(path) <= allowed(room_of(path)) | {"__version__"}


def test_there_are_modules_to_check() -> None:
    assert {"devices", "workloads", "estimates", "cli"} <= {room_of(p) for p in MODULES}


@pytest.mark.parametrize("folder", ["datasets", "features", "tile_models", "experiments"])
def test_data_folders_hold_no_code(folder: str) -> None:
    assert list((ROOT / folder).rglob("*.py")) == []


def imported_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running ``code``."""
    text = f"{code}\nimport sys; print('\\n' + '\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split("\n")}


HEAVY = {"torch", "transformers", "lightgbm", "sklearn", "scipy", "numba", "pandas", "pyarrow", "matplotlib"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert imported_by("import neusight") & (HEAVY | {"numpy"}) == set()


def test_public_names_load_without_torch_or_tables() -> None:
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
