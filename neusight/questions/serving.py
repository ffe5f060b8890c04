"""``Serving``: a language model that an engine serves under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from neusight.devices import DeviceSpec
from neusight.devices.cluster import USUAL_PER_NODE
from neusight.engines.launch_flags import engines_with_flags, flags_of
from neusight.questions.engined import MOST_TOKENS, Engined
from neusight.questions.field import RANGE, FieldError, lengths, number, numbers_of, text, whole
from neusight.questions.parts import LOAD, MOST_ARRIVALS, Seeded
from neusight.questions.question import plain_number
from neusight.questions.unset import versions_by_era
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.serving.load import Load, TokenCounts
    from neusight.serving.question import DeploymentQuestion
    from neusight.serving.setup import Setup
    from neusight.workloads.decoders.decoder import Decoder

SHAPES, ARRIVALS = ("lognormal", "uniform", "exponential"), ("poisson", "uniform")
MOST_REQUESTS = 100_000
"""Clients, or requests of a batch: more are a slip of the keyboard."""
LOADS = ("batch", "concurrency", "request_rate", "stages", "trace", "num_prompts")
"""Fields of which one gives the load; ``num_prompts`` counts the requests of a rate or of clients too."""


@dataclass(frozen=True, kw_only=True)
class Loaded(Seeded):
    """The load of a served model."""

    isl: float | str | None = lengths(
        "Input sequence length: tokens of a prompt, on average; drawn evenly from 819..1024; in turns 512/2048/512.",
        LOAD, low=1, high=MOST_TOKENS, listable=True,
    )  # fmt: skip
    osl: float | str | None = lengths(
        "Output sequence length: tokens of an answer, on average; a range or list as those of --isl.",
        LOAD, low=1, high=MOST_TOKENS, listable=True,
    )  # fmt: skip
    isl_cv: float = number("Draw prompts of many lengths: standard deviation over mean.", LOAD, 0.0, low=0.0, high=10.0)
    osl_cv: float = number("Draw answers of many lengths: standard deviation over mean.", LOAD, 0.0, low=0.0, high=10.0)
    isl_shape: str = text("Distribution of prompts' lengths.", LOAD, "lognormal", choices=SHAPES)
    osl_shape: str = text("Distribution of answers' lengths.", LOAD, "lognormal", choices=SHAPES)
    images: str = text(
        "Images of each prompt, whose tokens are among --isl. Default size: 1024x1024.", LOAD, metavar="N[,size=WxH]"
    )
    batch: int | None = whole("Requests of one static batch.", LOAD, high=MOST_REQUESTS, short="-b", listable=True)
    concurrency: int | None = whole(
        "Clients, each of which sends its next request when the last is answered.",
        LOAD, high=MOST_REQUESTS, listable=True,
    )  # fmt: skip
    request_rate: float | None = number(
        "Requests that arrive each second, whether or not the engine keeps up.",
        LOAD, low=1e-6, high=1e6, listable=True, former=("rate",),
    )  # fmt: skip
    arrivals: str = text("Intervals between arrivals.", LOAD, "poisson", choices=ARRIVALS)
    burstiness: float = number(
        "Below 1 requests arrive in bursts, above 1 more evenly than Poisson's: shape of a gamma distribution of "
        "intervals, as vLLM's bench serve has it.",
        LOAD, 1.0, low=1e-3, high=1e3,
    )  # fmt: skip
    stages: str = text(
        "Rates of arrival that follow one another, each with how long it lasts: 4:60s,16:30s.",
        LOAD, metavar="RATE:TIME,…", joined=True,
    )  # fmt: skip
    trace: str = text("File of arrivals and lengths: .csv, .jsonl or .parquet.", LOAD, metavar="FILE")
    num_prompts: int | None = whole(
        "Requests of a rate or of clients; without another load, all of them wait at the start (offline).",
        LOAD, high=MOST_ARRIVALS, former=("requests",),
    )  # fmt: skip
    warmup_requests: int | None = whole("Requests that are sent and answered before those that count.", LOAD, low=0)


OF_LOADS = tuple(name for name in Loaded.fields() if name != "images")
"""Fields about the load alone; prompts with ``images`` are a deployment's too."""


