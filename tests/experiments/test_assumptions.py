"""What the code says of numbers that no fit found is told as it stands there."""

from neusight.experiments.assumptions import assumptions
from neusight.laws.power import LEAST_CLOCK


def test_a_number_is_told_with_its_module_and_its_reason() -> None:
    found = {a.name: a for a in assumptions()}
    told = found["LEAST_CLOCK"]
    assert (told.module, float(told.value)) == ("laws/power.py", LEAST_CLOCK)
    assert "assumption" in told.why


def test_what_is_cited_or_fitted_is_not_told() -> None:
    names = {a.name for a in assumptions()}
    assert "WINOGRAD_DTYPES" not in names
    assert not names & {"DEFAULT", "REFERENCE_NM"}
