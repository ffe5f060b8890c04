"""What fits are kept by: all code and values that they can reach, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neusight.errors import DataError
from neusight.lab import cache as kept_by
from neusight.lab import left_out
from neusight.lab.cache import code_sha256, imported_by, kept
from neusight.learn.fits import FITS

CODE = {
    "__init__.py": "",
    "fits/__init__.py": "",
    "fits/fit.py": """
from neusight.laws.law import twice

def fit():
    from neusight.late import shift
    return twice(1) + shift()
""",
    "laws/__init__.py": "",
    "laws/law.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import types

def twice(x):
    return 2 * x
""",
    "laws/values.toml": "one = 1",
    "late/__init__.py": """
from importlib import import_module

def shift():
    return import_module("neusight.late.chosen").SHIFT
""",
    "late/chosen.py": "SHIFT = 1\n",
    "page/__init__.py": "",
    "page/drawn.py": "from neusight.fits.fit import fit\n",
    "page/page.toml": "two = 2",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a fit, laws that it imports, a module that it imports late and one by name, and a page upon it."""
    folder = tmp_path / "neusight"
    for name, text in CODE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(kept_by, "_PACKAGE", folder)
    monkeypatch.setattr(kept_by, "checkout_dir", lambda name: tmp_path / name)
    forget()
    yield folder
    forget()


def forget() -> None:
    for function in (kept_by._path_of, kept_by._statements, code_sha256):
        function.cache_clear()


def changed(package: Path, file: str, old: str, new: str) -> bool:
    """Whether the hash of the fit differs after an edit, which is taken back."""
    before, text = code_sha256("neusight.fits.fit"), (package / file).read_text()
    (package / file).write_text(text.replace(old, new))
    forget()
    after = code_sha256("neusight.fits.fit")
    (package / file).write_text(text)
    forget()
    return before != after


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("fits/fit.py", "twice(1)", "twice(2)"),
        ("laws/law.py", "2 * x", "3 * x"),
        ("laws/__init__.py", "", "LAWS = 1\n"),
        ("laws/values.toml", "one = 1", "one = 2"),
        ("late/__init__.py", "chosen", "other"),
        ("late/chosen.py", "SHIFT = 1", "SHIFT = 2"),
    ],
)
def test_code_sha256_changes_with_all_that_is_imported(package: Path, file: str, old: str, new: str) -> None:
    assert changed(package, file, old, new)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("fits/fit.py", "def fit():", 'def fit():\n    """Fit."""'),
        ("laws/law.py", "def", "# Twice.\ndef"),
        ("laws/law.py", "import types", "import neusight.page.drawn"),
        ("page/drawn.py", "fit", "page"),
        ("page/page.toml", "2", "3"),
    ],
)
def test_code_sha256_is_that_of_statements_below(package: Path, file: str, old: str, new: str) -> None:
    assert not changed(package, file, old, new)


def test_modules_of_a_fit_reach_all_that_it_runs() -> None:
    for name in left_out.NAMES:
        reached = imported_by(*left_out.modules_of(name))
        fit = FITS[name]
        used = {each.__module__ for each in (type(fit), fit.read, fit.solve, fit.finish, fit.unfitted) if each}
        assert {module for module in used if module.startswith("neusight")} <= reached, name


def test_kept_fills_a_folder_once(tmp_path: Path) -> None:
    filled: list[Path] = []

    def fill(folder: Path) -> None:
        filled.append(folder)
        (folder / "a").write_text("1")

    for _ in range(2):
        assert (kept(tmp_path / "one", fill) / "a").read_text() == "1"
    assert len(filled) == 1 and [path.name for path in tmp_path.iterdir()] == ["one"]


def test_kept_leaves_nothing_to_read_of_a_fill_that_failed(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise DataError("no rows")

    with pytest.raises(DataError):
        kept(tmp_path / "one", fill)
    assert not (tmp_path / "one").exists()
