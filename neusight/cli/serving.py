"""``neusight serving``: a language model as it is served: times to tokens, throughput, memory and cost under a load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neusight.cli.options import (
    Calibrations,
    Format,
    Overrides,
    Seed,
    TileModels,
    is_list,
    loaded,
    named_gpus,
    note_corrections,
)
from neusight.errors import shown


def serving(
    model: Annotated[
        str, typer.Argument(help="A name of `neusight workloads list --serving`, a config.json, or its folder.")
    ],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", "-g", metavar="ID[,ID…]", help="As for `neusight predict`; of --slo by default those with a price."
        ),
    ] = "",
    tp: Annotated[str, typer.Option(metavar="N[,N…]", help="GPUs that share every layer. [default: 1]")] = "",
    pp: Annotated[int, typer.Option(min=1, max=4096, help="Groups of these that each hold a part of the layers.")] = 1,
    ep: Annotated[int, typer.Option(min=1, max=4096, help="GPUs that share out experts whole.")] = 1,
    dp: Annotated[int, typer.Option(min=1, max=4096, help="Groups whose attention serves sequences of its own.")] = 1,
    replicas: Annotated[str, typer.Option(metavar="N[,N…]", help="Copies of all that, which share the load.")] = "1",
    engine: Annotated[str, typer.Option(help="vllm, sglang or tensorrt-llm.")] = "vllm",
    engine_version: Annotated[str, typer.Option(help="Such as 0.15.1; default: the newest that is known.")] = "",
    dtype: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="bf16, fp8, fp8_block, awq, …; default: as the model has it.")
    ] = "",
    kv_dtype: Annotated[str, typer.Option(help="Of the cache, such as fp8; default: that of activations.")] = "",
    isl: Annotated[str, typer.Option(metavar="N[,N…]", help="Tokens of a prompt.")] = "",
    osl: Annotated[str, typer.Option(metavar="N[,N…]", help="Tokens of an answer.")] = "",
    isl_cv: Annotated[float, typer.Option(min=0, max=10, help="Draw prompts: deviation over mean, lognormal.")] = 0.0,
    osl_cv: Annotated[float, typer.Option(min=0, max=10, help="Draw answers: deviation over mean, lognormal.")] = 0.0,
    concurrency: Annotated[
        str, typer.Option(metavar="N[,N…]", help="Clients, each of whom sends a request when the last is answered.")
    ] = "",
    rate: Annotated[str, typer.Option(metavar="X[,X…]", help="Requests/s that arrive by themselves (Poisson).")] = "",
    batch: Annotated[str, typer.Option("--batch", "-b", metavar="N[,N…]", help="One static batch.")] = "",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Arrivals and lengths: .csv, .jsonl or .parquet.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="How many; by themselves, all wait at the start (offline).")
    ] = None,
    at_frontier: Annotated[
        bool, typer.Option("--frontier", help="Twice the clients until throughput stops growing.")
    ] = False,
    slo: Annotated[
        str, typer.Option(metavar="TIME=LIMIT,…", help="Find the cheapest that holds, as ttft=500ms,tpot_p99=40ms.")
    ] = "",
    max_num_seqs: Annotated[int | None, typer.Option(min=1, max=1 << 16, help="Requests that run together.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="New tokens of a pass.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, max=1 << 24, help="Tokens of the longest sequence.")
    ] = None,
    chunked_prefill: Annotated[bool, typer.Option(help="Prompts may be cut where a pass is full.")] = True,
    prefix_cached: Annotated[
        int, typer.Option(min=0, max=1 << 24, help="Tokens that all prompts begin with, in the cache.")
    ] = 0,
    memory_fraction: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Of memory for the engine; default: its own.")
    ] = None,
    seed: Seed = 0,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw throughput against latency of several points.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Predict a served language model: times to tokens, throughput, memory, cost, and what limits it.

    One load: `--concurrency`, `--rate`, `--batch`, `--trace` or `--requests`; or `--frontier`, or `--slo`. Lists are
    combined. JSON is an object for one point, and a list where any option is one.

    Examples:

    - `neusight serving Qwen/Qwen3-32B --gpu h200 --tp 2 --dtype fp8 --isl 4096 --osl 512 --concurrency 64`

    - `neusight serving llama-3.1-70b --gpu h100,h200 --tp 4,8 --isl 1024 --osl 256 --rate 4 --format csv`

    - `neusight serving Qwen/Qwen3-8B --gpu l4 --isl 1000 --osl 200 --frontier --figure frontier.png`

    - `neusight serving Qwen/Qwen3-32B --isl 4096 --osl 512 --dtype fp8 --slo ttft=500ms,tpot=30ms`
    """
    from neusight.cli import show_serving
    from neusight.cli.output import busy
    from neusight.cli.serving_points import Asked, Loads
    from neusight.serving import EngineOptions

    loads = Loads.of(
        {
            "--batch": batch, "--concurrency": concurrency, "--rate": rate, "--trace": trace, "--slo": slo,
            "--frontier": at_frontier, "--requests": requests, "--isl": isl, "--osl": osl,
        },
        cvs=(isl_cv, osl_cv), seed=seed, most=max_model_len,
    )  # fmt: skip
    if not gpu and not slo:
        raise typer.BadParameter("names no GPU: give ids of `neusight devices list`", param_hint="--gpu")
    many = at_frontier or any(is_list(text) for text in (gpu, tp, replicas, dtype, isl, osl, concurrency, rate, batch))
    if figure is not None and (slo or not many):
        raise typer.BadParameter("needs several points: add --frontier, or a list", param_hint="--figure")
    if figure is not None and figure.suffix.lower() not in show_serving.PICTURES:
        raise typer.BadParameter(f"'{shown(figure)}' is no picture: name it .png, .svg or .pdf", param_hint="--figure")
    if memory_fraction is not None and not 0 < memory_fraction <= 1:
        raise typer.BadParameter("is a share of the memory: give more than 0, up to 1", param_hint="--memory-fraction")
    asked = Asked(
        predictor=loaded(tile_models, calibration),
        model=model,
        gpus=named_gpus(gpu) if gpu else [],
        axes={"tp": tp, "replicas": replicas, "dtype": dtype},
        setup={"engine": engine, "engine_version": engine_version, "kv_dtype": kv_dtype, "pp": pp, "ep": ep, "dp": dp},
        options=EngineOptions(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_len=max_model_len,
            chunked_prefill=chunked_prefill, prefix_cached_tokens=prefix_cached, memory_share=memory_fraction,
        ),
        overrides=overrides,
        loads=loads,
        many=many,
    )  # fmt: skip
    if slo:
        with busy("looking for what holds"):
            choices = asked.choices(slo)
        show_serving.show_choices(choices, slo, form)
        if not choices[0].estimate:
            raise typer.Exit(1)
        return
    with busy("serving"):
        points = list(asked.points())
    note_corrections(asked.predictor, [] if overrides else [p.estimate.gpu for p in points if p.estimate])
    show_serving.show_points(points, form, many)
    if figure is not None:
        show_serving.draw(points, figure)
    if not any(point.estimate for point in points):
        raise typer.Exit(1)
