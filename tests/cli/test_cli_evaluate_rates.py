"""``neusight evaluate rates``: one table of every GPU as data, and pages that read at 80 columns."""

import os

import pytest
from cli_runs import as_json, run

pytestmark = pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="needs the measured data")


def test_every_gpu_is_in_the_table_and_outliers_have_a_reason() -> None:
    command = ("evaluate", "rates", os.environ["NEUSIGHT_DATA"])
    answer, page = as_json(*command), run(*command).stdout
    lines = page.splitlines()
    assert all(any(line.startswith(f"{row['gpu']} ") for line in lines) for row in answer["rows"])
    assert all(row["outlier"] in page for row in answer["rows"] if row["outlier"])
    assert max(map(len, lines)) <= 80
