"""``Load``: which requests a serving engine gets, and when: drawn from a seed, or read from a trace in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError, LoadError, nearest, reason, shown

if TYPE_CHECKING:
    import pandas as pd

SHAPES = ("lognormal", "uniform", "exponential")
"""Distributions of lengths, by their mean; the first two by their coefficient of variation too."""
ARRIVALS = ("poisson", "uniform", "gamma")
"""Intervals between arrivals: exponential, all equal, or of a gamma distribution with a coefficient of variation, which
is 1 for Poisson's, more where requests come in bursts (``--burstiness`` of vLLM's ``bench serve`` is 1 / cv²)."""
MOST_TOKENS = 1 << 21
"""Of a prompt or an answer: what is larger is a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long prompts or answers are, in tokens: all ``mean``, or of a distribution with that mean, never below 1.

    ``cv`` is the standard deviation over the mean: of ``lognormal`` as given, of ``uniform`` at most 1/√3, at which it
    starts from 0; an ``exponential`` one has 1 and takes none. ``longest`` cuts what a model or a client would cut.
    """

    mean: float
    shape: str = ""
    cv: float = 0.0
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.shape and self.shape not in SHAPES:
            hint = nearest(self.shape, SHAPES) or f": one of {', '.join(SHAPES)}"
            raise LoadError(f"unknown distribution of lengths '{shown(self.shape)}'{hint}")
        if not self.mean >= 1:
            raise LoadError(f"lengths with a mean of {self.mean:g} tokens: every prompt and answer has at least 1")
        widest = 3**-0.5 if self.shape == "uniform" else np.inf
        if not 0 <= self.cv <= widest:
            raise LoadError(f"a coefficient of variation of {self.cv:g}: from 0 to {widest:.3g} for {self.shape}")

    @classmethod
    def between(cls, shortest: float, longest: float) -> Lengths:
        """Drawn evenly from a range of tokens."""
        mean = (shortest + longest) / 2
        return cls(mean=mean, shape="uniform", cv=(longest - mean) / (3**0.5 * mean), longest=int(longest))

    def draw(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Lengths of n requests [tokens], integers of shape (n,)."""
        tokens = np.rint(self._draw(n, random))
        return np.clip(tokens, 1, self.longest or np.inf).astype(np.int64)

    def _draw(self, n: int, random: np.random.Generator) -> np.ndarray:
        if self.shape == "exponential":
            return random.exponential(self.mean, n)
        if self.shape == "uniform":
            half = self.cv * 3**0.5 * self.mean
            return random.uniform(self.mean - half, self.mean + half, n)
        # A lognormal's mean is exp(mu + sigma²/2), and 1 + cv² is exp(sigma²); all are equal where sigma is 0.
        sigma = np.log1p(self.cv**2) ** 0.5 if self.shape else 0.0
        return self.mean * np.exp(sigma * random.standard_normal(n) - sigma**2 / 2)


