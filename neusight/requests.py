"""The nouns of a question: what is run, in which precision, at which sizes, over which devices. Each replaces a
parameter list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from neusight.defaults import default_micro_batch
from neusight.engines import ATTENTIONS, LAUNCHES, LAYOUTS, Engine
from neusight.engines.torch import TORCH, torch_engine
from neusight.errors import ModelError, nearest
from neusight.kernels.optimizers import algorithms
from neusight.kernels.precision import OWN_PRECISION, Precision
from neusight.quick_dataclasses import dataclass
from neusight.units import parse_image_size

Mode = Literal["inference", "training"]
MODES = ("inference", "training")
INTEGERS = "int8"
"""All of a step in integers of 8 bits, as converters for microcontrollers write it."""
DTYPES = ("float32", "float32_ieee", "bfloat16", "float16", "tf32", "amp_float16", "amp_bfloat16", INTEGERS)
"""Precisions that whole models are estimated in, see ``Precision``; single kernels have more."""
OPTIMIZERS = tuple(algorithms())
NOTHING_SELECTED = (("*", 1e-12),)
"""``Request.shares`` of what selects nothing by values that are not known."""
_LONGEST_S = 86_400
MOST_STEPS = 10_000
"""Of denoising: the longest chains that models are trained with have 4,000 (Nichol and Dhariwal 2021, section 3)."""
SHARDS = ("none", "zero1", "zero2", "zero3", "hsdp")
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "dualpipe", "asynchronous")
RECOMPUTES = ("none", "selective", "operators", "full")
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""What may be computed again by itself, several with "+" between (Megatron Core,
``TransformerConfig.recompute_modules``); ``selective`` is the first."""
OFFLOADS = ("none", "optimizer", "parameters")
CP_COMMS = ("p2p", "all_gather")
_WORDS = {"shard": SHARDS, "schedule": SCHEDULES, "offload": OFFLOADS}
_DEGREES = ("dp", "tp", "pp", "cp", "ulysses", "ep", "etp", "vp", "micro_batch_size", "global_batch_size")


