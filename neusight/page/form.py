"""``Form``: what a page asks, as a URL keeps it, as a command line and as lines of Python that give the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf
from shlex import join
from typing import Any
from urllib.parse import urlencode

from neusight.devices import DeviceSpec
from neusight.devices.chosen import as_device, version_of
from neusight.devices.load import find_device
from neusight.engines import engine_names
from neusight.errors import ModelError, NeusightError, nearest, shown
from neusight.questions.step import step_question
from neusight.requests import OPTIMIZERS, Plan
from neusight.steps import StepQuestion

MODES = ("inference", "training", "serving")
LAUNCHES = {"eager": (), "compiled": ("--compile",), "graph": ("--cuda-graph",)}
"""How a step is launched, and the option that says so."""
SERVERS = engine_names(serves=True)
DEVICE, CLIENTS = "h100-sxm-80gb", 16
"""The device and the number of clients of a question that names neither."""
_PROMPT, _ANSWER = 1024, 256
"""Tokens of prompts and answers that a question does not give, as far as the model's context has room for them."""
_STEP = ("batch", "seq_len", "dtype")
_SHARED = ("tp", "dp")
_SETUP = ("tp", "pp", "ep", "replicas", "engine", "dtype", "speculate")
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class Form:
    """A model on devices: a step of inference or training, or a deployment that is served.

    ``gpu`` names one device or several, with commas, "" for ``DEVICE``, and for all with a price where a service level
    is searched; ``changes`` are figures of the device, as ``--set`` takes them; ``speculate`` what drafts tokens, as
    ``--speculate`` takes it; ``axis`` is what one drags; ``apply`` optimisations, one upon the other, or ``all``;
    ``slo`` and ``rate`` what is to hold in serving; ``cluster`` and ``nodes`` where plans of training are looked for;
    ``space`` where a device to build is; ``by`` what accuracy is told by. None is a number that is not given.
    """

    model: str = "gpt2-large"
    gpu: str = ""
    mode: str = "inference"
    batch: int = 1
    seq_len: int | None = None
    dtype: str = ""
    optimizer: str = "none"
    launch: str = "eager"
    tp: int | None = None
    dp: int = 1
    pp: int = 1
    ep: int = 1
    replicas: int = 1
    engine: str = SERVERS[0]
    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    speculate: str = ""
    axis: str = ""
    slo: str = ""
    rate: float | None = None
    cluster: str = ""
    nodes: int = 1
    space: str = ""
    by: str = ""
    apply: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Iterable[tuple[str, str]]) -> Form:
        """From the words of a URL or of fields; an empty one is not given.

        Raises:
            ModelError: an unknown field, or a value that it cannot take.
        """
        form, mistakes = cls.read(words)
        for mistake in mistakes.values():
            raise mistake
        return form

    @classmethod
    def read(cls, words: Iterable[tuple[str, str]]) -> tuple[Form, dict[str, ModelError]]:
        """Read every field by itself; one that cannot be read stays as it is by default.

        Returns:
            The form, and mistakes by the name of their field.
        """
        values: dict[str, Any] = {}
        mistakes: dict[str, ModelError] = {}
        for name, text in words:
            try:
                if text.strip() and _is_known(name):
                    values[name] = _value(name, text.strip(), values)
            except ModelError as mistake:
                mistakes[name] = mistake
        return cls(**values), mistakes

    def changed(self, **texts: str) -> Form:
        """With other words in some fields.

        Raises:
            ModelError: as ``of``.
        """
        words = [(name, text) for name, text in self.words() if name not in texts]
        return Form.of([*words, *texts.items()])

    def words(self) -> Iterator[tuple[str, str]]:
        """Fields that are not as they are by themselves."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                yield from ((one.name, written(each)) for each in _each(value))

    @property
    def query(self) -> str:
        """Of a URL; the model stands there in any case."""
        return urlencode(list(dict.fromkeys([("model", self.model), *self.words()])))

    @property
    def serving(self) -> bool:
        """Whether a deployment is asked for."""
        return self.mode == "serving"

    @property
    def gpus(self) -> tuple[str, ...]:
        """Ids or files of the devices.

        Raises:
            DeviceError: an unknown one. ModelError: none.
        """
        names = [name.strip() for name in (self.gpu or DEVICE).split(",") if name.strip()]
        if not names:
            raise ModelError("names no device: give ids of `neusight devices list`, such as h100,4090")
        return tuple(find_device(name).name for name in names)

    @property
    def devices(self) -> list[DeviceSpec]:
        """Those of ``gpus``, with the changes of their figures.

        Raises:
            As ``gpus``, and DeviceError: changes that a device cannot have.
        """
        return [as_device(gpu, self.changes) for gpu in self.gpus]

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of its answer: those that are not given have room in the model's context."""
        room = _context(self.model, version_of(self.model)) or inf
        osl = self.osl or int(min(_ANSWER, max(1, room - self.isl if self.isl else room / 4)))
        return self.isl or int(min(_PROMPT, max(1, room - osl))), osl

    @property
    def load(self) -> dict[str, int]:
        """Clients that are always there, and the lengths of what they ask, by the names of options."""
        return dict(zip(("isl", "osl"), self.lengths, strict=True)) | {"concurrency": self.concurrency or CLIENTS}

    def assumed(self, name: str) -> str:
        """Text that stands in place of a field which is not given; "" for none."""
        if name == "gpu":
            return "all with a price" if self.serving and self.slo else DEVICE
        if self.slo and name in ("tp", "concurrency"):
            return "1, 2, 4 or 8" if name == "tp" else ""
        return str(self.load.get(name, "1" if name == "tp" else ""))

    def question(self, gpu: str) -> StepQuestion:
        """The step on a device, as a value.

        Raises:
            ModelError: as ``Request.of``. CoverageError: an unknown dtype.
        """
        return step_question(self.model, gpu, **self.step)

    @property
    def plan(self) -> Plan | None:
        """Of a step that several devices share."""
        return Plan.of_step(self.batch, training=self.mode == "training", tp=self.tp, dp=self.dp)

    @property
    def step(self) -> dict[str, Any]:
        """Words of ``Predictor.estimate`` that are not its own defaults."""
        shared = self.plan is not None
        names = ("mode", *(() if shared else ("batch",)), "seq_len", "dtype", "optimizer", "launch")
        words = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Form, name)}
        words |= {"plan": self.plan} if shared else {}
        return words | ({"overrides": list(self.changes)} if self.changes else {})

    @property
    def setup(self) -> dict[str, Any]:
        """Words of ``Predictor.serving``."""
        return {name: getattr(self, name) for name in _SETUP if getattr(self, name) != getattr(Form, name)}

    @property
    def command(self) -> str:
        """The command line that gives the same."""
        devices = ",".join(self.gpus)
        if self.serving:
            words = ["neusight", "serving", self.model, "--gpu", devices, *self.load_options, *self.setup_options]
        else:
            words = ["neusight", "predict", self.model, "--gpu", devices, *self.step_options]
        return join(words)

    @property
    def load_options(self) -> list[str]:
        """Of a command about a load of clients."""
        return [word for name, value in self.load.items() for word in (f"--{name}", str(value))]

    @property
    def setup_options(self) -> list[str]:
        """Of a command about a deployment, beside the model, the devices and the load."""
        return [*self.options(*_SETUP), *self._set]

    @property
    def step_options(self) -> list[str]:
        """Of a command about a step, beside the model and the device."""
        return [*self.options("mode", *_STEP, "optimizer", *_SHARED), *LAUNCHES[self.launch], *self._set]

    @property
    def _set(self) -> list[str]:
        return [word for change in self.changes for word in ("--set", change)]

    def options(self, *names: str) -> list[str]:
        """``--seq-len 128`` of those that are not as they are by themselves."""
        return [
            word
            for name in names
            if getattr(self, name) != getattr(Form, name)
            for word in (f"--{name.replace('_', '-')}", written(getattr(self, name)))
        ]

    @property
    def python(self) -> str:
        """Lines of Python that give the same."""
        return "\n".join(self._serving_lines() if self.serving else self._step_lines())

    def _step_lines(self) -> Iterator[str]:
        yield f"from neusight import {'Plan, ' if self.plan else ''}Predictor"
        yield ""
        yield "predictor = Predictor.load()"
        words = "".join(f", {name}={_source(value)}" for name, value in self.step.items())
        for gpu in self.gpus:
            yield f"print(predictor.estimate({self.model!r}, {gpu!r}{words}))"

    def _serving_lines(self) -> Iterator[str]:
        yield "from neusight import Predictor, load_device" if self.changes else "from neusight import Predictor"
        yield "from neusight.serving import closed"
        yield ""
        yield "predictor = Predictor.load()"
        load = f"closed({self.load['concurrency']}, {self.lengths[0]}, {self.lengths[1]})"
        words = "".join(f", {name}={value!r}" for name, value in self.setup.items())
        for gpu in self.gpus:
            device = f"load_device({gpu!r}, {list(self.changes)!r})" if self.changes else repr(gpu)
            yield f"print(predictor.serving({self.model!r}, {device}, {load}{words}))"

    def with_change(self, key: str, text: str) -> Form:
        """With another figure of the device; none where the text is empty."""
        rest = tuple(change for change in self.changes if not change.startswith(f"{key}="))
        return replace(self, changes=(*rest, f"{key}={text}") if text.strip() else rest)