TokenCounts = int | Lengths | Sequence[int]
"""One length for all, a distribution, or a list that requests take in turns."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What is to be served, columns of shape (n,) in the order of arrival.

    ``concurrency`` is that of clients who each send a request when the last one is answered; ``arrival_s`` then holds
    0 for the first ``concurrency`` requests, and nothing for others. None where requests arrive by themselves.
    ``sessions`` number the conversations whose turns they are, each prompt with all that was before it; -1 for none.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    concurrency: int | None = None
    sessions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, kw_only=True)
class Static:
    """``batch`` requests of equal lengths that start together and run as one batch."""

    batch: int
    isl: int
    osl: int

    def requests(self) -> Requests:
        """All at 0 s."""
        whole("batch", self.batch)
        return _drawn(np.zeros(self.batch), self.isl, self.osl, 0)


@dataclass(frozen=True, kw_only=True)
class Offline:
    """``requests`` that all wait when the engine starts."""

    num_prompts: int
    isl: TokenCounts
    osl: TokenCounts
    seed: int = 0

    def requests(self) -> Requests:
        """All at 0 s."""
        whole("num_prompts", self.num_prompts)
        return _drawn(np.zeros(self.num_prompts), self.isl, self.osl, self.seed)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """``concurrency`` clients: each sends its next request when the last one is answered."""

    concurrency: int
    num_prompts: int
    isl: TokenCounts
    osl: TokenCounts
    seed: int = 0

    def requests(self) -> Requests:
        """The first of each client at 0 s, the others when it is their turn."""
        whole("concurrency", self.concurrency)
        whole("num_prompts", self.num_prompts)
        drawn = _drawn(np.zeros(self.num_prompts), self.isl, self.osl, self.seed)
        arrival_s = np.where(np.arange(self.num_prompts) < self.concurrency, 0.0, np.nan)
        return replace(drawn, arrival_s=arrival_s, concurrency=self.concurrency)


@dataclass(frozen=True, kw_only=True)
class Open:
    """``num_prompts`` requests that arrive at a rate [1/s], whether or not the engine keeps up.

    ``cv`` is the coefficient of variation of the intervals, for ``gamma`` alone. ``stages`` are rates [1/s] with how
    long each lasts [s], one after the other: the rate changes in their proportions, with ``request_rate`` as its mean.
    The last one lasts until all requests have arrived.
    """

    request_rate: float
    isl: TokenCounts
    osl: TokenCounts
    num_prompts: int
    arrivals: str = "poisson"
    cv: float = 1.0
    stages: tuple[tuple[float, float], ...] = ()
    seed: int = 0

    def requests(self) -> Requests:
        """Arrivals from the first interval on, as many in all their time as the rate brings: drawn intervals are
        stretched together, as clients of benchmarks do (``vllm/benchmarks/serve.py``, ``get_request``).

        Raises:
            LoadError: a rate or number that is not positive, or an unknown kind of arrivals.
        """
        _positive(request_rate=self.request_rate, cv=self.cv)
        whole("num_prompts", self.num_prompts)
        arrival_s = np.cumsum(self._intervals_s(self.num_prompts, np.random.default_rng((self.seed, 1))))
        arrival_s *= self.num_prompts / (self.request_rate * arrival_s[-1])
        return _drawn(self._staged(arrival_s) if self.stages else arrival_s, self.isl, self.osl, self.seed)

    def _staged(self, arrival_s: np.ndarray) -> np.ndarray:
        """Arrivals at rates that change, from those at the mean rate: as many in each stage as its rate brings."""
        rates, lasts_s = np.array(self.stages).T
        for rate, stage_s in self.stages:
            _positive(rate=rate, time=stage_s)
        mean_rate = rates @ lasts_s / lasts_s.sum()
        lasts_s[-1] += arrival_s[-1] * mean_rate / rates[-1]
        ends_s, arrived = np.cumsum(lasts_s), np.cumsum(lasts_s * rates / mean_rate)
        return np.interp(arrival_s, np.append(0.0, arrived), np.append(0.0, ends_s))

    def _intervals_s(self, n: int, random: np.random.Generator) -> np.ndarray:
        mean_s = 1 / self.request_rate
        if self.arrivals == "poisson":
            return random.exponential(mean_s, n)
        if self.arrivals == "uniform":
            return np.full(n, mean_s)
        if self.arrivals == "gamma":
            return random.gamma(self.cv**-2, mean_s * self.cv**2, n)
        hint = nearest(self.arrivals, ARRIVALS) or f": one of {', '.join(ARRIVALS)}"
        raise LoadError(f"unknown arrivals '{shown(self.arrivals)}'{hint}")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests as they came once: columns of shape (n,), times [s] in order, lengths [tokens]; ``sessions`` as in
    ``Requests``.

    Raises:
        LoadError: columns of unequal or no length, a time that is negative or before the one above it, or a length
            that is no whole number from 1 to ``MOST_TOKENS``, by the number of its row.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    sessions: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = {len(column) for column in vars(self).values() if column is not None}
        if len(lengths) > 1 or 0 in lengths:
            raise LoadError(f"a trace with columns of {sorted(lengths)} rows: one arrival and two lengths a request")
        times = np.asarray(self.arrival_s, np.float64)
        _first_row(~(times >= 0) | np.isinf(times), times, "arrives at {} s", "give seconds from the start, 0 or more")
        late = np.diff(times, prepend=times[0]) < 0
        _first_row(late, times, "arrives at {} s, before the row above it", "sort the rows by time")
        for name, values in (("prompt", self.prompt_tokens), ("output", self.output_tokens)):
            counts = np.asarray(values, np.float64)
            wrong = ~((counts >= 1) & (counts <= MOST_TOKENS) & (counts % 1 == 0))
            remedy = f"give a whole number from 1 to {MOST_TOKENS:,}, or leave the row out"
            _first_row(wrong, values, f"has {name} tokens of {{}}", remedy)

    def each(self, n: int) -> Trace:
        """Every n-th of them, from the first on."""
        return Trace(**{name: column[::n] for name, column in vars(self).items() if column is not None})

    def requests(self) -> Requests:
        """As they came."""
        return Requests(
            arrival_s=np.asarray(self.arrival_s, np.float64),
            prompt_tokens=np.asarray(self.prompt_tokens).astype(np.int64),
            output_tokens=np.asarray(self.output_tokens).astype(np.int64),
            sessions=self.sessions,
        )


Load = Static | Closed | Open | Offline | Trace


def checked(load: Any) -> Load:
    """The same.

    Raises:
        LoadError: it is no load.
    """
    if not isinstance(load, Load):
        raise LoadError(f"{shown(load)} is no load: give a Static, Closed, Open, Offline or Trace of neusight.serving")
    return load


def longest_of(load: Load) -> int:
    """Tokens of the longest sequence of a load, prompt and answer.

    Raises:
        LoadError: it is no load.
    """
    requests = checked(load).requests()
    return int((requests.prompt_tokens + requests.output_tokens).max())


def most_tokens(lengths: TokenCounts) -> int:
    """Tokens of the longest that may be drawn.

    Raises:
        LoadError: a distribution without an end.
    """
    if not isinstance(lengths, Lengths):
        return int(_tokens(lengths, np.size(lengths), np.random.default_rng(0)).max())
    if lengths.longest is not None:
        return lengths.longest
    if lengths.shape in ("lognormal", "exponential"):
        raise LoadError(f"{lengths.shape} lengths have no end: say with longest where they are cut")
    return int(np.rint(lengths.mean * (1 + lengths.cv * 3**0.5 * (lengths.shape == "uniform"))))


def mean_tokens(lengths: TokenCounts) -> float:
    """Tokens on average, of a distribution before it is cut."""
    return lengths.mean if isinstance(lengths, Lengths) else float(np.mean(lengths))


def _first_row(wrong: np.ndarray, values: Any, what: str, remedy: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise LoadError(f"row {at + 1} of the trace {what.format(shown(values[at], 30))}: {remedy}")


def whole(name: str, value: Any, least: int = 1) -> None:
    """Whether a count is one.

    Raises:
        LoadError: it is no whole number of at least ``least``.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise LoadError(f"{name} = {shown(value)}: give a whole number of at least {least}")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
            raise LoadError(f"a load with {name} = {shown(value)}: give more than 0")


