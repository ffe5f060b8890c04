"""``neusight serving``: a language model as it is served: times to tokens, throughput, memory and cost under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Given, Point, combined
from neusight.cli.options import ENGINE, LOAD, OUTPUT, PLAN, Spec
from neusight.cli.output import Advance, busy, note
from neusight.devices.cluster import USUAL_PER_NODE
from neusight.paths import user_path

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.serving import Choice, Deployment, EngineOptions, Load, ServingEstimate, Trace
    from neusight.serving.load import TokenCounts

KINDS = ("--batch", "--concurrency", "--rate", "--trace", "--frontier", "--slo", "--requests")
"""Options of which one says what the load is. ``--requests`` counts the requests of ``--concurrency`` or ``--rate``."""
_TOGETHER = (
    {"--requests", "--concurrency"}, {"--requests", "--rate"}, {"--slo", "--rate"}, {"--slo", "--concurrency"}
)  # fmt: skip
MOST_REQUESTS = 100_000
"""Clients, or requests of a batch: what is larger is a slip of the keyboard."""
SLOWEST, FASTEST = 1e-6, 1e6
"""Rates [requests/s], likewise."""
UNBOUNDED = 16
"""Lengths of a model without a longest sequence are cut at so many times their mean (assumption)."""
LEAST_SHARE = 1e-3
"""Of the memory: less holds no engine."""


@dataclass(frozen=True, kw_only=True)
class ServingTarget:
    """On what it runs, and how many devices share it."""

    gpu: opt.Gpus = ""
    overrides: opt.Overrides = field(default_factory=list)
    prices: opt.Prices = None
    tp: opt.TPs = "1"
    pp: opt.PP = 1
    ep: Annotated[int, Spec("--ep", PLAN, "GPUs over which experts are spread, whole.").number(most=4096)] = 1
    dp: Annotated[
        int, Spec("--dp", PLAN, "Groups of GPUs whose attention serves sequences of its own.").number(most=4096)
    ] = 1
    replicas: Annotated[str, Spec("--replicas", PLAN, "Copies of all that, which share the load.").numbers()] = "1"
    prefill: Annotated[
        str, Spec("--prefill", PLAN, "GPUs of their own for prompts; the others generate.", "gpu=h100,tp=4,…").text()
    ] = ""
    kv_link: Annotated[
        str, Spec("--kv-link", PLAN, "Way of the cache to them: a network ('8 x 400Gb/s'), nvlink or none.").text()
    ] = ""
    kv_overlap: Annotated[
        bool, Spec("--kv-overlap", PLAN, "The cache of a layer travels while the next are computed.").text()
    ] = False
    per_node: opt.PerNode = None
    network: opt.Network = ""
    router: Annotated[
        str, Spec("--router", PLAN, "Who gets a request: round-robin, least-loaded or prefix-aware.").text()
    ] = "round-robin"
    admitted: Annotated[
        int | None,
        Spec("--admitted", PLAN, "Requests at a replica, beyond which others wait at the router.").number(most=1 << 20),
    ] = None

    @property
    def degrees(self) -> dict[str, int]:
        """Fields of ``Setup`` that hold for all combinations."""
        names = ("pp", "ep", "dp", "router", "admitted", "network", "prefill", "kv_link", "kv_overlap")
        return {"per_node": self.per_node or 0} | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What serves it, in which precision and within which limits."""

    engine: opt.EngineName = "vllm"
    engine_version: Annotated[
        str, Spec("--engine-version", ENGINE, "Such as 0.15.1. Default: the newest that is known.").text()
    ] = ""
    dtype: opt.Dtypes = ""
    kv_dtype: Annotated[
        str, Spec("--kv-dtype", ENGINE, "Of the KV cache, such as fp8. Default: that of activations.").text()
    ] = ""
    max_num_seqs: Annotated[
        int | None, Spec("--max-num-seqs", ENGINE, "Requests that run at the same time.").number(most=1 << 16)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Spec("--max-num-batched-tokens", ENGINE, "New tokens of a pass.").number(most=1 << 20)
    ] = None
    max_model_len: Annotated[
        int | None, Spec("--max-model-len", ENGINE, "Tokens of the longest sequence.").number(most=1 << 24)
    ] = None
    chunked_prefill: Annotated[
        bool, Spec("--chunked-prefill/--no-chunked-prefill", ENGINE, "Prompts may be cut where a pass is full.").text()
    ] = True
    graphs: Annotated[
        bool, Spec("--graphs/--no-graphs", ENGINE, "Passes are launched as CUDA graphs, as the engine does.").text()
    ] = True
    prefix_cached: Annotated[
        int,
        Spec("--prefix-cached", ENGINE, "Tokens that all prompts begin with, and that are in the cache.").number(
            0, 1 << 24
        ),
    ] = 0
    prefix_hit: Annotated[
        float, Spec("--prefix-hit", ENGINE, "Share of each prompt that is in the cache when it comes.").number(0, 1)
    ] = 0.0
    host_cache: Annotated[
        str,
        Spec("--host-cache", ENGINE, "Host memory of a replica that keeps sessions of a trace.", "SIZE").text(),
    ] = ""
    speculate: Annotated[
        str,
        Spec(
            "--speculate", ENGINE, "Draft and verify: a model, eagle, mtp or ngram; acceptance, or A/A/… by position.",
            "draft=D,tokens=N,acceptance=A[,depth=N]",
        ).text(),
    ] = ""  # fmt: skip
    lora_adapters: Annotated[
        str,
        Spec(
            "--lora-adapters", ENGINE, "LoRA adapters that may run together; rank 16 unless said.", "N[,rank=R]"
        ).text(),
    ] = ""
    moe_routing: Annotated[
        str,
        Spec(
            "--moe-routing", ENGINE, "Of tokens to experts: balanced, uniform or power_law_A. Default: as is usual.",
            "WORD",
        ).text(),
    ] = ""  # fmt: skip
    redundant_experts: Annotated[
        int, Spec("--redundant-experts", ENGINE, "Copies of the experts with most tokens, of all --ep.").number(0, 4096)
    ] = 0
    memory_fraction: Annotated[
        float | None,
        Spec("--memory-fraction", ENGINE, "Share of memory for it. Default: its own.").number(LEAST_SHARE, 1),
    ] = None

    @property
    def software(self) -> dict[str, Any]:
        """Fields of ``Setup`` that hold for all combinations."""
        names = (
            "engine", "engine_version", "kv_dtype", "speculate", "graphs", "lora_adapters", "moe_routing",
            "redundant_experts",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def limits(self) -> EngineOptions:
        """What the engine is started with."""
        from neusight.serving import EngineOptions

        return EngineOptions(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len, chunked_prefill=self.chunked_prefill,
            prefix_cached_tokens=self.prefix_cached, prefix_hit=self.prefix_hit,
            host_cache=opt.quantity(self.host_cache, "bytes", "--host-cache") if self.host_cache else 0.0,
            gpu_memory_utilization=self.memory_fraction,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Demanded:
    """The load."""

    isl: opt.Isls = ""
    osl: opt.Osls = ""
    isl_cv: Annotated[
        float, Spec("--isl-cv", LOAD, "Draw prompts of many lengths: deviation over mean, lognormal.").number(0, 10)
    ] = 0.0
    osl_cv: Annotated[
        float, Spec("--osl-cv", LOAD, "Draw answers of many lengths: deviation over mean, lognormal.").number(0, 10)
    ] = 0.0
    images: Annotated[
        str,
        Spec(
            "--images",
            LOAD,
            "Images of each prompt, whose tokens are among --isl; 1024x1024 unless said.",
            "N[,size=WxH]",
        ).text(),
    ] = ""
    concurrency: opt.Concurrencies = ""
    rate: Annotated[str, Spec("--rate", LOAD, "Requests/s that arrive by themselves (Poisson).", "X[,X…]").text()] = ""
    batch: Annotated[str, Spec("--batch -b", LOAD, "Requests of one static batch.").numbers()] = ""
    trace: Annotated[
        Path | None, Spec("--trace", LOAD, "Arrivals and lengths: .csv, .jsonl or .parquet.", "FILE").text()
    ] = None
    requests: Annotated[
        int | None,
        Spec("--requests", LOAD, "How many; without another load, all wait at the start (offline).").number(most=10**6),
    ] = None
    frontier: Annotated[bool, Spec("--frontier", LOAD, "1, 2, 4, … clients until throughput stops growing.").text()] = (
        False
    )
    slo: Annotated[
        str,
        Spec("--slo", LOAD, "Find the cheapest deployment that holds ttft=500ms,tpot_p99=40ms.", "TIME=LIMIT,…").text(),
    ] = ""
    recommend: Annotated[
        bool, Spec("--recommend", LOAD, "For --slo: choose what is not given (dtype, tp, pp, ep, dp, passes).").text()
    ] = False
    prefer: Annotated[
        Literal["cost", "gpus"], Spec("--prefer", LOAD, "For --slo: the cheapest, or the fewest GPUs.").text()
    ] = "cost"
    confidence: Annotated[
        float,
        Spec("--confidence", LOAD, "For --slo: probability with which it holds, given intervals.", "P").number(
            0.01, 0.99
        ),
    ] = 0.5
    seed: opt.Seed = 0  # fmt: skip

    @property
    def lists(self) -> tuple[str, ...]:
        """What may be one."""
        return self.isl, self.osl, self.concurrency, self.rate, self.batch

    @property
    def kind(self) -> str:
        """The option of ``KINDS`` that says what the load is.

        Raises:
            BadParameter: no load, or several.
        """
        options = {name for name in KINDS if getattr(self, name.removeprefix("--"))}
        if not options:
            raise typer.BadParameter(f"no load: give one of {', '.join(KINDS)}")
        if len(options) > 1 and options not in _TOGETHER:
            raise typer.BadParameter(f"{', '.join(sorted(options))} are several loads: give one of them")
        return min(options, key=lambda name: (name == "--requests", name != "--slo"))

    @property
    def fixed(self) -> dict[str, Any]:
        """The load that ``--slo`` is to hold under, none where it looks for that too.

        Raises:
            BadParameter: several.
        """
        values: dict[str, list[Any]] = {"request_rate": rates(self.rate) if self.rate else []}
        if self.concurrency:
            values["concurrency"] = opt.numbers(self.concurrency, "--concurrency", MOST_REQUESTS)
        if several := [name for name, each in values.items() if len(each) > 1]:
            raise typer.BadParameter(f"takes one {several[0].split('_')[0]} at a time", param_hint="--slo")
        return {name: each[0] for name, each in values.items() if each}

    @cached_property
    def requests_of_trace(self) -> Trace | None:
        """Those of ``--trace``."""
        from neusight.serving import read_trace

        return read_trace(user_path(str(self.trace))) if self.trace else None

    @property
    def has_sessions(self) -> bool:
        """Whether requests are turns of conversations."""
        return self.requests_of_trace is not None and self.requests_of_trace.sessions is not None

    @property
    def values(self) -> list[Any]:
        """What ``kind`` lists."""
        kind = self.kind
        if kind == "--trace":
            return [self.requests_of_trace]
        if kind in ("--batch", "--concurrency"):
            return opt.numbers(getattr(self, kind.removeprefix("--")), kind, MOST_REQUESTS)
        return [self.requests] if kind == "--requests" else rates(self.rate)

    def token_counts(self) -> list[list[int]]:
        """Lengths of prompts and of answers; none of a trace, which brings its own.

        Raises:
            BadParameter: missing, or without a place.
        """
        from neusight.serving.load import MOST_TOKENS

        texts, kind = {"--isl": self.isl, "--osl": self.osl}, self.kind
        if kind == "--trace":
            if any(texts.values()) or self.isl_cv or self.osl_cv:
                raise typer.BadParameter("has lengths of its own: leave out --isl and --osl", param_hint=kind)
            return [[0], [0]]
        if kind == "--batch" and (self.isl_cv or self.osl_cv):
            raise typer.BadParameter("has requests of equal lengths: leave out --isl-cv and --osl-cv", param_hint=kind)
        if missing := [name for name, text in texts.items() if not text]:
            raise typer.BadParameter("is missing: give tokens, such as 1024", param_hint=missing[0])
        return [opt.numbers(text, name, MOST_TOKENS) for name, text in texts.items()]

    def lengths(self, isl: int, osl: int, longest: int, context: int) -> tuple[TokenCounts, TokenCounts]:
        """Of prompts and answers, drawn where they are to be, and cut so that both fit a model's context."""
        from neusight.serving import Lengths

        if not isl:
            return 0, 0
        most = min(longest or context or UNBOUNDED * (isl + osl), context or 2**40)
        shares = (isl / (isl + osl), osl / (isl + osl))
        return tuple(
            Lengths(mean=mean, shape="lognormal", cv=cv, longest=max(mean, int(share * most))) if cv else mean
            for mean, cv, share in zip((isl, osl), (self.isl_cv, self.osl_cv), shares, strict=True)
        )  # type: ignore[return-value]

    def load(self, value: Any, lengths: tuple[Any, Any], schedulers: int) -> Load:
        """One load of these, for a deployment with so many schedulers."""
        from neusight.serving import Offline, Open, Static, closed
        from neusight.serving.planning import ARRIVALS

        isl, osl = lengths
        kind = self.kind
        if kind == "--trace":
            return value
        if kind == "--batch":
            return Static(batch=value, isl=isl, osl=osl)
        if kind == "--requests":
            return Offline(num_prompts=value, isl=isl, osl=osl, seed=self.seed)
        if kind == "--rate":
            number = self.requests or ARRIVALS * schedulers
            return Open(request_rate=value, num_prompts=number, isl=isl, osl=osl, seed=self.seed)
        return closed(value, isl, osl, num_prompts=self.requests, seed=self.seed)


def serving(
    model: opt.Decoder,
    target: ServingTarget,
    engine: EngineChoice,
    demanded: Demanded,
    models: opt.Models,
    typed: Given,
    launch_command: Annotated[
        bool, Spec("--launch-command", OUTPUT, "Print what starts it, with all limits that were assumed.").text()
    ] = False,
    figure: opt.Picture = None,
    form: opt.Format = "human",
) -> None:
    """Predict a served language model: times to tokens, throughput, memory, cost, and what limits it.

    One load: `--concurrency`, `--rate`, `--batch`, `--trace` or `--requests`; or `--frontier`, or `--slo`. Lists are
    combined. JSON is an object for one combination, and a list where any option is one.

    `--slo` finds deployments that hold a service level, alone or under `--rate` or `--concurrency`, and says why others
    do not; with `--recommend` it chooses what is not given and prints the command that starts the engine so.

    Examples:

    - `neusight serving Qwen/Qwen3-32B --gpu h200 --tp 2 --dtype fp8 --isl 4096 --osl 512 --concurrency 64`

    - `neusight serving llama-3.1-70b --gpu h100,h200 --tp 4,8 --isl 1024 --osl 256 --rate 4 --format csv`

    - `neusight serving Qwen/Qwen3-8B --gpu l4 --isl 1000 --osl 200 --frontier --figure frontier.png`

    - `neusight serving Qwen/Qwen3-32B --isl 4096 --osl 512 --dtype fp8 --slo ttft=500ms,tpot=30ms`

    - `neusight serving Qwen/Qwen3-32B --gpu h100,l4 --isl 4096 --osl 512 --slo ttft=2s,tpot=50ms --rate 9 --recommend`
    """
    if not demanded.slo:
        typed.refuse(["recommend", "prefer", "confidence"], "belongs to --slo: give one, such as --slo ttft=1s")
    slo = demanded.kind == "--slo"
    texts = (target.gpu, target.tp, target.replicas, engine.dtype, *demanded.lists)
    many = demanded.frontier or any(map(opt.is_list, texts))
    if launch_command and many and not slo:
        raise typer.BadParameter("prints one command: give one combination, or --slo", param_hint="--launch-command")
    if not target.gpu and not slo:
        raise typer.BadParameter("names no GPU: give ids of `neusight devices list`", param_hint="--gpu")
    if figure is not None and (slo or not many):
        raise typer.BadParameter("needs several combinations: add --frontier, or a list", param_hint="--figure")
    opt.check_out(figure, "--figure", *opt.PICTURES)
    if not (demanded.isl_cv or demanded.osl_cv or demanded.rate):
        typed.refuse(["seed"], "draws nothing: lengths are equal, and requests do not arrive at random")
    if target.dp == 1 and opt.numbers(target.replicas, "--replicas") == [1] and not slo:
        typed.refuse(["router"], "chooses between replicas, and there is one: give --replicas")
    if not target.prefill:
        typed.refuse(["kv_link", "kv_overlap"], "is of a cache that travels: give --prefill")
    elif slo:
        raise typer.BadParameter("is not searched: give a load instead of --slo", param_hint="--prefill")
    tps = opt.numbers(target.tp, "--tp")
    if not slo and max(tps) * target.pp * target.dp <= (target.per_node or USUAL_PER_NODE):
        typed.refuse(["network"], "joins nodes, and a replica is in one: raise --tp, or lower --per-node")
    demanded.token_counts()
    if demanded.has_sessions:
        typed.refuse(["prefix_hit"], "is what sessions of the trace leave: leave it out")
    else:
        typed.refuse(["host_cache"], "keeps what sessions leave: give a --trace with a column session")
    devices = opt.devices(target.gpu, target.overrides, target.prices) if target.gpu else opt.priced(target.prices)
    question = ServingQuestion(
        predictor=models.load(devices), model=model, target=target, engine=engine, demanded=demanded, many=many,
        devices={device.id: device for device in devices}, with_launch=launch_command or demanded.recommend,
    )  # fmt: skip
    if not (question.show_choices(typed, form) if slo else question.show_points(form, figure)):
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class ServingQuestion:
    """Deployments and loads that are combined, or looked for."""

    predictor: Predictor
    model: str
    devices: Mapping[str, DeviceSpec]
    target: ServingTarget
    engine: EngineChoice
    demanded: Demanded
    many: bool
    with_launch: bool

    def show_choices(self, typed: Given, form: str) -> bool:
        """What holds ``--slo``, the cheapest first; whether anything does."""
        from neusight.cli import show_serving

        with busy("looking for deployments") as advance:
            choices = self.choices(typed, advance)
        opt.note_prices(list(self.devices.values()))
        show_serving.show_choices(choices, self.demanded.slo, form, self.with_launch)
        return choices[0].estimate is not None

    def show_points(self, form: str, figure: Path | None) -> bool:
        """Every combination, and a picture of them; whether any has an estimate."""
        from neusight.cli import show_serving

        with busy("serving") as advance:
            points = list(self.points(advance))
        if self.many:
            opt.note_prices(list(self.devices.values()))
        estimates = [point.estimate for point in points if point.estimate]
        opt.note_corrections(self.predictor, [] if self.target.overrides else [e.gpu for e in estimates])
        show_serving.show_points(points, form, self.many, self.with_launch)
        if not estimates:
            note(f"error: none of {len(points)} combinations has an estimate: {points[0].error}")
        if figure is not None:
            show_serving.draw(points, figure)
        return bool(estimates)

    def points(self, advance: Advance) -> Iterator[Point[ServingEstimate]]:
        """Every combination, deployment by deployment.

        Raises:
            NeusightError: what is wrong, where there is one combination; else it stands in the point.
        """
        isls, osls = self.demanded.token_counts()
        kind = self.demanded.kind
        axes: dict[str, Sequence[Any]] = {
            "model": [self.model], "gpu": list(self.devices), **self._setups(), "isl": isls, "osl": osls
        }  # fmt: skip
        if kind != "--frontier":
            axes |= {kind.removeprefix("--"): self.demanded.values}
            points = combined(axes, self._served, many=self.many, advance=advance)
            yield from (self._public(point) for point in points)
            return
        for point in combined(axes, self._frontier, many=self.many, advance=advance):
            if point.error:
                yield self._public(Point(options=point.options, error=point.error))
            for e in point.estimate or ():
                yield Point(options=point.options | {"concurrency": e.load["concurrency"]}, estimate=e)

    def _public(self, point: Point[ServingEstimate]) -> Point[ServingEstimate]:
        """Without what a trace has of its own."""
        options = {name: value for name, value in point.options.items() if name != "trace"}
        lengths = {name: options[name] or None for name in ("isl", "osl")}
        return Point(options=options | lengths, estimate=point.estimate, error=point.error)

    def choices(self, typed: Given, advance: Advance) -> list[Choice]:
        """What holds, and what does not, with what is typed and usual values of other options.

        Raises:
            BadParameter: a list where ``--slo`` takes one value. LoadError: bounds that make no sense.
        """
        from neusight.serving import Demand, Slo

        demanded, setups = self.demanded, self._setups()
        isls, osls = demanded.token_counts()
        if max(map(len, (isls, osls))) > 1:
            raise typer.BadParameter("takes one --isl and --osl at a time", param_hint="--slo")
        if setups.pop("replicas") != [1] or demanded.requests is not None:
            text = "looks for the replicas itself: leave --replicas and --requests out"
            raise typer.BadParameter(text, param_hint="--slo")
        if not self.target.gpu and self.target.overrides:
            raise typer.BadParameter("changes a device: name it with --gpu", param_hint="--set")
        self._check_images(isls[0])
        isl, osl = demanded.lengths(isls[0], osls[0], self.engine.max_model_len or 0, self._context)
        demand = Demand(
            slo=Slo.named(demanded.slo), isl=isl, osl=osl, **demanded.fixed, confidence=demanded.confidence,
            seed=demanded.seed,
        )  # fmt: skip
        open_ = {"tp"} if not demanded.recommend else {"dtype", "tp", "pp", "ep", "dp"}
        options = {name: v for name, v in {**self._fixed(), **setups}.items() if name in typed or name not in open_}
        gpus = list(self.devices.values())
        return self.predictor.cheapest(
            self.model,
            gpus,
            demand,
            self.engine.limits(),
            usual=demanded.recommend,
            prefer=demanded.prefer,
            progress=advance,
            **options,
        )

    @property
    def _context(self) -> int:
        """Of the model [tokens], 0 where it states none."""
        from neusight.workloads.decoders.known import known_decoder

        return known_decoder(self.model).max_len

    def _setups(self) -> dict[str, list[Any]]:
        dtypes = opt.listed(self.engine.dtype, "--dtype") if self.engine.dtype else [""]
        tps, replicas = opt.numbers(self.target.tp, "--tp"), opt.numbers(self.target.replicas, "--replicas")
        return {"dtype": dtypes, "tp": tps, "replicas": replicas}

    def _fixed(self) -> dict[str, Any]:
        return self.engine.software | self.target.degrees | {"images": self.demanded.images}

    def _deployment(self, options: Mapping[str, Any], longest: int) -> Deployment:
        setup = {**self._fixed(), **{name: options[name] for name in ("dtype", "tp", "replicas")}}
        device = self.devices[options["gpu"]]
        deployment = self.predictor.deployment(self.model, device, longest, self.engine.limits(), **setup)
        return deployment.with_prices(self.target.prices or "")

    def _lengths(self, options: Mapping[str, Any]) -> tuple[Any, Any]:
        longest = self.engine.max_model_len or 0
        self._check_images(options["isl"])
        return self.demanded.lengths(options["isl"], options["osl"], longest, self._context)

    def _check_images(self, isl: int) -> None:
        """Raises:
        BadParameter: prompts too short for the tokens of their images.
        """
        from neusight.workloads.decoders.known import known_decoder
        from neusight.workloads.decoders.vision import Images

        vision = known_decoder(self.model).vision
        if not (self.demanded.images and vision and isl):
            return
        images = Images.named(self.demanded.images)
        if (tokens := images.number * vision.tokens(images)) >= isl:
            text = f"{isl} hold no images of {tokens} tokens and a question: give more"
            raise typer.BadParameter(text, param_hint="--isl")

    def _served(self, options: dict[str, Any]) -> ServingEstimate:
        from neusight.serving import serve
        from neusight.serving.load import longest_of
        from neusight.serving.simulate import ROUND_ROBIN

        value, lengths = options[self.demanded.kind.removeprefix("--")], self._lengths(options)
        load = self.demanded.load(value, lengths, options["replicas"] * self.target.dp)
        # Of what one scheduler gets, where they get theirs in turn: its requests are the first of the whole load.
        in_turn = self.target.router == ROUND_ROBIN and self.target.admitted is None
        longest = longest_of(self.demanded.load(value, lengths, 1) if in_turn else load)
        return serve(self._deployment(options, longest), load)

    def _frontier(self, options: dict[str, Any]) -> list[ServingEstimate]:
        from neusight.serving import frontier
        from neusight.serving.load import most_tokens

        lengths = self._lengths(options)
        deployment = self._deployment(options, sum(map(most_tokens, lengths)))
        return frontier(deployment, *lengths, seed=self.demanded.seed)


def rates(text: str) -> list[float]:
    """``0.5,4`` as numbers.

    Raises:
        BadParameter: something else, or a number beyond all reason.
    """
    try:
        values = [float(part) for part in opt.listed(text, "--rate")]
    except ValueError:
        message = f"'{text}' is not a list of numbers: write it like 0.5,4"
        raise typer.BadParameter(message, param_hint="--rate") from None
    return [opt.within(rate, SLOWEST, FASTEST, "--rate") for rate in values]
