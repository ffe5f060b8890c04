"""``read_command``: the engine that a command line or script starts, and its options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from neusight.engines.launch_flags import END, dashed, engines_with_flags, flags_of, read_options
from neusight.errors import DataError, shown
from neusight.quick_dataclasses import dataclass

_CONTINUED = re.compile(r"\\[ \t]*(#[^\n]*)?\n")
_COMMENT = re.compile(r"(^|[ \t])#[^\n]*", re.MULTILINE)
_ASSIGNED = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"\n]*"|'[^'\n]*'|[^\s()]*)""", re.MULTILINE)
_VARIABLE = re.compile(r"""\$\{(\w+)(?::-["']?([^}"']*)["']?)?\}|\$(\w+)""")
_WRITTEN = re.compile(
    r"""(?:cat|tee)\b[ \t]*>*[ \t]*(?P<before>[^\s<>]*)[ \t]*<<-?[ \t]*['"]?(?P<end>\w+)['"]?"""
    r"(?:[ \t]*>+[ \t]*(?P<after>\S+))?[ \t]*\n(?P<body>.*?)\n[ \t]*(?P=end)[ \t]*(?=\n|$)",
    re.DOTALL,
)
"""A file that a script writes out of its lines."""
_ECHOED = re.compile(r"""\becho\s+(?P<before>-e\s+)?(["'])(?P<body>[^\n]*?)\2\s*>+\s*(?P<after>[^\s;|&]+)""")
"""A file that a script writes out of one text."""
_IMAGE = re.compile(r"(?:vllm-openai|lmsysorg/sglang|tensorrt-llm/release):v?(\d[\w.]*)")
"""Container images of engines, with the version."""
_WORD = re.compile(r"""(?<![\w"'./-])[\w./-]+""")
"""Words of a YAML table in braces."""


@dataclass(frozen=True, kw_only=True)
class EngineCommand:
    """A command that starts an engine.

    Attributes:
        engine: its name, as ``engines_with_flags`` has it.
        version: of the container image, "" where there is none.
        options: words by option; keys of JSON objects and of files as ``a.b``; the model as ``model``.
    """

    engine: str
    version: str
    options: Mapping[str, str]


def read_command(source: str) -> EngineCommand:
    """The command that a text, or a file with one, contains first.

    Raises:
        DataError: no such file, no known engine, or quotes without an end.
    """
    text, files = _plain(source if len(source.split()) > 1 else _text_of(source))
    engine, start, end = _program(text)
    flags = flags_of(engine)
    words = _words(text, whole=True) if flags.anywhere else _words(_within_quotes(text[:start], text[end:]))
    named, rest = read_options(words, () if flags.anywhere else flags.valueless, flags.lists, flags.assignments)
    options = dict(_flat(named))
    options |= {name: word for name, word in _assignments(text[:start]) if name in flags.names}
    names = [options.pop(option) for option in map(dashed, flags.file_options) if option in options]
    for name in names:
        options = _yaml(files.get(str(Path(name))) or _text_of(name, remedy="")) | options
    image = _IMAGE.search(text[:end])
    model = {"model": rest[0]} if rest and not flags.anywhere else {}
    return EngineCommand(engine=engine, version=image[1] if image else "", options=model | options)


def _text_of(name: str, remedy: str = ", or write a command such as `vllm serve MODEL`") -> str:
    """The text of a file.

    Raises:
        DataError: there is none: check its path, or the ``remedy``.
    """
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise DataError(f"'{shown(name)}' is no file with text: check the path{remedy}") from None


def _plain(text: str) -> tuple[str, dict[str, str]]:
    """(the script without comments, continued lines and known variables; files that it writes, by path)."""
    text = _COMMENT.sub("", _CONTINUED.sub(" ", text))
    assigned: dict[str, str] = {}
    for name, word in _assignments(text):
        assigned[name] = _expand(word, assigned)
    text = _expand(text, assigned)
    written = [*_WRITTEN.finditer(text), *_ECHOED.finditer(text)]
    files = {str(Path(part["after"] or part["before"])): part["body"].replace("\\n", "\n") for part in written}
    return _WRITTEN.sub("", text), files


def _expand(text: str, assigned: Mapping[str, str]) -> str:
    """The text with variables replaced by their values or defaults; those that have none stay."""

    def value(match: re.Match[str]) -> str:
        braced, default, plain = match.groups()
        return assigned.get(dashed(braced or plain), match[0] if default is None else default)

    return _VARIABLE.sub(value, text)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Variables at the beginning of lines, named like options."""
    for line in text.splitlines():
        while match := _ASSIGNED.match(line):
            yield dashed(match[1]), match[2].strip("\"'")
            line = line[match.end() :]


def _within_quotes(before: str, after: str) -> str:
    """The rest of a command that stands in quotes which are opened before it, as in ``bash -c "…"``."""
    line = before.rpartition("\n")[2]
    opened = [quote for quote in "\"'" if line.count(quote) % 2]
    return after.partition(opened[0])[0] if opened else after


def _program(text: str) -> tuple[str, int, int]:
    """(engine, start and end of its name) of the first program that is known.

    Raises:
        DataError: none is.
    """
    for engine in engines_with_flags():
        for pattern in flags_of(engine).programs:
            if match := re.search(pattern, text):
                return engine, match.start(), match.end()
    lines = "`vllm serve MODEL`, `python -m sglang.launch_server`, `trtllm-serve MODEL` or `torchrun pretrain_gpt.py`"
    raise DataError(f"'{shown(text.strip())}' starts no engine that is known: write it like {lines}")


def _words(text: str, *, whole: bool = False) -> list[str]:
    """Words up to the end of the command, or of the whole script."""
    marks = "\n;|&<>" + "()" * whole
    split = shlex.shlex(text, posix=True, punctuation_chars=marks)
    split.whitespace, split.commenters, split.whitespace_split = " \t\r", "", True
    words = (END if word and set(word) <= set(marks) else word for word in split)
    try:
        return list(takewhile(lambda word: whole or word != END, words))
    except ValueError as error:
        raise DataError(f"the launch line does not read as one: {error}: mend its quotes") from None


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Keys of objects in objects, and of texts that are JSON objects, as ``a.b``."""
    for key, setting in values.items():
        name, value = dashed(f"{before}{key}"), setting
        if isinstance(setting, str) and setting.startswith("{"):
            with suppress(ValueError):
                value = json.loads(setting)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _yaml(text: str) -> dict[str, str]:
    """Values by key, those of nested tables as ``a.b``: the part of YAML that engines' files use."""
    values: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or key.startswith(("#", "-")):
            continue
        indent = len(line) - len(line.lstrip())
        above = [(depth, name) for depth, name in above if depth < indent]
        name = ".".join([*(name for _, name in above), dashed(key)])
        value = _COMMENT.sub("", value).strip().strip("\"'")
        if value.startswith("{") and '"' not in value:
            value = _WORD.sub(r'"\g<0>"', value)
        if value:
            values |= _flat({name: value})
        else:
            above.append((indent, dashed(key)))
    return values
