"""Models that are modules of this package: ``dlrm-terabyte``, ``dlrm-terabyte@1.05`` with skewed lookups,
``translation-decoder@4`` with four beams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs, refuse_others

if TYPE_CHECKING:
    import torch

MODULE = "module"
"""The key of a configuration that names one of these modules."""
_SEQUENCES = ("lstm", "speech-gru", "translation")
_STEEPEST = 10.0


@dataclass(frozen=True, kw_only=True)
class PlainModel:
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

    def settled(self, request: Request) -> Request:
        """Sequences of a length may be asked for where there are sequences."""
        return refuse_others(request, *(("seq_len",) if self.config[MODULE] in _SEQUENCES else ()))

    def build(self, request: Request) -> torch.nn.Module:
        """The module."""
        from neusight.workloads.models import recommendation, sequences, translation

        kinds: dict[str, Any] = {"dlrm": recommendation.Dlrm, "waveglow": sequences.WaveGlow,
                                 "lstm": sequences.LanguageLstm, "speech-gru": sequences.SpeechGru,
                                 "translation": translation.TranslationDecoder}  # fmt: skip
        module: torch.nn.Module = kinds[self.config[MODULE]](self.config, *self.option)
        return module

    def inputs(self, request: Request) -> Inputs:
        """By name."""
        from neusight.workloads.models import recommendation, sequences, translation

        makers: dict[str, Any] = {"dlrm": recommendation.inputs, "waveglow": sequences.waveglow_inputs,
                                  "lstm": sequences.language_inputs, "speech-gru": sequences.speech_inputs,
                                  "translation": translation.translation_inputs}  # fmt: skip
        length = (request.seq_len,) if self.config[MODULE] in _SEQUENCES else ()
        beams = self.option if self.config[MODULE] == "translation" else ()
        inputs: Inputs = makers[self.config[MODULE]](self.config, request.batch, *length, *beams)
        return inputs


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
