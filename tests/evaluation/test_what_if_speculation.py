"""Speculative decoding by its method: what a row asks, and what was measured."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.evaluation.what_if import evaluate_what_if
from neusight.evaluation.what_if.cases import UnnamedModelError, pair_of
from neusight.evaluation.what_if.speculation import ACCEPTED, accepted_each
from neusight.serving import Speculation
from neusight.what_if.gain import Gain


def row(method: str, accepted: float = 2.5, **changes: Any) -> dict[str, Any]:
    told = {"task": "Overall", "batch": "1"} | ({ACCEPTED: str(accepted)} if accepted else {})
    words = {"as_written": f"speculative decoding: {method}", "model": "Vicuna-7B-v1.3", "gpu": "a100-sxm-80gb"}
    return {
        "set": "speculative_decoding_specbench",
        "metric": "throughput",
        "told": json.dumps(told),
        **words,
        **changes,
    }


def test_the_acceptance_gives_as_many_tokens_as_are_stated() -> None:
    each = accepted_each(3.2, 5)
    assert Speculation(draft="eagle", tokens=5, acceptance=(each,)).gain == pytest.approx(3.2)
    with pytest.raises(DataError, match="branches of 2"):
        accepted_each(3.5, 2)


def test_rows_that_do_not_tell_enough_are_refused() -> None:
    with pytest.raises(UnnamedModelError, match="accepted tokens"):
        pair_of(row("EAGLE", 0.0))
    with pytest.raises(DataError, match="how Unheard drafts"):
        pair_of(row("Unheard"))


def test_a_deeper_tree_costs_more_host(predictor: Predictor) -> None:
    """Looked-up drafts in a row gain what they have accepted, up to what a wider pass takes; of a tree the host masks
    attention, and passes of a draft are its own.
    """

    def gain(method: str) -> float:
        pair = pair_of(row(method, 2.0))
        return Gain.of(predictor.answer(pair.before), predictor.answer(pair.after), pair.metric).ratio

    in_a_row, tree, drafted = map(gain, ("PLD", "Medusa", "EAGLE"))
    assert 2.02 > in_a_row > tree > drafted > 1.0


@pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="needs the measured data")
def test_gains_given_accepted_tokens(predictor: Predictor, tmp_path: Path) -> None:
    pairs = pd.read_parquet(Path(os.environ["NEUSIGHT_DATA"]) / "what-if" / "pairs.parquet")
    drafts = pairs[(pairs["set"] == "speculative_decoding_specbench") & (pairs["gpu"] == "a100-sxm-80gb")]
    small = drafts[(drafts["model"] == "Vicuna-7B-v1.3") & drafts["told"].str.contains("Overall")]
    small.to_parquet(file := tmp_path / "pairs.parquet")
    found = evaluate_what_if(file, predictor)
    assert found["total"]["count"] == len(small) == 10
    assert found["total"]["median"] < 18
    assert found["total"]["sign"] == 100
