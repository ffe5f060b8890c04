"""What a server says of its passes gives its constants back: records, log lines and metrics of a simulated server."""

from pathlib import Path

import numpy as np
import pytest

from neusight import Predictor
from neusight.engines.server import shipped_constants
from neusight.errors import DataError, LoadError
from neusight.learn.observe import observe
from neusight.serving import Closed, Deployment, ServingRun, Trace, simulate
from neusight.serving.logs import read_log

MODEL = "Qwen/Qwen3-8B"
SLOW = {"pass_s": 5.0, "sequence_s": 5.0}
"""Factors of what a slow host takes."""


@pytest.fixture(scope="module")
def deployment(predictor: Predictor) -> Deployment:
    return predictor.deployment(MODEL, "h100-sxm-80gb", 1024, overlap=False)


@pytest.fixture(scope="module")
def slow(deployment: Deployment) -> Deployment:
    shipped = shipped_constants("vllm")
    return deployment.with_constants({name: factor * shipped[name] for name, factor in SLOW.items()})


@pytest.fixture(scope="module")
def run(slow: Deployment) -> ServingRun:
    """A rate that rises, of a server on a slow host."""
    arrival_s, tokens = [], np.random.default_rng(0)
    start_s = 0.0
    for rate in (2.0, 6.0, 12.0, 18.0, 22.0, 3.0, 9.0, 16.0):
        arrival_s.append(start_s + np.sort(tokens.uniform(0, 40, int(40 * rate))))
        start_s += 40
    times = np.concatenate(arrival_s)
    prompt, output = tokens.integers(50, 700, len(times)), tokens.integers(20, 300, len(times))
    load = Trace(arrival_s=times, prompt_tokens=prompt, output_tokens=output)
    return simulate(load, slow.limits, slow.tables)


