"""Which kernels ran: names, grids and blocks, from the profiler, after everything has been timed.

A process that has profiled once launches more slowly from then on (CUPTI stays attached), so that names are taken by
fresh workers when the timing is over, and joined to the rows by their sample.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from neusight.collect.store import FAMILIES, place_of, read_rows, write_rows
from neusight.errors import UnmeasurableError
from neusight.kernels import Kernel
from neusight.kernels.families import kernel_of

if TYPE_CHECKING:
    from neusight.collect.bench import Bench

SHARE = 0.2
"""Share of a collection's time, at the end, for names."""
_RUN = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace's events that the device runs: copies of contiguous tensors are no kernels."""


@dataclass(frozen=True, kw_only=True)
class NameTask:
    """Profile one kernel that has been timed, the row ``of``."""

    table: ClassVar[str] = "names"
    """Names have a separate table until they are joined."""
    kernel: Kernel
    of: str

    @property
    def sample(self) -> str:
        """Id of the row."""
        return f"name-{self.of}"

    def describe(self) -> dict[str, Any]:
        """Which row the names belong to."""
        return {"sample": self.sample, "of": self.of}

    def measure(self, bench: Bench) -> dict[str, Any]:
        """Run the kernel's operator once under the profiler.

        Raises:
            UnmeasurableError: the profiler saw no kernel.
        """
        from neusight.collect.launches import OperandSource, prepare

        launch = prepare(self.kernel)
        operands = launch.operands(OperandSource(bench.torch_device, bench.seed))
        with launch.setting():
            launch.run(*operands)
            bench.synchronise()
            events = _profile(lambda: launch.run(*operands), bench)
        if not (names := named(events)):
            raise UnmeasurableError("the profiler saw no kernel: it needs CUPTI or roctracer, and the right to use it")
        return names


def _profile(run: Any, bench: Bench) -> list[dict[str, Any]]:
    """The events of the profiler's trace."""
    from torch.profiler import ProfilerActivity, profile

    warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        bench.synchronise()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def named(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of a row from a trace in Chrome's format; the kernel that took longest did the work. {} without any."""
    kernels = [event for event in events if event.get("cat") in _RUN]
    if not kernels:
        return {}
    longest = max(kernels, key=lambda event: event.get("dur", 0))
    args = longest.get("args", {})
    extents = {name: "x".join(map(str, args.get(name, ()))) for name in ("grid", "block")}
    return {"kernel_name": longest["name"], "kernel_names": ";".join(event["name"] for event in kernels), **extents}


def unnamed(folder: Path) -> Iterator[NameTask]:
    """A task for every row that has no name yet; a kernel that was measured twice runs the same both times."""
    named_rows = {row["of"] for row in read_rows(folder, "names")}
    for family in FAMILIES:
        for row in read_rows(folder, family):
            if row["sample"] not in named_rows and row["repeat"] == 0:
                yield NameTask(kernel=kernel_of(family, row), of=row["sample"])


def join_names(folder: Path) -> None:
    """Write the names into the files of the kernels."""
    by_id = {row["of"]: row for row in read_rows(folder, "names")}
    for family in FAMILIES:
        rows = read_rows(folder, family)
        names = [{k: v for k, v in by_id.get(row["sample"], {}).items() if k not in ("sample", "of")} for row in rows]
        if any(names):
            write_rows(folder / place_of(family), [{**row, **new} for row, new in zip(rows, names, strict=True)])
