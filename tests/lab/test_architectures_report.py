"""The report on architectures: every count follows from the answers."""

import json

from neusight.lab.architectures import Answer
from neusight.lab.architectures_report import render, summary_of, write

ANSWERS = (
    Answer(kind="a", latency_s=0.1, inputs=("input_ids=1x8:int64", "pixel_values=1x3x4x4:float32"), seconds=2.0),
    Answer(kind="b", latency_s=0.1, inputs=("input_ids=1x8:int64",), layers="default", seconds=4.0),
    Answer(
        kind="c", missing="cannot trace 'c': ValueError: a | b; check that it fits", group="does not run", seconds=9.0
    ),
    Answer(kind="d", missing="D cannot be built: no size; correct it", group="cannot be built", buildable=False),
)


def test_what_cannot_be_built_does_not_count():
    summary = summary_of(ANSWERS, "inference", "l4", 9)
    assert (summary["types"], summary["buildable"], summary["answered"]) == (4, 3, 2)
    assert summary["fed"] == {"text and images": 1, "text": 1}
    assert summary["default_depth"] == ["b"]
    assert [each["architectures"] for each in summary["reasons"]] == [["c"]]
    assert (summary["seconds"]["median"], summary["seconds"]["longest"]) == (3.0, 4.0)
    assert summary["missing"] == {"c": "ValueError: a \\| b"} and summary["unbuildable"] == {"d": "no size"}


def test_a_report_has_every_mode_that_was_checked(tmp_path):
    inference, training = (summary_of(ANSWERS, mode, "l4", 9) for mode in ("inference", "training"))
    write(tmp_path, inference)
    files = write(tmp_path, training)
    assert json.loads(files[0].read_text()) == {"inference": inference, "training": training}
    text = files[1].read_text()
    assert text == render({"inference": inference, "training": training})
    assert "66.7 %" in text and "4 of 9" in text and "## Inference" in text and "## Training" in text


def test_a_report_says_how_its_types_were_drawn():
    some, every = (summary_of(ANSWERS, "inference", "l4", known, 7) for known in (9, len(ANSWERS)))
    assert "--mode inference --limit 4 --seed 7 --report" in render({"inference": some})
    assert "--mode inference --report" in render({"inference": every})


def test_an_outdated_mode_says_so_until_it_is_run_again():
    old = summary_of(ANSWERS, "inference", "l4", 9) | {"outdated": "Of an earlier run."}
    assert "\n> Of an earlier run.\n" in render({"inference": old})
    assert "\n> " not in render({"inference": summary_of(ANSWERS, "inference", "l4", 9)})
