"""``read_command``: the engine that a command line or script starts, and its options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neusight.engines.launch_flags import END, dashed, engines_with_flags, flags_of, read_options
from neusight.errors import DataError, shown
from neusight.quick_dataclasses import dataclass

_ENDS = "\n;|&<>"
"""Characters that end a command."""
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
_IMAGE = re.compile(r"(?:vllm-openai|lmsysorg/sglang|tensorrt-llm/release):v?(\d[\w.]*)")
"""Container images of engines, with the version."""
_WORD = re.compile(r"""(?<![\w"'./-])[\w./-]+""")
"""Of a YAML table in braces."""


@dataclass(frozen=True, kw_only=True)
class EngineCommand:
    """A command that starts an engine.

    Attributes:
        engine: its name, as ``engines_with_flags`` has it.
        version: of the container image, "" where there is none.
        options: words by option; keys of JSON objects and of files as ``a.b``; the model as ``model``.
        script: the text without comments, continued lines and known variables.
    """

    engine: str
    version: str
    options: Mapping[str, str]
    script: str


def read_command(source: str) -> EngineCommand:
    """The command that a text, or a file with one, contains first.

    Raises:
        DataError: no such file, no known engine, or quotes without an end.
    """
    text, files = _plain(_text_of(source))
    engine, start, end = _program(text)
    flags = flags_of(engine)
    words = _words(text, whole=True) if flags.anywhere else _words(text[end:])
    given, rest = read_options(words, () if flags.anywhere else flags.valueless, flags.lists)
    options = dict(_flat({option: _parsed(word) for option, word in given.items()}))
    options |= {name: word for name, word in _assigned(text[:start]) if name in flags.names}
    names = [options.pop(option) for option in map(dashed, flags.file_options) if option in options]
    for name in names:
        options = _yaml(files[name] if name in files else _text_of(name)) | options
    image = _IMAGE.search(text[:end])
    model = {"model": rest[0]} if rest and not flags.anywhere else {}
    return EngineCommand(engine=engine, version=image[1] if image else "", options=model | options, script=text)


def _text_of(source: str) -> str:
    """The source itself where it has several words, else the text of the file."""
    if len(source.split()) > 1:
        return source
    try:
        return Path(source).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise DataError(
            f"'{shown(source)}' is no file with text: check the path, or write a command such as `vllm serve MODEL`"
        ) from None


def _plain(text: str) -> tuple[str, dict[str, str]]:
    """(the script without comments, continued lines and known variables; files that it writes, by name)."""
    text = _COMMENT.sub("", _CONTINUED.sub(" ", text))
    assigned = dict(_assigned(text))

    def value(match: re.Match[str]) -> str:
        braced, default, plain = match.groups()
        return assigned.get(dashed(braced or plain), match[0] if default is None else default)

    text = _VARIABLE.sub(value, _VARIABLE.sub(value, text))
    files = {(each["after"] or each["before"]): each["body"] for each in _WRITTEN.finditer(text)}
    return _WRITTEN.sub("", text), files


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """Variables at the beginning of lines, named like options."""
    for line in text.splitlines():
        while found := _ASSIGNED.match(line):
            yield dashed(found[1]), found[2].strip("\"'")
            line = line[found.end() :]


def _program(text: str) -> tuple[str, int, int]:
    """(engine, start and end of its name) of the first program that is known.

    Raises:
        DataError: none is.
    """
    for engine in engines_with_flags():
        for pattern in flags_of(engine).programs:
            if found := re.search(pattern, text):
                return engine, found.start(), found.end()
    known = "`vllm serve MODEL`, `python -m sglang.launch_server`, `trtllm-serve MODEL` or `torchrun pretrain_gpt.py`"
    raise DataError(f"'{shown(text.strip())}' starts no engine that is known: write it like {known}")


def _words(text: str, *, whole: bool = False) -> list[str]:
    """Words up to the end of the command, or of the whole script."""
    marks = f"{_ENDS}()" if whole else _ENDS
    split = shlex.shlex(text, posix=True, punctuation_chars=marks)
    split.whitespace, split.commenters, split.whitespace_split = " \t\r", "", True
    words: list[str] = []
    try:
        for word in split:
            ends = bool(word) and set(word) <= set(marks)
            if ends and not whole:
                break
            words.append(END if ends else word)
    except ValueError as error:
        raise DataError(f"the launch line does not read as one: {error}: mend its quotes") from None
    return words


def _parsed(word: str) -> Any:
    """A JSON object as such, any other word as it is."""
    try:
        return json.loads(word) if word.startswith("{") else word
    except ValueError:
        return word


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Keys of objects in objects as ``a.b``."""
    for key, value in values.items():
        name = dashed(f"{before}{key}")
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
        if value.startswith("{"):
            value = _parsed(_WORD.sub(r'"\g<0>"', value)) if '"' not in value else _parsed(value)
        if value:
            values |= _flat({name: value})
        else:
            above.append((indent, dashed(key)))
    return values
