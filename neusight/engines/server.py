"""``Server``: what engines that serve requests do alike and what they do not, as figures, some of them fitted.

``tile_models/engines.json`` has what ``neusight fit engines`` found: an engine's own time and factors of its kernels
by version, and what boards draw while they serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache
from math import hypot
from pathlib import Path
from typing import Any, Literal

import numpy as np

from neusight.engines.limits import NEWEST, Site, defaults_of, release_of
from neusight.errors import ArtifactError, ModelError
from neusight.paths import read_json, tile_models_dir
from neusight.quick_dataclasses import dataclass

GROUPS = ("products", "experts", "context", "decode", "collectives", "rest")
"""Kinds of kernels that an engine may run slower or faster than the same kernels by themselves."""
HOST = ("pass_s", "rank_s", "sequence_s", "mixture_s", "operator_s", "gap_s")
"""Constants of an engine's own time."""
FILE = "engines.json"
COMMON = "common"
"""Constants that were fitted to all engines alike."""
ROCM = " on ROCm"
"""Ends the name of an era on AMD's GPUs, whose libraries and runtime are others."""


@dataclass(frozen=True, kw_only=True)
class Era:
    """Versions of an engine that are one program, whose constants are fitted together.

    Attributes:
        engine: its name.
        before: the version that ends it; None for the newest.
        rocm_native: whether AMD's GPUs have such graphs, and decode attention of their own. V0's host launched kernel
            by kernel there, and its paged attention read keys and values anew for each query head
            (``csrc/attention/attention_kernels.cu``; ``csrc/rocm`` came with 0.6.2).
        writes_scores: whether attention of prompts writes scores and probabilities to memory.
    """

    engine: str
    before: tuple[int, int] | None = None
    rocm_native: bool = True
    writes_scores: bool = False

    @property
    def name(self) -> str:
        """Under which constants are fitted."""
        return self.engine + (" before {}.{}".format(*self.before) if self.before else "")


