"""What a live server says of its passes: records of requests, log lines of vLLM and SGLang, dumps of vLLM's metrics.

All become ``ServerWindows``: stretches of time in each of which a pass had so many sequences, and a token took so long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from neusight.errors import DataError, LoadError, shown
from neusight.estimates.core import summed
from neusight.serving.load import TRACE_COLUMNS, request_columns

WINDOWS = 32
"""Stretches into which records of requests are cut."""
SAMPLES = 64
"""Times of a stretch at which the requests that generate are counted."""
STEADY = 0.2
"""By which share the requests that run may differ between both ends of a stretch: averages hide what was between."""
DECODE_LINES = 40
"""Passes that generate between two log lines of SGLang (``--decode-log-interval``)."""
LEAST = 4
"""Windows, of which half are held out."""


@dataclass(frozen=True)
class ServerWindows:
    """Columns of shape (n,), in order of time.

    ``decodes`` sequences generate in a pass, with ``decode_cached`` tokens of each in the cache; ``prompts`` come to
    run with each token of a sequence, of ``prompt_tokens``; ``token_s`` is the time between two tokens of a sequence.
    """

    decodes: np.ndarray
    decode_cached: np.ndarray
    prompts: np.ndarray
    prompt_tokens: np.ndarray
    token_s: np.ndarray

    def __len__(self) -> int:
        return len(self.token_s)

    @classmethod
    def of(cls, rows: Iterable[Window]) -> ServerWindows:
        """Of rows, those in which anything was generated."""
        known = [(*seen, token_s) for *seen, token_s in rows if token_s > 0 and seen[0] > 0]
        return cls(*np.array(known, dtype=float).reshape(-1, 5).T.copy())


Window = tuple[float, float, float, float, float]
"""A stretch of time, in the order of columns of ``ServerWindows``."""


@dataclass(frozen=True, kw_only=True)
class ServerLog:
    """Windows, and the share of drafted tokens that were accepted where the server speculates; ``kind`` of log."""

    kind: str
    windows: ServerWindows
    acceptance: float | None = None


def read_log(paths: Sequence[Path], kv_tokens: int, isl: int | None = None) -> ServerLog:
    """What files say, by what is in them: several are dumps of metrics in order of time.

    Args:
        paths: a table of requests (.csv, .jsonl, .parquet), a log, or dumps.
        kv_tokens: that the server's cache holds, of which vLLM logs the share in use.
        isl: tokens of a prompt on average, which log lines of vLLM do not tell.

    Raises:
        DataError: a file that is missing or none of these. LoadError: too little in it.
    """
    texts = [_text(path) for path in paths]
    if paths[0].suffix in (".csv", ".jsonl", ".ndjson", ".parquet"):
        log = ServerLog(kind="records of requests", windows=_recorded(paths[0]))
    elif _METRIC.search(texts[0]):
        log = _metered(texts)
    elif "Avg generation throughput" in texts[0]:
        log = _vllm_lines(texts[0], kv_tokens, isl)
    elif "Decode batch" in texts[0]:
        log = ServerLog(kind="log of SGLang", windows=_sglang_lines(texts[0]))
    else:
        known = "records of requests, log lines of vLLM or SGLang with throughputs, nor metrics of vLLM"
        raise DataError(f"{paths[0]} holds no {known}: give one of these")
    if len(log.windows) < LEAST:
        text = f"{paths[0]}: {len(log.windows)} stretches in which the server generated steadily, {LEAST} are needed"
        raise LoadError(f"{text}: give a longer log{', or --isl' if isl is None and log.kind == VLLM_LINES else ''}")
    return log


def _text(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"cannot read the log {path}: there is no such file: check the path")
    return "" if path.suffix == ".parquet" else path.read_text(encoding="utf-8", errors="replace")


RECORD_COLUMNS = TRACE_COLUMNS | {
    "ttft_s": ("ttft_s", "ttft_ms", "ttft", "time_to_first_token"),
    "tpot_s": ("tpot_s", "tpot_ms", "tpot", "time_per_output_token"),
}
"""Columns of records: those of a trace, and what each request got."""


def _recorded(path: Path) -> ServerWindows:
    """Requests as a client saw them: between its first and last token each is among those that generate."""
    columns = request_columns(path, RECORD_COLUMNS)
    several = (columns["output_tokens"] > 1) & (columns["tpot_s"] > 0)
    known = {what: column[several] for what, column in columns.items()}
    if not several.any():
        raise LoadError(f"{path} holds no answers of several tokens: a time per token is observed in those alone")
    answers = _Answers(
        first_s=known["arrival_s"] + known["ttft_s"],
        tokens=known["output_tokens"] - 1.0,
        tpot_s=known["tpot_s"],
        prompt_tokens=known["prompt_tokens"],
    )
    edges = np.quantile(np.concatenate([answers.first_s, answers.last_s]), np.linspace(0.05, 0.95, WINDOWS + 1))
    windows = (answers.window(*ends) for ends in pairwise(edges) if ends[1] > ends[0])
    return ServerWindows.of(window for window in windows if window)


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """Columns of shape (n,): when the first token came, tokens behind it, time of each, and tokens of the prompt."""

    first_s: np.ndarray
    tokens: np.ndarray
    tpot_s: np.ndarray
    prompt_tokens: np.ndarray

    @property
    def last_s(self) -> np.ndarray:
        return np.asarray(self.first_s + self.tokens * self.tpot_s)

    def window(self, begin_s: float, end_s: float) -> Window | None:
        """What a token between two times saw: its sequences weigh by themselves, crowded moments more; None where those
        that run change.
        """
        at_s = begin_s + (np.arange(SAMPLES) + 0.5) / SAMPLES * (end_s - begin_s)
        now = (self.first_s[:, None] <= at_s) & (at_s < self.last_s[:, None])
        running, rate = now.sum(axis=0), (now / self.tpot_s[:, None]).sum(axis=0)
        cached = now * (self.prompt_tokens[:, None] + (at_s - self.first_s[:, None]) / self.tpot_s[:, None])
        new = (begin_s <= self.first_s) & (self.first_s < end_s)
        total = float(running.sum())
        ends = running[: SAMPLES // 4].mean(), running[-SAMPLES // 4 :].mean()
        if not _steady(*ends):
            return None
        token_s, busy_s = total / rate.sum(), (end_s - begin_s) * (running > 0).mean()
        prompts = float(new.sum()) * token_s / busy_s
        prompt_tokens = float(self.prompt_tokens[new].mean()) if new.any() else 0.0
        return float((running**2).sum()) / total, float(cached.sum()) / total, prompts, prompt_tokens, token_s


def _steady(before: float, after: float) -> bool:
    return bool(after > 0 and abs(after - before) <= STEADY * max(after, before))


VLLM_LINES = "log of vLLM"
_VLLM = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs?.*?KV cache usage: ([\d.]+)%"
)
_DRAFTED = re.compile(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens")


def _vllm_lines(text: str, kv_tokens: int, isl: int | None) -> ServerLog:
    """Averages of some seconds, beside how many run at the end of them: lines between which that hardly changed."""
    lines = [tuple(map(float, match.groups())) for match in _VLLM.finditer(text)]
    rows = []
    for (_, _, before, _), (prompt_rate, token_rate, running, use) in pairwise(lines):
        if token_rate and _steady(before, running) and (isl or not prompt_rate):
            decodes = (running + before) / 2
            token_s = decodes / token_rate
            prompts = prompt_rate / isl * token_s if isl else 0.0
            rows.append((decodes, use / 100 * kv_tokens / running, prompts, float(isl or 0), token_s))
    drafted = [tuple(map(int, match.groups())) for match in _DRAFTED.finditer(text)]
    acceptance = sum(a for a, _ in drafted) / sum(d for _, d in drafted) if drafted else None
    return ServerLog(kind=VLLM_LINES, windows=ServerWindows.of(rows), acceptance=acceptance)


_PREFILL = re.compile(r"Prefill batch.*?#new-seq: (\d+), #new-token: (\d+)")
_DECODE = re.compile(
    r"Decode batch.*?#running-req: (\d+), #(?:full )?token: (\d+).*?gen throughput \(token/s\): ([\d.]+)"
)


def _sglang_lines(text: str) -> ServerWindows:
    """A line every so many passes that generate, lines of prompts in between."""
    rows, prompts, tokens, before = [], 0.0, 0.0, 0.0
    for line in text.splitlines():
        if match := _PREFILL.search(line):
            prompts, tokens = prompts + float(match[1]), tokens + float(match[2])
        elif match := _DECODE.search(line):
            running, cached, rate = map(float, match.groups())
            if rate and _steady(before, running):
                decodes = (running + before) / 2
                each = tokens / prompts if prompts else 0.0
                rows.append((decodes, cached / running, prompts / DECODE_LINES, each, decodes / rate))
            prompts, tokens, before = 0.0, 0.0, running
    return ServerWindows.of(rows)


_METRIC = re.compile(r"^(vllm:\w+)(?:\{[^}]*\})? ([-+.\deE]+)", re.M)
_NEEDED: dict[str, tuple[str, ...]] = {
    "passes": ("vllm:iteration_tokens_total_count",),
    "tokens": ("vllm:generation_tokens_total",),
    "gaps": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "gaps_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "prompts": ("vllm:time_to_first_token_seconds_count",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
}
"""Counters, by the names that they had: time per output token of older versions is that between tokens."""
_ACCEPTED = ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total")


def _metered(texts: Sequence[str]) -> ServerLog:
    """Differences of counters between dumps."""
    dumps = [_counters(text) for text in texts]
    windows = ServerWindows.of(_between(dumps))
    accepted, drafted = (dumps[-1].get(name, 0.0) - dumps[0].get(name, 0.0) for name in _ACCEPTED)
    return ServerLog(kind="metrics of vLLM", windows=windows, acceptance=accepted / drafted if drafted > 0 else None)


def _counters(text: str) -> dict[str, float]:
    """By name, summed over engines."""
    return summed((name, float(value)) for name, value in _METRIC.findall(text) if not name.endswith("_bucket"))


def _between(dumps: Sequence[Mapping[str, float]]) -> Iterator[Window]:
    for before, after in pairwise(dumps):
        d = {what: _counter(after, names) - _counter(before, names) for what, names in _NEEDED.items()}
        if min(d.values()) < 0:
            raise LoadError("counters fall from one dump to the next: give dumps of one server, in order of time")
        if not d["passes"] or not d["gaps"]:
            continue
        # The first token of an answer comes from the pass of its prompt.
        decodes = d["gaps"] / d["passes"]
        prompt_tokens = d["prompt_tokens"] / d["prompts"] if d["prompts"] else 0.0
        answer = d["tokens"] / d["prompts"] if d["prompts"] else 0.0
        yield decodes, prompt_tokens + answer / 2, d["prompts"] / d["passes"], prompt_tokens, d["gaps_s"] / d["gaps"]


def _counter(dump: Mapping[str, float], names: Sequence[str]) -> float:
    for name in names:
        if name in dump:
            return dump[name]
    raise DataError(f"the dump has no {shown(names[0])}: give all that /metrics answers")