def _drawn(arrival_s: np.ndarray, isl: TokenCounts, osl: TokenCounts, seed: int) -> Requests:
    """Prompts and answers have generators of their own: other arrivals leave the lengths as they are."""
    n = len(arrival_s)
    prompts = _tokens(isl, n, np.random.default_rng((seed, 2)))
    outputs = _tokens(osl, n, np.random.default_rng((seed, 3)))
    return Requests(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)


def _tokens(lengths: TokenCounts, n: int, random: np.random.Generator) -> np.ndarray:
    if isinstance(lengths, Lengths):
        return lengths.draw(n, random)
    given = np.atleast_1d(np.asarray(lengths))
    if not len(given) or given.dtype.kind not in "iuf" or (given < 1).any() or (given % 1).any():
        raise LoadError(f"{shown(lengths)} tokens: every prompt and every answer has a whole number of at least 1")
    return np.resize(given.astype(np.int64), n)


TRACE_COLUMNS = {
    "arrival_s": ("arrival_s", "timestamp", "timestamp_s", "arrived_at", "arrival_time"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "isl", "contexttokens", "context_tokens", "request_tokens"),
    "output_tokens": ("output_tokens", "osl", "generatedtokens", "generated_tokens", "response_tokens"),
}
"""What files call the columns of a trace, without regard to case, blanks as underscores: this project, Azure's LLM
inference traces, BurstGPT. Mooncake's traces, whose ``timestamp`` is in milliseconds, are not among them on purpose:
their lengths have other names, so that they are refused and not read a thousand times too slow."""
SESSION_COLUMNS = ("session", "session_id", "conversation", "conversation_id", "chat_id")
"""What files call the conversation whose turn a request is, with any text or number; it may be missing or empty."""


