"""Values of fields that a question leaves open."""

import pytest

from neusight.devices import cluster_of
from neusight.engines.server import era_of
from neusight.questions import KernelCall, Question, Serving, Step, Training
from neusight.questions.field import FieldSpec

SERVED = [Serving(model="m", engine=engine) for engine in ("vllm", "sglang", "tensorrt-llm")]
ASKED: list[tuple[Question, str]] = [
    *((question, "engine_version") for question in SERVED),
    (SERVED[0], "network"),
    (Step(model="m"), "host_call_us"),
]


@pytest.mark.parametrize(("question", "name"), ASKED, ids=[f"{type(q).__name__}-{name}" for q, name in ASKED])
def test_if_unset_returns_values_with_sources(question: Question, name: str) -> None:
    field: FieldSpec = question.fields()[name].field
    usual = field.if_unset(question)
    assert len({each.value for each in usual}) == len(usual) >= 2
    assert all(len(each.source) > 20 and each.weight > 0 for each in usual)
    assert [field.check(name, each.value) for each in usual] == [each.value for each in usual]
    if name == "network":
        assert all(cluster_of("h100-sxm-80gb", 8, 2, each.value).nodes == 2 for each in usual)


def test_if_unset_is_of_conditions_alone() -> None:
    nouns = KernelCall, Serving, Step, Training
    conditions = {
        name for noun in nouns for name, each in noun.fields().items() if each.field.if_unset != FieldSpec.if_unset
    }
    assert conditions == {"engine_version", "network", "host_call_us"}


def test_versions_have_one_of_each_era_with_all_runs() -> None:
    versions = SERVED[0].versions
    eras = [era_of("vllm", version).name for version, _ in versions]
    assert len(set(eras)) == len(eras) >= 2
    assert sum(share for _, share in versions) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "question", [SERVED[0].changed(engine_version="0.15.1"), *SERVED[1:]], ids=["given", "sglang", "tensorrt-llm"]
)
def test_versions_are_empty_where_one_era_is_meant(question: Serving) -> None:
    assert question.versions == ()


def test_versions_on_a_vendors_devices_are_those_with_a_build_for_them() -> None:
    on_amd = SERVED[0].changed(gpu="mi300x")
    assert "0.19.0" in {version for version, _ in SERVED[0].changed(gpu="h100-sxm-80gb").versions}
    assert {version for version, _ in on_amd.versions} == {"0.10.2", "0.18.0"}
    assert sum(share for _, share in on_amd.versions) == pytest.approx(1.0)
