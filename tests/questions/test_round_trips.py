"""Every field of every question, with values drawn from its declaration: all ways to write a question give it back."""

import json
import random
import shlex
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from neusight.cli.asked import Asked
from neusight.cli.spread import ParameterGroup
from neusight.questions import FieldError, Question
from neusight.questions.field import FieldSpec
from neusight.questions.files import KINDS, questions_of, read_entries
from neusight.questions.question import NamedField

DRAWN = 20
FIELDS = [(kind, name) for kind, noun in KINDS.items() for name in noun.fields()]
NETWORKS = ("400Gb/s", "8 x 400Gb/s", "4 x 100Gb/s efa")
TEXTS = ("a b", "x=1,2", "ü/ö.toml", "'quoted'", "8 x 400Gb/s")


def drawn(field: FieldSpec, generator: random.Random) -> Any:
    if field.kind == "switch":
        return generator.random() < 0.5
    if field.metavar == "WORDS":
        return generator.choice(NETWORKS)
    if field.pairs:
        return tuple(f"{letter}={generator.choice(TEXTS)}" for letter in "abc"[: generator.randint(1, 3)])
    if field.kind == "texts":
        return tuple(generator.sample(TEXTS, generator.randint(1, 3)))
    if field.kind == "text":
        return generator.choice(field.choices or [text for text in TEXTS if "," not in text or not field.listable])
    low, high = field.low or 0, field.high if field.high is not None else 1e6
    if field.kind in ("whole", "image"):
        return generator.choice([int(low), int(high), generator.randint(int(low), int(high))])
    return generator.choice([float(low), float(high), generator.uniform(low, high)])


def asked_with(kind: str, name: str, value: Any) -> Question:
    """A question with the words that every one of its kind needs, and one more."""
    return KINDS[kind](**needed(kind) | companions(kind, name) | {name: value})


def needed(kind: str) -> dict[str, Any]:
    return {name: "gemm" for name, one in KINDS[kind].fields().items() if one.required}


def companions(kind: str, name: str) -> dict[str, Any]:
    return {"mode": "training"} if (kind, name) == ("predict", "optimizer") else {}


def from_command_line(question: Question) -> Question:
    """What the options of the command make of the words that ``options`` writes."""
    noun = type(question)
    given: dict[str, Any] = {name: getattr(question, name) for name, one in noun.fields().items() if one.required}
    options = iter(shlex.split(shlex.join(question.options())))
    for word in options:
        if not word.startswith("--"):
            given.setdefault("shape", []).append(word)
            continue
        declared, negated = declared_as(noun, word)
        if declared.field.kind == "switch":
            given[declared.name] = not negated
        elif declared.field.kind == "texts":
            given.setdefault(declared.name, []).append(next(options))
        else:
            given[declared.name] = next(options)
    return Asked(noun, given).questions[0]


def declared_as(noun: type[Question], word: str) -> tuple[NamedField, bool]:
    for one in noun.fields().values():
        if word == one.option or word == one.option.replace("--", "--no-", 1):
            return one, word != one.option
    raise AssertionError(word)


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind}-{name}" for kind, name in FIELDS])
def test_every_way_to_write_a_question_gives_it_back(kind: str, name: str, tmp_path: Any) -> None:
    declared, generator = KINDS[kind].fields()[name], random.Random(f"{kind} {name}")
    for _ in range(DRAWN):
        question = asked_with(kind, name, drawn(declared.field, generator))
        noun = type(question)
        assert noun.named(question.words()) == question
        assert noun.named(list(question.texts())) == question
        assert noun.named(parse_qsl(urlencode(list(question.texts())))) == question
        assert from_command_line(question) == question
        path = tmp_path / "question.toml"
        words = "\n".join(f"{name} = {json.dumps(value)}" for name, value in question.record().items())
        path.write_text(f"version = 1\n[[question]]\n{words}\n", encoding="utf-8")
        assert [one for entry in read_entries(path) for one in questions_of(*entry)] == [question]
        assert kind == question.KIND


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind}-{name}" for kind, name in FIELDS])
def test_a_wrong_value_ends_in_one_line_with_the_name_of_the_field(kind: str, name: str) -> None:
    noun, field = KINDS[kind], KINDS[kind].fields()[name].field
    if field.objects:
        return
    wrong: list[Any] = [3.5j] if field.kind in ("text", "texts") else ["word", 3.5j]
    wrong += ["wrong-word"] if field.choices else []
    wrong += [field.low - 1] if field.low is not None else []
    wrong += [field.high * 2 + 1] if field.high is not None else []
    wrong += [f"{field.high * 2 + 1:g} parsec"] if field.unit else []
    for value in wrong:
        with pytest.raises(FieldError) as caught:
            noun.named(needed(kind) | {name: value})
        assert caught.value.field == name
        assert "\n" not in str(caught.value)
    if field.choices:
        with pytest.raises(FieldError, match=field.choices[-1]):
            noun.named(needed(kind) | {name: "quite another"})


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_ends_in_one_line_with_the_nearest(kind: str) -> None:
    noun = KINDS[kind]
    for name in noun.fields():
        if len(name) > 4:
            with pytest.raises(FieldError, match="did you mean"):
                noun.named({f"{name}x": "1"})
    with pytest.raises(FieldError, match="is no field"):
        noun.named({"quite_another": "1"})


@pytest.mark.parametrize("kind", KINDS)
def test_former_names_are_read_as_those_of_today(kind: str) -> None:
    noun = KINDS[kind]
    for name, one in noun.fields().items():
        for former in one.field.former:
            assert noun.today(former) == name


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_one_option_of_a_command(kind: str) -> None:
    noun = KINDS[kind]
    assert [parameter.name for parameter in ParameterGroup.of(Asked[noun]).parameters()] == list(noun.fields())
