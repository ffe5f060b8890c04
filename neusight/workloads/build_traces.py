"""Trace the ready workloads and write the files that ship: ``python -m neusight.workloads.build_traces``.

Every workload is traced at several batches and sequence lengths; each number that varies becomes an exact polynomial,
checked at points that did not determine it. A workload whose numbers are no such polynomials is not written, with the
reason on stderr, and is traced when it is used.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from neusight.errors import ModelError
from neusight.workloads.catalogue import catalogue_config, list_workloads
from neusight.workloads.packing import pack
from neusight.workloads.symbolic import NotPolynomialError, WorkloadFile

DTYPES = {"float32": ("eager", "sdpa", "flash"), "bfloat16": ("sdpa", "flash")}
"""Dtypes that ship, with the forms of attention that people run in them; eager where a model has no other."""


def build(name: str, dtypes: dict[str, Sequence[str]] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The content of a workload's file, and what had to be left out of it, with the reason.

    Args:
        name: a ready workload.
        dtypes: forms of attention for each dtype; ``DTYPES`` unless given.

    Raises:
        NotPolynomialError: no variant can be described; where only some can, the others are left out.
    """
    builder = WorkloadFile(name, catalogue_config(name))
    for dtype, attentions in (dtypes or DTYPES).items():
        for attention in attentions:
            builder.add(dtype, attention)
        if not builder.has(dtype):
            builder.add(dtype, "eager")
    if not builder.variants:
        raise NotPolynomialError("; ".join(builder.left_out))
    return builder.content, builder.left_out


def write(name: str, folder: Path) -> str:
    """Build one workload's file; returns what to tell the user."""
    gc.freeze()
    start = time.monotonic()
    try:
        content, left_out = build(name)
    except ModelError as error:
        return f"{name}: not written: {error}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json.gz"
    file.write_bytes(pack(content))
    done = f"{name}: {file.stat().st_size / 1e3:.1f} kB in {time.monotonic() - start:.0f} s"
    return "; left out: ".join([done, *left_out])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: names of workloads, all unless given."""
    parser = argparse.ArgumentParser(prog="build_traces", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="ready workloads; all unless given")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("traces"), help="folder of the files")
    parser.add_argument("--jobs", type=int, default=1, help="workloads at the same time")
    chosen = parser.parse_args(arguments)
    names = chosen.names or [info.name for info in list_workloads()]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        running = [pool.submit(write, name, chosen.output) for name in names]
        for number, done in enumerate(as_completed(running), start=1):
            print(f"[{number}/{len(names)}] {done.result()}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