@dataclass(frozen=True, kw_only=True)
class Serving(Loaded, Engined):
    """A deployment and its load."""

    KIND: ClassVar[str] = "serving"

    HELP: ClassVar[Mapping[str, str]] = {
        "dp": "Data parallel: groups of devices whose attention serves separate sequences. Default: 1.",
        "per_node": "Devices of a node. Default: the usual number of that device.",
    }

    @property
    def load(self) -> str:
        """Name of the field that gives the load.

        Raises:
            FieldError: no load, or several.
        """
        loads = [name for name in LOADS if getattr(self, name)]
        kinds = [name for name in loads if name != "num_prompts"] or loads
        if not kinds:
            raise FieldError("concurrency", f"is missing, as is any other load: give one of {', '.join(LOADS)}")
        if len(kinds) > 1 or (loads[-1] == "num_prompts" and kinds[0] in ("batch", "stages", "trace")):
            raise FieldError(loads[0], f"is another load than {' and '.join(loads[1:])}: give one of them")
        return kinds[0]

    def is_drawn(self, name: str) -> bool:
        """True if lengths, ``isl`` or ``osl``, are drawn from a distribution."""
        in_range = RANGE in str(getattr(self, name))
        return in_range or bool(getattr(self, f"{name}_cv")) or getattr(self, f"{name}_shape") == "exponential"

    @property
    def arrives(self) -> bool:
        """True if requests arrive at random intervals, independent of answers."""
        return bool(self.request_rate or self.stages)

    def check_load(self, searched: bool) -> None:
        """Check that there is one load, or none where it is ``searched``.

        Raises:
            FieldError: no load, or several.
        """
        if searched:
            self.refuse(LOADS, "is another load than a search: leave out one of them")
        else:
            _ = self.load

    def resolve(self, device: DeviceSpec | None = None, *, load: Load | None = None) -> DeploymentQuestion:
        """The deployment and its load for the predictor.

        Args:
            device: that of ``gpu``, where it is loaded already.
            load: in place of the one that words give.

        Raises:
            FieldError: words that exclude each other. ModelError: an unknown model. DeviceError: an unknown device.
            DataError, LoadError: a trace that cannot be read.
        """
        from neusight.questions.loads import load_of
        from neusight.serving.question import DeploymentQuestion

        if load is not None:
            self.refuse(OF_LOADS, "is given by load: leave it out")
        device, model = device or self.device(), self.decoder()
        if load is None:
            load = load_of(self, model.max_len)
            self.check_relations(sessions=getattr(load, "sessions", None) is not None)
        self.check_images(model)
        return DeploymentQuestion(
            model=self.model_or_name(), gpu=device, load=load, setup=self.setup(), prices=self.prices
        )

    def decoder(self) -> Decoder:
        """The model.

        Raises:
            ModelError: an unknown model, or a configuration that is none.
        """
        from neusight.workloads.decoders.known import known_decoder

        model = self.model_or_name()
        return known_decoder(model) if isinstance(model, str) else model

    def lengths(self) -> tuple[TokenCounts, TokenCounts]:
        """Tokens of prompts and of answers, for loads that a search makes."""
        from neusight.questions.loads import lengths_of

        model = self.decoder()
        self.check_images(model)
        return lengths_of(self, model.max_len)

    @classmethod
    def setup_of(cls, words: Mapping[str, Any], device: DeviceSpec) -> Setup:
        """The deployment on a device that keywords describe, which say nothing of a load.

        Raises:
            FieldError: another word, or a value that it cannot have.
        """
        from neusight.serving.setup import Setup

        names = {f.name for f in fields(Setup)} & {*cls.fields()}
        for name in words:
            if cls.today(name) not in names:
                raise FieldError(name, f"has no place in a deployment: one of {', '.join(sorted(names))}")
        return cls.named({"model": "any", "gpu": device, **words}).setup()

    def setup(self) -> Setup:
        """The deployment with its limits; fields left open have its defaults."""
        from neusight.serving.setup import Setup

        values = {f.name: getattr(self, f.name) for f in fields(Setup)}
        return Setup(**{name: value for name, value in values.items() if value is not None})

    @property
    def versions(self) -> tuple[tuple[str, float], ...]:
        """Versions of the engine that people run, one an era, with their shares; () where one is given."""
        if self.engine_version:
            return ()
        return versions_by_era(self.engine, self.fields()["engine_version"].field.if_unset(self))

    def check_relations(self, *, sessions: bool = False) -> None:
        """Check words that mean something beside others alone.

        Args:
            sessions: whether the load has sessions.

        Raises:
            FieldError: a word that has no meaning beside the others.
        """
        if not self.prefill:
            self.refuse(("kv_link", "kv_overlap"), "is of a cache that travels: give prefill")
        if not sessions:
            self.refuse(("host_cache",), "keeps what sessions leave: give a trace with a column session")
        options = ("scheduler_recv_interval", "batch_wait_timeout_iters")
        for name in (option for option in options if getattr(self, option) is not None):
            engines = [one for one in engines_with_flags() if name in {*flags_of(one).fields, *flags_of(one).file}]
            if self.engine not in engines:
                raise FieldError(name, f"is an option of {', '.join(engines)} alone: leave it out")
        if self.isl and not self.isl_cv and self.prefix_cached_tokens > max(numbers_of(self.isl)):
            fewer = f"are among those of prompts, isl {plain_number(self.isl)}: give fewer"
            self.refuse(("prefix_cached_tokens",), fewer)
        if not (self.is_drawn("isl") or self.is_drawn("osl") or self.arrives):
            self.refuse(("seed",), "draws nothing: lengths are not drawn, and requests do not arrive at random")
        for name in ("isl", "osl"):
            if isinstance(getattr(self, name), str):
                self.refuse((f"{name}_cv", f"{name}_shape"), f"has no place: {name} states each length: leave it out")
        if self.arrivals != "poisson":
            self.refuse(("burstiness",), f"is of intervals that are drawn: leave out arrivals {self.arrivals}")

    def check_images(self, model: Decoder) -> None:
        """Raises:
        FieldError: prompts too short for the tokens of their images.
        """
        from neusight.workloads.decoders.vision import Images

        if not (self.images and model.vision and self.isl):
            return
        images = Images.parse(self.images)
        shortest = min(numbers_of(self.isl))
        if (tokens := images.number * model.vision.tokens(images)) >= shortest:
            raise FieldError("isl", f"{shortest:g} hold no images of {tokens} tokens and a question: give more")

    def assumed(self) -> dict[str, str]:
        """Values assumed for open fields, with the reason, where the question alone decides them."""
        usual_versions = self.fields()["engine_version"].field.if_unset(self)
        if self.engine_version or self.versions or not usual_versions:
            return {}
        return {"engine_version": f"{usual_versions[-1].value}, the newest known"}

    def without_effect(self, *, searched: bool = False) -> Iterator[str]:
        """Lines for words that change nothing; where degrees and replicas are ``searched``, theirs do."""
        yield from self.not_estimated()
        degree = self.tp * self.pp * (self.dp or 1)
        if not searched and self.network and degree <= (self.per_node or USUAL_PER_NODE):
            devices = f"all {degree} devices of a replica are" if degree > 1 else "the only device of a replica is"
            yield f"network has no effect: it joins nodes, and {devices} in one"
        if not searched and self.router != "round-robin" and self.replicas * (self.dp or 1) == 1:
            yield f"router {self.router} has no effect: there is one replica"
        if self.aiter is not None and self.vendor not in ("", "amd"):
            yield "aiter has no effect: its kernels are of AMD's GPUs"
        for name in ("arrivals", "burstiness"):
            if name in self.words() and not self.arrives:
                number = plain_number(getattr(self, name))
                yield f"{name} {number} has no effect: it is of requests that arrive by a request_rate or stages"
        if self.warmup_requests:
            yield "warmup_requests has no effect: estimates are of a server that is warm, and idle when a load begins"
        for name in ("isl", "osl"):
            if getattr(self, f"{name}_shape") == "uniform" and not self.is_drawn(name):
                yield f"{name}_shape has no effect: all lengths are equal; give {name}_cv"
            if getattr(self, f"{name}_shape") == "exponential" and getattr(self, f"{name}_cv"):
                yield f"{name}_cv has no effect: exponential lengths deviate by their mean"
