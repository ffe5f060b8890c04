"""Which inputs a ``forward`` is given: those that it cannot do without, the main ones of what it can read, and what it
asks for when it refuses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from traceback import extract_tb
from types import TracebackType
from typing import Any

from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.inputs.given import given_inputs
from neusight.workloads.inputs.images import LAYOUTS as OF_IMAGES
from neusight.workloads.inputs.series import LAYOUTS as OF_SERIES
from neusight.workloads.inputs.sizes import Sizes
from neusight.workloads.inputs.text import LAYOUTS as OF_TEXT
from neusight.workloads.tensors import TensorSpec

MAKERS = {name: maker for names, maker in (OF_IMAGES | OF_SERIES | OF_TEXT).items() for name in names}
"""Maker of each input, by name."""
_MODALITIES = (
    "input_ids",
    "pixel_values",
    "input_features",
    "input_values",
    "audio_mel",
    "past_values",
    "image_pixel_values",
)
"""Inputs of which a model of several kinds of input gets one each."""
_COMPANIONS = {
    "pixel_values": (
        *("image_grid_thw", "grid_thw", "spatial_shapes", "image_sizes", "pixel_position_ids", "image_position_ids"),
        *("aspect_ratio_ids", "aspect_ratio_mask", "pixel_attention_mask", "input_points", "input_labels"),
        *("image_embeds_position_mask", "target_sizes", "image_grid_hw"),
    ),
    "input_ids": ("bbox", "xpath_tags_seq", "xpath_subs_seq", "visual_feats", "visual_pos"),
    "past_values": (
        *("past_time_features", "past_observed_mask", "future_values", "future_time_features"),
        *("static_categorical_features", "static_real_features", "forecast_context_len"),
    ),
    "image_grid_thw": ("position_ids", "mm_token_type_ids"),
    "states": ("actions", "rewards", "returns_to_go", "timesteps"),
    "input_features": ("feature_attention_mask", "input_features_mask"),
}
"""Inputs that accompany another one where a ``forward`` takes them."""
_OPTIONAL = ("input_features", "input_values", "audio_mel", "pixel_values", "image_pixel_values")
"""Inputs that are left out first where a model does not run with all that it reads."""
_ANY = frozenset(name for companions in _COMPANIONS.values() for name in companions)
_EXTENTS = ("image_size", "frames", "seconds")
_SEES = ("vision_config", "backbone_config", "image_size", "patch_size", "num_channels")
"""Keys of models that read images."""
_HEARS = ("audio_config", "speech_config")
"""Keys of models that read sounds."""
_INSTEAD = ("inputs_embeds", "decoder_inputs_embeds", "hidden_states")
"""Inputs that replace others."""
_ALTERNATIVES = 16
"""Ways of feeding a model that are tried at most."""


@dataclass(frozen=True)
class Changes:
    """Inputs to give besides those that a class is always given, and kinds of input to leave out with all of theirs."""

    added: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()

    def omits(self, name: str) -> bool:
        """Tell whether an input is one of the omitted ones, or accompanies one."""
        return any(name == left or name in _with_companions((left,), _ANY) for left in self.omitted)


@dataclass(frozen=True)
class InputSets:
    """Sets of inputs for a model, the likeliest first, and the tokens a sample that they have; None without any."""

    sets: tuple[dict[str, Any], ...]
    seq_len: int | None
    addable: tuple[str, ...] = ()
    """Inputs that the model takes besides those, and that can be made."""
    optional: tuple[str, ...] = ()
    """Sounds and images that it is given with a text, without which it may run."""


_UNCHANGED = Changes()


def input_sets(kind: Any, config: Any, request: Request, changes: Changes = _UNCHANGED) -> InputSets:
    """Sets of inputs with which a model may run.

    Args:
        kind: its class.
        config: as transformers has parsed it.
        request: batch, sequence length and other extents that were asked for.
        changes: what to give besides or to leave out.

    Raises:
        ModelError: it needs an input that nobody knows how to make, or an extent was asked for that it does not have.
    """
    signature = inspect.signature(kind.forward).parameters
    parameters = [name for name in signature if name != "self"]
    specified = given_inputs(request.extents.given, parameters)
    batch, tokens = _as_given(specified)
    sizes = Sizes(
        config=config,
        parameters=frozenset(parameters),
        batch=batch or request.batch,
        tokens=request.seq_len or tokens,
        extents=request.extents,
    )
    names = [n for n in dict.fromkeys([*names_of_inputs(kind, config), *changes.added]) if not changes.omits(n)]
    needed = {*changes.added, *(name for name in parameters if signature[name].default is inspect.Parameter.empty)}
    ways = [_ways(name, sizes, kind.__name__, name in needed) for name in names if name not in specified]
    _refuse_unused(kind.__name__, sizes, request)
    chosen = islice(_likeliest(ways), _ALTERNATIVES)
    sets = tuple({name: way for name, way in combination if way is not None} | specified for combination in chosen)
    others = [n for n in parameters if n in MAKERS and n not in {*names, *specified, *_INSTEAD}]
    optional = tuple(
        n for n in _OPTIONAL if n in names and n not in {*needed, *specified, _main(kind)} and "input_ids" in names
    )
    return InputSets(
        sets=sets,
        seq_len=sizes.seq_len if tokens or "seq_len" in sizes.used else None,
        addable=tuple(n for n in others if not changes.omits(n)),
        optional=optional,
    )


def _likeliest(ways: Sequence[Sequence[tuple[str, Any]]]) -> Iterator[tuple[tuple[str, Any], ...]]:
    """One way of each input, those in which the fewest are not the likeliest of their input first."""
    places = product(*(range(len(options)) for options in ways))
    for chosen in sorted(places, key=lambda place: sum(map(bool, place))):
        yield tuple(options[i] for options, i in zip(ways, chosen, strict=True))


def _ways(name: str, sizes: Sizes, model: str, needed: bool) -> list[tuple[str, Any]]:
    maker = MAKERS.get(name)
    if maker is None:
        raise ModelError(
            f"{model} needs '{name}', which does not follow from its configuration: give it with "
            f"--input {name}=SHAPE:DTYPE"
        )
    ways = [(name, way) for way in maker(sizes)]
    return [way for way in ways if way[1] is not None] or ways if needed else ways


def _as_given(given: Mapping[str, TensorSpec]) -> tuple[int | None, int | None]:
    """Samples and tokens of the text that was written out; None for what was not."""
    shapes = [given[name].shape for name in ("input_ids", "decoder_input_ids", "inputs_embeds") if name in given]
    return (shapes[0][0], shapes[0][1]) if shapes and len(shapes[0]) > 1 else (None, None)


def _refuse_unused(model: str, sizes: Sizes, request: Request) -> None:
    """Raise an error for a requested extent that no input has."""
    extents = {"seq_len": request.seq_len, **{name: getattr(sizes.extents, name) for name in _EXTENTS}}
    for name, value in extents.items():
        if value is not None and name not in sizes.used:
            option = f"--{name.replace('_', '-')}"
            raise ModelError(f"no input of {model} depends on {option}: leave it out, or write inputs with --input")


def names_of_inputs(kind: Any, config: Any) -> list[str]:
    """Names of the inputs that a class is given, the main one first."""
    parameters = {n: p for n, p in inspect.signature(kind.forward).parameters.items() if n != "self"}
    names = [_main(kind)]
    names += [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    names += [name for name in _MODALITIES if _reads(name, names, config)]
    if getattr(config, "is_encoder_decoder", False) or "decoder" in kind.__name__.lower():
        names.append("decoder_input_ids")
    return list(_with_companions(names, parameters))


def _main(kind: Any) -> str:
    """The input that a class calls its main one; the first where it lists several."""
    main = getattr(kind, "main_input_name", None) or "input_ids"
    return main if isinstance(main, str) else main[0]


def _with_companions(names: Iterable[str], parameters: Collection[str]) -> dict[str, None]:
    """Names that a ``forward`` takes, with the inputs that accompany them, and those that accompany these."""
    names_taken: dict[str, None] = {}
    waiting = [name for name in names if name in parameters]
    while waiting:
        name = waiting.pop(0)
        if name not in names_taken:
            names_taken[name] = None
            waiting += [other for other in _COMPANIONS.get(name, ()) if other in parameters]
    return names_taken


def _reads(name: str, names: list[str], config: Any) -> bool:
    """Tell whether a model of several kinds of input has this one in addition to its main one."""
    if name in ("pixel_values", "image_pixel_values"):
        return _states(config, _SEES) or "input_ids" not in names
    if name in ("input_features", "input_values", "audio_mel"):
        return _states(config, _HEARS)
    return name == "input_ids" and _states(config, ("text_config", "decoder"))


def _states(config: Any, keys: Sequence[str]) -> bool:
    """Tell whether any of these keys is present, and not None, as parts are that a model was built without."""
    return any(getattr(config, key, None) is not None for key in keys)


_WORD = re.compile(r"[A-Za-z_]\w*")
_LINES = 3
"""Innermost lines of a model's own code that are looked at."""
_OTHERS = ("neusight", "torch", "contextlib")
"""Packages whose lines are no model's."""


def missing_input(refusal: BaseException, names: Sequence[str]) -> str | None:
    """The first of these names that a model asks for.

    Args:
        refusal: what a trace raised, with the model's own error as its cause.
        names: inputs that the model could still be given.
    """
    cause = refusal.__cause__
    words = _WORD.findall(str(refusal if cause is None else cause))
    if cause is not None and "None" in str(cause):
        words += [word for line in _model_lines(cause.__traceback__) for word in _WORD.findall(line)]
    return next((word for word in words if word in names), None)


def _model_lines(traceback: TracebackType | None) -> list[str]:
    """Lines of code from the failing one outwards, those of libraries left out."""
    frames = [frame for frame in extract_tb(traceback) if not _of_library(frame.filename)]
    return [frame.line or "" for frame in reversed(frames[-_LINES:])]


def _of_library(file: str) -> bool:
    return any(part in _OTHERS for part in file.replace(".py", "").split("/")[:-1]) or file.endswith("contextlib.py")
