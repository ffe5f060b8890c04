"""How many of the architectures that a library knows get an estimate, and what the others lack."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from neusight.api import Predictor
from neusight.errors import ModelError, NeusightError
from neusight.workloads.depths import architectures, default_config, shallow_config
from neusight.workloads.sources.image_models import model_names

LIMIT_S = 20.0
"""A configuration that takes longer than this, in seconds of a processor, counts as missing."""
_POSITIONS = ((3, 1, 2), (4, 1, 2), (1, 2))
"""Shapes in which places of two tokens come: in time, height and width, with text beside them, or in a line."""
_BATCH = {"inference": 1, "training": 2}
"""Samples: batch norm does not train on a single value, as which some models pool an image."""
REASONS: Sequence[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["reasons"]
"""Reasons of a missing answer: the first whose pattern its message has; ``unbuilt`` where there may be none to give."""
OTHER: Mapping[str, Any] = {"unbuilt": False}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One architecture: ``latency_s`` of its step or None, then with the reason in ``missing`` and its ``group``.

    ``layers`` says how deep it was: ``two``, ``default`` where two cannot be built, ``all`` of an image model.
    ``seconds`` is what answering took of a processor; ``inputs`` what the model was fed; ``buildable`` whether the
    library itself makes the model from its default configuration, so that there is anything to answer.
    """

    kind: str
    latency_s: float | None = None
    layers: str = "two"
    inputs: tuple[str, ...] = ()
    seconds: float = 0.0
    missing: str = ""
    group: str = ""
    buildable: bool = True


def drawn(limit: int | None, seed: int, library: str = "transformers") -> list[str]:
    """Names of a library's architectures: all, or as many as ``limit`` at random, in the order of the names.

    Raises:
        ModelError: the library is not installed.
    """
    known = architectures() if library == "transformers" else sorted(model_names(library))
    if limit is None or limit >= len(known):
        return known
    return sorted(random.Random(seed).sample(known, limit))


def check(
    predictor: Predictor,
    kinds: Sequence[str],
    gpu: str,
    mode: str = "inference",
    progress: Callable[[int, int], None] | None = None,
    *,
    library: str = "transformers",
) -> list[Answer]:
    """Estimate one step of each architecture without any fallback: of transformers two layers deep, of others whole.

    Args:
        predictor: what answers.
        kinds: model types of transformers, or names of image models.
        gpu: id of the catalogue.
        mode: ``inference`` or ``training``.
        progress: called with (done, of) after each.
        library: whose architectures these are: ``transformers``, ``timm`` or ``torchvision``.
    """

    def ask(model: str | Path) -> dict[str, Any]:
        with _within(LIMIT_S):
            estimate = predictor.estimate(model, gpu, mode=mode, batch=_BATCH[mode], cache=False)
        return {"latency_s": estimate.latency_s, "inputs": estimate.inputs}

    answers = []
    for done, kind in enumerate(kinds, start=1):
        start = process_time()
        try:
            answer = _of_type(kind, ask) if library == "transformers" else ask(f"{library}:{kind}") | {"layers": "all"}
        except NeusightError as error:
            answer = _missing(error, kind, mode)
        answers.append(Answer(kind=kind, seconds=process_time() - start, **answer))
        if progress:
            progress(done, len(kinds))
    return answers


def _of_type(kind: str, ask: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Two layers deep; as deep as the default where other keys of a configuration name layers beyond the second."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / kind / "config.json"
        file.parent.mkdir()
        try:
            file.write_text(json.dumps(shallow_config(kind)), encoding="utf-8")
            return ask(file)
        except ModelError as shallow:
            try:
                file.write_text(json.dumps(default_config(kind)), encoding="utf-8")
                return ask(file) | {"layers": "default"}
            except ModelError:
                raise shallow from None


def _missing(error: NeusightError, kind: str, mode: str) -> dict[str, Any]:
    """The reason that a message has, and its group."""
    found = ((reason, re.search(reason["pattern"], str(error))) for reason in REASONS)
    reason, match = next(((reason, match) for reason, match in found if match), (OTHER, None))
    group = reason["name"].format(*match.groups()) if match else type(error).__name__
    return {"missing": str(error), "group": group, "buildable": not reason.get("unbuilt") or buildable(kind, mode)}


def grouped(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Reasons why answers of these are missing, the most frequent first, each with its architectures."""
    groups: dict[str, list[str]] = {}
    for answer in answers:
        if answer.missing:
            groups.setdefault(answer.group, []).append(answer.kind)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"reason": reason, "count": len(kinds), "architectures": kinds} for reason, kinds in ordered]


def buildable(kind: str, mode: str = "inference") -> bool:
    """Whether transformers makes a model from the type's default configuration that some input runs through.

    It is made without weights; what no input can run is what ``runnable`` says.
    """
    import torch
    from transformers import CONFIG_MAPPING

    from neusight.workloads.huggingface import model_class

    try:
        parsed = CONFIG_MAPPING[kind]()
        with torch.device("meta"), redirect_stdout(sys.stderr):
            model = model_class(default_config(kind), parsed, mode)(parsed)
    except Exception:
        return False
    return runnable(model)


def runnable(model: Any) -> bool:
    """Whether a model of transformers, on whatever device, could run with some input.

    False where rotary frequencies do not divide into the sections that the configuration names, where a router is not
    told how many experts to choose, or where a detector looks for objects on no level of features.
    """
    seeing = getattr(model.config, "num_feature_levels", None) != 0
    return seeing and all(any(trials) for trials in map(_trials, model.modules()) if trials is not None)


def _trials(part: Any) -> Iterator[bool] | None:
    """Whether a part whose shapes follow from its configuration alone runs with each of some inputs, of two tokens."""
    import torch

    if getattr(part, "mrope_section", None):
        try:
            part = type(part)(part.config)
        except TypeError:
            return None
        inputs: list[tuple[Any, ...]] = [
            (torch.zeros(1, 2, 1), torch.zeros(shape, dtype=torch.long)) for shape in _POSITIONS
        ]
    elif getattr(part, "top_k", 0) is None and hasattr(part, "weight"):
        weight = part.weight
        inputs = [(torch.empty(*batch, 2, weight.shape[-1], device=weight.device),) for batch in ((), (1,))]
    else:
        return None
    return (_runs(part, *tensors) for tensors in inputs)


def _runs(module: Any, *inputs: Any) -> bool:
    try:
        module(*inputs)
    except Exception:
        return False
    return True


class TooLongError(NeusightError):
    """An architecture that takes longer than its limit."""


class _Ring(BaseException):
    """The alarm, which nothing that is tried in turn takes for a refusal."""


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """End what runs inside after so long, where the system has alarms, and only in the main thread."""

    def ring(*_: Any) -> None:
        raise _Ring

    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, ring)
    # Again each second: where the first ring falls into a destructor, Python ignores it.
    signal.setitimer(signal.ITIMER_PROF, limit_s, 1.0)
    try:
        yield
    except _Ring:
        raise TooLongError(f"no answer within {limit_s:.0f} s: give fewer layers or smaller inputs") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
