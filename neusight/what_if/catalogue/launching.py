"""Making and launching of kernels: compilers and CUDA graphs."""

from __future__ import annotations

from dataclasses import fields, replace

from neusight.distributed.training_run import TrainingRun
from neusight.engines import ENGINES, Engine
from neusight.errors import InapplicableError
from neusight.what_if.questions import DeploymentQuestion, StepQuestion
from neusight.what_if.transforms import transform

_PYTORCH_2 = "Ansel et al. 2024, PyTorch 2"


def with_launch(engine: Engine, launch: str) -> Engine:
    """An engine of PyTorch with another launch, and otherwise unchanged.

    Raises:
        InapplicableError: it launches otherwise than eagerly already, or is no engine of PyTorch's own.
    """
    if engine.launch != "eager" or f"{engine.name.removesuffix('-eager')}-{launch}" not in ENGINES:
        raise InapplicableError(f"{engine.name} is launched as {engine.launch} already, or has no other launch")
    made = ENGINES[f"{engine.name.removesuffix('-eager')}-{launch}"]
    current = ENGINES[engine.name]
    traits = {f.name: getattr(made, f.name) for f in fields(made) if getattr(made, f.name) != getattr(current, f.name)}
    return replace(engine, **traits)


@transform("compile", group="launch", source=_PYTORCH_2)
def compiled(step: StepQuestion) -> StepQuestion:
    """torch.compile: pointwise chains and norms become one kernel each."""
    return step.asking(engine=with_launch(step.request.engine, "compiled"))


@compiled.also
def compiled_run(run: TrainingRun) -> TrainingRun:
    """The same of each block of a run."""
    return replace(run, engine=with_launch(run.engine, "compiled"))


def _generating(served: DeploymentQuestion) -> None:
    """Raises:
    InapplicableError: what runs is no module of transformers in eager PyTorch.
    """
    if served.setup.engine != "transformers":
        raise InapplicableError(f"{served.setup.engine} has kernels of its own: this is of transformers")


@compiled.also
def compiled_generation(served: DeploymentQuestion) -> DeploymentQuestion:
    """The same of each pass, over a cache that keeps its place."""
    _generating(served)
    return served.deployed(engine="gpt-fast", graphs=False)


@transform("reduce-overhead", group="launch", source=f"{_PYTORCH_2}; torch.compile, mode='reduce-overhead'")
def reduce_overhead(step: StepQuestion) -> StepQuestion:
    """torch.compile, and one CUDA graph whose inputs are copied before each replay."""
    return step.asking(engine=with_launch(step.request.engine, "graph"))


@reduce_overhead.also
def replayed_generation(served: DeploymentQuestion) -> DeploymentQuestion:
    """The same of each pass, over a cache that keeps its place."""
    _generating(served)
    return served.deployed(engine="gpt-fast")


@transform("cuda-graphs", group="launch", source="PyTorch, torch.compile(backend='cudagraphs')")
def cuda_graphs(step: StepQuestion) -> StepQuestion:
    """Operators as they are, launched as one CUDA graph."""
    return step.asking(engine=with_launch(step.request.engine, "cudagraphs"))


@cuda_graphs.also
def graphs_of_passes(served: DeploymentQuestion) -> DeploymentQuestion:
    """Passes that only generate as CUDA graphs."""
    return served.deployed(graphs=True)


@transform("channels-last", group="launch", source="PyTorch, Channels last memory format")
def channels_last(step: StepQuestion) -> StepQuestion:
    """Batches of images in NHWC."""
    return step.running(layout="nhwc")
