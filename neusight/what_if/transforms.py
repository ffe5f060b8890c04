"""``Transform``: an optimisation that anyone may ask for by name, and how several are applied together.

A newcomer is one function with ``@transform`` in a module of ``neusight.what_if.catalogue``: it takes a question and
returns the question as it is with the optimisation, or raises ``InapplicableError`` with the reason why not. How long
that takes, and which memory, the pipeline answers as for any question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from neusight.distributed.training_run import TrainingRun
from neusight.errors import InapplicableError, ModelError, NeusightError, nearest, shown
from neusight.what_if.questions import DeploymentQuestion, Question, StepQuestion, changed

Q = TypeVar("Q", bound=Question)
KINDS: dict[type, str] = {
    StepQuestion: "a step of one model", TrainingRun: "a training run on a cluster", DeploymentQuestion: "a deployment",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """An optimisation.

    Attributes:
        name: by which it is asked for.
        group: what it is about, such as ``precision`` or ``memory``.
        summary: what it changes, one sentence.
        source: paper or documentation that says so.
        accuracy: what it may cost in the quality of results, as the source states it; '' where nothing.
        effort: what it takes to write.
        aliases: other names that papers and libraries have for it.
        functions: by the kind of question.
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
        """The same optimisation of another kind of question, which the function's argument tells."""
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
        if not changed(question, after):
            raise InapplicableError(f"{self.name} changes nothing: it is so already")
        return after


TRANSFORMS: dict[str, Transform] = {}
"""By name; see ``known``."""


def transform(
    name: str, *, group: str, source: str, accuracy: str = "", effort: str = "one line", aliases: tuple[str, ...] = ()
) -> Callable[[Callable[[Q], Q]], Transform]:
    """Decorator of the function that applies an optimisation; its docstring's first line is the summary."""

    def register(function: Callable[[Q], Q]) -> Transform:
        summary = " ".join((function.__doc__ or "").partition("\n\n")[0].split())
        made = Transform(
            name=name, group=group, summary=summary, source=source, accuracy=accuracy, effort=effort, aliases=aliases
        )
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
        ModelError: none has it.
    """
    transforms = known()
    name = next((one.name for one in transforms.values() if name in one.aliases), name)
    if name not in transforms:
        raise ModelError(
            f"unknown optimisation '{shown(name)}'{nearest(name, transforms)}: see `neusight what-if --list`"
        )
    return transforms[name]


def applied(question: Q, names: Iterable[str]) -> list[Q]:
    """The question after each of several optimisations, one upon the other.

    Raises:
        ModelError: an unknown name. InapplicableError: one of them does not apply, or changes what another has changed.
    """
    rungs: list[Q] = []
    owners: dict[str, str] = {}
    last = question
    for name in names:
        for fact in sorted(_decided(question, name)):
            if fact in owners:
                raise InapplicableError(
                    f"{name} and {owners[fact]} exclude each other: both decide {words(fact)}: leave out one"
                )
            owners[fact] = name
        last = named(name)(last)
        rungs.append(last)
    return rungs


def _decided(question: Question, name: str) -> frozenset[str]:
    """Facts that an optimisation changes by itself; none where it needs another before it."""
    try:
        return changed(question, named(name)(question))
    except InapplicableError:
        return frozenset()


def words(fact: str) -> str:
    """The name of a fact as people say it: ``request.engine.launch`` is ``launch``."""
    return fact.rpartition(".")[2].replace("_", " ")


def applicable(question: Question, names: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Names of optimisations that a question admits by what it states, and why the others do not apply."""
    able: list[str] = []
    refused: dict[str, str] = {}
    for name in names or known():
        try:
            named(name)(question)
            able.append(name)
        except NeusightError as error:
            refused[name] = str(error)
    return able, refused


def _kind_of(function: Callable[..., Any]) -> type:
    hints = get_type_hints(function)
    kind: type = next(iter(hints.values()))
    return kind
