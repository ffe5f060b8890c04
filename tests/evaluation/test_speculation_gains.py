"""Gains of speculative decoding: the formula, rows that are left out, and what was measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight import Predictor
from neusight.errors import DataError
from neusight.evaluation import evaluate_speculation
from neusight.evaluation.speculation import ACCEPTED, DRAFTINGS, HostWork, _Pair

NONE = HostWork(round=0.0, tree=0.0, draft=0.0, spread=0.1)


def pair(method: str, accepted: float = 3.0, verified_s: float = 1.0) -> _Pair:
    names = {"model": "", "gpu": "", "task": "", "gain": 1.0}
    return _Pair(method=method, accepted=accepted, one_s=1.0, verified_s=verified_s, layer_s=0.1, **names)


def test_a_round_takes_its_passes_and_its_host() -> None:
    assert pair("PLD").gain_with(NONE) == 3.0
    assert pair("PLD", verified_s=1.5).gain_with(NONE) == 2.0
    assert pair("SpS").gain_with(NONE) == pytest.approx(3.0 / (1 + 5 * 2 * 0.1))
    host = HostWork(round=0.2, tree=0.3, draft=0.1, spread=0.1)
    assert pair("PLD").gain_with(host) == pytest.approx(3.0 / 1.2)
    assert pair("EAGLE").gain_with(host) == pytest.approx(3.0 / (1 + 5 * 0.1 + 0.2 + 0.3 + 5 * 0.1))


def test_the_work_of_hosts_is_found_again() -> None:
    host = HostWork(round=0.05, tree=0.2, draft=0.07, spread=0.0)
    made = [pair(method, accepted) for method in DRAFTINGS for accepted in (2.0, 4.0)]
    known = [_Pair(**{**vars(each), "task": "Overall", "gain": each.gain_with(host)}) for each in made]
    found = HostWork.fitted(known)
    assert (found.round, found.tree, found.draft) == pytest.approx((0.05, 0.2, 0.07), abs=1e-4)
    assert found.spread == pytest.approx(0.0, abs=1e-4)


def row(method: str, **changes: Any) -> dict[str, Any]:
    told = {"task": "Overall", ACCEPTED: "2.5"}
    words = {"as_written": f"speculative decoding: {method}", "model": "Vicuna-7B-v1.3", "gpu": "a100-sxm-80gb"}
    return {"optimisation": "speculative-decoding", "gain": 1.9, "told": json.dumps(told), **words, **changes}


def test_rows_without_accepted_tokens_are_skipped(tmp_path: Path, predictor: Predictor) -> None:
    rows = [
        row("PLD"), row("Medusa"), row("EAGLE", told="{}"), row("Unheard"), row("PLD", optimisation="compile"),
        row("PLD", model="Llama-9"),
    ]  # fmt: skip
    pd.DataFrame(rows).to_parquet(file := tmp_path / "pairs.parquet")
    found = evaluate_speculation(file, predictor)
    assert [each["method"] for each in found["rows"]] == ["PLD", "Medusa"]
    assert [each["reason"] for each in found["skipped"]].count("a method or model that is not known") == 2
    assert [each["reason"] for each in found["skipped"]].count("accepted tokens are not stated") == 1
    pd.DataFrame([row("PLD")]).to_parquet(file)
    with pytest.raises(DataError, match="two methods"):
        evaluate_speculation(file, predictor)


@pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="needs the measured data")
def test_gains_given_accepted_tokens(predictor: Predictor) -> None:
    found = evaluate_speculation(Path(os.environ["NEUSIGHT_DATA"]) / "what-if" / "pairs.parquet", predictor)
    assert found["total"]["count"] == 217
    assert found["total"]["median"] < 12
    assert found["overall"]["median"] < 7
    assert 80 < found["total"]["inside"] < 97