@dataclass(frozen=True, kw_only=True)
class Extents:
    """What a person may say of inputs beside batch and sequence length; None takes the model's own.

    ``image_size`` is the edge of a square image [pixels], or a text of width and height, ``768x512``; ``frames`` the
    images of a clip, ``seconds`` the length of a sound, ``given`` inputs written out as ``name=shape:dtype``.
    """

    image_size: int | str | None = None
    frames: int | None = None
    seconds: float | None = None
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", tuple(self.given))
        if self.seconds is not None and not 0 < self.seconds <= _LONGEST_S:
            raise ModelError(f"{self.seconds:g} seconds of sound: give a number above 0, and at most {_LONGEST_S:,}")

    @property
    def edges(self) -> tuple[int, int] | None:
        """Height and width of an image [pixels]; None where the model's own are taken."""
        if self.image_size is None:
            return None
        width, height = parse_image_size(self.image_size)
        return height, width

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
    overflows, as ``torch.amp.GradScaler`` does. ``shares``: of what an operator, or all within a layer, selects by
    values that are not known, as pairs of its name and a number up to 1. ``steps`` of denoising make a whole image or
    clip of a diffusion pipeline; None: one.
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
    shares: tuple[tuple[str, float], ...] = ()
    steps: int | None = None

    @classmethod
    def of(
        cls,
        model: str = "",
        *,
        dtype: str | None = None,
        share: Mapping[str, float] | None = None,
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
            share: ``shares``, by name.
            attention: ``eager``, ``sdpa`` or ``flash``; the model's own unless given.
            launch: ``eager``, ``compiled`` or ``graph``, see ``Engine``.
            layout: of images, ``nchw`` or ``nhwc``.
            fields: ``mode``, ``batch``, ``seq_len``, ``optimizer``, ``grad_scaler``, ``steps``, and those of
                ``Extents``.

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
        extents = {f: fields.pop(f) for f in Extents.__dataclass_fields__ if f in fields}
        engine = torch_engine(attention or "", launch, layout)
        shares = _shares(share or {})
        request = cls(
            model=model, precision=precision, engine=engine, extents=Extents(**extents), shares=shares, **fields
        )
        counts = {"batch": request.batch, "sequence length": request.seq_len, "steps": request.steps}
        size = request.extents.image_size
        sizes = {"image size": None if isinstance(size, str) else size, "frames": request.extents.frames}
        for what, value in (counts | sizes).items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ModelError(f"{what} {value} of {model or 'the model'}: give a whole number of at least 1")
        if request.optimizer != "none" and request.mode == "inference":
            raise ModelError(
                f"optimizer {request.optimizer}: inference has no optimizer: leave it out, or give mode training"
            )
        if request.steps and (request.mode == "training" or request.steps > MOST_STEPS):
            raise ModelError(f"steps {request.steps}: give at most {MOST_STEPS:,}, and none in training")
        if request.grad_scaler and request.optimizer == "none":
            raise ModelError("grad_scaler: there is no optimizer to scale gradients for: name one, or leave it out")
        return request

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
        names = ("model", "mode", "batch", "seq_len", "dtype", "optimizer", "attention")
        return {
            **{name: getattr(self, name) for name in names},
            "layout": self.engine.layout,
            **({"grad_scaler": True} if self.grad_scaler else {}),
            **({"steps": self.steps} if self.steps else {}),
            **self.extents.to_dict(),
            **({"share": dict(self.shares)} if self.shares else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Request:
        """Read what ``to_dict`` wrote."""
        return cls.of(**data)


def _shares(share: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    for name, value in share.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ModelError(f"share {name}={value!r}: give a number above 0, and at most 1")
    return tuple(sorted(share.items()))


def _known(what: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        word = (value if isinstance(value, str) else repr(value))[:40]
        hint = nearest(word, known)
        raise ModelError(f"{what} '{word}' of a whole model is not estimated{hint}: one of {', '.join(known)}")


def modules_of(recompute: str) -> frozenset[str]:
    """Modules that a way of recomputation is of, none where it goes by another rule or any name of them is unknown."""
    words = recompute.split("+") if recompute != "selective" else MODULES[:1]
    return frozenset(words) if set(words) <= set(MODULES) else frozenset()


def _chosen(name: str, word: object, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ModelError(f"unknown {name} '{word}'{nearest(str(word), known)}: one of {', '.join(known)}")


def directions_of(schedule: str, pp: int) -> int:
    """In which micro-batches go through the stages: half of them each way under ``dualpipe``."""
    return 2 if schedule == "dualpipe" and pp > 1 else 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Degrees of parallelism, micro-batches and what else decides how a step is spread over ``world`` devices.

    ``dp`` replicas work on sequences of their own, ``tp`` ranks share every layer, ``pp`` stages hold a part of the
    layers each, in ``vp`` pieces (interleaved where more than one), ``cp`` ranks share every sequence: keys travel
    ``p2p`` in a ring or by ``all_gather`` (``cp_comm``; "": as the engine has it), but ``ulysses`` neighbours exchange
    heads for tokens (Jacobs et al. 2023). Experts are spread over ``ep`` of the ``dp * cp * tp`` ranks of a stage and
    sharded over ``etp`` (0: as ``tp``).

    ``micro_batch_size`` and ``global_batch_size`` are sequences. ``shard``: what replicas keep of each other's
    state: ``zero1`` optimizer states, ``zero2`` gradients as well, ``zero3`` weights as well, ``hsdp`` all three
    within ``shard_group`` ranks (0: those of a node) and copies of that beyond. ``recompute`` in the backward pass,
    of the first ``recompute_layers`` layers of each stage (0: of all): ``selective`` the core of attention,
    ``operators`` all but attention and every second product, ``full`` everything, or names of ``MODULES`` with "+"
    between. ``overlap_tp``: what tensor-parallel ranks gather and scatter runs beside products in pieces;
    ``overlap_experts``: tokens travel to experts and back beside the kernels of another micro-batch. ``offload``: the
    host keeps and steps the ``optimizer``'s states, or those and shares of fully sharded weights (``parameters``).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    cp_comm: str = ""
    ulysses: int = 1
    ep: int = 1
    etp: int = 0
    vp: int = 1
    micro_batch_size: int = 1
    global_batch_size: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    shard: str = "none"
    shard_group: int = 0
    recompute: str = "none"
    recompute_layers: int = 0
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_tp: bool = False
    overlap_experts: bool = False
    gradient_dtype: str = "float32"
    offload: str = "none"

    def __post_init__(self) -> None:
        """Raises:
        ModelError: a degree below 1, an unknown word, or batches that do not divide.
        """
        for name in _DEGREES:
            value, least = getattr(self, name), 0 if name == "etp" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ModelError(f"plan: {name} is {value!r}: give a whole number of at least {least}")
        for name, known in _WORDS.items():
            _chosen(name, getattr(self, name), known)
        if self.cp_comm:
            _chosen("cp_comm", self.cp_comm, CP_COMMS)
        if self.cp % self.ulysses:
            raise ModelError(f"plan: ulysses {self.ulysses} does not divide cp {self.cp}: choose one that does")
        if self.offload == "parameters" and self.shard != "zero3":
            raise ModelError("plan: offload parameters needs weights that are gathered by layers: set shard to zero3")
        if not modules_of(self.recompute):
            _chosen("recompute", self.recompute, (*RECOMPUTES, *MODULES))
        if self.global_batch_size % (self.dp * self.micro_batch_size):
            each = self.dp * self.micro_batch_size
            fit = max(each, self.global_batch_size // each * each)
            raise ModelError(
                f"global batch {self.global_batch_size} is no multiple of dp {self.dp} x micro-batch "
                f"{self.micro_batch_size}: {fit} would be"
            )

    def without_effect(self, experts: bool, training: bool = True) -> tuple[str, ...]:
        """A line for each choice that changes nothing, and why.

        Args:
            experts: whether the model has any.
            training: whether there are a backward pass and gradients.
        """
        if not training:
            own = Plan()
            names = ("schedule", "shard", "recompute", "overlap_grad_reduce")
            given = [name for name in names if getattr(self, name) != getattr(own, name)]
            return tuple(f"{name} has no effect in inference" for name in given)
        copies, stages, shared = self.dp * self.cp > 1, self.pp > 1, self.tp > 1
        why_whole = "the residual stream is not shared by tokens: set sequence_parallel" if shared else "tp is 1"
        needs = {
            "vp": (self.vp == 1 or stages, "chunks are interleaved between stages, and pp is 1"),
            "schedule": (self.schedule == "1f1b" or stages, "there is no pipeline: pp is 1"),
            "cp_comm": (not self.cp_comm or self.cp > self.ulysses, "no keys travel: cp is 1, or all of it ulysses"),
            "ep": (self.ep == 1 or experts, "the model has no experts"),
            "etp": (not self.etp or experts, "the model has no experts"),
            "shard": (self.shard == "none" or copies, "there is one replica"),
            "shard_group": (not self.shard_group or self.shard == "hsdp", "shard is not hsdp"),
            "recompute_layers": (not self.recompute_layers or self.recompute != "none", "recompute is none"),
            "sequence_parallel": (not self.sequence_parallel or shared, "tp is 1"),
            "overlap_experts": (not self.overlap_experts or (experts and self.ep > 1), "no ranks exchange tokens"),
            "overlap_tp": (not self.overlap_tp or (shared and self.sequence_parallel), why_whole),
            "overlap_grad_reduce": (not self.overlap_grad_reduce or copies, "there is one replica"),
            "overlap_param_gather": (not self.overlap_param_gather or copies, "there is one replica"),
        }
        return tuple(
            f"{name} {getattr(self, name)} has no effect: {why}".replace(" True", "")
            for name, (counts, why) in needs.items()
            if not counts
        )

    @property
    def world(self) -> int:
        """Devices."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def short(self) -> str:
        """In a few words: degrees above 1, how states are shared, what is computed again."""
        degrees = [f"{name}{getattr(self, name)}" for name in ("dp", "tp", "pp", "vp", "cp", "ep")]
        words = [degree for degree in degrees if not degree.endswith("p1")]
        words += [f"ulysses{self.ulysses}"] * (self.ulysses > 1) + [self.cp_comm] * bool(self.cp_comm)
        words += [f"mb{self.micro_batch_size}", *(word for word in (self.shard, self.recompute) if word != "none")]
        return " ".join(words)

    @property
    def directions(self) -> int:
        """In which micro-batches go through the stages, see ``directions_of``."""
        return directions_of(self.schedule, self.pp)

    @property
    def micro_batches(self) -> int:
        """Of each replica in a step."""
        return self.global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def expert_tp(self) -> int:
        """Ranks that share each expert."""
        return self.etp or self.tp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert."""
        return max(1, self.dp * self.cp * self.tp // (self.ep * self.expert_tp))

    @classmethod
    def of_step(cls, batch: int, *, training: bool, **words: Any) -> Plan | None:
        """The usual plan for ``batch`` samples a step; None for one device that takes the batch at once.

        As PyTorch's ``DistributedDataParallel`` does, replicas sum gradients during the backward pass unless told not
        to (Li et al. 2020, section 3.2.3).

        Args:
            batch: samples of a step, over all replicas.
            training: whether there are gradients.
            words: other fields; one that is None or "" is as usual.

        Raises:
            ModelError: a batch that replicas or micro-batches do not divide.
        """
        given = {name: value for name, value in words.items() if value not in (None, "")}
        dp = given.get("dp", 1)
        usual: dict[str, Any] = {
            "micro_batch_size": default_micro_batch(batch // dp, given.get("pp", 1), TORCH).value,
            "overlap_grad_reduce": training and dp > 1,
        }
        plan = cls(**usual | given, global_batch_size=batch)
        return None if plan == cls(micro_batch_size=batch, global_batch_size=batch) else plan
