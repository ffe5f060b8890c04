"""``KernelCall``: one kernel with its shape, under the conditions in which it is timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from neusight.devices import Cluster, DeviceSpec, cluster_of
from neusight.devices.cluster import USUAL_PER_NODE, usual_per_node
from neusight.engines import library_named
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import COLD, MANY_LAUNCHES, OPERANDS, TIMERS, VARIANTS, Conditions
from neusight.kernels.named import SHAPE_NAMES, kernel_named
from neusight.kernels.work import work_of
from neusight.laws.routes import Place, device_of, network_of, ranks_of, reduces, usual_network
from neusight.laws.tuning import ALGORITHMS, algorithms_of
from neusight.questions.field import FieldError, number, pairs_of, required, switch, text, texts, whole
from neusight.questions.parts import ENGINE, MODEL, RECORDED, OnCluster
from neusight.quick_dataclasses import dataclass

_OF_COLLECTIVES = ("cluster", "nodes", "per_node", "network", "algorithm", "nvls", "max_ctas")


@dataclass(frozen=True, kw_only=True)
class LaunchedKernel:
    """A kernel as executors take it: a batch of one, where it runs, and under which conditions."""

    batch: KernelBatch
    place: Place
    conditions: Conditions

    @property
    def network_is_unknown(self) -> bool:
        """True if a collective passes a network that is not named."""
        ranks, within = ranks_of(self.batch) if self.batch.family == "collective" else (1, 1)
        return bool(ranks > within) and network_of(self.place) is None

    @property
    def usual_network(self) -> str:
        """The network that is assumed where none is given, in words."""
        network, bytes_per_s = usual_network(device_of(self.place))
        return f"{network.kind}, {8e-9 * bytes_per_s:.3g} Gb/s a device"


@dataclass(frozen=True, kw_only=True)
class KernelCall(OnCluster):
    """A kernel: its name, ``field=value`` of its shape, whose kernel it is and what a timer sees of it."""

    KIND: ClassVar[str] = "kernel"

    KEYS: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(SHAPE_NAMES - {"per_node", "algorithm", "max_ctas"}, "shape")
    )

    HELP: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "per_node": "Of a collective: ranks that share a node. Default: those of the cluster's nodes, or as many "
            "as nodes of the device usually have.",
            "network": "Of a collective: network between nodes, such as '8 x 400Gb/s' or '4 x 100Gb/s efa'.",
            "cluster": "Of a collective: a name of `neusight clusters list`, or a cluster file (.toml).",
            "nodes": "Of a collective: nodes over which ranks are spread. Default: as many as they fill.",
        }
    )

    name: str = required(
        "A family (gemm, conv2d, attention, …) or an operator (softmax, gelu, all_reduce, …).",
        MODEL, listable=True, objects=True, former=("family",),
    )  # fmt: skip
    shape: tuple[str, ...] = texts(
        "Shape of the kernel, such as m=4096.", MODEL, metavar="FIELD=VALUE", argument=True, pairs=True
    )
    backend: str = text(
        "Library or engine whose kernel runs: torch, vllm, sglang, tensorrt-llm, flashinfer, deepgemm, aiter, xla, …",
        ENGINE, "torch", former=("engine",), metavar="NAME",
    )  # fmt: skip
    variant: str = text(
        "Implementation that the backend chooses, such as fa2, fa3, triton or cutlass.", ENGINE, choices=VARIANTS
    )
    timer: str = text(
        "What the figure holds: a launch between events, a replay of a CUDA graph, the kernel alone (profiler), or the "
        "mean of calls in a loop (wall).",
        ENGINE, "events", choices=tuple(TIMERS), former=("timing",),
        meanings={"stream": "events", "graph": "cuda_graph"},
    )  # fmt: skip
    operands: str = text(
        "Place of operands: device memory, L2 as far as they fit, or --operand-sets that take turns.",
        ENGINE, "cold", choices=(*OPERANDS, "rotating"),
    )  # fmt: skip
    operand_sets: int | None = whole("Sets of operands that take turns.", ENGINE, high=10**6)
    cycled_bytes: float | None = number(
        "Bytes that are touched between two uses of an operand, in place of --operands.",
        RECORDED, low=0.0, high=1e18, unit="bytes", metavar="SIZE",
    )  # fmt: skip
    one_input: bool = switch("Weights alone take turns; the input is the same each time.", RECORDED)
    launches_per_graph: int | None = whole(
        "Kernels that share the launch of a graph. Default: those of a model's step.", ENGINE, former=("launches",)
    )
    burst: float | None = number(
        "Kernels that run back to back before the device rests. Default: without end.",
        ENGINE, low=1.0, high=1e12,
    )  # fmt: skip
    random: bool = switch("Operands hold random values, which draw more power than equal ones.", RECORDED, True)
    recorded: bool = switch("The launch is that of the host that recorded the source.", RECORDED)
    algorithm: str = text(
        "Of an all-reduce: algorithms that it may run, as NCCL_ALGO: ring, tree, nvls, nvlstree, collnet, several with "
        "commas, or all but some: ^nvls. Default: all.",
        ENGINE, metavar="WORDS",
    )  # fmt: skip
    nvls: bool = switch("Of an all-reduce: switches of a node may form sums (NCCL_NVLS_ENABLE).", ENGINE, True)

    @classmethod
    def named(cls, words: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> Self:
        """The question of words, like ``Question.named``; pairs of the shape that name another field (``engine=vllm``)
        set it.
        """
        pairs = words.items() if isinstance(words, Mapping) else words
        return super().named([pair for name, value in pairs for pair in cls._separate(name, value)])

    @classmethod
    def _separate(cls, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if name != "shape" or not isinstance(value, list | tuple):
            yield name, value
            return
        names = {word for field in cls.fields().values() for word in (field.name, *field.field.former)}
        names -= {*cls.KEYS, "per_node"}
        pairs = {text: text.partition("=") for text in value if isinstance(text, str)}
        moved = {text: (key, word) for text, (key, _, word) in pairs.items() if key in names}
        yield name, tuple(text for text in value if text not in moved)
        yield from moved.values()

    max_ctas: int | None = whole(
        "Of a collective: thread blocks, each on an SM, that it may take (NCCL_MAX_CTAS). Default: those NCCL takes.",
        ENGINE, high=64,
    )  # fmt: skip

    def resolve(self, device: DeviceSpec | None = None) -> LaunchedKernel:
        """The kernel for executors.

        Args:
            device: that of ``gpu``, where it is loaded already.

        Raises:
            CoverageError: an unknown kernel or field, a missing one, a value that is none.
            ModelError: an unknown backend, words that exclude each other. DeviceError: an unknown device or cluster.
        """
        place: Place = self.place(device) if self.cluster or self.network else device or self.device()
        batch = self._batch(place)
        if isinstance(place, Cluster) and not self.nodes:
            ranks, within = (int(count[0]) for count in ranks_of(batch))
            place = replace(place, nodes=max(place.nodes, ranks // within))
        return LaunchedKernel(batch=batch, place=place, conditions=self._conditions(batch))

    def without_effect(self, asked: LaunchedKernel) -> Iterator[str]:
        """Yield a line for each given field of a collective that has no effect."""
        if asked.batch.family != "collective":
            return
        ranks, within = ranks_of(asked.batch)
        if self.network and (ranks == within).all():
            yield "network has no effect: it joins nodes, and all ranks share one"
        if not self.nvls and not (reduces(device_of(asked.place)) and asked.batch["op"][0] == "all_reduce"):
            yield "nvls has no effect: no switch would form sums anyway"

    def with_network(self, asked: LaunchedKernel, network: str) -> LaunchedKernel:
        """The same kernel over another network."""
        ranks, within = (int(count[0]) for count in ranks_of(asked.batch))
        within = self.per_node or within
        return replace(asked, place=cluster_of(device_of(asked.place), within, ranks // within, network))

    def _batch(self, place: Place) -> KernelBatch:
        kernel, shape = self.given("name"), pairs_of(self.shape)
        batch = kernel_named(kernel, shape) if isinstance(kernel, str) else KernelBatch.of([kernel])
        if batch.family != "collective":
            self.refuse(_OF_COLLECTIVES, "is of collectives, and this kernel runs on one device")
            return batch
        if self.algorithm and batch["op"][0] != "all_reduce":
            raise FieldError("algorithm", "is chosen for all_reduce alone, all else runs in rings: leave it out")
        if self.max_ctas and not device_of(place).facts.channel_bytes_per_s:
            raise FieldError("max_ctas", f"{self.max_ctas}: what a block of {device_of(place).id} moves is not known")
        limits = {"algorithm": self._algorithms(), "max_ctas": self.max_ctas or 0}
        if not isinstance(kernel, str):
            self.refuse(("shape", "nodes"), "is decided by the kernel, which is given: leave it out")
            return KernelBatch.of([replace(kernel, **limits)])
        ranks = int(batch["ranks"][0])
        within = int(shape.get("per_node", 0)) or self._within(ranks, place)
        given = {name: limit for name, limit in limits.items() if limit}
        batch = kernel_named(kernel, {**shape, "per_node": within, **given})
        if within and self.nodes and ranks != self.nodes * within:
            raise FieldError("nodes", f"{self.nodes}: {ranks} ranks, {within} of a node, fill {ranks // within}")
        return batch

    def _algorithms(self) -> str:
        """Algorithms that may run, as ``Collective`` has them; "": all."""
        names = [name for name in algorithms_of(self.algorithm) if self.nvls or not name.startswith("nvls")]
        return "" if len(names) == len(ALGORITHMS) else ",".join(names)

    def _within(self, ranks: int, place: Place) -> int:
        """Ranks that share a node; 0: all of them."""
        on_node = place.per_node if isinstance(place, Cluster) else self.per_node or _usual_per_node(place, ranks)
        if self.nodes and ranks % self.nodes:
            raise FieldError("nodes", f"{self.nodes} does not divide {ranks} ranks: choose one that does")
        filled = next(count for count in range(min(ranks, on_node), 0, -1) if ranks % count == 0)
        within = ranks // self.nodes if self.nodes else min(ranks, on_node) if self.per_node else filled
        if isinstance(place, Cluster) and within > on_node:
            raise FieldError("nodes", f"{self.nodes} of {on_node} devices have too few for {ranks} ranks: give more")
        return within if within < ranks or self.per_node else 0

    def _conditions(self, batch: KernelBatch) -> Conditions:
        timing, engine = TIMERS[self.timer], library_named(self.backend)
        in_graph = timing == "graph" and batch.family != "collective"
        launches = self.launches_per_graph or (MANY_LAUNCHES if in_graph else 1.0)
        return Conditions.of(
            1, timing=timing, engine=engine, variant=self.variant, launches=float(launches),
            cycled_bytes=self._cycled_bytes(batch), one_input=self.one_input, random=self.random,
            recorded=self.recorded, burst=COLD if self.burst is None else self.burst,
        )  # fmt: skip

    def _cycled_bytes(self, batch: KernelBatch) -> float:
        """Bytes that are touched between two uses of an operand."""
        if self.operand_sets and self.operands != "rotating":
            raise FieldError("operand_sets", "take turns: give operands rotating, or leave it out")
        if self.operands == "rotating" and not self.operand_sets:
            raise FieldError("operand_sets", "is missing: give how many sets of operands take turns")
        if (self.launches_per_graph or 1) > 1 and self.timer != "cuda_graph":
            raise FieldError("launches_per_graph", "counts kernels of a graph: give timer cuda_graph, or leave it out")
        if self.cycled_bytes is not None:
            if self.operands != "cold":
                raise FieldError("cycled_bytes", "is given in place of operands: leave out one of them")
            return self.cycled_bytes
        if batch.family == "collective" and self.operands != "cold":
            raise FieldError("operands", f"of a collective come from device memory: leave out '{self.operands}'")
        return COLD if self.operands == "cold" else (self.operand_sets or 1) * float(work_of(batch).bytes[0])


def _usual_per_node(device: DeviceSpec, ranks: int) -> int:
    """Ranks that a node of a device holds: eight or fewer always share one."""
    return ranks if ranks <= USUAL_PER_NODE else usual_per_node(device)
