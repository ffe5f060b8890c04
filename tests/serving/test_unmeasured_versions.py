"""Versions and platforms of engines that nobody measured: intervals are wider than those of measured ones."""

from __future__ import annotations

from math import hypot

import pytest

from neusight.devices import load_device
from neusight.engines import server_named
from neusight.engines.limits import Site
from neusight.engines.server import MEASURED, PLATFORM_SPREAD, shipped_constants, spread_between_eras


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "0.1.2"), ("vllm", "0.4.3"), ("vllm", "0.25.1"), ("tensorrt-llm", "0.9"), ("sglang", "0.4.1")],
)
def test_unmeasured_version_is_wider_than_the_measured_one_of_its_era(engine: str, version: str) -> None:
    server = server_named(engine, version).serving
    fitted = shipped_constants(server.era)["spread"]
    assert server.fitted_to == server.era
    assert server.spread == pytest.approx(hypot(fitted, spread_between_eras()))
    assert server.unmeasured_version.count(" to ") == (len({*MEASURED[engine]}) - 1)


@pytest.mark.parametrize("engine", sorted(MEASURED))
def test_measured_versions_keep_their_spread(engine: str) -> None:
    for release in ("", *(".".join(map(str, each)) for each in MEASURED[engine])):
        server = server_named(engine, release).serving
        assert server.unmeasured_version == ""
        assert server.spread == shipped_constants(server.era)["spread"]


@pytest.mark.parametrize(("device", "other"), [("mi300x", True), ("mi355x", True), ("h100-sxm-80gb", False)])
def test_unmeasured_platform_is_more_uncertain_than_another_version(device: str, other: bool) -> None:
    server = server_named("vllm", "0.19.0").serving.started_on(Site(device=load_device(device)))
    if other:
        assert server.spread == pytest.approx(hypot(spread_between_eras(), PLATFORM_SPREAD))
    assert (server.fitted_to == server.era) == (not other)


@pytest.mark.parametrize("aiter", [True, False])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_platform_whose_back_ends_are_said_is_less_uncertain(engine: str, aiter: bool) -> None:
    server, site = server_named(engine).serving, Site(device=load_device("mi300x"))
    said, unsaid = server.started_on(site, aiter=aiter), server.started_on(site)
    assert said.spread == pytest.approx(spread_between_eras() * 2**0.5)
    assert said.spread < unsaid.spread


def test_measured_version_on_another_platform_keeps_its_constants() -> None:
    server = server_named("vllm", "0.6.1").serving.started_on(Site(device=load_device("mi300x")))
    assert server.fitted_to == server.era == "vllm before 0.8 on ROCm"
    assert server.spread == shipped_constants(server.era)["spread"]
