"""What answers collectives: costs of any device, effects of measured ones, and the artifact behind them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cost_faults import faults

from neusight.api import Predictor
from neusight.devices import device_ids, list_clusters, load_cluster, load_device
from neusight.errors import ArtifactError, CoverageError, DeviceError
from neusight.executors import Options, load_executor
from neusight.executors.base import LINK
from neusight.executors.link import TOLD_FACTORS, TOLD_SPREAD, LinkPredictor
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import TIMINGS, Conditions
from neusight.kernels.named import COLLECTIVES
from neusight.laws.constants import priors
from neusight.laws.fitted import FittedLinks, shipped_links
from neusight.laws.link_kinds import kinds_of
from neusight.paths import checkout_dir

LINKS = shipped_links().physics

ROOT = Path(__file__).resolve().parents[2]


def grid(n: int = 200) -> tuple[KernelBatch, Conditions]:
    rng = np.random.default_rng(0)
    ranks = rng.choice([1, 2, 4, 8, 16], n)
    batch = KernelBatch.from_columns(
        "collective",
        op=rng.choice(COLLECTIVES, n),
        ranks=ranks,
        per_node=np.where(ranks == 16, 8, 0),
        bytes=2 ** rng.integers(0, 33, n),
    )
    engine = rng.choice(["torch", "vllm", "sglang", "trtllm"], n)
    return batch, Conditions.of(n, timing=rng.choice(TIMINGS, n), engine=engine)


@pytest.fixture(scope="module")
def executor() -> LinkPredictor:
    found = load_executor(LINK)
    assert isinstance(found, LinkPredictor)
    return found


def test_costs_of_every_device(executor: LinkPredictor) -> None:
    batch, conditions = grid()
    wrong = {}
    for gpu in device_ids():
        if (device := load_device(gpu)).links:
            wrong[gpu] = faults(executor.cost(batch, device, Options(), conditions), batch)
    assert {gpu: found for gpu, found in wrong.items() if found} == {}
    assert len(wrong) > 100


def test_one_rank_exchanges_nothing(executor: LinkPredictor) -> None:
    batch = KernelBatch.from_columns("collective", ranks=np.array([1, 2]), bytes=2**20)
    alone, pair = executor.cost(batch, load_device("h100-sxm-80gb"), Options()).latency_s
    assert alone < 1e-9 < 1e-6 < pair


def test_a_measured_device_has_what_is_its_own_and_so_has_a_variant_of_it(executor: LinkPredictor) -> None:
    device, (batch, conditions) = load_device("l40s"), grid()
    kind = "nccl all_gather"
    mine = kinds_of(batch, conditions) == kind
    moved = replace(executor.fitted, effects={kind: {"l40s": float(np.log(2.0))}})
    without = replace(executor.fitted, effects={})
    variant = load_device("l40s", ["tdp=300W"])
    biased, unbiased, made = (
        LinkPredictor(fitted).cost(batch.take(mine), d, Options(), conditions.take(mine))
        for fitted, d in ((moved, device), (without, device), (moved, variant))
    )
    several = batch["ranks"][mine] > 1
    assert mine.sum() > 3
    assert biased.latency_s[several] == pytest.approx(2.0 * unbiased.latency_s[several])
    # A power limit changes nothing of a collective, but the variant was not measured itself.
    assert made.latency_s == pytest.approx(biased.latency_s)
    assert (made.high_s - made.latency_s > biased.high_s - biased.latency_s).all()


def test_a_board_that_was_learned_from_has_its_own_effect_and_not_that_of_its_die(executor: LinkPredictor) -> None:
    device, (batch, conditions), kind = load_device("l40s"), grid(), "nccl all_gather"
    own = replace(device, id="my-board", original=device)
    mine = (kinds_of(batch, conditions) == kind) & (batch["ranks"] > 1)
    of_other = {"l40s": float(np.log(2.0))}
    unlearned = replace(executor.fitted, effects={kind: of_other})
    of_both, gpus = of_other | {"my-board": float(np.log(3.0))}, [*unlearned.gpus, "my-board"]
    learned = replace(unlearned, effects={kind: of_both}, gpus=gpus)
    of_own, of_die = (
        LinkPredictor(fitted).cost(batch.take(mine), own, Options(), conditions.take(mine)).latency_s
        for fitted in (learned, unlearned)
    )
    assert mine.sum() > 3
    assert of_own == pytest.approx(1.5 * of_die)


def test_what_takes_the_time_is_named(executor: LinkPredictor) -> None:
    batch = KernelBatch.from_columns("collective", ranks=8, bytes=np.array([256, 2**32]))
    device = load_device("h100-sxm-80gb")
    told = executor.cost(batch, device, Options(), Conditions.of(2, timing="graph"))
    assert list(told.limiter) == ["latency", "link"]
    alone = executor.cost(batch, device, Options(), Conditions.of(2, engine="vllm"))
    assert list(alone.limiter) == ["launch", "link"]


def test_kinds_tell_who_runs_what_and_how() -> None:
    batch = KernelBatch.from_columns(
        "collective",
        op=np.array(["all_reduce", "all_gather", "all_reduce"]),
        ranks=8,
        per_node=np.array([0, 0, 4]),
        bytes=1,
    )
    conditions = Conditions.of(3, engine="vllm", timing=np.array(["stream", "graph", "graph"]))
    assert list(kinds_of(batch, conditions)) == ["vllm all_reduce stream", "nccl all_gather", "vllm all_reduce network"]


def test_costs_of_every_cluster(executor: LinkPredictor) -> None:
    batch, conditions = grid()
    room = batch["ranks"] <= 8
    wrong = {}
    for cluster in list_clusters():
        whole = np.minimum(cluster.per_node, batch["ranks"])
        inner = batch.take(room)
        fitting = KernelBatch("collective", dict(inner.columns) | {"per_node": whole[room]})
        told = cluster.model_copy(update={"nodes": 8})
        wrong[cluster.id] = faults(executor.cost(fitting, told, Options(), conditions.take(room)), fitting)
    assert {name: found for name, found in wrong.items() if found} == {}


def test_what_was_measured_of_other_networks_says_nothing_of_one_that_is_told(executor: LinkPredictor) -> None:
    batch = KernelBatch.from_columns("collective", ranks=np.array([8, 16]), per_node=8, bytes=2**28)
    conditions = Conditions.of(2, timing="graph")
    told = executor.cost(batch, load_cluster("dgx-a100", 2), Options(), conditions)
    guessed = executor.cost(batch, load_device("a100-sxm-80gb"), Options(), conditions)
    assert told.latency_s[0] == guessed.latency_s[0] and told.high_s[0] == guessed.high_s[0]
    assert told.spread[1] == TOLD_SPREAD
    assert told.high_s[1] / told.latency_s[1] == pytest.approx(TOLD_FACTORS[1])
    assert told.low_s[1] / told.latency_s[1] == pytest.approx(TOLD_FACTORS[0])
    # One InfiniBand adapter a device is assumed, which this cluster has, with far wider an interval.
    assert told.latency_s[1] == pytest.approx(guessed.latency_s[1], rel=0.02)
    assert guessed.high_s[1] / guessed.latency_s[1] > 2.0 * told.high_s[1] / told.latency_s[1]


def test_devices_are_asked_by_name() -> None:
    predictor = Predictor.load()
    asked = {"ranks": 8, "bytes": 2**26}
    nccl = predictor.kernel("all_reduce", "h100-sxm-80gb", **asked, timer="cuda_graph")
    assert nccl.low_s < nccl.latency_s < nccl.high_s and nccl.bound_s == pytest.approx(2**26 / 450e9)
    assert (nccl.family, nccl.limiter, nccl.source) == ("collective", "link", "links")
    small = {"ranks": 8, "bytes": 2**14, "timer": "cuda_graph"}
    own = predictor.kernel("all_reduce", "h100-sxm-80gb", **small, backend="vllm")
    assert own.latency_s < 0.5 * predictor.kernel("all_reduce", "h100-sxm-80gb", **small).latency_s
    # A GPU without bfloat16 moves bytes as well as any other.
    assert predictor.kernel("all_reduce", "t4", **asked).outside == ""
    assert predictor.kernel("all_gather", "mi300x", **asked).outside == "links of kind infinity-fabric"


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("all_reduce", {"bytes": 4}, "needs ranks"),
        ("all_reduce", {"ranks": 8, "bytes": 0}, "bytes=0: must be at least 1"),
        ("all_reduce", {"ranks": 8, "per_node": 3, "bytes": 4}, "per_node=3 does not divide ranks=8"),
        ("send_recv", {"ranks": 4, "bytes": 4}, "send_recv is between two"),
        ("collective", {"op": "broadcast", "ranks": 4, "bytes": 4}, "op=broadcast: must be one of all_reduce"),
    ],
)
def test_what_is_no_collective_is_refused(name: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(CoverageError, match=said):
        Predictor.load().kernel(name, "l40s", **given)


def test_other_kernels_and_devices_without_links_are_refused(executor: LinkPredictor) -> None:
    batch, _ = grid(2)
    with pytest.raises(CoverageError, match="not kernels of 'gemm'"):
        executor.cost(KernelBatch.from_columns("gemm", m=1, n=1, k=1), load_device("l4"), Options())
    with pytest.raises(DeviceError, match="states no links"):
        executor.cost(batch, load_device("l4").model_copy(update={"links": ()}), Options())


def test_what_ships_is_what_the_law_and_the_data_sets_have() -> None:
    fitted = shipped_links()
    assert set(fitted.values) == set(priors(LINKS)) == set(fitted.deviations)
    cards = {path.parent.name for path in checkout_dir("datasets").glob("*/manifest.json")}
    assert {Path(name).stem.removesuffix("-collective") for name in fitted.data} <= cards
    assert len(fitted.data) == 5
    # Nothing is known better without a device than with it.
    for path, (low, high) in fitted.intervals.items():
        assert fitted.intervals_seen[path][1] / fitted.intervals_seen[path][0] < high / low


def test_an_artifact_comes_back_as_it_was_and_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    shipped_links().save(path)
    assert FittedLinks.load(path) == shipped_links() == shipped_links(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"values": content["values"] | {"nccl.nonsense": 1.0}}))
    with pytest.raises(ArtifactError, match=r"nccl\.nonsense"):
        _ = FittedLinks.load(path).physics
    path.write_text(json.dumps(content | {"protocol": 0}))
    with pytest.raises(ArtifactError, match="another protocol"):
        FittedLinks.load(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="cannot read"):
        FittedLinks.load(path)
