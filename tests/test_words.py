"""The package knows no single source of data: none is named in its strings, names or keys of TOML files."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import neusight

PACKAGE = Path(neusight.__file__).parent
SOURCES = re.compile(
    r"argonne|deplodock|trtllm.docs|ml.?energy|llm.foundry|torchtitan.table|liger|faster.?transformer"
    r"|deeplearningexamples|kernelbench|aiconfigurator|vidur",
    re.IGNORECASE,
)


def words_of(module: ast.Module) -> Iterator[str]:
    """Strings and names of a module; docstrings, which cite, are left out."""
    texts = (node.value for node in ast.walk(module) if isinstance(node, ast.Expr))
    docstrings = {id(text) for text in texts if isinstance(text, ast.Constant)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        for field in ("id", "attr", "name", "arg", "module"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def keys_of(content: Any) -> Iterator[str]:
    """Keys of a TOML file, of all tables in it."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield key
            yield from keys_of(value)
    elif isinstance(content, list):
        for value in content:
            yield from keys_of(value)


def test_code_names_no_source_of_data() -> None:
    modules = {path: words_of(ast.parse(path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")}
    tables = {path: keys_of(tomllib.loads(path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.toml")}
    found = {
        f"{path.relative_to(PACKAGE)}: {word[:60]}"
        for path, words in (modules | tables).items()
        for word in words
        if SOURCES.search(word) or SOURCES.search(path.stem)
    }
    assert sorted(found) == []
