"""``flags_of``: the options of an engine or trainer, by the field of a question that each gives (``flags/*.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from neusight.quick_dataclasses import dataclass

_FOLDER = Path(__file__).with_name("flags")
END = "\n"
"""Stands for the end of a line among words."""
Entry = str | Mapping[str, Any]
"""An option that takes a value, or switches with the value that each gives."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options by the field of a question that they give, in a file of ``flags``.

    Some names are no field but parts of one, such as ``draft`` and ``adapters``, which front ends put together.

    Attributes:
        programs: patterns of what starts the engine; options follow.
        command: what is written before the model and its options.
        across_nodes: how the command is run on several nodes.
        before_across: what is written before the command there, for so many ``{ranks}``.
        fields: by field, options that take its value, and switches with the value that each gives. The first is the
            one that is written, in the order of the table. ``a.b`` is the key ``b`` of the JSON of option ``a``.
        file: the same of keys of the YAML file that the first of ``file_options`` names.
        values: the field's value by the option's word, of options whose words differ from the field's.
        unset: what the engine does where no option says it, where that is not the field's default.
        model: options that are sizes of the model, by key of a configuration; the first that is given counts.
        vocabularies: tokens by name of a tokenizer.
        passed: options that decide neither time nor memory, and those whose effect is that of the load.
        unread: options that decide time or memory, and that no field takes.
        switches: those of ``passed`` and ``unread`` that take no value.
        lists: options that take several words.
        assignments: options whose word is another option with its word, ``--set a.b=c``.
        anywhere: whether options may stand anywhere in a script, such as in arrays of a shell.
    """

    programs: Sequence[str]
    command: str = ""
    across_nodes: str = ""
    before_across: str = ""
    fields: Mapping[str, Sequence[Entry]]
    file: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    file_options: Sequence[str] = ()
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unset: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    passed: Sequence[str] = ()
    switches: Sequence[str] = ()
    unread: Sequence[str] = ()
    lists: Sequence[str] = ()
    assignments: Sequence[str] = ()
    anywhere: bool = False

    @cached_property
    def valueless(self) -> Collection[str]:
        """Options that take no value."""
        return {name for name, (_, value) in self.names.items() if value is not None} | {*self.switches}

    def is_unread(self, option: str) -> bool:
        """Whether an option decides time or memory without being a field's; of ``a.b`` also where ``a`` does."""
        base = option.partition(".")[0]
        return option in self.unread or (base in self.unread and option not in self.all_names)

    def is_known(self, option: str) -> bool:
        """Whether an option is listed, or of ``a.b`` the option ``a``."""
        return not self.all_names.isdisjoint((option, option.partition(".")[0]))

    def completed(self, option: str) -> str:
        """The option that the beginning of a name stands for, as ``argparse`` reads it."""
        if self.is_known(option):
            return option
        longer = [name for name in self.all_names if name.startswith(option)]
        return longer[0] if len(longer) == 1 else option

    @cached_property
    def all_names(self) -> Set[str]:
        """All options that are listed."""
        return {*self.names, *self.passed, *self.unread, *self.switches, *map(dashed, self.file_options)}

    @cached_property
    def names(self) -> Mapping[str, tuple[str, Any]]:
        """(field, value that a switch gives, else None) of every option, with dashes."""
        entries = [
            (name, entry) for table in (self.fields, self.file) for name, several in table.items() for entry in several
        ]
        return {
            dashed(option): (name, value)
            for name, entry in entries
            for option, value in ({entry: None} if isinstance(entry, str) else entry).items()
        }

    def value(self, option: str, word: str) -> Any:
        """The field's value that a word of an option stands for."""
        return self.values.get(dashed(option), {}).get(word, word)

    def written(self, values: Mapping[str, Any], *, in_file: bool = False) -> Iterator[tuple[str, Any]]:
        """(option, word) of each value by field that is not None, in the order of the table; None for a switch."""
        for name, entries in (self.file if in_file else self.fields).items():
            if values.get(name) is not None:
                yield from self._option(entries[0], values[name])

    def _option(self, entry: Entry, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(entry, str):
            words = {meant: word for word, meant in reversed([*self.values.get(dashed(entry), {}).items()])}
            yield entry, words.get(value, value)
        else:
            yield from [(option, None) for option, given in entry.items() if given == value][:1]


@cache
def flags_of(engine: str) -> Flags:
    """The options of an engine in ``engines_with_flags``."""
    tables = tomllib.loads((_FOLDER / f"{engine}.toml").read_text(encoding="utf-8"))
    compared = {name: [*map(dashed, tables.get(name, ()))] for name in ("passed", "unread", "switches")}
    values = {dashed(option): words for option, words in tables.get("values", {}).items()}
    return Flags(**{**tables, **compared, "values": values})


def engines_with_flags() -> Sequence[str]:
    """Names of the engines whose options are known."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def dashed(option: str) -> str:
    """An option's name as it is compared: engines read underscores as dashes."""
    return option.replace("_", "-")


def read_options(
    words: Sequence[str], switches: Collection[str], lists: Collection[str], assignments: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """(words by option, "" for none, and words that belong to no option) of a command line.

    Args:
        words: after the name of the program; after ``END`` no word is an option's.
        switches: options that take no value.
        lists: options that take all words up to the next option.
        assignments: options whose word is another option with its word.
    """
    given: dict[str, str] = {}
    rest: list[str] = []
    option = ""
    for word in _single(words):
        if word == END:
            option = ""
        elif option in assignments:
            name, _, value = word.partition("=")
            given[dashed(name)], option = value, ""
        elif word.startswith("-") and not word[1:2].isdigit():
            option, stated, value = word.lstrip("-").partition("=")
            option = dashed(option)
            if option in assignments:
                continue
            given[option] = value
            option = "" if stated or option in switches else option
        elif option and (not given[option] or option in lists):
            given[option] = f"{given[option]} {word}".strip()
        else:
            rest.append(word)
    return given, rest


def _single(words: Sequence[str]) -> Iterator[str]:
    """Words, of which some are an option and its value in quotes, as arrays of a shell have them."""
    for word in words:
        name, *values = word.split(maxsplit=1) or [word]
        yield from (name, *values) if name.startswith("--") and "=" not in name else (word,)
