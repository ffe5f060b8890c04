"""Results that benches and logs print, as measured rows, and what predictions say of them.

``read_result(path, options) -> Result``: the rows of a file, in a format of ``formats/*.toml``;
``check(result, predictor) -> list[CheckedFigure]``: each measured figure beside its prediction;
``write_rows(result, path)``: the rows as a table that ``neusight evaluate`` reads;
``bench_command(question)``: the command of the engine's tool that measures a question.
"""

from neusight.check.bench import bench_command
from neusight.check.findings import CheckedFigure, check
from neusight.check.results import Result, read_result, write_rows

__all__ = ["CheckedFigure", "Result", "bench_command", "check", "read_result", "write_rows"]
