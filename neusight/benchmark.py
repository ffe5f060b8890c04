"""How fast the program itself answers: cold starts, warm predictions, kernels a second, memory of a large trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import ModelError

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.serving import Deployment

_LAYERS_24 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 24,
    "n_head": 18,
    "n_embd": 1152,
    "n_positions": 1024,
    "vocab_size": 50257,
}
"""Of no ready workload, so that it is traced."""
_WARM_MODELS = ("bert-large", "gpt2-large", "gpt3-xl", "gpt3-2.7b", "opt-1.3b", "llama-2-7b", "resnet-50")
_WARM_GPUS = ("l4", "a100-pcie-80gb", "h100-sxm-80gb")
_SWEPT_MODELS = ("convnext-tiny", "efficientnet-b0", "swin-tiny", "resnet-50", "vit-base", "efficientnet-b7")
_SWEPT_GPUS = ("h100-sxm-80gb", "a100-sxm-40gb", "l4", "rtx-3090", "v100-pcie-32gb")
_SPARSE = (
    *("vgg16", "--gpu", "tensordash", "--mode", "training", "--batch", "32"),
    *("--sparsity", "activations=0.6,gradients=0.5"),
)
_SERVING = (
    *("meta-llama/Llama-3.1-70B", "--gpu", "h100-sxm-80gb", "--tp", "4", "--dtype", "fp8"),
    *("--isl", "2048", "--osl", "256", "--concurrency", "64"),
)
_POINTS = 200
_KERNELS = 200_000
_REQUESTS = 100_000
_TRACE = """
import resource, sys, time, tracemalloc
from neusight.workloads import load_workload
from neusight.workloads.serialise import from_json, to_json
ask = dict(mode="training", optimizer="adamw")
if sys.argv[1] == "trace":
    started = time.perf_counter()
    load_workload("gpt3-175b", cache=False, **ask)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(time.perf_counter() - started, peak * (1 if sys.platform == "darwin" else 1024))
