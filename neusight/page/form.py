"""``Form``: what a page asks, as a URL keeps it, as a command line and as lines of Python that give the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from shlex import join
from typing import Any
from urllib.parse import urlencode

from neusight.devices.load import find_device
from neusight.errors import ModelError, nearest, shown
from neusight.requests import Plan
from neusight.steps import StepQuestion

MODES = ("inference", "training", "serving")
LAUNCHES = {"eager": (), "compiled": ("--compile",), "graph": ("--cuda-graph",)}
"""How a step is launched, and the option that says so."""
_STEP = ("batch", "seq_len", "dtype")
_SHARED = ("tp", "dp")
_LOAD = ("isl", "osl", "concurrency")
_SETUP = ("tp", "dtype", "speculate")
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class Form:
    """A model on devices: a step of inference or training, or a deployment that is served.

    ``gpu`` names one device or several, with commas; ``changes`` are figures of the device, as ``--set`` takes them;
    ``speculate`` what drafts tokens, as ``--speculate`` takes it; ``axis`` is what one drags; ``apply`` optimisations,
    one upon the other, or ``all``; ``slo`` and ``rate`` what is to hold in serving, ``among`` ``all`` devices with a
    price or ``these``; ``cluster`` and ``nodes`` where plans of training are looked for; ``space`` where a device to
    build is; ``by`` what accuracy is told by.
    """

    model: str = "gpt2-large"
    gpu: str = "h100-sxm-80gb"
    mode: str = "inference"
    batch: int = 1
    seq_len: int | None = None
    dtype: str = ""
    optimizer: str = "none"
    launch: str = "eager"
    tp: int = 1
    dp: int = 1
    isl: int = 1024
    osl: int = 256
    concurrency: int = 16
    speculate: str = ""
    axis: str = ""
    slo: str = ""
    rate: float | None = None
    among: str = "all"
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
        values: dict[str, Any] = {}
        for name, text in words:
            known = [one.name for one in fields(cls)]
            if name not in known:
                raise ModelError(f"unknown field '{shown(name)}'{nearest(name, known)}: one of {', '.join(known)}")
            if text.strip():
                values[name] = _value(name, text.strip(), values)
        return cls(**values)

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
        """Of a URL; model and devices stand there in any case."""
        words = dict.fromkeys([("model", self.model), ("gpu", self.gpu), *self.words()])
        return urlencode(list(words))

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
        names = [name.strip() for name in self.gpu.split(",") if name.strip()]
        if not names:
            raise ModelError("names no device: give ids of `neusight devices list`, such as h100,4090")
        return tuple(find_device(name).name for name in names)

    def question(self, gpu: str) -> StepQuestion:
        """The step on a device, as a value.

        Raises:
            ModelError: as ``Request.of``. CoverageError: an unknown dtype.
        """
        return StepQuestion.of(self.model, gpu, **self.step)

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
            words = ["neusight", "serving", self.model, "--gpu", devices]
            words += self.options(*_LOAD, given=True) + self.options(*_SETUP)
        else:
            words = ["neusight", "predict", self.model, "--gpu", devices]
            words += self.step_options
        return join([*words, *(self._set if self.serving else ())])

    @property
    def step_options(self) -> list[str]:
        """Of a command about a step, beside the model and the device."""
        return [*self.options("mode", *_STEP, "optimizer", *_SHARED), *LAUNCHES[self.launch], *self._set]

    @property
    def _set(self) -> list[str]:
        return [word for change in self.changes for word in ("--set", change)]

    def options(self, *names: str, given: bool = False) -> list[str]:
        """``--seq-len 128`` of those that are not as they are by themselves, or of all."""
        return [
            word
            for name in names
            if given or getattr(self, name) != getattr(Form, name)
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
        load = f"closed({self.concurrency}, {self.isl}, {self.osl})"
        words = "".join(f", {name}={value!r}" for name, value in self.setup.items())
        for gpu in self.gpus:
            device = f"load_device({gpu!r}, {list(self.changes)!r})" if self.changes else repr(gpu)
            yield f"print(predictor.serving({self.model!r}, {device}, {load}{words}))"

    def with_change(self, key: str, text: str) -> Form:
        """With another figure of the device; none where the text is empty."""
        rest = tuple(change for change in self.changes if not change.startswith(f"{key}="))
        return replace(self, changes=(*rest, f"{key}={text}") if text.strip() else rest)


_OPTIONS = {
    "mode": MODES,
    "among": ("all", "these"),
    "launch": tuple(LAUNCHES),
    "optimizer": ("none", "sgd", "adam", "adamw", "bert_adam"),
}


def _value(name: str, text: str, before: dict[str, Any]) -> Any:
    default = getattr(Form, name)
    if isinstance(default, tuple):
        return (*before.get(name, ()), text)
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
        return float(text)
    except ValueError:
        raise ModelError(f"{name} '{shown(text)}' is no number: write it like 2.5") from None


def written(value: Any) -> str:
    """As a URL and a field have it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, tuple) else (value,)


def _source(value: Any) -> str:
    """As Python writes it, a plan by what differs from one device."""
    if not isinstance(value, Plan):
        return repr(value)
    own = Plan()
    words = {one.name: getattr(value, one.name) for one in fields(value)}
    return f"Plan({', '.join(f'{n}={v!r}' for n, v in words.items() if v != getattr(own, n))})"
