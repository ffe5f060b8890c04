"""Models that are modules of this package: ``dlrm-terabyte``, ``dlrm-terabyte@1.05`` with skewed lookups,
``translation-decoder@4`` with four beams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs, ModelSource, refuse_others

if TYPE_CHECKING:
    import torch

MODULE = "module"
"""The key of a configuration that names one of ``_KINDS``."""
_STEEPEST = 10.0


class _Kind(NamedTuple):
    """Kind of a plain model: its room and module, the maker of its inputs, the extents which that takes after sizes and
    batch, and whether it takes the number after ``@`` after them; and the work that a step is of, where that is not
    plain.
    """

    room: str
    module: str
    inputs: str
    words: tuple[str, ...] = ()
    option: bool = False
    unit: str = ""


_SOUND = "one clip of sound as long as its inputs, not a second"
_KINDS = {
    "dlrm": _Kind("recommendation", "Dlrm", "inputs"),
    "wide-and-deep": _Kind("recommendation", "WideAndDeep", "wide_inputs"),
    "translation": _Kind(
        "translation",
        "TranslationDecoder",
        "translation_inputs",
        ("seq_len",),
        True,
        "one token in each beam, not a sentence",
    ),
    "transformer-xl": _Kind(
        "language",
        "TransformerXl",
        "segment_inputs",
        ("seq_len",),
        unit="one segment of a text upon its memory of others",
    ),
    "gnmt": _Kind(
        "language", "Gnmt", "sentence_inputs", ("seq_len",), unit="one pass over whole sentences, not word by word"
    ),
    "lstm": _Kind(
        "sequences", "LanguageLstm", "language_inputs", ("seq_len",), unit="one stretch of a text, not a word"
    ),
    "speech-gru": _Kind("sequences", "SpeechGru", "speech_inputs", ("seq_len",), unit=_SOUND),
    "speech-convolutions": _Kind("speech", "ConvSpeech", "speech_inputs", ("seconds",), unit=_SOUND),
    "waveglow": _Kind("sequences", "WaveGlow", "waveglow_inputs", unit=_SOUND),
    "hifi-gan": _Kind("vocoder", "HiFiGan", "vocoder_inputs", ("seconds", "mode"), unit=_SOUND),
    "u-net": _Kind("segmentation", "UNet", "unet_inputs", unit="one patch of an image or scan"),
    "ssd": _Kind(
        "detection",
        "SingleShotDetector",
        "detector_inputs",
        unit="one image to all boxes and scores, of which none is chosen yet",
    ),
    "separable": _Kind("tiny", "SeparableClassifier", "image_inputs"),
    "small-resnet": _Kind("tiny", "SmallResNet", "image_inputs"),
    "autoencoder": _Kind("tiny", "Autoencoder", "window_inputs"),
}


@dataclass(frozen=True, kw_only=True)
class PlainModel(ModelSource):
    """A module with its sizes; ``option`` is the exponent of Zipf's law by which its tables are looked up, or how many
    beams are searched.
    """

    name: str
    config: Mapping[str, Any]
    option: tuple[float, ...] = ()

    @property
    def content(self) -> str:
        """The sizes; the module itself is part of the program, whose version counts anyway."""
        return f"{json.dumps(self.config, sort_keys=True)} {self.option}"

    @property
    def dtype(self) -> str | None:
        """Dtype in which it is deployed, where its configuration states one."""
        return self.config.get("dtype")

    def unit(self, request: Request) -> str:
        """Unit of work of all models of the kind."""
        return self._kind.unit

    def settled(self, request: Request) -> Request:
        """Sequences and sounds of a length may be asked for where there are any."""
        return refuse_others(request, *self._kind.words)

    def build(self, request: Request) -> torch.nn.Module:
        """The module."""
        module: torch.nn.Module = self._of_room(self._kind.module)(self.config, *self.option)
        return module

    def inputs(self, request: Request) -> Inputs:
        """Inputs by name or in order."""
        extents = {"seq_len": request.seq_len, "mode": request.mode, **vars(request.extents)}
        words = (extents[name] for name in self._kind.words)
        option = self.option if self._kind.option else ()
        inputs: Inputs = self._of_room(self._kind.inputs)(self.config, request.batch, *words, *option)
        return inputs

    @property
    def _kind(self) -> _Kind:
        return _KINDS[self.config[MODULE]]

    def _of_room(self, name: str) -> Any:
        return getattr(import_module(f"neusight.workloads.models.{self._kind.room}"), name)


def plain_model(name: str, config: Mapping[str, Any], option: str = "") -> PlainModel:
    """The model of a configuration with the text after ``@``: the skew of lookups, or the beams of a search.

    Raises:
        ModelError: the text is no exponent, no number of beams, or the model takes neither.
    """
    if not option:
        return PlainModel(name=name, config=config)
    number = _beams(option) if config[MODULE] == "translation" else _skew(option)
    if config[MODULE] not in ("dlrm", "translation") or number is None:
        raise ModelError(
            f"cannot read '@{option[:40]}' of {name}: write dlrm-terabyte@1.05, say, for lookups by Zipf's law with "
            f"that exponent, at most {_STEEPEST:g}, or translation-decoder@4 for four beams"
        )
    return PlainModel(name=f"{name}@{option}", config=config, option=(number,))


def _beams(option: str) -> int | None:
    return int(option) if option.isdecimal() and int(option) > 0 else None


def _skew(option: str) -> float | None:
    try:
        skew = float(option)
    except ValueError:
        return None
    return skew if 0 <= skew <= _STEEPEST else None
