"""What passes of a served model take: the kernels of one rank in columns, priced at once, and what the engine adds.

With a pipeline, a round of the scheduler is a pass for every stage. Sequences that generate are spread over all of
them. Prompts fill one after the other up to the tokens of a pass, so that one short prompt travels alone and many keep
every stage at work. A round takes as long as one of its passes needs for all layers: while that is in one stage, the
others are in the other stages. A round that is not full of prompts has none behind it: its last pass began later by a
stage for each of those before it, and so does what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from neusight.devices.cluster import USUAL_PER_NODE, Cluster, cluster_of
from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine
from neusight.engines.libraries import slowdown, variant_of
from neusight.engines.server import GROUPS, HOST, Server
from neusight.errors import ModelError
from neusight.executors.costs import Costs, cause_of
from neusight.executors.pricing import PartCosts, price
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import MANY_LAUNCHES, Conditions
from neusight.kernels.precision import stored_bytes
from neusight.laws.board_power import EnergyUse, board_j, idle_w, stream_energy
from neusight.laws.doubts import NORMAL_90, common, own_key, weighed
from neusight.laws.fitted import shipped_boards, shipped_physics
from neusight.laws.routes import Place
from neusight.plans.placement import Placement
from neusight.requests import Plan
from neusight.serving.batching import Chunks, PassTimes
from neusight.serving.lookup import (
    BOUND,
    ENERGY,
    GROUP,
    LIMITER,
    OWN,
    PART,
    SHARED,
    Key,
    PassInterpolator,
    PassSizes,
    PassSums,
    PricedPasses,
    TabulatedPasses,
)
from neusight.serving.speculation import Speculation
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.cores import CORE_MODULE
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import LEAST_BUCKET, Steps, bucket_of
from neusight.workloads.decoders.vision import Images
from neusight.workloads.dispatch import DISPATCHES, part_dispatches
from neusight.workloads.program import Part

Pricer = Callable[[KernelBatch, Place, Conditions], Costs]
"""What answers for kernels on a device, such as ``Predictor.kernels``, and for collectives on a cluster."""
ATTENTION = ("context", "decode")
ENGINE = "engine:"
"""Begin of keys of what constants of an engine leave unexplained, see ``laws.doubts``."""
SCHEME_SPREAD = 0.25
"""Products with 4-bit weights reach 0.5 to 0.9 of what bandwidth allows by library and shape (Frantar et al. 2024,
MARLIN, figure 1; assumption: as far apart elsewhere): standard deviation of the logarithm of kernels of quantised
weights where none was measured."""
_SHARED_GROUPS = tuple(group for group in GROUPS if group not in ATTENTION)


@dataclass(frozen=True, kw_only=True)
class PassCosts:
    """Times of passes in seconds, columns of shape (n,).

    None is faster than ``bound_s``; ``doubts`` are signed standard deviations of their logarithms by key; ``host_s`` is
    the engine's own time in it, ``waits_s`` of that what its kernels wait for launches; ``parts_s`` what each kind of
    kernel takes, ``limiters`` which resource each is limited by; ``groups_s`` are times by ``GROUPS`` without the
    engine's factors.
    """

    latency_s: np.ndarray
    bound_s: np.ndarray
    doubts: dict[str, np.ndarray]
    host_s: np.ndarray
    waits_s: np.ndarray
    parts_s: dict[str, np.ndarray]
    limiters: dict[str, np.ndarray]
    groups_s: dict[str, np.ndarray]
    energy_j: np.ndarray
    """Of each board in a pass [J], where it was asked for."""
    drawn: EnergyUse
    """What its kernels add in that to what it draws all the time [J]."""

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the logarithm of each time, shape (n,)."""
        return np.sqrt(sum((np.square(size) for size in self.doubts.values()), np.zeros(len(self.latency_s))))

    def with_doubt(self, key: str, spread: np.ndarray) -> PassCosts:
        """The same with another doubt: standard deviations of log times, shape (n,)."""
        return replace(self, doubts={**self.doubts, key: spread})

    def with_passes(self, name: str, other: PassCosts, runs: np.ndarray | int = 1) -> PassCosts:
        """The same with passes of another model, each so often, as a part of them; errors of both go together."""
        names = ("latency_s", "bound_s", "host_s", "waits_s", "energy_j")
        sums = {each: getattr(self, each) + runs * getattr(other, each) for each in names}
        other_s = runs * other.latency_s
        shares = self.latency_s / sums["latency_s"], other_s / sums["latency_s"]
        parts_s = {name: self.parts_s.get(name, 0.0) + other_s - runs * other.host_s}
        longest = max(other.parts_s, key=lambda part: other.parts_s[part].sum())
        return PassCosts(
            **sums,
            doubts=weighed(((shares[0], self.doubts), (shares[1], other.doubts))),
            parts_s=self.parts_s | parts_s,
            limiters=self.limiters | {name: other.limiters[longest]},
            groups_s={group: own_s + runs * other.groups_s[group] for group, own_s in self.groups_s.items()},
            drawn=self.drawn.plus(other.drawn, runs),
        )


