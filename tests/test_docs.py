"""README and the pages of docs/: every command and snippet in them works, and prints what they show.

Blocks marked ``sh elsewhere`` need a network, a GPU or files of the reader's own; their words are parsed with
those of all other pages in tests/cli/test_cli_options.py. Commands that take long run with ``pytest -m slow``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from cli_runs import run

from neusight.paths import checkout_dir

PAGES = {path.name: path.read_text(encoding="utf-8") for path in
         (checkout_dir("README.md"), *sorted(checkout_dir("docs").glob("*.md")))}  # fmt: skip
EXAMPLES = [block for text in PAGES.values()
            for block in re.findall(r"^```console\n\$ neusight (.+?[^\\])\n(.+?)^```", text, re.M | re.S)]  # fmt: skip
SLOW = re.compile(r"--recommend|--all|--frontier|--prefill|^plan|^design|timm:|--simulate|--trace")


def commands() -> list[str]:
    """Of blocks that run here and of tables, without those whose output is shown, which are compared with it."""
    found = []
    for text in PAGES.values():
        blocks = re.findall(r"^```sh(?: slow)?\n(.+?)^```", text, re.M | re.S)
        found += [line.partition("#")[0].partition(" > ")[0] for block in blocks for line in block.splitlines()]
        found += re.findall(r"^\|.*\| `(neusight [^`]+)` \|$", text, re.M)
    shown = {command.replace("\\\n", " ") for command, _ in EXAMPLES}
    return sorted({one.strip().removeprefix("neusight ") for one in found if one.startswith("neusight ")} - shown)


def marked(command: str) -> object:
    return pytest.param(command, id=command, marks=[pytest.mark.slow] if SLOW.search(command) else [])


@pytest.mark.parametrize("command", map(marked, commands()))
def test_every_command_answers(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*shlex.split(command)).stdout


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example_prints_what_the_page_shows(command: str, shown: str) -> None:
    """All of it, or its beginning where an ellipsis stands below."""
    printed = run(*shlex.split(command.replace("\\\n", " "))).stdout
    assert printed.startswith(shown.removesuffix("…\n"))
    assert shown.endswith("…\n") or printed == shown


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```python" in text])
def test_python_of_a_page_runs(page: str) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.+?)^```", PAGES[page], re.M | re.S):
        exec(block, names)  # It is our own page.


def test_links_of_pages_lead_somewhere() -> None:
    folders = {name: checkout_dir("README.md").parent / ("" if name == "README.md" else "docs") for name in PAGES}
    links = [(name, link) for name, text in PAGES.items() for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert len(links) > 20
    assert [link for link in links if not (folders[link[0]] / link[1]).exists()] == []


def test_readme_is_short_and_leads_to_every_page() -> None:
    assert len(PAGES["README.md"].encode()) <= 12_000
    assert [name for name in PAGES if name != "README.md" and f"(docs/{name})" not in PAGES["README.md"]] == []


FIGURES = {"inside": 1, "width": 2, "crps": 3}
"""Of coverage, and their digits."""
MODELS = {
    "products on matrix units": "matrix",
    "attention": "attention",
    "layers of experts": "moe",
    "streams": "stream",
    "products in float32": "gemm",
    "convolutions in float32": "conv2d",
}
DEVICES = {"own": "measured", "sibling": "same die", "stranger": "unseen"}


def rows_of(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in PAGES[page].splitlines() if line[:1] == "|"]


def test_accuracy_page_has_the_errors_of_the_models_that_ship() -> None:
    shown = {row[0]: row[1:] for row in rows_of("accuracy.md") if row[0] in MODELS and len(row) > 2}
    assert shown.keys() == MODELS.keys()
    listed = {row["name"]: row["left_out"] for row in json.loads(run("tile-models", "list", "--format", "json").stdout)}
    figures = ("physics", "learned", "as_shipped", "sibling_physics", "sibling", "own_physics", "own")
    for name, cells in shown.items():
        errors = [listed[MODELS[name]].get(figure) for figure in figures]
        assert cells == ["" if error is None else f"{error:.1f}" for error in errors], name


def test_accuracy_page_has_the_intervals_and_constants_that_ship() -> None:
    models = {row["name"]: row for row in json.loads(run("tile-models", "list", "--format", "json").stdout)}
    shown = rows_of("accuracy.md")
    for title, name in MODELS.items():
        for row in (row for row in models[name]["coverage"] if row["rows"] >= 200):
            cells = [f"{row['gpus']}", f"{row['rows']:,}", *(f"{row[k]:.{d}f}" for k, d in FIGURES.items())]
            assert [f"{title}: {row['family']}", DEVICES[row["kinship"]], *cells] in shown
    constants = json.loads(run("tile-models", "show", "physics", "--format", "json").stdout)
    counts = Counter(row["origin"] for row in constants if row["file"] == "physics.json")
    said = f"{counts['fitted']} fitted, {counts['cited']} cited, {counts['prior']} at their prior"
    assert said in PAGES["accuracy.md"]
