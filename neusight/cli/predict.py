"""``neusight predict``, ``kernel`` and ``sweep``: how long a step, a kernel, or a grid of steps takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.options import (
    Attention,
    Batch,
    Calibrations,
    Dtype,
    Format,
    Frames,
    GivenInputs,
    Gpus,
    ImageSize,
    Mode,
    Model,
    Optimizer,
    Overrides,
    Seconds,
    SeqLen,
    Sparsity,
    TileModels,
    check_optimizer,
    is_list,
    listed,
    loaded,
    named_dtypes,
    named_gpus,
    named_modes,
    note_corrections,
    numbers,
)

if TYPE_CHECKING:
    import pandas as pd

    from neusight.plans.plan import Plan

Degree = Annotated[int, typer.Option(min=1, max=1 << 20, help="GPUs that share the step: replicas, layers, stages.")]
By = Annotated[Literal["operator", "phase", "kernel"], typer.Option(help="Rows of the table, and of CSV.")]


def predict(
    model: Model,
    gpu: Gpus = "",
    mode: Mode = "inference",
    batch: Batch = 1,
    seq_len: SeqLen = None,
    image_size: ImageSize = None,
    frames: Frames = None,
    seconds: Seconds = None,
    given: GivenInputs = [],  # noqa: B006
    dtype: Dtype = "",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    compiled: Annotated[bool, typer.Option("--compile", help="As torch.compile runs it: chains fused.")] = False,
    cuda_graph: Annotated[bool, typer.Option("--cuda-graph", help="Compiled, and launched as one CUDA graph.")] = False,
    layout: Annotated[
        Literal["nchw", "nhwc"], typer.Option(help="Of images in memory; nhwc is PyTorch's channels_last.")
    ] = "nchw",
    fused_optimizer: Annotated[
        bool, typer.Option("--fused-optimizer", help="The optimizer updates all parameters in one pass.")
    ] = False,
    grad_scaler: Annotated[
        bool, typer.Option("--grad-scaler", help="Gradients are scaled back first, as float16 needs.")
    ] = False,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="Train on many GPUs, as `neusight training`, which has more options.")
    ] = "",
    nodes: Annotated[int, typer.Option(min=0, max=10**6, help="Of the cluster.")] = 0,
    dp: Degree = 1,
    tp: Degree = 1,
    pp: Degree = 1,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="Samples a pass; default: all of a replica's, with --pp 1.")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="Samples a step of all GPUs; default: --batch.")
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap-gradients", help="Replicas sum gradients during the backward pass.")
    ] = False,
    shards: Annotated[
        list[str],
        typer.Option(
            "--shard",
            metavar="MODULE=STYLE",
            help="How --tp shares products, instead of what the structure tells: `*.c_fc=colwise`. Repeatable.",
        ),
    ] = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    allow_fallback: Annotated[
        bool, typer.Option("--allow-fallback", help="Estimate operators without a rule as data movement, visibly.")
    ] = False,
    sparsity: Sparsity = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="On such a device, run its scheduler instead of its tile model.")
    ] = False,
    compression: Annotated[
        bool, typer.Option("--compression", help="On such a device, zeros do not travel to and from DRAM.")
    ] = False,
    by: By = "operator",
    form: Format = "human",
) -> None:
    """Predict the latency of one step of a model on GPUs.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight predict gpt2-large --gpu l4 --mode training --batch 1`

    - `neusight predict llama-2-7b --gpu a100,h100 --dtype bf16 --seq-len 1024`

    - `neusight predict vgg16 --gpu a100-sxm-40gb,tensordash --mode training --sparsity activations=0.6,gradients=0.5`

    - `neusight predict ./whisper/config.json --gpu l4 --seconds 30 --input decoder_input_ids=1x64:int64`

    - `neusight predict gpt2-large --gpu a100 --compile`

    - `neusight predict timm:convnext_tiny@288 --gpu a100 --dtype amp --layout nhwc --batch 64`

    - `neusight predict gpt2-large --gpu a100 --mode training --optimizer adam --tp 4 --batch 8`

    - `neusight predict ./config.json --gpu h100-sxm-80gb --set dram_bandwidth=4.8TB/s --format json`

    - `neusight predict gpt3-175b --mode training --cluster dgx-a100 --nodes 8 --tp 8 --pp 8 --global-batch 512`
    """
    from neusight.cli.output import busy, note
    from neusight.cli.show import show_estimates
    from neusight.cli.training import show, trained
    from neusight.cli.training_points import Place

    if cluster:
        if gpu or mode != "training":
            raise typer.BadParameter("has its own GPUs, and trains: say --mode training alone", param_hint="--cluster")
        step = {
            "seq_len": seq_len, "dtype": dtype, "optimizer": optimizer if optimizer != "none" else "",
            "dp": dp if dp > 1 else None, "tp": tp, "pp": pp, "micro_batch": micro_batch,
            "global_batch": global_batch or batch,
        }  # fmt: skip
        place = Place(cluster=cluster, gpu="", per_node=0, network="", overrides=overrides)
        show(trained(model, place, {"nodes": str(nodes or "")}, _told(step), models=(tile_models, calibration)), form)
        return
    if shards and tp == 1:
        raise typer.BadParameter("tells how --tp shares products, and there is none", param_hint="--shard")
    if nodes:
        raise typer.BadParameter("are those of a cluster: name it with --cluster", param_hint="--nodes")
    if not gpu:
        raise typer.BadParameter("names no GPU: give ids of `neusight devices list`", param_hint="--gpu")
    gpus = named_gpus(gpu)
    check_optimizer(optimizer, [mode])
    plan = _plan({"dp": dp, "tp": tp, "pp": pp, "overlap_gradients": overlap}, micro_batch, global_batch or batch)
    launch = "graph" if cuda_graph else "compiled" if compiled else "eager"
    predictor = loaded(tile_models, calibration)
    with busy(f"reading {model}"):
        estimates = [
            predictor.estimate(
                model, name, mode=mode, batch=batch if plan is None else 1, seq_len=seq_len, dtype=dtype or None,
                optimizer=optimizer, grad_scaler=grad_scaler, fused_optimizer=fused_optimizer,
                plan=plan, tp_plan=_fields(shards) or None,
                attention=attention, launch=launch, layout=layout, overrides=overrides, allow_fallback=allow_fallback,
                sparsity=sparsity or None, simulate=simulate, compression=compression,
                image_size=image_size, frames=frames, seconds=seconds, given=tuple(given),
            )
            for name in gpus
        ]  # fmt: skip
    for warning in dict.fromkeys(text for estimate in estimates for text in estimate.warnings):
        note(f"warning: {warning}")
    show_estimates(estimates, by, form, is_list(gpu))


def _plan(told: dict[str, Any], micro_batch: int | None, global_batch: int) -> Plan | None:
    """The plan that options tell; None for one GPU that takes the batch at once.

    Raises:
        ModelError: a batch that replicas or micro-batches do not divide.
    """
    from neusight.plans.plan import Plan

    if micro_batch is None:
        micro_batch = 1 if told["pp"] > 1 else max(1, global_batch // told["dp"])
    plan = Plan(**told, micro_batch=micro_batch, global_batch=global_batch)
    return None if plan.world == 1 and plan.micro_batches == 1 else plan


def _told(step: dict[str, Any]) -> dict[str, Any]:
    """What is not left out."""
    return {name: value for name, value in step.items() if value}


def kernel(
    name: Annotated[str, typer.Argument(help="A family (gemm, conv2d, attention, …) or operator (softmax, gelu, …).")],
    gpu: Gpus,
    shape: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Its shape.")] = None,
    operands: Annotated[
        Literal["resident", "cold"],
        typer.Option(help="Whether operands may lie in L2, as when a launch is repeated, or all in device memory."),
    ] = "cold",
    timing: Annotated[
        Literal["stream", "graph", "profiler"],
        typer.Option(help="Launched alone, as one of many in a CUDA graph, or as a profiler sees it, without launch."),
    ] = "stream",
    engine: Annotated[Literal["torch", "vllm", "sglang", "trtllm"], typer.Option(help="Whose kernel runs.")] = "torch",
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Predict the latency of a single kernel.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight kernel gemm m=4096 n=4096 k=4096 --gpu l4`

    - `neusight kernel bmm batch=16 m=512 n=512 k=64 --gpu t4,l4`

    - `neusight kernel grouped_gemm groups=8 tokens=4096 n=14336 k=4096 dtype=bf16 --gpu h100`

    - `neusight kernel attention batch=64 heads=32 kv_heads=8 q_len=1 kv_len=4096 head_dim=128 dtype=bf16 --gpu h100`

    - `neusight kernel gemm m=16 n=14336 k=4096 dtype=bf16 --timing graph --engine vllm --gpu h200`

    - `neusight kernel all_reduce ranks=8 bytes=67108864 --engine vllm --timing graph --gpu h100-sxm-80gb`

    - `neusight kernel softmax rows=8192 cols=1024 --gpu l4`

    - `neusight kernel conv2d batch=8 in_channels=64 out_channels=64 size=56 kernel=3 padding=1 --gpu l4`
    """
    from neusight.api import as_device
    from neusight.cli.show import show_kernels

    fields = _fields(shape or [])
    gpus = named_gpus(gpu)
    predictor = loaded(tile_models, calibration)
    how = {"operands": operands, "timing": timing, "engine": engine}
    found = [(as_device(each).id, predictor.kernel(name, each, overrides, **how, **fields)) for each in gpus]
    note_corrections(predictor, [] if overrides else [device for device, _ in found])
    show_kernels(found, form, is_list(gpu))


def _fields(pairs: list[str]) -> dict[str, str]:
    """``m=4096`` as a field and its value, each field once."""
    fields: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise typer.BadParameter(f"'{pair}' is not FIELD=VALUE: write it like m=4096", param_hint="'FIELD=VALUE'")
        if key in fields:
            raise typer.BadParameter(f"'{key}' is given twice: leave out one of them", param_hint="'FIELD=VALUE'")
        fields[key] = value
    return fields


def sweep(
    models: Annotated[str, typer.Argument(metavar="MODEL[,MODEL…]", help="Models, as for `neusight predict`.")],
    gpu: Gpus,
    batches: Annotated[str, typer.Option("--batch", "-b", metavar="N[,N…]", help="Samples a step.")] = "1",
    modes: Annotated[str, typer.Option("--mode", metavar="MODE[,MODE]", help="inference, training.")] = "inference",
    seq_lens: Annotated[
        str, typer.Option("--seq-len", "-s", metavar="N[,N…]", help="Tokens a sample; default: the model's own.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE[,DTYPE…]", help="Default: a config.json's own, else float32.")
    ] = "",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    sparsity: Sparsity = "",
    form: Format = "human",
) -> None:
    """Predict every combination of models, GPUs and batches: latency, throughput, memory, cost.

    Steps that do not fit are marked; those that cannot be estimated keep their reason. Exit 1 where none can be.

    Examples:

    - `neusight sweep gpt2-large,gpt2-xl --gpu l4,a100-pcie-80gb --mode training --batch 1,2,4,8`

    - `neusight sweep bert-large --gpu t4,l4 --batch 1,8,32 --seq-len 128,512 --format csv > plan.csv`
    """
    from neusight.api import as_device
    from neusight.cli.output import note, progress
    from neusight.cli.show import show_sweep

    gpus, names, steps = named_gpus(gpu), listed(models, "MODEL"), named_modes(modes, "--mode")
    check_optimizer(optimizer, steps)
    _note_unused_zeros(gpus, sparsity)
    grid: dict[str, Any] = {"batches": numbers(batches, "--batch"), "modes": steps}
    grid["seq_lens"] = numbers(seq_lens, "--seq-len") if seq_lens else [None]
    grid["dtypes"] = named_dtypes(dtypes, "--dtype") if dtypes else [None]
    options: dict[str, Any] = {"optimizer": optimizer, "attention": attention, "sparsity": sparsity or None}
    predictor = loaded(tile_models, calibration)
    with progress("predicting") as advance:
        rows = _rows(predictor.sweep(names, gpus, **grid, **options, progress=advance))
    note_corrections(predictor, (as_device(row["gpu"]).id for row in rows if not row["error"]))
    show_sweep(rows, form)
    failed = [row["error"] for row in rows if row["error"]]
    if failed:
        note(f"{_grade(failed, rows)}: {len(failed)} of {len(rows)} steps could not be estimated: {failed[0]}")
    if len(failed) == len(rows):
        raise typer.Exit(1)


def _note_unused_zeros(gpus: list[str], sparsity: str) -> None:
    """Rows of a sweep have no room for what a single estimate warns of."""
    from neusight.api import as_device
    from neusight.cli.output import note

    dense = [device.id for device in map(as_device, gpus) if device.kind == "gpu"] if sparsity else []
    if dense:
        note(f"note: --sparsity has no effect on {', '.join(dense)}: GPUs do not skip zeros")


def _grade(failed: list[str], rows: list[dict[str, Any]]) -> str:
    return "error" if len(failed) == len(rows) else "warning"


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with the keys that ``predict`` has; a table with images among its models keeps lengths as floats."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [row | {"seq_len": None if row["seq_len"] is None else int(row["seq_len"])} for row in rows]