def records(run: ServingRun, path: Path) -> Path:
    ttft_s = run.first_token_s - run.arrival_s
    tpot_ms = 1e3 * (run.finish_s - run.first_token_s) / (run.output_tokens - 1)
    columns = (run.arrival_s, run.prompt_tokens, run.output_tokens, ttft_s, tpot_ms)
    lines = [",".join(f"{value:.6f}" for value in row) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_ms", *lines]))
    return path


def test_records_of_a_slow_host_give_its_times_back(
    deployment: Deployment, slow: Deployment, run: ServingRun, tmp_path: Path
) -> None:
    log = read_log([records(run, tmp_path / "requests.csv")], 0)
    assert log.kind == "records of requests"
    found = observe(deployment, log.windows)
    assert found.error_before > 20
    assert found.error_after < 4
    observed = simulate(Closed(concurrency=32, num_prompts=200, isl=300, osl=100), slow.limits, slow.tables)
    again = deployment.with_constants(found.after)
    expected = simulate(Closed(concurrency=32, num_prompts=200, isl=300, osl=100), again.limits, again.tables)
    assert expected.tpot_s.mean == pytest.approx(observed.tpot_s.mean, rel=0.05)


def sums_by_time(run: ServingRun, every_s: float) -> list[dict[str, float]]:
    """Counters of a server, every so many seconds: what its passes had done by then."""
    p = run.passes
    ends = np.arange(1, int(p.end_s[-1] / every_s) + 1) * every_s
    columns = {
        "passes": p.count.astype(float),
        "prompts": p.ended.astype(float),
        "prompt_tokens": p.prompt_tokens * p.count,
        "gaps": (p.decodes * p.gained).astype(float),
        "gaps_s": p.decodes * p.lasts_s,
    }
    totals = {name: np.interp(ends, p.end_s, np.cumsum(column)) for name, column in columns.items()}
    at = np.searchsorted(p.end_s, ends).clip(max=len(p.end_s) - 1)
    state = {"running": p.running[at].astype(float), "kv_tokens": p.kv_tokens[at].astype(float)}
    return [{name: float(column[i]) for name, column in (totals | state).items()} for i in range(len(ends))]


def vllm_lines(run: ServingRun, path: Path, kv_tokens: int) -> Path:
    text, before = [], dict.fromkeys(("prompt_tokens", "gaps", "prompts"), 0.0)
    for now in sums_by_time(run, 10.0):
        prompt, made = (now["prompt_tokens"] - before["prompt_tokens"]) / 10, (now["gaps"] - before["gaps"]) / 10
        text.append(
            f"INFO 11-20 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg "
            f"generation throughput: {made:.1f} tokens/s, Running: {now['running']:.0f} reqs, Waiting: 0 reqs, GPU KV "
            f"cache usage: {100 * now['kv_tokens'] / kv_tokens:.1f}%, Prefix cache hit rate: 0.0%"
        )
        before = now
    text.append("SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: 60 tokens, Drafted: 100 tokens, x")
    path.write_text("\n".join(text))
    return path


def dumps(run: ServingRun, folder: Path) -> list[Path]:
    paths = []
    for number, now in enumerate(sums_by_time(run, 10.0)):
        names = {
            "vllm:iteration_tokens_total_count": now["passes"],
            "vllm:generation_tokens_total": now["gaps"] + now["prompts"],
            "vllm:inter_token_latency_seconds_count": now["gaps"],
            "vllm:inter_token_latency_seconds_sum": now["gaps_s"],
            "vllm:time_to_first_token_seconds_count": now["prompts"],
            "vllm:prompt_tokens_total": now["prompt_tokens"],
            "vllm:spec_decode_num_accepted_tokens_total": 3.0 * number,
            "vllm:spec_decode_num_draft_tokens_total": 4.0 * number,
        }
        lines = [f'{name}{{engine="0",model_name="m"}} {value!r}' for name, value in names.items()]
        bucket = 'vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 9.0'
        paths.append(folder / f"{number:03d}.prom")
        paths[-1].write_text("\n".join(["# HELP vllm:x y", bucket, *lines]))
    return paths


def sglang_lines(run: ServingRun, path: Path) -> Path:
    """A line every 40 passes that generate, of which rows of passes may hold several."""
    p, text, passes, made, began_s = run.passes, [], 0.0, 0.0, 0.0
    for row in range(len(p)):
        if p.prompts[row]:
            text.append(f"[x] Prefill batch. #new-seq: {p.joined[row]}, #new-token: {p.prompt_tokens[row]}, #cached: 0")
        passes, made = passes + p.count[row] * (p.decodes[row] > 0), made + p.decodes[row] * p.gained[row]
        if passes >= 40:
            rate = made / (p.end_s[row] - began_s)
            text.append(
                f"[x] Decode batch. #running-req: {p.running[row]}, #token: {p.kv_tokens[row]}, token usage: 0.1, "
                f"cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0, "
            )
            passes, made, began_s = 0.0, 0.0, p.end_s[row]
    path.write_text("\n".join(text))
    return path


def test_metrics_of_a_slow_host_give_its_times_back(deployment: Deployment, run: ServingRun, tmp_path: Path) -> None:
    log = read_log(dumps(run, tmp_path), 0)
    assert log.kind == "metrics of vLLM"
    assert log.acceptance == pytest.approx(0.75)
    found = observe(deployment, log.windows)
    assert found.error_after < 4 < 15 < found.error_before


def test_lines_of_vllm_give_times_of_a_steady_load_back(
    deployment: Deployment, slow: Deployment, tmp_path: Path
) -> None:
    run = simulate(Closed(concurrency=48, num_prompts=2500, isl=300, osl=200), slow.limits, slow.tables)
    kv_tokens = deployment.limits.kv_tokens or 0
    path = vllm_lines(run, tmp_path / "vllm.log", kv_tokens)
    log = read_log([path], kv_tokens, isl=300)
    assert log.kind == "log of vLLM"
    assert log.acceptance == pytest.approx(0.6)
    found = observe(deployment, log.windows)
    assert found.error_after < 8 < 12 < found.error_before
    with pytest.raises(LoadError, match="or --isl"):
        read_log([path], kv_tokens)


def test_lines_of_sglang_give_a_slow_hosts_times_back(predictor: Predictor, tmp_path: Path) -> None:
    deployment = predictor.deployment(MODEL, "h100-sxm-80gb", 1024, engine="sglang", overlap=False)
    shipped = shipped_constants("sglang")
    slow = deployment.with_constants({name: factor * shipped[name] for name, factor in SLOW.items()})
    answers = np.random.default_rng(1).integers(50, 350, 600).tolist()
    load = Closed(concurrency=24, num_prompts=600, isl=300, osl=answers)
    log = read_log([sglang_lines(simulate(load, slow.limits, slow.tables), tmp_path / "sglang.log")], 0)
    assert log.kind == "log of SGLang"
    found = observe(deployment, log.windows)
    assert found.error_after < 6 < 15 < found.error_before
    assert (found.era, found.after["pass_s"] > 1.5 * shipped["pass_s"]) == ("sglang", True)


def test_a_server_as_it_ships_changes_little(deployment: Deployment, tmp_path: Path) -> None:
    answers = np.random.default_rng(1).integers(20, 180, 8000).tolist()
    load = Closed(concurrency=32, num_prompts=8000, isl=300, osl=answers)
    run = simulate(load, deployment.limits, deployment.tables)
    found = observe(deployment, read_log(dumps(run, tmp_path), 0).windows)
    assert found.error_before < 4
    assert found.error_after < 4
    assert found.after["pass_s"] == pytest.approx(found.before["pass_s"], rel=0.3)


def test_what_is_no_log_is_refused_in_a_line(tmp_path: Path) -> None:
    def written(name: str, text: str) -> list[Path]:
        (tmp_path / name).write_text(text)
        return [tmp_path / name]

    header = "arrival_s,prompt_tokens,output_tokens,ttft_s"
    wrong: dict[str, tuple[list[Path], type[Exception]]] = {
        "there is no such file": ([tmp_path / "none.log"], DataError),
        "holds no records of requests, log lines": (written("a.log", "hello"), DataError),
        "has no column tpot_s: name it so, or one of tpot_ms": (written("a.csv", f"{header}\n0,1,2,3"), DataError),
        "tpot_ms 'x' is no number": (written("b.csv", f"{header},tpot_ms\n0,1,2,3,x"), DataError),
        "holds no answers of several tokens": (written("c.csv", f"{header},tpot_ms\n0,1,1,3,4"), LoadError),
        "0 stretches in which": (written("d.log", "Avg generation throughput: 3 tokens/s"), LoadError),
        "the dump has no vllm:iteration_tokens_total_count": (
            [*written("1.prom", "vllm:x 1\n"), *written("2.prom", "vllm:x 2\n")],
            DataError,
        ),
    }
    for message, (paths, kind) in wrong.items():
        with pytest.raises(kind, match=message):
            read_log(paths, 100)
