"""``PageWords``: what only the page has in addition to a question, declared as fields of questions are."""

from __future__ import annotations

from neusight.page.accuracy import BY
from neusight.questions import Question
from neusight.questions.field import text, texts
from neusight.questions.parts import LOAD, MODEL
from neusight.quick_dataclasses import dataclass
from neusight.requests import MODES

VIEW = "View"


@dataclass(frozen=True, kw_only=True)
class PageWords(Question):
    """Words of views."""

    mode: str = text(
        "Inference is the forward pass; training adds the backward pass and the optimizer; serving is a language model "
        "under a load.",
        MODEL, "inference", choices=(*MODES, "serving"),
    )  # fmt: skip
    slo: str = text("Service level: limits that the cheapest deployment holds.", LOAD, metavar="ttft=200ms,tpot=30ms")
    axis: str = text("Field that the slider moves.", VIEW)
    space: str = text("Design space: a device to build, such as gpu or phaze.", VIEW)
    apply: tuple[str, ...] = texts("Optimisations that are applied one after the other, or `all`.", VIEW)
    by: str = text("Grouping: what accuracy is compared by.", VIEW, next(iter(BY)), choices=tuple(BY))
