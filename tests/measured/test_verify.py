"""Checks of measured tables, their manifests and the archive of what may be passed on."""

import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.measured import manifest as manifests
from neusight.measured import pack as packing
from neusight.measured import read_table
from neusight.measured import verify as verifying
from neusight.measured.manifest import DataDescription, DataFile, describe, list_descriptions, read_description
from neusight.measured.overview import import_tables, overview
from neusight.measured.pack import pack
from neusight.measured.suspects import find_suspects
from neusight.measured.verify import verify

GEMM = {"family": "gemm", "op": "linear", "gpu": "l4", "m": 1024, "n": 1024, "k": 1024, "dtype": "float16"}


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)
    return path


def rules(path: Path) -> dict[str, tuple[int, bool]]:
    return {found.rule: (found.rows, found.fault) for found in verify([path])}


def test_verify_counts_rows_by_rule(tmp_path: Path) -> None:
    rows = [
        {**GEMM, "latency_ms": 0.05},
        {**GEMM, "m": 2048, "latency_ms": 1e-4},
        {**GEMM, "gpu": "l44", "latency_ms": 1.0},
        {**GEMM, "n": 2048, "latency_ms": 1.0, "suspect": "noise"},
        {**GEMM, "k": 2048, "latency_ms": 1e9, "assumed": "burst"},
    ]
    found = rules(write(tmp_path / "mine.parquet", *rows))
    assert found == {
        "implausible": (1, True),
        "assumed": (1, True),
        "cannot be asked": (1, False),
        "marked as suspect": (1, False),
        "faster_than_datasheet": (1, False),
    }
    assert rules(write(tmp_path / "bad.csv", {**GEMM, "latency_s": 1.0})) == {"not a table of measured rows": (0, True)}


def test_verify_asks_rows_of_models(tmp_path: Path) -> None:
    row = {"model": "gpt2", "gpu": "l4", "batch": 1, "seq_len": 64, "latency_ms": 5.0}
    assert rules(write(tmp_path / "mine.csv", row, {**row, "gpu": "l44"})) == {"cannot be asked": (1, False)}
    assert rules(write(tmp_path / "none.csv", {**row, "gpu": "l44"})) == {"cannot be asked": (1, True)}


@pytest.mark.parametrize(
    ("columns", "doubted"),
    [
        ({"latency_ms": (0.05, 0.051, 0.09)}, [2]),
        ({"latency_ms": (0.05, 0.051, 0.09), "execution_ms": (0.041, 0.041, 0.042)}, []),
        ({"latency_ms": (0.05, 0.05, 0.05), "execution_ms": (0.03, 0.04, 0.04)}, [0]),
        ({"latency_ms": (0.05, 0.05, 0.09), "execution_ms": (0.041, None, None)}, [1, 2]),
    ],
)
def test_conflicting_duplicates_are_doubted(tmp_path: Path, columns: dict[str, tuple], doubted: list[int]) -> None:
    rows = [GEMM | dict(zip(columns, times, strict=True)) for times in zip(*columns.values(), strict=True)]
    suspects = find_suspects(read_table(write(tmp_path / "mine.csv", *rows, {**GEMM, "m": 1, "latency_ms": 9.0})))
    assert [place for place, text in enumerate(suspects) if text] == doubted
    assert all(suspects[place].startswith("conflicting_duplicate:") for place in doubted)


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files below ``data``, one of which may be passed on, described in a checkout of their own."""
    for name in ("free", "closed"):
        write(tmp_path / "data" / "kernels" / f"{name}.parquet", {**GEMM, "latency_ms": 0.05})
    files = (
        DataFile(path="kernels/free.parquet", licence="MIT"),
        DataFile(path="kernels/closed.parquet", licence="none"),
    )
    description = DataDescription(name="mine", title="Mine", origin="here", files=files)
    for module in (manifests, packing, verifying):
        monkeypatch.setattr(module, "checkout_dir", lambda stage: tmp_path / stage)
    describe(description, tmp_path / "datasets" / "mine", tmp_path / "data")
    return tmp_path


def test_describe_writes_hashes_and_keeps_text(described: Path) -> None:
    folder = described / "datasets" / "mine"
    (found,) = list_descriptions()
    assert found.rows == 2 and found.licences == ("MIT", "none")
    assert found.files[0].sha256 == file_sha256(described / "data" / "kernels" / "free.parquet")
    card = folder / "card.md"
    card.write_text(card.read_text() + "Text.\n")
    describe(found, folder, described / "data")
    assert card.read_text().endswith("Text.\n") and card.read_text().count("kernels/free.parquet") == 1
    (folder / "manifest.json").write_text(json.dumps({"protocol": 1}))
    with pytest.raises(DataError, match="no manifest of measured data"):
        read_description(folder / "manifest.json")


def test_verify_compares_hashes(described: Path) -> None:
    data = described / "data"
    assert rules(data) == {}
    write(data / "kernels" / "free.parquet", {**GEMM, "latency_ms": 0.06})
    assert rules(data) == {"changed file": (0, True)}
    assert rules(data / "kernels" / "free.parquet") == {"changed file": (0, True)}
    (data / "kernels" / "closed.parquet").unlink()
    assert rules(data) == {"changed file": (0, True), "missing file": (0, True)}


def test_pack_is_a_folder_of_measured_rows(described: Path) -> None:
    archive = described / "measured.tar.gz"
    packed = pack(archive, described / "data")
    assert [file.path for _, file in packed.files] == ["kernels/free.parquet"]
    assert [(file.path, reason) for _, file, reason in packed.left_out] == [
        ("kernels/closed.parquet", "no licence is stated")
    ]
    with tarfile.open(archive) as tar:
        tar.extractall(described / "unpacked", filter="data")
    assert verify([described / "unpacked"]) == []
    write(described / "data" / "kernels" / "free.parquet", {**GEMM, "latency_ms": 0.06})
    with pytest.raises(DataError, match="missing or changed"):
        pack(archive, described / "data")


def test_import_tables_fills_missing_columns(tmp_path: Path) -> None:
    row = {name: value for name, value in GEMM.items() if name != "gpu"}
    file = write(tmp_path / "a.csv", {**row, "op": "gemm", "latency_ms": 1.0})
    (table,) = import_tables(file, tmp_path / "out", {"gpu": "l4", "dtype": "float32"})
    frame = pd.read_parquet(table.path)
    assert (frame["gpu"][0], frame["dtype"][0]) == ("l4", "float16")
    with pytest.raises(DataError, match="there already"):
        import_tables(file, tmp_path / "out", {})


def test_overview_counts_what_is_filled(tmp_path: Path) -> None:
    row = {"model": "gpt2", "gpu": "l4", "batch": 1, "latency_ms": 5.0, "note": None}
    data = overview(read_table(write(tmp_path / "mine.csv", row, {**row, "gpu": "t4", "note": "x"})))
    assert (data["rows"], data["kinds"], data["gpus"]) == (2, {"predict": 2}, {"l4": 1, "t4": 1})
    assert {"name": "note", "part": "provenance", "filled": 1} in data["columns"]
