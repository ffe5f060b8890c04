"""The nouns of a question: what is run, in which precision, at which sizes. Each replaces a parameter list."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from neusight.engines import ATTENTIONS, LAUNCHES, LAYOUTS, Engine
from neusight.errors import ModelError, nearest
from neusight.kernels.precision import OWN_PRECISION, Precision

Mode = Literal["inference", "training"]
MODES = ("inference", "training")
DTYPES = ("float32", "bfloat16", "float16", "tf32", "amp_float16", "amp_bfloat16")
"""Precisions that whole models are estimated in, see ``Precision``; single kernels have more."""
OPTIMIZERS = ("none", "sgd", "adam", "adamw", "bert_adam")
"""``bert_adam`` is Adam as NVIDIA's BERT has it for float32, one parameter after another."""
_LONGEST_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Extents:
    """What a person may say of inputs beside batch and sequence length; None takes the model's own.

    ``image_size`` is the edge of a square image [pixels], ``frames`` the images of a clip, ``seconds`` the length of a
    sound, ``given`` inputs written out as ``name=shape:dtype``.
    """

    image_size: int | None = None
    frames: int | None = None
    seconds: float | None = None
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", tuple(self.given))
        if self.seconds is not None and not 0 < self.seconds <= _LONGEST_S:
            raise ModelError(f"{self.seconds:g} seconds of sound: give a number above 0, and at most {_LONGEST_S:,}")

    def to_dict(self) -> dict[str, Any]:
        """What was asked for, by name; nothing where the model's own is taken."""
        stated = {"image_size": self.image_size, "frames": self.frames, "seconds": self.seconds}
        known = {name: value for name, value in stated.items() if value is not None}
        return known | ({"given": list(self.given)} if self.given else {})


@dataclass(frozen=True, kw_only=True)
class Request:
    """One step of a model: everything that decides which kernels run, and nothing of the device.

    ``model`` is whatever ``neusight.workloads.resolve`` takes as text. ``seq_len`` None takes the model's own length.
    ``optimizer`` steps in training only; ``grad_scaler``: before it, gradients are scaled back and searched for
    overflows, as ``torch.amp.GradScaler`` does.
    """

    model: str = ""
    mode: Mode = "inference"
    batch: int = 1
    seq_len: int | None = None
    precision: Precision = field(default_factory=Precision)
    optimizer: str = "none"
    grad_scaler: bool = False
    engine: Engine = field(default_factory=Engine)
    extents: Extents = field(default_factory=Extents)

    @classmethod
    def of(
        cls,
        model: str = "",
        *,
        dtype: str | None = None,
        attention: str | None = None,
        launch: str = "eager",
        layout: str = "nchw",
        **fields: Any,
    ) -> Request:
        """A request from the words that people use, checked.

        Args:
            model: name, path or function; may stay empty for a module.
            dtype: of weights and activations, by any of its names; ``tf32``; ``amp`` or ``amp_bf16`` for autocast;
                the model's own unless given.
            attention: ``eager``, ``sdpa`` or ``flash``; the model's own unless given.
            launch: ``eager``, ``compiled`` or ``graph``, see ``Engine``.
            layout: of images, ``nchw`` or ``nhwc``.
            fields: ``mode``, ``batch``, ``seq_len``, ``optimizer``, ``grad_scaler``, and those of ``Extents``.

        Raises:
            ModelError: an unknown option, a batch or length below 1, an optimizer without training,
                or a scaler without an optimizer.
            CoverageError: an unknown dtype.
        """
        precision = Precision.named(str(dtype)) if dtype else OWN_PRECISION
        if dtype:
            _known("dtype", str(precision), DTYPES)
        if attention:
            _known("attention", attention, ATTENTIONS)
        _known("launch", launch, LAUNCHES)
        _known("layout", layout, LAYOUTS)
        _known("mode", fields.get("mode", "inference"), MODES)
        _known("optimizer", fields.get("optimizer", "none"), OPTIMIZERS)
        told = {f: fields.pop(f) for f in Extents.__dataclass_fields__ if f in fields}
        engine = Engine.torch(attention or "", launch, layout)
        asked = cls(model=model, precision=precision, engine=engine, extents=Extents(**told), **fields)
        for what, value in _counts(asked):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ModelError(f"{what} {value} of {model or 'the model'}: give a whole number of at least 1")
        if asked.optimizer != "none" and asked.mode == "inference":
            raise ModelError(
                f"optimizer {asked.optimizer}: inference has no optimizer: leave it out, or give mode training"
            )
        if asked.grad_scaler and asked.optimizer == "none":
            raise ModelError("grad_scaler: there is no optimizer to scale gradients for: name one, or leave it out")
        return asked

    @property
    def dtype(self) -> str:
        """The precision as text: of weights and activations, ``tf32``, ``amp_float16``."""
        return str(self.precision)

    @property
    def attention(self) -> str:
        """The engine's form of attention."""
        return self.engine.attention

    def resolved(self, model: str, seq_len: int | None) -> Request:
        """The same question with the model's full name and the length that it will run at."""
        return replace(self, model=model, seq_len=seq_len)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back; the engine by its form of attention and its layout."""
        return {
            "model": self.model,
            "mode": self.mode,
            "batch": self.batch,
            "seq_len": self.seq_len,
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "attention": self.attention,
            "layout": self.engine.layout,
            **({"grad_scaler": True} if self.grad_scaler else {}),
            **self.extents.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Request:
        """Read what ``to_dict`` wrote."""
        return cls.of(**data)


def _counts(asked: Request) -> tuple[tuple[str, int | None], ...]:
    extents = asked.extents
    return (
        ("batch", asked.batch),
        ("sequence length", asked.seq_len),
        ("image size", extents.image_size),
        ("frames", extents.frames),
    )


def _known(what: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        said = (value if isinstance(value, str) else repr(value))[:40]
        hint = nearest(said, known)
        raise ModelError(f"{what} '{said}' of a whole model is not estimated{hint}: one of {', '.join(known)}")
