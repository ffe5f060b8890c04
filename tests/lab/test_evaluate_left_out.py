"""Each row is predicted with constants that are fitted without its device or its source."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neusight.lab import evaluate as left_out
from neusight.measured import RowChoice
from neusight.paths import tile_models_dir

ROWS = """source,gpu,op,m,n,k,dtype,latency_ms
one,l4,linear,256,256,256,float16,0.01
two,l4,linear,512,512,512,float16,0.02
two,t4,linear,512,512,512,float16,0.03
"""


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[tuple[str, ...], tuple[str, ...]]]]:
    """What constants were fitted without, and which constants."""
    calls: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def constants_without(values: tuple[str, ...], data: Path, names: tuple[str, ...]) -> Path:
        calls.append((values, names))
        return tile_models_dir()

    monkeypatch.setattr(left_out, "constants_without", constants_without)
    monkeypatch.setattr(left_out, "is_fitted_without", lambda *given: True)
    yield calls


@pytest.mark.parametrize(
    ("by", "choice", "calls", "rows"),
    [
        ("source", RowChoice(), [(("one",), ("engines",)), (("two",), ("engines",))], [1, 2]),
        ("source", RowChoice(source="two"), [(("two",), ("engines",))], [2]),
        ("device", RowChoice(), [(("l4",), ()), (("t4",), ())], [2, 1]),
    ],
)
def test_evaluate_left_out_predicts_rows_without_what_they_are_of(
    by: str, choice: RowChoice, calls: list[object], rows: list[int], fitted: list[object], tmp_path: Path
) -> None:
    (tmp_path / "kernels.csv").write_text(ROWS)
    found = left_out.evaluate_left_out([tmp_path / "kernels.csv"], by, tmp_path, choice)
    assert fitted == calls
    assert [int(table["predicted"].notna().sum()) for table in found.tables] == rows
