"""Small tables of training: Hugging Face's ladder of BERT-large, and issues of other projects."""

from __future__ import annotations

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, gpu_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.step import step_question
from neusight.what_if import applied

OPTIMISATIONS = {
    "gradient accumulation": "gradient-accumulation", "activation checkpointing": "checkpointing", "AMP": "amp",
    "Adafactor": "adafactor", "8-bit Adam": "adam-8bit",
}  # fmt: skip
"""By what words for them begin with."""
MODELS = {"bert-large-uncased": "bert-large", "bert-base-uncased": "bert-base"}
"""Models of the catalogue; a head for sequences is read in part alone."""


@reads("training_ladder_hf_issues_and_small_tables", of=lambda record: record["optimisation"] != "compile")
def of_hugging_face(record: Row, stated: dict[str, str]) -> Pair:
    """ "Methods and tools for efficient training on a single GPU": "1x4" is one sample four times.

    Raises:
        DataError: another optimisation, or a model of another table.
    """
    words = str(record["as_written"])
    name = next((name for start, name in OPTIMISATIONS.items() if words.startswith(start)), "")
    model = MODELS.get(str(record["model"]))
    if not name or not model:
        raise DataError(f"'{words}' of {record['model']} is not read")
    batch, once = _batch(stated["batch"])
    step = step_question(
        model, gpu_of(record), mode="training", batch=batch, seq_len=whole(stated["seq"], "length"),
        optimizer="adamw", dtype="float32", attention="eager",
    )  # fmt: skip
    earlier = [*(["gradient-accumulation"] if once else []), *(["checkpointing"] if stated.get("ac") == "yes" else [])]
    earlier += ["amp"] if "amp" in stated.get("dtype", "") else []
    return Pair.of(record, applied(step, earlier)[-1] if earlier else step, [name])


def _batch(words: str) -> tuple[int, bool]:
    """Samples of a step, and whether they run one by one before it: "4 -> 1x4" do after it."""
    before = words.partition("->")[0].strip()
    each, _, times = before.partition("x")
    return whole(each, "batch") * (whole(times, "batch") if times else 1), bool(times)