ERAS = (
    Era(engine="vllm", before=(0, 8), rocm_native=False),
    Era(engine="vllm", before=(0, 14)),
    Era(engine="vllm"),
    Era(engine="tensorrt-llm", before=(0, 12)),
    Era(engine="tensorrt-llm", before=(0, 20)),
    Era(engine="tensorrt-llm"),
    Era(engine="sglang", before=(0, 4)),
    Era(engine="sglang"),
    Era(engine="transformers-neuronx", before=(2, 19), writes_scores=True),
    Era(engine="transformers-neuronx"),
)
"""Older ones first. vLLM's V1 became the default with 0.8 and its asynchronous scheduling with 0.14; V0 captured passes
that only generate. TensorRT-LLM's executor replaced its Python sessions with 0.12; its PyTorch backend with overlapped
scheduling is the default from 0.20 on, SGLang's overlapped scheduling from 0.4 on (cited: ``defaults.toml``). Versions
of Transformers NeuronX are those of AWS Neuron, whose 2.19 brought flash attention (release notes)."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """What an engine decides before each pass, as facts.

    All take requests in the order of arrival, and start one when the KV cache has room for its whole prompt. Where the
    cache runs out, the request that was started last gives its place up and is computed anew: recomputation, which goes
    before everything that waits.

    Attributes:
        name: of the engine, and of the policy where it has several.
        prompts_apart: prompts run in passes of their own, ahead of all decodes; else they share passes with decodes,
            which are served first.
        reserved_output: the share of the output still to come, of running requests and of the next one, for which the
            cache must have room when one starts: 1 never runs out, 0 does not look ahead.
    """

    name: str
    prompts_apart: bool = False
    reserved_output: float = 0.0


VLLM = Scheduler(name="vllm")
"""V1 schedules running requests first, prompts with the tokens that are left, preempts the last by recomputation (vLLM
documentation, Optimization and Tuning: Preemption, Chunked Prefill; ``vllm/v1/core/sched/scheduler.py``), and starts a
request when its whole prompt fits (``scheduler_reserve_full_isl``)."""
TRTLLM = Scheduler(name="trtllm", reserved_output=1.0)
"""In-flight batching with GUARANTEED_NO_EVICT, the default: what has started is never paused (cited: TensorRT-LLM
documentation, Useful Runtime Options: Capacity Scheduler Policy)."""
TRTLLM_MAX_UTILIZATION = Scheduler(name="trtllm-max-utilization")
"""In-flight batching with MAX_UTILIZATION: as many as fit now, at the risk of pausing some (the same page)."""
SGLANG = Scheduler(name="sglang", prompts_apart=True, reserved_output=0.7 * 0.14)
"""Prompts first unless ``--enable-mixed-chunk`` is set. The share of the output that is reserved starts from 0.7 and
falls within 600 decodes to 0.14 of that (cited: ``SGLANG_INIT_NEW_TOKEN_RATIO``,
``SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR``), where it stays unless requests are retracted; it is held there (assumption: most
of a run is past the first 600)."""
ALL_AT_ONCE = Scheduler(name="all-at-once")
"""A batch that a program generates for: all prompts in one pass, then a token of each."""
MEASURED: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "vllm": ((0, 5), (0, 19)), "tensorrt-llm": ((0, 11), (1, 2)), "sglang": ((0, 5), (0, 5)),
}  # fmt: skip
"""Oldest and newest versions among measured runs of each engine (fitted: rows of ``neusight fit engines``)."""
PLATFORM_SPREAD = 0.45
"""Standard deviation of the logarithm of times of another vendor's libraries and runtime, which is as much as of
versions where it is said whether AITER runs. Else those of vLLM's attention on ROCm, with and without AITER, differ by
up to 4.4 in the throughput of one version (cited: vLLM's blog of 2026-02-20 on attention backends of ROCm), which is
taken for the width of a 90 % interval: ln 4.4 / (2 x 1.645)."""
SCHEDULERS = {s.name: s for s in (VLLM, TRTLLM, TRTLLM_MAX_UTILIZATION, SGLANG)}


@dataclass(frozen=True, kw_only=True)
class Server:
    """How an engine serves requests.

    For a pass the host takes ``pass_s``, where several ranks must meet ``rank_s`` more, and ``sequence_s`` for each
    sequence in it: scheduling, sampling, copies to and from the host. It also launches the kernels of passes that are
    no CUDA graph, ``operator_s`` for one of a pointwise operator (``workloads.dispatch``), and ``mixture_s`` for what
    else it does in each layer of experts unless passes are ``compiled``: of passes that only generate unless
    ``decode_graphs``, of those with prompts beyond ``graph_tokens`` new tokens. Launches overlap with kernels, the rest
    adds to the longer of both.
    Where the schedule is ``overlapped``, all that the host does for a pass overlaps with kernels of the pass before,
    and between two passes the device rests for ``gap_s``. A pass is composed when the one before it begins: requests
    that arrive later wait for the next. Devices that compute prompts alone do so where it is ``prompts_overlapped``.
    ``request_s`` is what a server and its client add to a request's first token, ``first_spread`` the standard
    deviation of the logarithm of what is left unexplained of that alone.
    ``factors`` by ``GROUPS`` are what its kernels take of the same kernels by themselves. It takes ``memory_share`` of
    the device's ``total`` memory for everything, of that memory for ``weights`` and cache alone, or of what is ``free``
    after weights and activations for the cache, or no more than its ``sequences`` keep.
    A table of embeddings that is no head as well may be kept in the host's memory (``embedding_on_host``).
    Limits hold where no flag is given, those of passes and of sequences where ``tokens_of_context`` and
    ``seqs_of_cache`` are empty (all as in ``defaults.toml``).
    ``era`` tells which versions it is of, ``fitted_to`` which its constants were fitted to, ``spread`` is the standard
    deviation of the logarithm of what they leave unexplained, ``doubt_share`` the share of what kernels state of
    their errors that whole passes have.
    """

    scheduler: Scheduler
    memory_share: float = 1.0
    memory_of: Literal["total", "weights", "free", "sequences"] = "total"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_tokens: int = 16
    tokens_of_context: tuple[int, ...] = ()
    seqs_of_cache: tuple[int, ...] = ()
    engine: str = ""
    version: str = ""
    era: str = ""
    fitted_to: str = ""
    pass_s: float = 0.0
    rank_s: float = 0.0
    sequence_s: float = 0.0
    mixture_s: float = 0.0
    operator_s: float = 9.8e-6
    gap_s: float = 0.0
    overlapped: bool = False
    prompts_overlapped: bool = True
    compiled: bool = False
    decode_graphs: bool = True
    graph_tokens: float = 0.0
    rocm_native: bool = True
    embedding_on_host: bool = False
    request_s: float = 0.0
    first_spread: float = 0.0
    factors: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(GROUPS, 1.0), hash=False)
    spread: float = 0.2
    doubt_share: float = 1.0

    def host_s(self, sequences: np.ndarray, ranks: int) -> np.ndarray:
        """What the host does for each pass of so many sequences, beside launching kernels [s], shape (n,)."""
        fixed_s = self.pass_s + (self.rank_s if ranks > 1 else 0.0)
        return np.asarray(fixed_s + self.sequence_s * sequences, dtype=float)

    def launches_s(self, dispatches: np.ndarray, mixtures: int) -> np.ndarray:
        """How long the host launches the kernels of passes [s], shape (n,).

        Args:
            dispatches: of each pass, none where it is a graph; see ``workloads.dispatch``.
            mixtures: layers of experts.
        """
        return np.asarray(self.operator_s * dispatches + self.mixture_s * self.interpreted(dispatches, mixtures))

    def interpreted(self, dispatches: np.ndarray, mixtures: int) -> np.ndarray:
        """Layers of experts whose Python runs in passes of so many ``dispatches``, of ``mixtures``; shape (n,)."""
        return np.asarray((dispatches > 0) * (0 if self.compiled else mixtures))

    def waits_s(self, kernels_s: np.ndarray, host_s: np.ndarray, launches_s: np.ndarray) -> np.ndarray:
        """By how much passes last longer than kernels and what the device rests, since the host is not ready [s].

        Args:
            kernels_s: time of the kernels [s], shape (n,).
            host_s: the host's time without launches [s], see ``host_s``.
            launches_s: its time to launch kernels that are in no graph [s].
        """
        return np.maximum(launches_s + (host_s if self.overlapped else 0.0) - kernels_s, 0.0)

    def rests_s(self, host_s: np.ndarray) -> np.ndarray:
        """How long the device rests between passes, however long their kernels take [s]: for ``gap_s``, or while the
        host prepares the next pass where it does so after the one before; shape (n,).
        """
        return np.full_like(host_s, self.gap_s) if self.overlapped else host_s

    def with_constants(self, constants: Mapping[str, float]) -> Server:
        """The same with other constants: those of ``HOST``, ``GROUPS``, ``request_s`` and doubts."""
        names = (*HOST, "request_s", "spread", "first_spread", "doubt_share")
        host: dict[str, Any] = {name: constants[name] for name in names if name in constants}
        factors = {group: constants.get(group, self.factors[group]) for group in GROUPS}
        return replace(self, **host, factors=factors)

    def of_version(self, engine: str, version: str, artifact: Path | None = None) -> Server:
        """With the constants that were fitted for a version of an engine.

        Args:
            engine: its name.
            version: such as 0.15.1; the newest where it is empty.
            artifact: file of constants; default those that ship, or none where there are none.

        Raises:
            ModelError: a version that is no number. ArtifactError: the file is not one.
        """
        era = era_of(engine, version)
        server = replace(
            self, engine=engine, version=version, era=era.name, rocm_native=era.rocm_native,
            **defaults_of(engine, version),
        )  # fmt: skip
        return server._fitted(artifact or tile_models_dir() / FILE)

    def _fitted(self, artifact: Path, platform: float = 0.0) -> Server:
        """With constants of its era where they were fitted. Else it has those of the same versions on other devices, of
        the newest versions of the engine, or what all engines have in common, as uncertain as all engines are and as
        another ``platform``; none of an engine that was measured nowhere.
        """
        constants = _constants(artifact)
        between = spread_between_eras(artifact)
        beyond = between if self.unmeasured_version else 0.0
        newest_first = (era.name for era in reversed(ERAS) if era.engine == self.engine)
        kin = (self.era.removesuffix(ROCM), *newest_first, COMMON) if self.engine in MEASURED else ()
        known = next((name for name in (self.era, *kin) if name in constants), "")
        server = replace(self.with_constants(constants[known]), fitted_to=known) if known else self
        doubts = (server.spread,) if known == self.era else (between, platform)
        return replace(server, spread=hypot(*doubts, beyond))

    @property
    def unmeasured_version(self) -> str:
        """The oldest and the newest version that was measured, in words, where this one is older or newer; else ""."""
        oldest, newest = MEASURED.get(self.engine, ((0,), NEWEST))
        release = release_of(self.engine, self.version) if self.version else newest
        if oldest <= release[:2] and release[: len(newest)] <= newest:
            return ""
        return " to ".join(dict.fromkeys(".".join(map(str, each)) for each in (oldest, newest)))

    def started_on(
        self, site: Site, *, graphs: bool = True, overlap: bool | None = None, aiter: bool | None = None
    ) -> Server:
        """With the limits that it starts with at a site where no flag is given, and as its vendor's libraries are.

        Args:
            site: that it runs on.
            graphs: False where it is told to launch kernel by kernel.
            overlap: whether a flag says that scheduling overlaps with passes, None where none says it.
            aiter: whether AMD's kernels run, None where nobody says it.
        """
        server = self
        if site.device.vendor == "amd":
            platform = PLATFORM_SPREAD if aiter is None else spread_between_eras()
            server = replace(self, era=self.era + ROCM)._fitted(tile_models_dir() / FILE, platform)
            graphs = graphs and self.rocm_native
        stated = {} if overlap is None else {"overlapped": overlap}
        server = replace(server, **defaults_of(self.engine, self.version, site) | stated)
        return server if graphs else replace(server, decode_graphs=False, graph_tokens=0.0)

    def pass_tokens(self, context: int) -> int:
        """Most new tokens of a pass where no flag is given.

        Args:
            context: tokens of the longest sequence that the model takes.
        """
        if not self.tokens_of_context:
            return self.max_num_batched_tokens
        least, most, cut = self.tokens_of_context
        return max(context, least) if context <= most else cut

    def running_seqs(self, kv_tokens: int, context: int) -> int:
        """Most sequences that run together where no flag is given.

        Args:
            kv_tokens: tokens that the cache has room for.
            context: tokens of the longest sequence that the model takes.
        """
        if not self.seqs_of_cache:
            return self.max_num_seqs
        each, least, most = self.seqs_of_cache
        return max(1, min(max(int(kv_tokens / context * each), least), most, kv_tokens // 2))


def era_of(engine: str, version: str) -> Era:
    """Which constants hold for a version: the newest where it is empty.

    Raises:
        ModelError: a version that is no number.
    """
    eras = [era for era in ERAS if era.engine == engine] or [Era(engine=engine)]
    number = release_of(engine, version)
    return next(era for era in eras if era.before is None or number < era.before)


def spread_between_eras(artifact: Path | None = None) -> float:
    """Standard deviation of the logarithm of times of versions and engines that constants were not fitted to: what
    constants that all engines have in common leave unexplained of sources and dies that they are fitted without. Whole
    answers of vLLM 0.5 and 0.6 and of TensorRT-LLM 0.11 miss by as much, 0.31 (root mean square of 40 rows each), by
    constants of their newest versions.
    """
    common = _constants(artifact or tile_models_dir() / FILE).get(COMMON, {})
    return common.get("spread", Server.spread)


def shipped_constants(era: str) -> dict[str, float]:
    """What ``neusight fit engines`` found for versions of an engine.

    Raises:
        ModelError: it was fitted to none of them.
    """
    fitted = _constants(tile_models_dir() / FILE)
    if era not in fitted:
        raise ModelError(f"no constants of {era} are fitted: one of {', '.join(fitted)}")
    return fitted[era]


@cache
def _constants(file: Path) -> dict[str, dict[str, float]]:
    if not file.is_file():
        return {}
    content: Any = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("engines"), dict):
        raise ArtifactError(f"{file} holds no constants of engines: make it again with neusight fit engines")
    fitted = content["engines"] | ({COMMON: content[COMMON]} if content.get(COMMON) else {})
    return {era: dict(each["values"]) for era, each in fitted.items()}
