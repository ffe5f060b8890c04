"""``make notebooks``: run notebooks from top to bottom in a kernel and store them with what they show.

Outputs are committed, so that whoever opens a notebook sees its figures; they need the measured data. No row of those
is shown, only means and pictures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 600


def execute(path: Path) -> None:
    """Run one notebook in place; times and versions of the machine are left out, so that a diff shows what changed.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    language = dict(notebook.metadata["language_info"])
    NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", record_timing=False).execute()
    notebook.metadata["language_info"] = language
    nbformat.write(notebook, path)


def main(paths: Sequence[str]) -> None:
    """Run those that are given, in their order."""
    from neusight.paths import data_dir

    data_dir()
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of tqdm, which wants widgets in notebooks
    for path in map(Path, paths):
        execute(path)
        print(f"ran {path}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
