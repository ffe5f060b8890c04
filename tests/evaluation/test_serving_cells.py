"""Cells of measured serving: deployments and loads they become, errors by formula, defaults that are told."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight import Predictor
from neusight.datasets.cells import DEFAULTS, STAGES, serving_cell
from neusight.errors import DataError, ModelError
from neusight.evaluation import Selection, evaluate_serving
from neusight.serving import Closed, Deployment, Lengths, Offline, Open, Setup, Static, Trace
from neusight.serving.cells import ServingCase, built_by, scheme_of, served_as
from neusight.workloads.decoders.architecture import decoder_of

SMALL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096, "max_position_embeddings": 8192,
}  # fmt: skip
CELL = {
    "gpu": "h100-sxm-80gb",
    "model": "small",
    "engine": "vllm",
    "engine_version": "0.15",
    "weight_dtype": "bfloat16",
}
STATIC = {**CELL, "cell": "lab/static", "mode": "static", "concurrency": 4, "isl": 256, "osl": 32, "e2e_ms": 50.0}
CLOSED = {**CELL, "cell": "lab/closed", "mode": "closed", "concurrency": 8, "isl": 256, "osl": 32, "tpot_ms": 1.0}
RATE = {**CELL, "cell": "lab/rate", "mode": "rate", "request_rate": 5.0, "isl": 256, "osl": 32, "ttft_ms": 2.0}
OFFLINE = {**CELL, "cell": "lab/offline", "mode": "offline", "isl": 64, "osl": 16, "tokens_per_s": 1e4}
ALL = (STATIC, CLOSED, RATE, OFFLINE)


def case_of(base: dict[str, Any], **changes: Any) -> ServingCase:
    kept = {key: value for key, value in {**base, **changes}.items() if value is not None}
    return ServingCase.of(serving_cell(kept, 1))


def evaluated(predictor: Predictor, folder: Path, *cells: dict[str, Any], selection: Selection | None = None) -> Any:
    pd.DataFrame(list(cells)).to_parquet(folder / "cells.parquet")
    (folder / "models.json").write_text(json.dumps({"small": SMALL}))
    return evaluate_serving(folder / "cells.parquet", predictor, selection=selection)


def test_errors_by_formula(predictor: Predictor, tmp_path: Path) -> None:
    first = evaluated(predictor, tmp_path, *ALL)["rows"]
    # measured = 2x, 1x, 0.8x, 0.5x what is predicted: errors -50 %, 0 %, +25 %, +100 %
    factors = (2.0, 1.0, 0.8, 0.5)
    measured = [r["predicted"] * f for r, f in zip(first, factors, strict=True)]
    cells = [{**c, r["quantity"]: m} for c, r, m in zip(ALL, first, measured, strict=True)]
    cells[3]["fault"] = "not told"
    found = evaluated(predictor, tmp_path, *cells)
    assert [r["bias"] for r in found["rows"]] == pytest.approx([-50, 0, 25, 100], abs=1e-9)
    assert [r["ape"] for r in found["rows"]] == pytest.approx([50, 0, 25, 100], abs=1e-9)
    assert [r["quantity"] for r in found["rows"]] == ["e2e_ms", "tpot_ms", "ttft_ms", "tokens_per_s"]
    assert found["rows"][1]["inside"]
    assert all(r["low"] <= r["predicted"] <= r["high"] for r in found["rows"])
    clean, every = found["means"][0], found["means_all"][0]
    assert (clean["count"], every["count"]) == (3, 4)
    assert clean["mean"] == pytest.approx(25)
    assert clean["bias"] == pytest.approx(-25 / 3)
    assert every["mean"] == pytest.approx(175 / 4)
    assert every["median"] == pytest.approx(37.5)


def test_columns_and_groups(predictor: Predictor, tmp_path: Path) -> None:
    found = evaluated(predictor, tmp_path, *ALL)
    assert list(found["rows"][0]) == [
        *("cell", "source", "gpu", "n_gpus", "engine", "model", "mode", "concurrency", "isl", "osl", "quantity"),
        *("predicted", "low", "high", "measured", "ape", "bias", "inside", "fault", "limited_by"),
    ]
    assert {r["source"] for r in found["rows"]} == {"lab"}
    by = {m["by"]: sum(r["count"] for r in found["means"] if r["by"] == m["by"]) for m in found["means"]}
    assert by == dict.fromkeys(("all", "source", "mode", "gpu", "engine", "quantity", "source quantity"), 4)


def test_predictions_are_those_of_the_question_alone(predictor: Predictor, tmp_path: Path) -> None:
    # Tables are priced for the largest of a group's cells: the others must not notice.
    wide = {**CLOSED, "cell": "lab/wide", "concurrency": 64, "max_num_seqs": 512, "isl": 2000, "osl": 500}
    rows = {r["cell"]: r["predicted"] for r in evaluated(predictor, tmp_path, *ALL, wide)["rows"]}
    decoder = decoder_of(SMALL, "small")
    for cell, figure in (("lab/closed", "tpot_s"), ("lab/rate", "ttft_s")):
        case = case_of({"lab/closed": CLOSED, "lab/rate": RATE}[cell])
        alone = predictor.serving(decoder, "h100-sxm-80gb", case.load, engine_version="0.15")
        assert rows[cell] == pytest.approx(1e3 * getattr(alone, figure).mean, rel=0.01)
    static = predictor.serving(decoder, "h100-sxm-80gb", Static(batch=4, isl=256, osl=32), max_num_seqs=256)
    assert rows["lab/static"] == pytest.approx(4 * 32 / static.output_tokens_per_s.mean * 1e3, rel=0.01)


def test_loads() -> None:
    assert case_of(STATIC).load == Static(batch=4, isl=256, osl=32)
    assert case_of(CLOSED).load == Closed(concurrency=8, num_prompts=80, isl=256, osl=32)
    assert case_of(CLOSED, concurrency=1500).load.num_prompts == 3 * 1500  # type: ignore[union-attr]
    assert case_of(RATE).load == Open(request_rate=5.0, num_prompts=1000, isl=256, osl=32)
    assert case_of(RATE, request_rate=math.inf).load == Offline(num_prompts=1000, isl=256, osl=32)
    assert case_of(OFFLINE, isl=128, osl=2048).load == Offline(num_prompts=3000, isl=128, osl=2048)
    several = case_of(STATIC, prompt_lens="10 20 30").load
    assert isinstance(several, Trace)
    assert (several.prompt_tokens.tolist(), several.output_tokens.tolist()) == ([10, 20, 30], [32, 32, 32])
    assert not several.arrival_s.any()


def test_stages_come_one_after_the_other() -> None:
    both = case_of(RATE, workload="general", request_rate=None).load
    assert isinstance(both, Trace)
    stage_s = DEFAULTS["stage"][0]
    slow, fast = STAGES["general"]
    counts = np.histogram(both.arrival_s, [0, stage_s, 2 * stage_s])[0]
    assert counts.tolist() == [slow * stage_s, fast * stage_s]
    assert np.allclose(np.diff(both.arrival_s[: int(slow * stage_s)]), 1 / slow)
    one = case_of(RATE, workload="general", request_rate=8.0)
    assert len(one.load.requests()) == 8 * stage_s
    # What users have in common is in the cache.
    assert one.setup.prefix_cached_tokens == 100
    assert "cached prompts" in one.cell.assumed
    assert case_of(RATE).setup.prefix_cached_tokens == 0


def test_options_are_those_told_or_what_a_batch_needs() -> None:
    assert case_of(CLOSED).setup == Setup(engine_version="0.15")
    told = case_of(CLOSED, max_num_seqs=17, max_num_batched_tokens=333).setup
    assert (told.max_num_seqs, told.max_num_batched_tokens) == (17, 333)
    assert case_of(STATIC, concurrency=1000).setup.max_num_seqs == 1000
    assert case_of(STATIC).setup.max_num_batched_tokens is None
    old = {"engine": "tensorrt-llm", "engine_version": "0.11.0"}
    assert case_of(STATIC, **old).setup.max_num_batched_tokens == 4 * 256
    assert case_of(STATIC, engine="sglang (one-batch)", prompt_lens="100 900").setup.max_num_batched_tokens == 1000


def test_clients_fewer_than_replicas_leave_some_idle() -> None:
    few, many = (case_of(CLOSED, replicas=8, tp=1, n_gpus=8, concurrency=n) for n in (2, 64))
    assert (few.setup.replicas, many.setup.replicas) == (2, 8)
    assert (few.cell.n_gpus, many.cell.n_gpus) == (8, 8)


def test_cells_without_graphs_or_prefix_caching_run_so() -> None:
    assert [case_of(CLOSED, cuda_graph=value).setup.graphs for value in (None, 0, 1)] == [True, False, True]
    shared = [case_of(RATE, workload="general", prefix_caching=v).setup.prefix_cached_tokens for v in (None, 0, 1)]
    assert shared == [100, 0, 100]


def test_tp_follows_from_devices() -> None:
    assert case_of(CLOSED, n_gpus=8, replicas=2).setup.tp == 4
    assert case_of(CLOSED).setup.tp == 1


@pytest.mark.parametrize(
    ("version", "model", "stated", "expected"),
    [
        ("1.0", "nvidia/Qwen3-235B-A22B-FP8", {}, (1, 8, 8)),
        ("1.0", "nvidia/Qwen3-235B-A22B-FP8", {"ep": 4}, (8, 1, 4)),
        ("1.0", "nvidia/Llama-3.3-70B-Instruct-FP8", {}, (8, 1, 1)),
        ("0.20.0", "nvidia/Qwen3-235B-A22B-FP8", {}, (8, 1, 1)),
    ],
)
def test_mixtures_of_an_overview_hold_attention_once_a_gpu(
    version: str, model: str, stated: dict[str, int], expected: tuple[int, int, int]
) -> None:
    row = {**OFFLINE, "engine": "tensorrt-llm", "engine_version": version, "cell": "trtllm-x/a", "tp": 8, "n_gpus": 8}
    case = case_of(row, model=model, **stated)
    assert (case.setup.tp, case.setup.dp, case.setup.ep) == expected
    assert case.cell.n_gpus == 8
    assert ("attention data parallelism of trtllm-docs" in case.cell.assumed) == (expected[1] == 8)
    assert case_of(row | {"cell": "lab/a"}, model=model).setup.dp == 1


def test_a_table_whose_cells_all_have_a_fault_has_means_of_all(predictor: Predictor, tmp_path: Path) -> None:
    found = evaluated(predictor, tmp_path, {**STATIC, "fault": "not told"})
    assert (found["means"], found["means_all"][0]["count"]) == ([], 1)


def test_defaults_are_told_with_their_reasons(predictor: Predictor, tmp_path: Path) -> None:
    bare = {key: CLOSED[key] for key in ("gpu", "model", "concurrency", "osl", "tpot_ms")}
    found = evaluated(predictor, tmp_path, {**bare, "workload": "gpqa"}, {**bare, "isl": 100.0})
    assumed = {row["what"]: row for row in found["assumed"]}
    assert set(assumed) == {"engine", "engine_version", "ep", "kv_dtype", "isl of gpqa", "spread of answers"}
    assert (assumed["engine"]["count"], assumed["isl of gpqa"]["count"]) == (2, 1)
    assert all(row["reason"] for row in found["assumed"])
    assert [row["cell"] for row in found["rows"]] == ["row 1", "row 2"]
    spread = case_of({**bare, "workload": "gpqa"}).load
    assert isinstance(spread, Closed)
    assert isinstance(spread.osl, Lengths)
    assert (spread.osl.mean, spread.osl.cv, spread.isl) == (32, DEFAULTS["spread of answers"][0], 250)


def test_versions_that_sources_do_not_tell() -> None:
    assert case_of(STATIC, cell="argonne/x", engine_version=None).setup.engine_version == "0.5"
    assert case_of(STATIC, engine_version="latest").setup.engine_version == ""
    assert case_of(STATIC, engine_version="0.9.0").setup.engine_version == "0.9.0"


def test_what_says_the_same_twice_counts_once() -> None:
    twice = {"prefill_ms": 5.0, "ttft_ms": 5.0, "tokens_per_s": 9.0}
    assert case_of(STATIC, **twice).cell.measured == {"prefill_ms": 5.0, "e2e_ms": 50.0}
    assert set(case_of(CLOSED, **twice, e2e_ms=50.0).cell.measured) == {*twice, "tpot_ms", "e2e_ms"}


def test_medians_stand_in_for_means() -> None:
    case = case_of(CLOSED, tpot_ms=None, tpot_p50_ms=3.0, ttft_ms=4.0, ttft_p50_ms=2.0)
    assert case.cell.measured == {"ttft_ms": 4.0, "tpot_ms": 3.0}
    assert case.cell.medians == {"tpot_ms"}
    assert not case.cell.median
    assert case_of(CLOSED, cell="mlenergy/x", tpot_ms=None, tpot_p50_ms=3.0).cell.median


def test_cells_that_cannot_be_asked_are_skipped_with_their_reason(predictor: Predictor, tmp_path: Path) -> None:
    wrong = {
        "unknown model 'smal'": {"model": "smal"},
        "unknown device": {"gpu": "h1000"},
        "isl is missing": {"isl": math.nan},
        "concurrency is missing": {"concurrency": math.nan},
        "mode 'burst': one of static": {"mode": "burst"},
        "osl = -3: 1 to": {"osl": -3},
        "nothing that is compared": {"e2e_ms": math.nan},
        "is no measurement": {"e2e_ms": 0.0},
        "weights in 'int3'": {"weight_dtype": "int3"},
        "unknown engine 'vlm'": {"engine": "vlm"},
        "exceed its context of 8192": {"isl": 8000, "osl": 500},
        "does not fit": {"model": "large"},
    }
    cells = [{**STATIC, **change, "cell": f"lab/{number}"} for number, change in enumerate(wrong.values())]
    pd.DataFrame([STATIC, *cells]).to_parquet(tmp_path / "cells.parquet")
    large = {**SMALL, "hidden_size": 32768, "intermediate_size": 131072, "num_hidden_layers": 64}
    (tmp_path / "models.json").write_text(json.dumps({"small": SMALL, "large": large}))
    found = evaluate_serving(tmp_path / "cells.parquet", predictor)
    assert [row["cell"] for row in found["rows"]] == ["lab/static"]
    reasons = {int(row["cell"].removeprefix("lab/")): row["reason"] for row in found["skipped"]}
    assert len(reasons) == len(wrong)
    assert not {said: reasons[at] for at, said in enumerate(wrong) if said not in reasons[at]}


def test_rows_that_are_selection(predictor: Predictor, tmp_path: Path) -> None:
    cells = [{**STATIC, "cell": f"{source}/{osl}", "osl": osl} for source in ("a", "b") for osl in range(2, 12)]
    drawn = [
        [row["cell"] for row in evaluated(predictor, tmp_path, *cells, selection=Selection(limit=5, seed=seed))["rows"]]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 5
    only = evaluated(predictor, tmp_path, *cells, selection=Selection(source="b"))["rows"]
    assert {row["source"] for row in only} == {"b"}
    with pytest.raises(DataError, match="no cell of source 'c': a, b"):
        evaluated(predictor, tmp_path, *cells, selection=Selection(source="c"))


def test_progress_counts_every_cell(predictor: Predictor, tmp_path: Path) -> None:
    evaluated(predictor, tmp_path, *ALL, {**STATIC, "mode": "burst"})
    seen: list[tuple[int, int]] = []
    evaluate_serving(tmp_path / "cells.parquet", predictor, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 5), (3, 5), (4, 5), (5, 5)]


def test_files_that_are_none(predictor: Predictor, tmp_path: Path) -> None:
    pd.DataFrame({"gpu": ["h100"], "kind": ["x"]}).to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(DataError, match="has no column model"):
        evaluate_serving(tmp_path / "cells.parquet", predictor)
    with pytest.raises(DataError, match=r"no cell of .* can be compared: nothing that is compared was measured"):
        evaluated(predictor, tmp_path, {**STATIC, "e2e_ms": math.nan})
    for text, said in (("[]", "holds no configurations"), ('{"small": 3}', "no configuration of 'small'")):
        (tmp_path / "mine.json").write_text(text)
        pd.DataFrame([STATIC]).to_parquet(tmp_path / "cells.parquet")
        with pytest.raises(DataError, match=said):
            evaluate_serving(tmp_path / "cells.parquet", predictor, tmp_path / "mine.json")


def test_schemes_by_who_publishes_them() -> None:
    schemes = {
        "nvidia/Qwen3-235B-A22B-FP8": "fp8", "Qwen/Qwen3-8B-FP8": "fp8_block", "zai-org/GLM-4.6-FP8": "fp8_block",
        "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "fp8_row", "meta-llama/Llama-3.1-70B": "fp8",
        "meta-llama/Llama-3.1-405B-Instruct-FP8": "fp8_row",
    }  # fmt: skip
    assert {model: scheme_of(model, "fp8").method for model in schemes} == schemes
    assert scheme_of("x", "int8").activations == ""
    assert scheme_of("openai/gpt-oss-20b", "mxfp4").kinds == {"experts"}
    assert scheme_of("deepseek-ai/DeepSeek-V4-Flash", "fp8+fp4").expert_weights == "mxfp4"
    with pytest.raises(ModelError, match="weights in 'fp7'"):
        scheme_of("x", "fp7")


def test_what_a_configuration_says_wins() -> None:
    plain = decoder_of(SMALL, "small")
    assert served_as(plain, "small", "float16").dtype == "float16"
    assert served_as(plain, "small", "").quantisation == plain.quantisation
    said = decoder_of({**SMALL, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "s")
    assert served_as(said, "nvidia/s-FP8", "fp8").quantisation.scaling == "block"
    assert served_as(plain, "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8").quantisation.dynamic is False


def test_engines_that_are_built_know_no_window() -> None:
    windowed = decoder_of({**SMALL, "model_type": "mistral", "sliding_window": 1024}, "w")
    plain = decoder_of({**SMALL, "model_type": "mistral", "sliding_window": None}, "w")
    built = built_by(windowed, Setup(engine="tensorrt-llm", engine_version="0.17.0"))
    assert built.kv_bytes(8192, "float16", 1) == plain.kv_bytes(8192, "float16", 1)
    assert built.kv_bytes(8192, "float16", 1) == 8 * windowed.kv_bytes(8192, "float16", 1)
    for engine, version in (("vllm", "0.5"), ("tensorrt-llm", "1.0"), ("tensorrt-llm", "")):
        assert built_by(windowed, Setup(engine=engine, engine_version=version)) == windowed


def test_what_prepares_deployments_decides_what_is_loaded(predictor: Predictor, tmp_path: Path) -> None:
    (usual,) = evaluated(predictor, tmp_path, CLOSED)["rows"]

    def one_at_a_time(deployment: Deployment) -> Deployment:
        return deployment.with_setup(max_num_seqs=1)

    (alone,) = evaluate_serving(tmp_path / "cells.parquet", predictor, prepare=one_at_a_time)["rows"]
    assert alone["predicted"] < 0.98 * usual["predicted"]


def test_drafts_are_read_and_columns_that_nothing_reads_are_named(predictor: Predictor, tmp_path: Path) -> None:
    drafted = {**STATIC, "cell": "lab/spec", "spec_decode": "JackFram/llama-68m x3", "mood": 0}
    wrong = {**STATIC, "cell": "lab/wrong", "spec_decode": "JackFram/llama-68m"}
    found = evaluated(predictor, tmp_path, {**STATIC, "mood": 1}, drafted, wrong)
    faults = {row["cell"]: row["fault"] for row in found["rows"]}
    assert faults == {"lab/static": "", "lab/spec": "accepted drafts are not told"}
    plain, fast = (next(r["predicted"] for r in found["rows"] if r["cell"] == name) for name in faults)
    assert fast != plain
    assert "like JackFram/llama-68m x3" in found["skipped"][0]["reason"]
    assert [row["value"] for row in found["assumed"] if row["what"] == "acceptance"] == [0.55]
    assert found["unread"] == [{"column": "mood", "rows": 2}]
