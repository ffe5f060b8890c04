"""Values of the fields that a question leaves open, each with the reason for it: one function a field.

Every front end asks here, so that a field that is left out means the same in all of them, and the answer can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from neusight.engines import Engine

LONGEST_SEQ_LEN = 2048
"""Tokens of a sequence at most, unless more are asked for."""
UNLIMITED_SEQ_LEN = 512
"""Tokens of a sequence of models that set no limit."""
TRAINED_DTYPE = "bfloat16"
"""Precision of products under engines that keep float32 copies of weights or serve requests."""
PLAIN_DTYPE = "float32"
"""Precision in which PyTorch creates parameters (``torch.get_default_dtype``)."""


class Default(NamedTuple):
    """A value that was chosen for a field, with the reason in words that follow the value."""

    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.value}, {self.reason}"


STATED = "as the configuration states"
Defaults = Mapping[str, Default]
"""By the name of the field."""


def default_dtype(stated: str | None, engine: Engine) -> Default:
    """Dtype of weights and activations: that of the configuration, else the usual one of the engine.

    Args:
        stated: by the model's configuration or catalogue entry; None or "" where there is none.
        engine: that runs the step.
    """
    if stated:
        return Default(stated, STATED)
    if engine.master_weights or engine.server is not None:
        return Default(TRAINED_DTYPE, f"usual under {engine.name}, as the configuration states none")
    return Default(PLAIN_DTYPE, "as the configuration states none")


def default_seq_len(limit: int | None) -> Default:
    """Tokens of a sequence: as many as the model takes, but at most ``LONGEST_SEQ_LEN``.

    Args:
        limit: tokens that the model takes; None or 0 for any number.
    """
    value = min(limit or UNLIMITED_SEQ_LEN, LONGEST_SEQ_LEN)
    return Default(value, f"the default: as many as the model takes, up to {LONGEST_SEQ_LEN:,}")


def default_micro_batch(samples: int, stages: int, engine: Engine) -> Default:
    """Samples of a replica that pass at once: one under a pipeline or a framework that accumulates gradients, else all.

    Args:
        samples: of a replica in a step.
        stages: of the pipeline.
        engine: that runs the step.
    """
    if stages > 1:
        return Default(1, "the default of a pipeline")
    if engine.step_factors:
        return Default(1, f"the default under {engine.name}")
    return Default(max(1, samples), "the default: all samples of a replica at once")


def chosen(defaults: Defaults, fields: Mapping[str, Any]) -> dict[str, str]:
    """Defaults in words, those that fields of the answer still have.

    Args:
        defaults: taken when the question was read.
        fields: of what was answered; a field that was changed since is no default.
    """
    return {
        name: str(default) for name, default in defaults.items() if fields.get(name, default.value) == default.value
    }


def words_of(assumed: Mapping[str, str]) -> str:
    """Chosen values of fields in one line."""
    return "; ".join(f"{name} {text}" for name, text in assumed.items())
