"""Values of fields that a question leaves open."""

import pytest

from neusight.devices import cluster_of
from neusight.questions import KernelCall, Question, Serving, Step
from neusight.questions.field import FieldSpec

SERVED = [Serving(model="m", engine=engine) for engine in ("vllm", "sglang", "tensorrt-llm")]
ASKED: list[tuple[Question, str]] = [
    *((question, name) for question in SERVED for name in ("engine_version", "attention_backend")),
    *((SERVED[0], name) for name in ("network", "kv_dtype", "arrivals", "isl", "osl")),
    (Step(model="m"), "host_call_us"),
    (KernelCall(name="attention", backend="vllm"), "variant"),
]


@pytest.mark.parametrize(("question", "name"), ASKED, ids=[f"{type(q).__name__}-{name}" for q, name in ASKED])
def test_if_unset_returns_values_with_sources(question: Question, name: str) -> None:
    field: FieldSpec = question.fields()[name].field
    usual = field.if_unset(question)
    assert len({each.value for each in usual}) == len(usual) >= 2
    assert all(len(each.source) > 20 for each in usual)
    assert [field.check(name, each.value) for each in usual] == [each.value for each in usual]
    if name == "network":
        assert all(cluster_of("h100-sxm-80gb", 8, 2, each.value).nodes == 2 for each in usual)
