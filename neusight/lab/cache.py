"""What runs keep in the user's cache: folders by everything that decides their content, so that none can be stale."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.lab.results import versions
from neusight.paths import checkout_dir

_PACKAGE = Path(__file__).resolve().parent.parent
_BY_NAME = "import_module"


def key_of(request: Any) -> str:
    """Name of a folder of the cache by a request: whatever decides the folder's content, as JSON."""
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:24]


def kept(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder that is not there yet, under another name until it is complete, and return it."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(mkdtemp(prefix=".building-", dir=folder.parent))
        fill(building)
        with suppress(OSError):  # Another run filled the same folder meanwhile.
            building.rename(folder)
        shutil.rmtree(building, ignore_errors=True)
    return folder


@cache
def code_sha256(*modules: str) -> str:
    """Hash of everything that modules of this package can execute or read, comments and docstrings left out.

    These are the modules that they import, at once or within a function, the packages around those, the files of values
    of the same rooms, the contracts of features, and versions of libraries.
    """
    names = imported_by(*modules)
    rooms = {_PACKAGE / name.split(".")[1] for name in names if "." in name}
    files = (file for room in (*sorted(rooms), checkout_dir("features")) for file in sorted(room.rglob("*")))
    values = [file for file in files if file.is_file() and file.suffix not in (".py", ".pyc")]
    known = {file.name: file_sha256(file) for file in values}
    return key_of([{name: _statements(name)[0] for name in sorted(names)}, known, versions()])


def imported_by(*modules: str) -> set[str]:
    """Modules of this package that some modules import, these among them."""
    found, todo = set(), list(modules)
    while todo:
        name = todo.pop()
        if name not in found and _path_of(name):
            found.add(name)
            todo += [name.rpartition(".")[0], *_statements(name)[1]]
    return found


@cache
def _path_of(name: str) -> Path | None:
    """The file of a module, None of any other name."""
    place = _PACKAGE.parent.joinpath(*name.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if name.partition(".")[0] == _PACKAGE.name and file.is_file()), None)


@cache
def _statements(module: str) -> tuple[str, frozenset[str]]:
    """Hash of a module's statements, and what it imports; what it imports by name may be any module beside it."""
    path = _path_of(module)
    assert path is not None
    tree = _Executed().visit(ast.parse(path.read_bytes()))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        # The package itself loads names of its public interface, for which no module in it asks.
        elif _BY_NAME in (getattr(node, "id", ""), getattr(node, "attr", "")) and module != _PACKAGE.name:
            beside = (file.relative_to(_PACKAGE.parent).with_suffix("") for file in path.parent.rglob("*.py"))
            imported |= {".".join(file.parts).removesuffix(".__init__") for file in beside}
    return sha256(ast.dump(tree).encode()).hexdigest(), frozenset(imported)


class _Executed(ast.NodeTransformer):
    """A module without docstrings and what only a type checker reads."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """No string by itself."""
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else node

    def visit_If(self, node: ast.If) -> Any:
        """No imports of types."""
        return node.orelse if getattr(node.test, "id", "") == "TYPE_CHECKING" else self.generic_visit(node)
