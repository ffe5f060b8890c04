"""``Transform``: an optimisation that is requested by name, and functions that apply several together.

A new one is one function with ``@transform`` in a module of ``neusight.what_if.catalogue``: it takes a question and
returns the question with the optimisation, or raises ``InapplicableError`` with the reason why not. The pipeline
predicts time and memory as for any question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError, ModelError, NeusightError, nearest, shown
from neusight.what_if.questions import DeploymentQuestion, Question, StepQuestion, changed_facts

Q = TypeVar("Q", bound=Question)
KINDS: dict[type, str] = {
    StepQuestion: "a step of one model", TrainingRun: "a training run on a cluster", DeploymentQuestion: "a deployment",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """An optimisation.

    Attributes:
        name: name by which it is requested.
        group: its topic, such as ``precision`` or ``memory``.
        summary: the change in one sentence.
        source: paper or documentation that describes it.
        accuracy: possible cost in the quality of results, according to the source; '' for no cost.
        effort: work that it takes to write.
        aliases: other names in papers and libraries.
        functions: functions that apply it, by the kind of question.
    """

    name: str
    group: str
    summary: str
    source: str
    accuracy: str = ""
    effort: str = "one line"
    aliases: tuple[str, ...] = ()
    functions: dict[type, Callable[[Any], Any]] = field(default_factory=dict)

    def also(self, function: Callable[[Q], Q]) -> Callable[[Q], Q]:
        """Register the same optimisation for another kind of question, that of the function's argument."""
        self.functions[_kind_of(function)] = function
        return function

    def __call__(self, question: Q) -> Q:
        """The question with the optimisation.

        Raises:
            InapplicableError: with the reason.
        """
        function = self.functions.get(type(question))
        if function is None:
            kinds = " or ".join(KINDS[kind] for kind in self.functions)
            raise InapplicableError(f"{self.name} is of {kinds}, not of {KINDS[type(question)]}")
        after: Q = function(question)
        if not changed_facts(question, after):
            raise InapplicableError(f"{self.name} changes nothing: it is so already")
        return after


TRANSFORMS: dict[str, Transform] = {}
"""All registered optimisations by name; see ``known``."""


def transform(name: str, **described: Any) -> Callable[[Callable[[Q], Q]], Transform]:
    """Decorator of the function that applies an optimisation; its docstring's first line is the summary.

    Args:
        name: name by which it is requested.
        described: other attributes of ``Transform``, ``group`` and ``source`` among them.
    """

    def register(function: Callable[[Q], Q]) -> Transform:
        summary = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
        made = Transform(name=name, summary=summary, **described)
        made.also(function)
        TRANSFORMS[name] = made
        return made

    return register


def known() -> dict[str, Transform]:
    """All optimisations by name."""
    from neusight.what_if import catalogue

    catalogue.load()
    return TRANSFORMS


def named(name: str) -> Transform:
    """The optimisation of a name or alias.

    Raises:
        ModelError: no optimisation has this name.
    """
    transforms = known()
    name = next((t.name for t in transforms.values() if name in t.aliases), name)
    if name not in transforms:
        raise ModelError(
            f"unknown optimisation '{shown(name)}'{nearest(name, transforms)}: see `neusight what-if --list`"
        )
    return transforms[name]


def applied(question: Q, names: Iterable[str]) -> list[Q]:
    """The question after each of several optimisations, applied cumulatively.

    Raises:
        ModelError: an unknown name. InapplicableError: one of them does not apply, or changes what another has changed.
    """
    rungs: list[Q] = []
    owners: dict[str, str] = {}
    last = question
    for name in names:
        for fact in sorted(_changes(question, name)):
            if fact in owners:
                raise InapplicableError(
                    f"{name} and {owners[fact]} exclude each other: both decide {words(fact)}: leave out one"
                )
            owners[fact] = name
        last = named(name)(last)
        rungs.append(last)
    return rungs


def _changes(question: Question, name: str) -> frozenset[str]:
    """Facts that an optimisation changes if applied alone; empty where it needs another before it."""
    try:
        return changed_facts(question, named(name)(question))
    except InapplicableError:
        return frozenset()


def words(fact: str) -> str:
    """The last part of a fact's name in words: ``request.engine.launch`` is ``launch``."""
    return fact.rpartition(".")[2].replace("_", " ")


def applicable(question: Question, names: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Names of optimisations that apply to a question by its options, and reasons why the others do not."""
    able: list[str] = []
    refused: dict[str, str] = {}
    for name in names or known():
        try:
            named(name)(question)
            able.append(name)
        except NeusightError as error:
            refused[name] = str(error)
    return able, refused


_OTHERWISE = {"training": "the step has no backward pass", "inference": "the step trains"}


def check_mode(step: StepQuestion, mode: str) -> None:
    """Raises:
    InapplicableError: the step is of another mode.
    """
    if step.request.mode != mode:
        raise InapplicableError(f"{_OTHERWISE[mode]}: this is of {mode}")


def _kind_of(function: Callable[..., Any]) -> type:
    hints = get_type_hints(function)
    kind: type = next(iter(hints.values()))
    return kind