DRAFT, VISION = "draft model", "vision encoder"
"""Names of all their kernels as parts of a pass."""


@dataclass(frozen=True, kw_only=True)
class ReplicaPricer:
    """A model on the devices of one replica, run by an engine: prices passes in batches.

    ``predict`` takes rounds of ``plan.pp`` passes, all else single passes through all layers. With ``speculation``,
    what is looked up are passes that verify drafts, and those of the model that makes them, ``draft``, if one does.
    ``cluster`` is where the devices are spread over several nodes, None in one. Each prompt brings ``images``, if any.
    ``further_dispatches`` the host has in each pass that generates, beside those of kernels. ``tables_priced``,
    ``sums_priced`` and ``passes_priced`` keep what was priced once.
    """

    decoder: Decoder
    device: DeviceSpec
    plan: Plan
    precision: ServingPrecision
    engine: Engine
    pricer: Pricer
    cluster: Cluster | None = None
    speculation: Speculation | None = None
    draft: ReplicaPricer | None = None
    images: Images | None = None
    further_dispatches: float = 0.0
    tables_priced: dict[PassSizes, PassTimes] = field(default_factory=dict, init=False, repr=False, compare=False)
    sums_priced: dict[PassSizes, PassInterpolator] = field(default_factory=dict, init=False, repr=False, compare=False)
    passes_priced: dict[object, PricedPasses] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_constants(self, constants: Mapping[str, float]) -> ReplicaPricer:
        """The same with other constants of its engine, see ``Server.with_constants``."""
        if not constants:
            return self
        engine = replace(self.engine, server=self.engine.serving.with_constants(constants))
        draft = replace(self.draft, engine=engine) if self.draft else None
        return replace(self, engine=engine, draft=draft)

    def predict(self, steps: Steps, *, energy: bool = False) -> PassCosts:
        """Times of passes, and energies where they are asked for; passes have up to the engine's default of tokens.

        Raises:
            ModelError: the plan does not divide the model. DeviceError: the device lacks a dtype.
        """
        one = self._as_run(in_flight(steps, self.plan.pp, self.engine.serving.max_num_batched_tokens))
        return self._composed(one, self._sums(one, GROUPS, energy=energy))

    def interpolate(self, steps: Steps, sizes: PassSizes) -> PassCosts:
        """As ``predict`` with energies, between passes that are priced once for these sizes; see ``PassInterpolator``.

        Prompts have no context.
        """
        steps = self._as_run(steps)
        if sizes not in self.sums_priced:
            self.sums_priced[sizes] = PassInterpolator(self._sums_once, _SHARED_GROUPS, sizes, queries=self.queries)
        verified = replace(steps, decode_tokens=np.full(len(steps), self.queries))
        costs = self._composed(verified, self.sums_priced[sizes].sums(verified))
        if self.images:
            costs = costs.with_passes(VISION, self._encoded(len(steps)), steps.prompts)
        if not (self.draft and self.speculation and self.speculation.tokens):
            return costs
        later = Steps.of(decodes=steps.decodes, decode_cached=steps.decode_cached)
        costs = costs.with_passes(DRAFT, self.draft.interpolate(steps, sizes))
        runs = (self.speculation.levels - 1) * (steps.decodes > 0)
        return costs.with_passes(DRAFT, self.draft.interpolate(later, sizes), runs)

    def _as_run(self, steps: Steps) -> Steps:
        """Passes as the engine's programs have them."""
        return steps.in_buckets if self.engine.buckets else steps

    def _encoded(self, n: int) -> PassCosts:
        """Of the images of one prompt, n times; the pass that they are in has the host's time.

        Raises:
            ModelError: the model's configuration tells of no vision encoder.
        """
        tower, images = self.decoder.vision_tower, self.images
        if tower is None or self.decoder.vision is None or images is None:
            raise ModelError(f"{self.decoder.name} tells of no vision encoder: give its config.json, or no images")
        plain = ServingPrecision(dtype=self.precision.dtype, kv_cache=self.precision.dtype)
        alone = replace(self, decoder=tower, precision=plain, plan=replace(self.plan, pp=1), images=None, draft=None)
        patches = self.decoder.vision.patches(images)
        steps = Steps.of(prompts=np.full(n, images.number), prompt_tokens=patches)
        return replace(alone, speculation=None).with_constants(dict.fromkeys(HOST, 0.0)).predict(steps, energy=True)

    @property
    def queries(self) -> int:
        """Tokens of a sequence that a pass verifies."""
        return self.speculation.queries if self.speculation else 1

    def tables(self, sizes: PassSizes) -> PassTimes:
        """Times of passes for a simulation, which asks for them one by one; priced once, see ``TabulatedPasses``."""
        if sizes not in self.tables_priced:
            self.tables_priced[sizes] = self._tabulated(sizes)
        return self.tables_priced[sizes]

    def _tabulated(self, sizes: PassSizes) -> ReplicaTimes:
        padded = PassSizes(longest_bucket(sizes.tokens), sizes.sequences, longest_bucket(sizes.length))
        tables = TabulatedPasses(
            padded if self.engine.buckets else sizes,
            tokens=lambda steps: self._once_s(steps, _SHARED_GROUPS),
            decodes=lambda steps: self._once_s(steps, ("decode",)),
            chunks=lambda steps: self._once_s(steps, ("context",)),
            queries=self.queries,
        )
        drafts = self.draft and self.speculation and self.speculation.tokens
        server, sequences = self.engine.serving, Steps.of(decodes=np.arange(sizes.sequences + 1))
        return ReplicaTimes(
            tables=tables,
            buckets=self.engine.buckets,
            server=server,
            ready_s=self._ready_s(sizes.sequences),
            rests_s=server.rests_s(self._host_s(sequences)).tolist(),
            encoded_s=float(self._encoded(1).latency_s[0]) if self.images else 0.0,
            speculation=self.speculation,
            draft=self.draft.tables(sizes) if self.draft and drafts else None,
        )

    @property
    def mixtures(self) -> int:
        """Layers of experts."""
        return sum(count for layer, count in self.decoder.layers if isinstance(layer.feed_forward, Experts))

    def _host_s(self, steps: Steps) -> np.ndarray:
        return self.engine.serving.host_s(steps.sequences, self.plan.world)

    def _dispatches(self, steps: Steps) -> np.ndarray:
        """Of passes, whether they are graphs or not: see ``workloads.dispatch``; shape (n,)."""
        writes = DISPATCHES["pointwise"] if self.engine.attention_does == "write" else 0.0
        each = (
            part.runs * (part_dispatches(part) + writes * (part.batch.family == "attention"))
            for part in self._parts(steps, GROUPS)
        )
        return np.asarray(sum(each, self.further_dispatches * (steps.decodes > 0)))

    def _launched(self, steps: Steps) -> np.ndarray:
        """Whether passes are no graphs, shape (n,)."""
        server = self.engine.serving
        return np.where(steps.prompts > 0, steps.tokens > server.graph_tokens, not server.decode_graphs)

    def dispatches(self, steps: Steps) -> np.ndarray:
        """What the host dispatches in each pass, none where it is a graph; shape (n,)."""
        launched = self._launched(steps)
        return np.asarray(launched * self._dispatches(steps) if launched.any() else np.zeros(len(steps)))

    def _ready_s(self, most: int) -> list[list[float]]:
        """Times before which passes do not end since their host is not ready; see ``ReplicaTimes.ready_s``."""
        sequences, server = np.arange(most + 1), self.engine.serving
        host_s = self._host_s(Steps.of(decodes=sequences))
        kinds = [
            Steps.of(prompts=prompts, prompt_tokens=16, decodes=decodes * sequences, decode_cached=16)
            for decodes in (0, 1)
            for prompts in (0, 1)
        ]
        none_s = np.zeros(most + 1)
        launches_s = [none_s, *(server.launches_s(self._dispatches(steps), self.mixtures) for steps in kinds)]
        return [server.waits_s(none_s, host_s, each_s).tolist() for each_s in launches_s]

    def _groups_s(self, steps: Steps, groups: Collection[str]) -> np.ndarray:
        """What kernels of some groups take in each pass [s]."""
        parts, factors = self._parts(steps, groups), self.engine.serving.factors
        each = (factors[group_of(p)] * p.runs * c.latency_s for p, c in self._priced(parts, energy=False))
        return sum(each, np.zeros(len(steps)))

    def _once_s(self, steps: Steps, groups: tuple[str, ...]) -> np.ndarray:
        """As ``_groups_s``, of each pass once for tables of all sizes."""
        passes = self.passes_priced.setdefault(groups, PricedPasses())
        return passes.columns(steps, lambda new: {GROUP: self._groups_s(new, groups)})[GROUP]

    def _sums_once(self, steps: Steps, groups: Collection[str]) -> PassSums:
        """As ``_sums``, of each pass once for grids of all sizes."""

        def priced(new: Steps) -> dict[Key, np.ndarray]:
            sums = self._sums(new, groups)
            return {**sums.columns, **{(LIMITER, part): names for part, names in sums.limiters.items()}}

        columns = self.passes_priced.setdefault((ENERGY, *groups), PricedPasses()).columns(steps, priced)
        limiters = {part: columns.pop((kind, part)) for kind, part in [*columns] if kind == LIMITER}
        return PassSums(columns=columns, limiters=limiters)

    def _parts(self, steps: Steps, groups: Collection[str]) -> list[Part]:
        """Those of some groups, with their runs in all layers."""
        program = step_program(self.decoder, steps, self.precision, self.plan, self.engine)
        if self._placement:
            program = self._placement.placed(program)
        parts = [*program.counted_parts, *self._sent(steps)]
        return [part for part in parts if group_of(part) in groups]

    @property
    def _placement(self) -> Placement | None:
        """Which ranks share a node, where there are several nodes."""
        return Placement(plan=self.plan, per_node=self.cluster.per_node) if self.cluster else None

    def _sent(self, steps: Steps) -> Iterator[Part]:
        """Between stages each rank sends its slice of the residual stream (vLLM, ``send_tensor_dict`` with an
        ``all_gather_group``).
        """
        if self.plan.pp == 1:
            return
        within = self._placement.within("pp") if self._placement else 2
        sizes = steps.tokens * self.decoder.hidden * stored_bytes(self.precision.dtype) // self.plan.tp
        runs = (self.plan.pp - 1) * (steps.tokens > 0).astype(np.int64)
        batch = self._sends(sizes, min(within, 2))
        yield Part(name="send to the next stage", phase="forward", batch=batch, runs=runs, group="pp")

    def _sends(self, sizes: np.ndarray, per_node: int) -> KernelBatch:
        """One device sends each of these sizes [B] to another, ``per_node`` of both in a node."""
        size = np.maximum(np.rint(sizes), 1).astype(np.int64)
        return KernelBatch.from_columns(
            "collective", op="send_recv", ranks=2, per_node=per_node, bytes=size, dtype=self.precision.dtype
        )

    def _priced(self, parts: Sequence[Part], *, energy: bool) -> Iterator[tuple[Part, PartCosts]]:
        """Kernels in a graph of many, their operands in device memory."""

        def cost(batch: KernelBatch) -> Costs:
            ran = {"engine": self.engine.library, "variant": variant_of(self.engine, self.device, batch)}
            conditions = Conditions.of(len(batch), timing="graph", launches=MANY_LAUNCHES, **ran)
            place = self.cluster if self.cluster and batch.family == "collective" else self.device
            costs, factor = self.pricer(batch, place, conditions), slowdown(self.engine, batch)
            return costs.times(factor) if factor > 1.0 else costs

        return zip(parts, price(parts, cost, energy=energy), strict=True)

    def sent_s(self, sizes: np.ndarray, link: str) -> np.ndarray:
        """Time in which one device sends each of these sizes [B] to one of another replica [s], shape (n,).

        Args:
            sizes: what is sent.
            link: ``nvlink`` inside a node, ``none`` in no time, else a network as ``cluster_of`` takes it, "" for one
                that nobody tells.

        Raises:
            DeviceError: words that are no network.
        """
        if link == "none":
            return np.zeros(len(sizes))
        inside = link == "nvlink"
        place = self.device if inside or not link else cluster_of(self.device, USUAL_PER_NODE, 2, link)
        conditions = Conditions.of(len(sizes), timing="graph", launches=MANY_LAUNCHES)
        return self.pricer(self._sends(sizes, 2 if inside else 1), place, conditions).latency_s

    @property
    def idle_w(self) -> float:
        """Of a board that waits for requests [W]."""
        return idle_w(self.device, shipped_boards().physics)

    def _sampling(self, steps: Steps) -> EnergyUse:
        """Of what the engine does for each sequence: samplers stream the logits through the device, again and again."""
        moved_bytes = self.engine.serving.sequence_s * steps.sequences * self.device.dram_bandwidth_bytes_per_s
        return stream_energy(moved_bytes, self.device, shipped_boards().physics, shipped_physics().physics)

    def _sums(self, steps: Steps, groups: Collection[str], *, energy: bool = True) -> PassSums:
        """What adds up over the kernels of some groups."""
        n, factors = len(steps), self.engine.serving.factors
        parts = self._parts(steps, groups)
        columns: dict[Key, np.ndarray] = {(kind, group): np.zeros(n) for kind in (GROUP, SHARED) for group in groups}
        columns |= {(PART, part.name): np.zeros(n) for part in parts}
        columns |= {OWN: np.zeros(n), BOUND: np.zeros(n)} | {(ENERGY, f.name): np.zeros(n) for f in fields(EnergyUse)}
        limiters: dict[str, np.ndarray] = {}
        for part, costs in self._priced(parts, energy=energy):
            group, kernels_s = group_of(part), part.runs * costs.latency_s
            total_s = factors[group] * kernels_s
            columns[GROUP, group] += kernels_s
            columns[PART, part.name] += total_s
            columns[SHARED, group] += total_s * costs.spread
            columns[OWN] += np.square(total_s * costs.own_spread)
            columns[BOUND] += np.minimum(part.runs * costs.bound_s, total_s)
            if costs.energy:
                for name, drawn_j in vars(costs.energy).items():
                    columns[ENERGY, name] += part.runs * drawn_j
            limiters.setdefault(part.name, costs.limiter)
        return PassSums(columns=columns, limiters=limiters)

    def _composed(self, steps: Steps, sums: PassSums) -> PassCosts:
        columns = sums.columns
        parts_s, groups_s = sums.by(PART), sums.by(GROUP)
        kernels_s = sum(parts_s.values(), np.zeros(len(steps)))
        server = self.engine.serving
        launches_s = server.launches_s(self.dispatches(steps), self.mixtures)
        rests_s, waits_s = self._added_s(steps, kernels_s, launches_s)
        host_s = rests_s + waits_s
        latency_s = kernels_s + host_s
        drawn = EnergyUse(**{f.name: columns[ENERGY, f.name] for f in fields(EnergyUse)}).plus(self._sampling(steps))
        return PassCosts(
            latency_s=latency_s,
            bound_s=columns[BOUND],
            doubts=self._doubts(sums, kernels_s, launches_s, latency_s),
            host_s=host_s,
            waits_s=waits_s,
            parts_s=parts_s,
            limiters=dict(sums.limiters),
            groups_s=groups_s,
            energy_j=board_j(self.device, drawn.total_j, latency_s, shipped_boards().physics),
            drawn=drawn,
        )

    def _doubts(
        self, sums: PassSums, kernels_s: np.ndarray, launches_s: np.ndarray, latency_s: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Signed standard deviations of the logarithms of passes by key; columns of shape (n,)."""
        server, scheme = self.engine.serving, self.precision.quantisation.method
        model = own_key(self._cause("rest"), f"{self.decoder.name} {scheme} on {self.plan.world}")
        kernels = [(1.0, common(self._cause(group), shared_s)) for group, shared_s in sums.by(SHARED).items()]
        unmeasured = self.precision.quantisation and not server.fitted_to
        parts = [
            (server.doubt_share / latency_s, weighed([*kernels, (1.0, {model: np.sqrt(sums.columns[OWN])})])),
            (np.ones_like(latency_s), {f"{ENGINE}{self.engine.name}/{server.era}": server.spread}),
            (self._host_spread(launches_s, kernels_s), common(cause_of(self.device, self.engine.name, "host"), 1.0)),
            (kernels_s / latency_s, {f"scheme:{scheme}": SCHEME_SPREAD} if unmeasured else {}),
        ]
        return weighed(parts)

    def _cause(self, group: str) -> str:
        """Key of the doubt that kernels of a group share on the device."""
        return cause_of(self.device, _CAUSES[group], "links" if group == "collectives" else "device")

    def _added_s(self, steps: Steps, kernels_s: np.ndarray, launches_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How long the device rests in each pass, and how long its kernels wait for launches [s]."""
        server, own_s = self.engine.serving, self._host_s(steps)
        return server.rests_s(own_s), server.waits_s(kernels_s, own_s, launches_s)

    def lasts_s(self, steps: Steps, groups_s: Mapping[str, np.ndarray], engines: Sequence[Engine]) -> np.ndarray:
        """Times of passes by other versions of the engine [s], shape (versions, n).

        Args:
            steps: the passes.
            groups_s: what their kernels take by themselves, see ``PassCosts``.
            engines: those versions, which dispatch the same operators.
        """
        dispatches = self._dispatches(steps)
        return np.array([replace(self, engine=each)._sum_s(steps, groups_s, dispatches) for each in engines])

    def _sum_s(self, steps: Steps, groups_s: Mapping[str, np.ndarray], dispatches: np.ndarray) -> np.ndarray:
        server = self.engine.serving
        kernels_s = sum((server.factors[group] * each for group, each in groups_s.items()), np.zeros(len(steps)))
        launches_s = server.launches_s(self._launched(steps) * dispatches, self.mixtures)
        return np.asarray(kernels_s + sum(self._added_s(steps, kernels_s, launches_s)))

    def _host_spread(self, launches_s: np.ndarray, kernels_s: np.ndarray) -> np.ndarray:
        """Standard deviation of the logarithm of passes by hosts that launch faster or slower, of an engine whose own
        time is fitted to none; shape (n,).
        """
        server = self.engine.serving
        if server.fitted_to:
            return np.zeros(len(launches_s))
        factor = np.exp(NORMAL_90 * self.engine.host_spread)
        slow, fast = (np.maximum(kernels_s, launches_s * each) for each in (factor, 1.0 / factor))
        return np.asarray(np.log(slow / fast) / (2 * NORMAL_90))


_CAUSES = {
    **{"context": "attention", "decode": "attention", "products": "matrix", "experts": "moe", "rest": "stream"},
    "collectives": "collectives",
}
"""Kinds of kernels by groups: tile models that answer for most of them."""
_GROUP_OF = {"gemm": "products", "moe": "experts", "grouped_gemm": "experts", "collective": "collectives"}


def group_of(part: Part) -> str:
    """Which of an engine's factors holds for kernels of one part; attention that is written out is that of prompts."""
    if CORE_MODULE[0] in part.modules:
        return "context"
    if part.batch.family == "attention":
        return "decode" if (part.batch["q_len"] == 1).all() else "context"
    return _GROUP_OF.get(part.batch.family, "rest")


def in_flight(steps: Steps, stages: int, most_tokens: int) -> Steps:
    """One of the passes that make up each round.

    Args:
        steps: rounds, columns of shape (n,).
        stages: of the pipeline.
        most_tokens: new tokens of a pass.
    """
    if stages == 1:
        return steps
    decodes, tokens = _ceil(steps.decodes, stages), steps.prompts * steps.prompt_tokens
    filled = np.clip(_ceil(tokens, np.maximum(most_tokens - decodes, 1)), 1, stages)
    prompts = _ceil(steps.prompts, filled)
    each = _ceil(_ceil(tokens, filled), np.maximum(prompts, 1))
    return replace(steps, prompts=prompts, prompt_tokens=each, decodes=decodes)


def _ceil(count: np.ndarray, parts: np.ndarray | int) -> np.ndarray:
    return -(-np.asarray(count, dtype=np.int64) // parts)


@dataclass(frozen=True, kw_only=True)
class ReplicaTimes:
    """Times of passes as an engine runs them, from tables of what kernels and host take.

    ``buckets``: its programs have fixed shapes, see ``Engine.buckets``. Kernels of passes take no less than until their
    host is ready: ``ready_s`` of graphs, and of passes that are none by what is in them (1 for nothing, and prompts, 2
    for sequences that generate, or the sum), all by the number of sequences, as is ``rests_s``, for which the device
    rests between passes. ``encoded_s`` take the images of a prompt, which are encoded with its first tokens.

    ``draft`` has times of passes of the model that drafts, as many before each as ``speculation`` has levels. Its first
    also reads the prompts. The engine's own time counts in each: it prepares and launches them all.
    """

    tables: PassTimes
    buckets: bool
    server: Server
    ready_s: list[list[float]]
    rests_s: list[float]
    encoded_s: float = 0.0
    speculation: Speculation | None = None
    draft: PassTimes | None = None

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """As ``PassTimes``."""
        kernels_s = self._padded_s if self.buckets else self.tables.pass_s
        launched = new_tokens > self.server.graph_tokens if chunks else not self.server.decode_graphs
        ready_s = self.ready_s[1 + bool(chunks) + 2 * bool(decodes) if launched else 0]
        sequences = len(chunks) + decodes
        time_s = max(kernels_s(new_tokens, chunks, decodes, decode_cached_sum), ready_s[sequences])
        time_s += self.rests_s[sequences]
        if self.encoded_s:
            # What is behind tokens in the cache has its images there.
            time_s += sum(not cached for _, cached in chunks) * self.encoded_s
        if self.draft and self.speculation:
            first = new_tokens - decodes * self.speculation.tokens
            time_s += self.draft.pass_s(first, chunks, decodes, decode_cached_sum)
            if decodes:
                time_s += (self.speculation.levels - 1) * self.draft.pass_s(decodes, (), decodes, decode_cached_sum)
        return time_s

    def _padded_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """Time of the pass with all tokens that its programs compute."""
        padded = [(_bucket(new), cached) for new, cached in chunks]
        own = new_tokens - sum(new for new, _ in chunks)
        each = own / decodes if decodes else 0.0
        cached = _bucket(decode_cached_sum / decodes + each) - each if decodes else 0.0
        return self.tables.pass_s(own + sum(new for new, _ in padded), padded, decodes, decodes * cached)


def longest_bucket(tokens: int) -> int:
    """Tokens that so many may become in programs of fixed shapes."""
    return max(2 * tokens, LEAST_BUCKET)


def _bucket(tokens: float) -> int:
    return int(bucket_of(np.asarray(tokens)))


@dataclass(frozen=True)
class PipelinedTimes:
    """Times of rounds of ``stages`` passes of up to ``most_tokens`` new tokens each, from those of single passes."""

    times: PassTimes
    stages: int
    most_tokens: int

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """As ``PassTimes``, of a round."""
        own, prompt_tokens = -(-decodes // self.stages), new_tokens - decodes
        filled = min(self.stages, max(1, -(-prompt_tokens // max(self.most_tokens - own, 1))))
        each = -(-prompt_tokens // filled)
        # Rounded up on both sides, a pass may seem to have a token more than it may.
        tokens = min(own + each, max(self.most_tokens, own))
        cached_sum = own * decode_cached_sum / decodes if decodes else 0.0
        one_s = self.times.pass_s(tokens, _cut(chunks, each)[filled // 2 :: filled], own, cached_sum)
        full = new_tokens >= self.stages * self.most_tokens
        return one_s if full else one_s * (1 + (filled - 1) / self.stages)


def _cut(chunks: Chunks, most: int) -> list[tuple[int, int]]:
    """Chunks that are longer than a pass in parts, each behind those before it."""
    return [(min(most, new - at), cached + at) for new, cached in chunks for at in range(0, new, most)]
