"""``bench_command``: the command of a tool that measures a question, from ``benches.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neusight.engines.launch_flags import flags_of
from neusight.questions import KernelCall, Serving, Training
from neusight.questions.field import IN_TURN, RANGE, numbers_of
from neusight.questions.launch import read_launch
from neusight.questions.question import Question, plain_number
from neusight.questions.serving import OF_LOADS
from neusight.requests import Plan
from neusight.workloads.catalogue import canonical_name, catalogue_config
from neusight.workloads.decoders.known import hub_config

if TYPE_CHECKING:
    from neusight.distributed.training_run import TrainingRun

_FILE = Path(__file__).with_name("benches.toml")
_LOADS = {*OF_LOADS, "images", "prefix_hit", "prefix_cached_tokens"}
"""Fields that the client decides; all others are those of the engine's launch command."""
_PLACED = {"model", "config", "gpu", "overrides", "prices", "cluster", "nodes", "per_node", "network", "micro_batches"}
"""Fields of a training step that its sizes and its machines say."""


def bench_command(question: Question, answer: Any) -> str:
    """The command that measures a question, below a line for each word that it does not say.

    Args:
        question: of a deployment with its load, a training step or a kernel.
        answer: its estimate, which knows the values that were taken for open fields.
    """
    values = {"kind": question.KIND, **_values(question, answer)}
    for entry in _entries():
        if all(str(values.get(name)) in map(str, words) for name, words in entry["of"].items()):
            known = [(name, option) for name, option in entry.get("options", {}).items() if name in values]
            options = [f"{option} {values[name]}" for name, option in known]
            command = " ".join([entry["command"].format_map(values).strip(), *options])
            return "\n".join([*(f"# {text}" for text in _unsaid(entry, question, values)), command])
    return "# no tool measures this with one command that is known: `neusight check` reads what others write of it"


@cache
def _entries() -> Sequence[Mapping[str, Any]]:
    entries: list[Mapping[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["bench"]
    return entries


def _values(question: Question, answer: Any) -> dict[str, Any]:
    """Values by name: words of the question, and those that were taken for its open fields."""
    words = {name: plain_number(value) for name, value in question.words().items()}
    if isinstance(question, Serving):
        load = {"load": question.load, **{name: value for name, value in answer.load.items() if name != "kind"}}
        # What stands behind the model in the command that starts a replica, without remarks above it.
        lines = [line.strip(" \\") for line in answer.launch.splitlines() if not line.startswith("#")]
        launch = " ".join(lines).partition(f" {answer.model} ")[2]
        deployed = {"engine": question.engine, "model": answer.model, "launch": launch}
        return words | load | deployed | _lengths(question)
    if isinstance(question, Training):
        cluster, engine = answer.run.cluster, answer.run.engine.name
        launch = " ".join(f"--{name}" if word is None else f"--{name} {word}" for name, word in _arguments(answer.run))
        read = read_launch(f"pretrain_gpt.py {launch}").words
        plan = {name: value for name, value in _planned(answer.run).items() if str(read.get(name)) != str(value)}
        place = {"engine": engine, "per_node": cluster.per_node, "nodes": cluster.nodes, "launch": launch}
        return {**place, "plan": plan, "said": {*_PLACED, *vars(answer.run.plan), *flags_of("megatron").fields}}
    assert isinstance(question, KernelCall)
    batch = question.resolve().batch
    shape = {name: cells[0] for name, cells in batch.columns.items()}
    return {**words, **shape, "family": batch.family, "per_node": shape.get("per_node") or shape.get("ranks")}


def _lengths(question: Serving) -> dict[str, Any]:
    """Mean lengths; of those that are drawn evenly the upper end, and how far from it the lower one is."""
    values: dict[str, Any] = {"low_shares": set()}
    for name in ("isl", "osl"):
        tokens = getattr(question, name) or 1
        mean = fmean(numbers_of(tokens))
        low, high = numbers_of(tokens) if RANGE in str(tokens) else (mean, mean)
        values["low_shares"].add(round(low / high, 4))
        values |= {name: round(mean), f"{name}_high": round(high), "low_share": min(values["low_shares"])}
        values |= {"half_range": round((high - low) / (high + low), 4)} if high > low else {}
    return values


def _arguments(run: TrainingRun) -> Iterator[tuple[str, Any]]:
    """Arguments of Megatron-LM for the sizes of a model, as far as its configuration is known, and for a plan."""
    flags, name = flags_of("megatron"), run.decoder.name
    _, config = hub_config(name) or (name, catalogue_config(name) if canonical_name(name) else {})
    yield from ((options[0], config[key]) for key, options in flags.model.items() if key in config)
    step = {"seq_len": run.seq_len, "dtype": run.dtype, "optimizer": run.optimizer}
    batch = {"micro_batch_size": run.plan.micro_batch_size, "global_batch_size": run.plan.global_batch_size}
    yield from flags.written({**_planned(run), **batch, **step})


def _planned(run: TrainingRun) -> dict[str, Any]:
    """Fields of a plan that are not as they are by default, but for replicas, which the number of devices gives."""
    return {name: value for name, value in vars(run.plan).items() if name != "dp" and value != getattr(Plan(), name)}


def _unsaid(entry: Mapping[str, Any], question: Question, values: Mapping[str, Any]) -> Iterator[str]:
    """Words that neither the command nor the one that starts the engine says."""
    said = {*re.findall(r"{(\w+)}", entry["command"]), *entry.get("options", {}), "name", "shape", "gpu"}
    said |= {"isl", "osl"} if "isl_high" in said else set()
    measures = entry.get("measures", {})
    for name, text in question.texts():
        of_client = not isinstance(question, Serving) or name in _LOADS
        if of_client and name not in (*said, *measures, *values.get("said", ())):
            yield f"does not say {name} {text}"
        if name in ("isl", "osl") and (IN_TURN in text or (RANGE in text and not {"half_range", "low_share"} & said)):
            yield f"takes the mean of {name} {text}"
    if len(values.get("low_shares", ())) > 1:
        yield "draws isl and osl from ranges of one ratio"
    for name, value in measures.items():
        if (wanted := getattr(question, name)) != value:
            yield f"measures {name} {value}, where the question has {wanted}"
    for name, value in values.get("plan", {}).items():
        yield f"does not say {name} {value}"
    if "plan" in values:
        yield "does not say activation, norm and positions of the model: add its arguments"
