"""How many of the architectures that a library knows get an estimate, and what the others lack."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from types import FrameType
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
"""Samples: some models norm their classifier's input over them when they learn, which takes two."""


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
    shallow = library == "transformers"
    ask = partial(_estimated, predictor) if shallow else partial(_whole, predictor, library)
    answers = []
    for done, kind in enumerate(kinds, start=1):
        answers.append(_timed(partial(ask, kind, gpu, mode), kind, mode))
        if progress:
            progress(done, len(kinds))
    return answers


def grouped(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Reasons why answers of these are missing, the most frequent first, each with its architectures."""
    groups: dict[str, list[str]] = {}
    for answer in answers:
        if answer.missing:
            groups.setdefault(answer.group, []).append(answer.kind)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"reason": reason, "count": len(kinds), "architectures": kinds} for reason, kinds in ordered]


def _timed(ask: Callable[[], dict[str, Any]], kind: str, mode: str) -> Answer:
    start = process_time()
    try:
        answer = ask()
    except NeusightError as error:
        group = _group(error)
        answer = {"missing": str(error), "group": group, "buildable": group not in _UNBUILT or buildable(kind, mode)}
    return Answer(kind=kind, seconds=process_time() - start, **answer)


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
    sectioned = [part for part in model.modules() if getattr(part, "mrope_section", None)]
    unsettled = [part for part in model.modules() if getattr(part, "top_k", 0) is None and hasattr(part, "weight")]
    seeing = getattr(model.config, "num_feature_levels", None) != 0
    return seeing and all(map(_rotates, sectioned)) and all(map(_routes, unsettled))


def _rotates(part: Any) -> bool:
    """Whether a rotary embedding with sections gives angles for two tokens: their shapes follow from it alone."""
    import torch

    try:
        embedding = type(part)(part.config)
    except TypeError:
        return True
    return any(_runs(embedding, torch.zeros(1, 2, 1), torch.zeros(shape, dtype=torch.long)) for shape in _POSITIONS)


def _routes(router: Any) -> bool:
    """Whether a router without a number of experts to choose takes two tokens: how many they are changes nothing."""
    import torch

    width = router.weight.shape[-1]
    return any(_runs(router, torch.empty(*batch, 2, width, device=router.weight.device)) for batch in ((), (1,)))


def _runs(module: Any, *inputs: Any) -> bool:
    try:
        module(*inputs)
    except Exception:
        return False
    return True


def _estimated(predictor: Predictor, kind: str, gpu: str, mode: str) -> dict[str, Any]:
    """Two layers deep; as deep as the default where other keys of a configuration name layers beyond the second."""
    try:
        return _answered(predictor, shallow_config(kind), gpu, mode)
    except ModelError as shallow:
        try:
            return _answered(predictor, default_config(kind), gpu, mode) | {"layers": "default"}
        except ModelError:
            raise shallow from None


def _answered(predictor: Predictor, config: dict[str, Any], gpu: str, mode: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / config["model_type"] / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps(config), encoding="utf-8")
        with _within(LIMIT_S):
            estimate = predictor.estimate(file, gpu, mode=mode, batch=_BATCH[mode], cache=False)
    return {"latency_s": estimate.latency_s, "inputs": estimate.inputs}


def _whole(predictor: Predictor, library: str, kind: str, gpu: str, mode: str) -> dict[str, Any]:
    # Batch norm does not train on a single value, as which some models pool an image.
    batch = 2 if mode == "training" else 1
    with _within(LIMIT_S):
        estimate = predictor.estimate(f"{library}:{kind}", gpu, mode=mode, batch=batch, cache=False)
    return {"latency_s": estimate.latency_s, "inputs": estimate.inputs, "layers": "all"}


class TooLongError(NeusightError):
    """An architecture that takes longer than its limit."""


class _Ring(BaseException):
    """The alarm, which nothing that is tried in turn takes for a refusal."""


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """End what runs inside after so long, where the system has alarms, and only in the main thread."""

    def ring(_number: int, _frame: FrameType | None) -> None:
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


_GROUPS = (
    (r"operator '(aten\.)?([\w.:]+)' has no kernel rule", "no rule for {1}"),
    (r"shape depends on data", "shapes that depend on data"),
    (r"reads a value from a tensor", "values that a trace does not have"),
    (r"needs '(\w+)'", "no way to make input {0}"),
    (r"trains on lists of boxes", "training on lists of boxes"),
    (r"cannot trace '(timm|torchvision):", "does not run with these inputs"),
    (r"(timm|torchvision) cannot build", "cannot be built"),
    (r"pip install|(requires|needs) .*library", "a library that is not installed"),
    (r"no answer within", "too slow"),
    (r"cannot be built from|default configuration|cannot read the configuration", "cannot be built from its default"),
    (r"no class of its own", "no class of its own"),
    (r"cannot trace", "does not run with these inputs"),
)


_UNBUILT = (
    *("a library that is not installed", "cannot be built from its default", "no class of its own"),
    "does not run with these inputs",
)
"""Groups in which there may be nothing to answer."""


def _group(error: NeusightError) -> str:
    text = str(error)
    for pattern, name in _GROUPS:
        if match := re.search(pattern, text):
            return name.format(*(match.groups() or ("",)))
    return type(error).__name__
