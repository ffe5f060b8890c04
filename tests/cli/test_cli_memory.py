"""``neusight memory`` and ``neusight evaluate memory``: data in every format, pages at 80 columns, mistakes."""

import json
from pathlib import Path

import pandas as pd
import pytest
from cli_runs import as_csv, as_json, error, run

from neusight.plans.memory import PARTS

QUESTION = ("memory", "Qwen/Qwen3-8B", "--gpu", "h100-sxm-80gb", "--seq-len", 4096)
SHARED = ("--tp", 4, "--pp", 3, "--dp", 2, "--shard", "zero1", "--sequence-parallel")
RUN = {
    "case": "small", "gpu": "a100-sxm-80gb", "environment": "dev", "family": "gpt", "layers": 4, "hidden": 512,
    "heads": 8, "head_dim": 64, "ffn": 2048, "vocab_padded": 32000, "seq_len": 1024, "micro_batch": 4,
    "global_batch": 32, "memory_peak_bytes": 2 * 10**9,
}  # fmt: skip


def test_json_holds_each_kind_of_rank_with_its_parts() -> None:
    answer = as_json(*QUESTION, *SHARED)
    assert [row["rank"] for row in answer["ranks"]] == ["first", "middle", "last"]
    for row, line in zip(answer["ranks"], as_csv(*QUESTION, *SHARED), strict=True):
        assert sum(row[part] for part in PARTS) == pytest.approx(row["peak_bytes"]) == float(line["peak_bytes"])
        assert row["peak_bytes"] < row["needed_bytes"] == float(line["needed_bytes"])
    assert answer["fits"]
    assert answer["plan"]["pp"] == 3
    assert answer["largest_micro_batch"] >= 1
    assert answer["longest_sequence"] >= 4096


def test_what_is_found_to_fit_does_and_more_does_not() -> None:
    most = as_json(*QUESTION, *SHARED)["largest_micro_batch"]
    fits = [as_json(*QUESTION, *SHARED, "--micro-batch-size", size)["fits"] for size in (most, most + 1)]
    assert fits == [True, False]


def test_a_page_for_people() -> None:
    page = run(*QUESTION, *SHARED, "--vp", 2, "--recompute", "full").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert "does not fit: the only rank needs" in " ".join(run(*QUESTION).stdout.split())
    assert "fits: the last rank needs" in page


def test_float8_halves_what_products_keep_and_its_optimizer_stays() -> None:
    wide, narrow = (as_json(*QUESTION, *SHARED, "--dtype", name)["ranks"][0] for name in ("bf16", "fp8"))
    assert narrow["activations"] < wide["activations"]
    assert narrow["optimizer"] == wide["optimizer"]


def test_encoders_and_depths_of_prediction_take_more() -> None:
    """A longer source keeps more; a pipeline would have to hand the encoder's results on, and is refused."""
    t5 = ("memory", "t5-small", "--gpu", "h100-sxm-80gb", "--seq-len", 128)
    short, usual, longer = (
        as_json(*t5, *source)["ranks"][0]["activations"]
        for source in ((), ("--source-len", 128), ("--source-len", 512))
    )
    assert short == usual < longer
    assert "what an encoder gives to all stages behind it is not built" in error(*t5, "--pp", 2)
    assert "multi-token prediction of an encoder's decoder is not built" in error(*t5, "--mtp-layers", 1)
    one, two = (as_json(*QUESTION, *more)["ranks"][0] for more in ((), ("--mtp-layers", 1)))
    assert two["weights"] > one["weights"]
    assert two["activations"] > one["activations"] + 4 * 4096 * 150_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", 5), "num_attention_heads = 32 cannot be shared by 5 ranks"),
        (("--pp", 40), "Qwen/Qwen3-8B has 36, choose a pp x vp"),
        (("--shard", "zero9"), "--shard: 'zero9' is unknown"),
        (("--engine", "megatrn"), "did you mean megatron"),
        (("--dtype", "bf61"), "unknown dtype 'bf61'"),
        (("--source-len", 8), "has no encoder that would read source_len tokens"),
        (("--recompute", "layrnorm"), "unknown recompute 'layrnorm'; did you mean layernorm"),
    ],
)
def test_mistakes_are_a_line(options: tuple[object, ...], message: str) -> None:
    assert message in error(*QUESTION, *options)


def test_peaks_are_compared_row_by_row(tmp_path: Path) -> None:
    rows = [RUN, {**RUN, "gpu": "nothing"}, {**RUN, "layers": None}, {**RUN, "other_args": "{"}]
    table = tmp_path / "memory.parquet"
    pd.DataFrame(rows).astype({"layers": "Int64"}).to_parquet(table)
    answer = as_json("evaluate", "memory", table)
    (row,) = answer["rows"]
    assert row["ape"] == pytest.approx(100 * abs(row["predicted_bytes"] / row["measured_bytes"] - 1))
    assert sum(row["parts"].values()) == pytest.approx(row["predicted_bytes"], abs=len(PARTS))
    assert len(answer["skipped"]) == 3
    assert {"what": "tp", "value": 1, "count": 4} in answer["assumed"]
    pd.DataFrame([RUN]).to_csv(tmp_path / "memory.csv", index=False)
    assert as_json("evaluate", "memory", tmp_path / "memory.csv")["rows"] == [row]
    assert float(as_csv("evaluate", "memory", table)[0]["activations"]) == row["parts"]["activations"]
    page = run("evaluate", "memory", table).stdout
    assert all(len(line) <= 80 for line in page.splitlines())


def test_runs_are_asked_whether_they_fit(tmp_path: Path) -> None:
    known = {"framework": "torchtitan", "model": "m", "vocab": 32000, "kv_heads": 8, "activation": "swiglu"}
    known |= {name: RUN[name] for name in ("gpu", "layers", "hidden", "heads", "ffn", "seq_len", "micro_batch")}
    ran = {**known, "global_batch": 4, "shard": "zero3", "oom": False}
    large = {**ran, "layers": 200, "hidden": 16384, "ffn": 65536, "oom": True}
    pd.DataFrame([ran, large]).to_csv(tmp_path / "runs.csv", index=False)
    answer = as_json("evaluate", "memory", tmp_path / "runs.csv")
    assert [(row["fits"], row["right"]) for row in answer["rows"]] == [(True, True), (False, True)]
    assert "100.0" in run("evaluate", "memory", tmp_path / "runs.csv").stdout


def test_foreign_tables_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("gpu,x\nl4,1\n")
    assert "is no table of training runs" in error("evaluate", "memory", tmp_path / "a.csv")
    assert "is not there" in error("evaluate", "memory", tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text(json.dumps({}))
    assert "is no table of training runs" in error("evaluate", "memory", tmp_path / "c.csv")
