"""``read_given``: measured rows of one's own, or what a bench or log wrote, which predictions learn from."""

from __future__ import annotations

from pathlib import Path

from neusight.check.formats import recognise
from neusight.check.results import read_result
from neusight.errors import DataError
from neusight.measured.anchors import GivenRows
from neusight.measured.table import read_table
from neusight.questions.field import FieldError


def read_given(path: str | Path) -> GivenRows:
    """Measured rows of a table, or of a result in one of the formats that ``neusight check`` reads.

    >>> predictor = Predictor.load(given=read_given("a100-runs.csv"))

    Raises:
        DataError: a file that cannot be read as either, an empty one, or one that does not say all that it measured.
    """
    file = Path(path)
    if not _is_result(file):
        return GivenRows(read_table(file))
    try:
        return GivenRows(read_result(file, {}).table)
    except FieldError as error:
        option = f"--{error.field.replace('_', '-')}"
        raise DataError(
            f"{file}: {error}: `neusight check {file} {option} … --out mine.csv` makes rows of it that say so"
        ) from None


def _is_result(file: Path) -> bool:
    try:
        return file.suffix != ".parquet" and bool(recognise(file))
    except DataError:
        return False