else:
    text = to_json(load_workload("gpt3-175b", **ask))
    tracemalloc.start()
    workload = from_json(text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    started = time.perf_counter()
    from_json(text)
    print(time.perf_counter() - started, held)
"""


def measure(tile_models: Path | None = None, repeats: int = 5) -> Iterator[dict[str, Any]]:
    """Measure everything on this machine, one row after the other.

    Args:
        tile_models: folder of tile models; default those that ship.
        repeats: runs of each, of which the median counts.

    Yields:
        ``name``, ``value``, ``unit``, and ``limit``, which the design allows.

    Raises:
        ArtifactError: the folder holds no tile models.
    """
    from neusight.api import Predictor

    predictor = Predictor.load(tile_models)
    chosen = ["--gpu", "a100-pcie-80gb", *(["--tile-models", str(tile_models)] if tile_models else [])]
    yield _row("cold: gpt3-xl on a100-pcie-80gb", _cold_s(["gpt3-xl", *chosen], repeats), "s", 0.5)
    first_s, second_s = _config_twice(chosen, repeats)
    yield _row("cold: config.json, 24 layers, training, first time", first_s, "s", 6.0)
    yield _row("cold: config.json, 24 layers, training, again", second_s, "s", 0.5)
    yield _row("warm: a whole model", _warm_ms(predictor, repeats), "ms", 5.0)
    yield _row("warm: GEMMs in batches", _kernels_per_s(predictor, repeats), "kernels/s", 1e6)
    yield from _trace()
    yield _row("cold: vgg16 training on tensordash", _cold_s([*_SPARSE, *chosen[2:]], repeats), "s", 2.0)
    yield _row("TensorDash's scheduler", _scheduled_per_s(repeats), "values/s", 5e6)
    yield _row("TensorDash's tile model", _tiles_per_s(repeats), "tiles/s", 1e5)
    yield _row(f"continuous batching of {_REQUESTS:,} requests", _served_s(), "s", 5.0)
    yield _row(f"8 replicas behind a router, {_REQUESTS:,} requests", _served_s(8), "s", 10.0)
    yield _row("cold: serving llama-3.1-70b, 64 clients", _cold_s(_SERVING, repeats, command="serving"), "s", 1.0)
    yield from _serving(predictor, repeats)
    yield _row("sweep: 1,000 traced image models on 5 GPUs", _swept_s(predictor), "s", 60.0)


def _row(name: str, value: float, unit: str, limit: float) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "limit": limit}


def _cold_s(arguments: Sequence[str], repeats: int, cache: str | None = None, command: str = "predict") -> float:
    """Median wall time of a fresh ``neusight predict``, or another command."""
    environment = os.environ | ({"NEUSIGHT_CACHE": cache} if cache else {})
    words = [sys.executable, "-m", "neusight", command, *arguments]
    return median(_timed_s(lambda: _printed(words, environment)) for _ in range(repeats))


def _timed_s(run: Callable[[], object]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _config_twice(chosen: list[str], repeats: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(_LAYERS_24))
        arguments = [str(config), *chosen, "--mode", "training"]
        cache = str(Path(folder) / "cache")
        first_s = _cold_s(arguments, 1, cache)
        return first_s, _cold_s(arguments, repeats, cache)


def _warm_ms(predictor: Predictor, repeats: int) -> float:
    """Mean over models and devices that the predictor has met, median over repeats."""
    pairs = [(model, gpu) for model in _WARM_MODELS for gpu in _WARM_GPUS]

    def once() -> float:
        started = time.perf_counter()
        for model, gpu in pairs:
            _ = predictor.estimate(model, gpu, mode="training").latency_s
        return (time.perf_counter() - started) / len(pairs) * 1e3

    once()
    return median(once() for _ in range(repeats))


def _kernels_per_s(predictor: Predictor, repeats: int) -> float:
    from neusight.kernels import KernelBatch

    random = np.random.default_rng(0)
    sizes = 2 ** random.uniform(4, 13, (3, _KERNELS))
    m, n, k = sizes.astype(np.int64)
    batch = KernelBatch.from_columns("gemm", m=m, n=n, k=k)

    def once() -> float:
        started = time.perf_counter()
        predictor.kernels(batch, "a100-pcie-80gb")
        return _KERNELS / (time.perf_counter() - started)

    once()
    return median(once() for _ in range(repeats))


def _scheduled_per_s(repeats: int) -> float:
    """Values of half-empty streams on four PE rows that the scheduler looks at in a second, on one core."""
    from neusight.executors.tensordash.schedule import schedule_cycles

    mask = np.random.default_rng(0).random((4, 65536, 16)) >= 0.5

    def once() -> float:
        started = time.perf_counter()
        schedule_cycles(mask)
        return mask.size / (time.perf_counter() - started)

    once()
    return median(once() for _ in range(repeats))


def _tiles_per_s(repeats: int) -> float:
    """Tiles whose cycles the tile model tells in a second."""
    from neusight.executors.tensordash.tile_model import TILE, load_tile_model, predict_cycles
    from neusight.learn.tensordash.dataset import sample_configs

    model, tiles = load_tile_model(), sample_configs(1024)
    many = {name: np.tile(tiles[name], 98) for name in TILE}

    def once() -> float:
        started = time.perf_counter()
        return len(predict_cycles(model, many)) / (time.perf_counter() - started)

    once()
    return median(once() for _ in range(repeats))


def _served_s(replicas: int = 1) -> float:
    """Engines under a load of 0.9 of what they bear, with the passes of a model of 8e9 weights, of the magnitude; the
    least loaded of several gets the next request.
    """
    from neusight.serving import EngineLimits, Lengths, Open, PassSizes, Routing, TabulatedPasses, simulate

    times = TabulatedPasses(
        PassSizes(tokens=8192, sequences=256, length=10_000),
        tokens=lambda steps: 5e-3 + 5e-6 * steps.tokens,
        decodes=lambda steps: 1e-4 + 5e-8 * steps.decodes * steps.decode_cached,
        chunks=lambda steps: 1e-4 + 5e-10 * steps.prompts * steps.prompt_tokens * (steps.prompt_cached + 1e3),
    )
    isl = Lengths(mean=500, shape="lognormal", cv=1.0, longest=8000)
    osl = Lengths(mean=200, shape="lognormal", cv=1.0, longest=2000)
    load = Open(request_rate=60 * replicas, num_prompts=_REQUESTS, isl=isl, osl=osl)
    routing = Routing(schedulers=replicas, policy="least-loaded")
    return _timed_s(lambda: simulate(load, EngineLimits(kv_tokens=400_000), times, routing=routing))


def _serving(predictor: Predictor, repeats: int) -> Iterator[dict[str, Any]]:
    """A second question about a served model of 70e9 weights, pricing all its passes, and a sweep of loads."""
    from functools import partial

    from neusight.serving import Load, PassSizes, Static, closed, serve

    def deployment() -> Deployment:
        return predictor.deployment("meta-llama/Llama-3.1-70B", "h100-sxm-80gb", 2304, tp=4, dtype="fp8")

    replica = deployment().replica
    price_s = [_timed_s(lambda: replace(replica).tables(PassSizes(8192, 256, 4096))) for _ in range(repeats)]
    yield _row("serving: pricing the passes of a deployment", median(price_s) * 1e3, "ms", 200.0)
    loads: dict[str, Load] = {"a batch of 16": Static(batch=16, isl=2048, osl=256), "64 clients": closed(64, 2048, 256)}
    for name, load in loads.items():
        serve(deployment(), load)
        warm_s = median(_timed_s(partial(serve, deployment(), load)) for _ in range(repeats))
        yield _row(f"warm: serving llama-3.1-70b, {name}", warm_s * 1e3, "ms", 10.0)
    # Clients as in a frontier, 1 to 256, with lengths that differ.
    points = [closed(2 ** (i % 9), 1024 + 8 * i, 256) for i in range(_POINTS)]
    sweep_s = _timed_s(lambda: [serve(deployment(), load) for load in points])
    yield _row(f"warm: a sweep of {_POINTS} loads", sweep_s, "s", 2.0)


def _swept_s(predictor: Predictor) -> float:
    """Of 1,000 models, from models that were traced before but that the predictor has not met."""
    from neusight.api import Predictor

    def swept(predictor: Predictor) -> None:
        predictor.sweep(_SWEPT_MODELS, _SWEPT_GPUS, [32], dtypes=["amp"])

    swept(predictor)
    fresh = Predictor(predictor.kernel_predictor)
    return _timed_s(lambda: swept(fresh)) * 1000 / len(_SWEPT_MODELS)


def _trace() -> Iterator[dict[str, Any]]:
    """A training step of 96 layers: traced whole, and as it is kept, with its layers stored once."""
    seconds, size = _figures("trace")
    yield _row("trace of gpt3-175b, training: time", seconds, "s", 60.0)
    yield _row("trace of gpt3-175b, training: memory of the process", size / 1e9, "GB", 4.0)
    seconds, size = _figures("cached")
    yield _row("workload of gpt3-175b, training: from the cache", seconds, "s", 0.3)
    yield _row("workload of gpt3-175b, training: in memory", size / 1e6, "MB", 100.0)


def _figures(what: str) -> tuple[float, float]:
    seconds, size = map(float, _printed([sys.executable, "-c", _TRACE, what]).split()[-2:])
    return seconds, size


def _printed(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command.

    Raises:
        ModelError: it fails; the last line of its standard error says why.
    """
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ModelError(done.stderr.strip().rpartition("\n")[2].removeprefix("error: "))
    return done.stdout
