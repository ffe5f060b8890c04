"""Constants of serving engines: found again where they are known, and never those of another engine."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import hypot, log
from pathlib import Path

import numpy as np
import pytest

from neusight.api import Predictor
from neusight.engines import server_named
from neusight.engines.server import GROUPS, PLATFORM_SPREAD, era_of
from neusight.learn.engines import (
    ENGINES,
    NAMES,
    EngineObservation,
    fit_era,
    fit_eras,
    observed,
    with_fitted,
)
from neusight.learn.evidence import Evidence, FitOptions
from neusight.learn.served import ServedRow
from neusight.serving import Closed, Deployment, Load, Setup, Static, serve
from neusight.workloads.decoders.architecture import decoder_of

TRUE = {
    "pass_s": 2e-3, "rank_s": 8e-4, "sequence_s": 4e-5, "mixture_s": 2e-3, "operator_s": 9e-6, "gap_s": 3e-4,
    "products": 1.05, "experts": 0.9, "context": 1.02, "decode": 1.3, "collectives": 1.4, "rest": 1.0,
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192,
}  # fmt: skip


def observations(era: str, gpu: str, n: int = 120, seed: int = 0) -> list[EngineObservation]:
    """Sums over runs whose constants are known, as they would be measured."""
    random = np.random.default_rng(seed)
    passes = random.integers(10, 2000, n)
    host = np.stack(
        [
            passes,
            passes * random.integers(0, 2, n),
            passes * random.integers(1, 200, n),
            passes * random.integers(0, 60, n) * 0.03,
            passes * random.integers(0, 2, n) * 900,
            np.zeros(n),
        ],
        1,
    )
    kernels = passes[:, None] * random.lognormal(-6.5, 1.0, (n, len(GROUPS)))
    terms = np.concatenate([host, kernels], axis=1)
    seconds = terms @ np.array([TRUE[name] for name in NAMES])
    return [
        EngineObservation(
            era=era, gpu=gpu, alike=f"{gpu} {i % 12}", measured=float(seconds[i]), sides=terms[i] * np.ones((1, 2, 1))
        )
        for i in range(n)
    ]


def test_constants_are_found_again() -> None:
    fitted = fit_era(observations("vllm", "l4"))
    assert fitted.error < 0.02
    for name in ("pass_s", "sequence_s", "products", "decode"):
        assert fitted.values[name] == pytest.approx(TRUE[name], rel=0.1), name
    assert (fitted.rows, fitted.gpus) == (120, ["l4"])


@pytest.mark.parametrize("left_out", ["t4", "far"])
def test_an_era_that_was_left_out_has_no_constants(left_out: str, tmp_path: Path) -> None:
    far = [replace(o, source="far") for o in observations("vllm", "t4", seed=1)]
    evidence = Evidence(rows=[*observations("vllm before 0.8", "l4"), *far], files=[])
    options = FitOptions(data=Path("measured"))
    ENGINES.without(evidence, [left_out], options, {}).save(tmp_path / "without.json")
    ENGINES.solve(evidence, options, None).save(tmp_path / "with.json")
    with_far, without = (json.loads((tmp_path / f"{name}.json").read_text())["engines"] for name in ("with", "without"))
    assert [*without] == ["vllm before 0.8"]
    assert {era: each["sources"] for era, each in with_far.items()} == {"vllm": ["far"], "vllm before 0.8": [""]}


def test_a_deployment_takes_constants_of_its_own_era_alone(predictor: Predictor) -> None:
    fitted = fit_eras(observations("tensorrt-llm", "l4"))
    trt, vllm = (deployed(predictor, Setup(engine=name)) for name in ("tensorrt-llm", "vllm"))
    assert with_fitted(trt, fitted).server.pass_s == fitted["tensorrt-llm"].values["pass_s"]
    assert with_fitted(vllm, fitted) is vllm


@pytest.mark.parametrize(
    ("name", "version", "era"),
    [
        ("vllm", "0.5.4", "vllm before 0.8"),
        ("vllm", "v0.11.1", "vllm before 0.14"),
        ("vllm", "0.15.1", "vllm"),
        ("vllm", "", "vllm"),
        ("tensorrt-llm", "0.9.0", "tensorrt-llm before 0.12"),
        ("tensorrt-llm", "0.17.0", "tensorrt-llm before 0.20"),
        ("tensorrt-llm", "1.0", "tensorrt-llm"),
        ("sglang", "0.3.6", "sglang before 0.4"),
        ("sglang", "0.4.3", "sglang"),
    ],
)
def test_eras_by_version(name: str, version: str, era: str) -> None:
    assert era_of(name, version).name == era
    assert server_named(name, version).serving.era == era


@pytest.mark.parametrize(
    ("setup", "load", "quantity"),
    [
        (Setup(), Static(batch=8, isl=256, osl=64), "e2e_max_ms"),
        (Setup(), Static(batch=8, isl=256, osl=64), "ttft_max_ms"),
        (Setup(graphs=False), Static(batch=8, isl=256, osl=64), "e2e_max_ms"),
        (Setup(overlap=False), Static(batch=8, isl=256, osl=64), "e2e_max_ms"),
        (Setup(pp=2), Static(batch=8, isl=256, osl=64), "e2e_max_ms"),
        (Setup(), Closed(concurrency=3, num_prompts=12, isl=256, osl=64), "tokens_per_s"),
        # Three clients of two replicas: one of these serves two, the other one.
        (Setup(replicas=2), Closed(concurrency=3, num_prompts=12, isl=256, osl=64), "tokens_per_s"),
    ],
    ids=["batch", "prefill", "launched", "one after the other", "pipeline", "clients", "clients of replicas"],
)
def test_an_observation_of_what_is_predicted_has_its_constants(
    predictor: Predictor, setup: Setup, load: Load, quantity: str
) -> None:
    """Terms times the constants that a prediction was made with are the time that it says, however it is served."""
    deployment = with_true_constants(deployed(predictor, setup))
    estimate = serve(deployment, load)
    figures = {
        "e2e_max_ms": 1e3 * estimate.e2e_s.mean,
        "ttft_max_ms": 1e3 * estimate.ttft_s.mean,
        "tokens_per_s": estimate.output_tokens_per_s.mean,
    }
    seen, *_ = observed(row_of(load, {quantity: figures[quantity]}, deployment))
    assert lasts_s(seen, TRUE) == pytest.approx(seen.measured, rel=1e-3)


def test_fit_eras_gives_an_era_of_one_die_the_spread_of_others_on_left_out_dies() -> None:
    slow = [replace(o, measured=1.3 * o.measured) for o in observations("vllm", "t4")]
    fitted = fit_eras([*observations("vllm", "l4"), *slow, *observations("sglang", "l4", seed=1)])
    assert fit_era(observations("sglang", "l4", seed=1)).values["spread"] < 0.02
    spread = fitted["sglang"].values["spread"]
    assert spread == fitted["vllm"].values["spread"] == pytest.approx(log(1.3) / 1.645, rel=0.1)
    assert fitted["sglang"].values["doubt_share"] == 1.0


def test_spread_of_an_era_covers_sources_that_were_left_out() -> None:
    """Runs of one source take 1.3 times as long as those of another, beyond what their kernels state or within it."""
    near = [replace(o, source="near") for o in observations("vllm", "l4")]
    far = [replace(o, source="far", measured=1.3 * o.measured, alike=o.alike + " far") for o in near]
    assert fit_era(near).values["spread"] < 0.02
    assert fit_era([*near, *far]).values["spread"] == pytest.approx(log(1.3) / 1.645, rel=0.1)
    doubted = fit_era([replace(o, doubt=0.2) for o in (*near, *far)]).values
    assert (doubted["spread"], doubted["doubt_share"]) == (0.0, pytest.approx(log(1.3) / 1.645 / 0.2, rel=0.1))


def test_first_tokens_tell_what_a_server_adds_to_them() -> None:
    passes = observations("vllm", "l4", 60)
    firsts = [
        replace(o, first=True, measured=0.1 * o.measured + 0.04, sides=0.1 * o.sides, alike=o.alike + " first")
        for o in passes
    ]
    fitted = fit_eras([*passes, *firsts, *observations("sglang", "l4", 60)])
    assert fitted["vllm"].values["request_s"] == pytest.approx(0.04, rel=0.1)
    assert max(each.values["first_spread"] for each in fitted.values()) < 0.01


def test_eras_without_first_tokens_take_what_servers_of_their_engine_add() -> None:
    """Prompts of two engines wait for launches and for something else, which passes of the others do not know."""
    rows = []
    for era, request_s in (("vllm", 0.01), ("sglang", 0.05)):
        passes = observations(era, "l4", 60)
        rows += [*passes, *observations(f"{era} before 0.4", "t4", 60, seed=1)]
        rows += [
            replace(o, first=True, measured=0.1 * o.measured + request_s, sides=0.1 * o.sides, alike=o.alike + " first")
            for o in passes
        ]
    fitted = fit_eras(rows)
    request_s = {era: each.values["request_s"] for era, each in fitted.items()}
    assert request_s["vllm before 0.4"] == pytest.approx(request_s["vllm"])
    assert request_s["sglang before 0.4"] == pytest.approx(request_s["sglang"])
    assert 2 * request_s["vllm"] < request_s["sglang"]
    # Launches of prompts alone that take three times as long leave those of other eras as they are.
    launches = np.array([3.0 if name == "operator_s" else 1.0 for name in NAMES])
    slow = [
        o if not o.first else replace(o, measured=lasts_s(replace(o, sides=o.sides * launches), TRUE)) for o in rows
    ]
    before = fit_eras(slow)["vllm before 0.4"].values["operator_s"]
    assert before == pytest.approx(TRUE["operator_s"], rel=0.1)


def test_launches_are_told_by_the_passes_that_wait_for_them() -> None:
    """First tokens of prompts of four layers of experts, some of which last as long as their kernels."""
    graphs = np.array([name != "mixture_s" for name in NAMES])
    passes = [replace(o, sides=o.sides * graphs) for o in observations("sglang", "l4", 60)]
    passes = [replace(o, measured=lasts_s(o, TRUE)) for o in passes]
    places, kernels_s = [NAMES.index(name) for name in ("mixture_s", "products")], np.geomspace(1e-3, 1.0, 40)
    sides = np.zeros((40, 1, 2, len(NAMES)))
    sides[:, 0, 0, places[1]] = kernels_s
    sides[:, 0, 1, places[0]] = 40
    firsts = [
        EngineObservation(
            era="sglang", gpu="l4", alike=f"first {i}", first=True, sides=sides[i],
            measured=max(1.05 * kernels_s[i], 40 * 2e-3) + 0.01,
        )
        for i in range(40)
    ]  # fmt: skip
    assert fit_era([*passes, *firsts]).values["mixture_s"] == pytest.approx(2e-3, rel=0.1)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_tokens_of_clients_last_as_long_as_passes_that_they_wait_for(predictor: Predictor, engine: str) -> None:
    deployment = with_true_constants(deployed(predictor, Setup(engine=engine)))
    load = Closed(concurrency=3, num_prompts=12, isl=256, osl=64)
    estimate = serve(deployment, load)
    measured = {"tpot_ms": 1e3 * estimate.tpot_s.mean, "ttft_ms": 1e3 * estimate.ttft_s.mean}
    token, first = observed(row_of(load, measured, deployment))
    assert lasts_s(token, TRUE) == pytest.approx(estimate.tpot_s.mean, rel=0.01)
    assert lasts_s(first, TRUE) + 0.02 == pytest.approx(estimate.ttft_s.mean, rel=1e-3)


def test_shipped_constants_of_an_era_hold_on_rocm_until_some_are_fitted_there(tmp_path: Path) -> None:
    fitted = {"vllm": {"values": TRUE | {"spread": 0.1}}}
    file = tmp_path / "engines.json"
    file.write_text(json.dumps({"engines": fitted, "common": {"values": {"spread": 0.3}}}))
    nvidia = server_named("vllm", "", file).serving
    amd = replace(nvidia, era="vllm on ROCm")._fitted(file, PLATFORM_SPREAD)
    assert (nvidia.fitted_to, nvidia.spread) == ("vllm", 0.1)
    assert (amd.fitted_to, amd.pass_s) == ("vllm", TRUE["pass_s"])
    assert amd.spread == pytest.approx(hypot(0.3, PLATFORM_SPREAD))


@pytest.mark.parametrize(
    ("engine", "version", "fitted_to"),
    [
        ("sglang", "0.3.0", "sglang"), ("vllm", "", "vllm before 0.14"), ("vllm", "0.7.3", "vllm before 0.14"),
        ("tensorrt-llm", "1.0", "common"), ("transformers-neuronx", "", ""),
    ],
)  # fmt: skip
def test_versions_without_constants_have_those_of_the_newest_of_their_engine_or_of_all(
    engine: str, version: str, fitted_to: str, tmp_path: Path
) -> None:
    fitted = {era: {"values": TRUE | {"spread": 0.1}} for era in ("sglang", "vllm before 0.14", "vllm on ROCm")}
    common = {"values": TRUE | {"spread": 0.3}}
    (tmp_path / "engines.json").write_text(json.dumps({"engines": fitted, "common": common}))
    server = server_named(engine, version, tmp_path / "engines.json").serving
    assert server.fitted_to == fitted_to
    assert server.pass_s == (TRUE["pass_s"] if fitted_to else 0.0)
    assert server.spread >= 0.3


def test_terms_count_passes_and_what_is_in_them(predictor: Predictor) -> None:
    """A batch of 8 with answers of 64 takes 64 passes; two stages of a pipeline have half of its sequences each."""
    load = Static(batch=8, isl=256, osl=64)
    for pp in (1, 2):
        deployment = with_true_constants(deployed(predictor, Setup(pp=pp, overlap=False)))
        (seen,) = observed(row_of(load, {"e2e_max_ms": 1.0}, deployment))
        terms = dict(zip(NAMES, seen.longer(TRUE), strict=True))
        assert terms["pass_s"] == pytest.approx(64, abs=1)
        assert terms["sequence_s"] == pytest.approx(64 * 8 / pp, rel=0.02)
        assert (terms["rank_s"] > 0) == (pp > 1)


def lasts_s(observation: EngineObservation, constants: Mapping[str, float]) -> float:
    return float(observation.longer(constants) @ [constants[name] for name in NAMES])


def deployed(predictor: Predictor, setup: Setup) -> Deployment:
    return predictor.deployment(decoder_of(CONFIG, "small"), "l4", 512, setup)


def with_true_constants(deployment: Deployment, request_s: float = 0.02) -> Deployment:
    return deployment.with_constants(TRUE | {"request_s": request_s})


def row_of(load: Load, measured: dict[str, float], deployment: Deployment) -> ServedRow:
    return ServedRow(row={"source": "lab", "model": "small", "gpu": "l4"} | measured, load=load, deployment=deployment)