_OPTIONS = {"mode": MODES, "launch": tuple(LAUNCHES), "optimizer": OPTIMIZERS, "engine": SERVERS}


def _is_known(name: str) -> bool:
    """Raises:
    ModelError: no field has the name.
    """
    known = [one.name for one in fields(Form)]
    if name not in known:
        raise ModelError(f"unknown field '{shown(name)}'{nearest(name, known)}: one of {', '.join(known)}")
    return True


@lru_cache(maxsize=256)
def _context(model: str, _version: int) -> int:
    """Tokens of a model's longest sequence, 0 where it is no decoder or states none."""
    from neusight.workloads.decoders.known import known_decoder

    try:
        return known_decoder(model).max_len
    except NeusightError:
        return 0


def _value(name: str, text: str, before: dict[str, Any]) -> Any:
    default = getattr(Form, name)
    if isinstance(default, tuple):
        return (*before.get(name, ()), text)
    if name in before:
        raise ModelError(f"{name} is given twice: leave out one of them")
    if name in _OPTIONS and text not in _OPTIONS[name]:
        raise ModelError(f"unknown {name} '{shown(text)}'{nearest(text, _OPTIONS[name])}: {', '.join(_OPTIONS[name])}")
    if name == "rate":
        return _number(name, text)
    return text if isinstance(default, str) else _whole(name, text)


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise ModelError(f"{name.replace('_', ' ')} '{shown(text)}': give a whole number from 1 to {_MOST:,}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < inf:
        raise ModelError(f"{name} '{shown(text)}': give a number above 0, such as 2.5")
    return number


def written(value: Any) -> str:
    """Text of a value in a URL and in a field; "" for none."""
    return "" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, tuple) else (value,)


def _source(value: Any) -> str:
    """As Python writes it, a plan by what differs from one device."""
    if not isinstance(value, Plan):
        return repr(value)
    own = Plan()
    words = {one.name: getattr(value, one.name) for one in fields(value)}
    return f"Plan({', '.join(f'{n}={v!r}' for n, v in words.items() if v != getattr(own, n))})"