def read_trace(path: Path | str) -> Trace:
    """The requests of a ``.csv``, ``.jsonl`` or ``.parquet`` file, in the order of its rows.

    Times are seconds, or dates, which count from the first row.

    Raises:
        DataError: a file that is missing or cannot be read, a column that is missing, or a value that is no number.
        LoadError: no rows, times that are negative or out of order, or lengths that are no counts; the first row is 1.
    """
    return Trace(**request_columns(Path(path), TRACE_COLUMNS))


def request_columns(path: Path, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Columns of a file with a row a request, each by one of its names; those that end in ``_ms`` become seconds.

    Raises:
        DataError, LoadError: as ``read_trace``, but for what makes no sense as a trace.
    """
    frame = _trace_frame(path)
    if frame.empty:
        raise LoadError(f"{path} holds no requests: give at least one row")
    frame.columns = [str(c).strip().lower().replace(" ", "_") for c in frame.columns]
    columns = {what: frame[_trace_column(path, frame, what, known)] for what, known in names.items()}
    numbers = {what: _trace_numbers(path, column) for what, column in columns.items() if what != "arrival_s"}
    scaled = {what: n * 1e-3 if str(columns[what].name).endswith("_ms") else n for what, n in numbers.items()}
    stated = [name for name in SESSION_COLUMNS if name in frame]
    # A number for each session, -1 for none.
    sessions = {"sessions": frame[stated[0]].factorize()[0].astype(np.int64)} if stated else {}
    return {"arrival_s": _arrival_seconds(path, columns["arrival_s"])} | scaled | sessions


def _trace_frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    lines = partial(pd.read_json, lines=True, convert_dates=False)
    if not path.is_file():
        raise DataError(f"cannot read the trace {path}: there is no such file: check the path")
    if (reader := (readers | {".jsonl": lines, ".ndjson": lines}).get(path.suffix)) is None:
        raise DataError(f"{path} is no trace: give a .csv, .jsonl or .parquet file")
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {reason(error)}: give columns arrival_s, isl and osl") from error


def _trace_column(path: Path, frame: pd.DataFrame, what: str, names: Sequence[str]) -> str:
    if found := [name for name in names if name in frame]:
        return found[0]
    raise DataError(f"{path} has no column {what}: name it so, or one of {', '.join(names[1:])}")


def _trace_numbers(path: Path, column: pd.Series) -> np.ndarray:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    if (wrong := np.isnan(numbers)).any():
        at = int(np.argmax(wrong))
        raise DataError(f"{path}, row {at + 1}: {column.name} '{column.iloc[at]}' is no number")
    return numbers


def _arrival_seconds(path: Path, column: pd.Series) -> np.ndarray:
    """Numbers as they are, dates from the first on."""
    import pandas as pd

    if pd.to_numeric(column, errors="coerce").notna().any():
        return _trace_numbers(path, column)
    dates = pd.to_datetime(column, errors="coerce", utc=True, format="mixed")
    if not dates.notna().all():
        return _trace_numbers(path, column)
    return ((dates - dates.iloc[0]) / pd.Timedelta(seconds=1)).to_numpy(np.float64)
