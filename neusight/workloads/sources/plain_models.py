"""Models that are modules of this package: ``dlrm-terabyte``, ``dlrm-terabyte@1.05`` with skewed lookups."""

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
_SEQUENCES = ("lstm", "speech-gru")
_STEEPEST = 10.0


@dataclass(frozen=True, kw_only=True)
class PlainModel:
    """A module with its sizes; ``skew`` is the exponent of Zipf's law by which its tables are looked up."""

    name: str
    config: Mapping[str, Any]
    skew: float = 0.0

    @property
    def content(self) -> str:
        """The sizes; the module itself is part of the program, whose version counts anyway."""
        return f"{json.dumps(self.config, sort_keys=True)} {self.skew}"

    def settled(self, request: Request) -> Request:
        """Sequences of a length may be asked for where there are sequences."""
        return refuse_others(request, *(("seq_len",) if self.config[MODULE] in _SEQUENCES else ()))

    def build(self, request: Request) -> torch.nn.Module:
        """The module."""
        from neusight.workloads.models import recommendation, sequences

        skew = (self.skew,) if self.config[MODULE] == "dlrm" else ()
        kinds: dict[str, Any] = {"dlrm": recommendation.Dlrm, "waveglow": sequences.WaveGlow,
                                 "lstm": sequences.LanguageLstm, "speech-gru": sequences.SpeechGru}  # fmt: skip
        module: torch.nn.Module = kinds[self.config[MODULE]](self.config, *skew)
        return module

    def inputs(self, request: Request) -> Inputs:
        """By name."""
        from neusight.workloads.models import recommendation, sequences

        makers: dict[str, Any] = {"dlrm": recommendation.inputs, "waveglow": sequences.waveglow_inputs,
                                  "lstm": sequences.language_inputs, "speech-gru": sequences.speech_inputs}  # fmt: skip
        length = (request.seq_len,) if self.config[MODULE] in _SEQUENCES else ()
        inputs: Inputs = makers[self.config[MODULE]](self.config, request.batch, *length)
        return inputs


def plain_model(name: str, config: Mapping[str, Any], option: str = "") -> PlainModel:
    """The model of a configuration with the text after ``@``, which is the skew of lookups.

    Raises:
        ModelError: the text is no exponent, or the model looks nothing up.
    """
    if not option:
        return PlainModel(name=name, config=config)
    try:
        skew = float(option)
    except ValueError:
        skew = -1.0
    if config[MODULE] != "dlrm" or not 0 <= skew <= _STEEPEST:
        raise ModelError(
            f"cannot read '@{option[:40]}' of {name}: write dlrm-terabyte@1.05, say, for lookups by Zipf's law with "
            f"that exponent, at most {_STEEPEST:g}"
        )
    return PlainModel(name=f"{name}@{option}", config=config, skew=skew)
