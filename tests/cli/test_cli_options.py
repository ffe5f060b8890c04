"""Options are defined once, and nothing that is given is ignored: it counts, a line says why not, or it is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import COMMANDS, ROOT, as_json, error, invoke, run

from neusight.paths import checkout_dir

GROUPED = ("predict", "kernel", "sweep", "serving", "memory", "training", "plan", "what-if")
ON_L4 = ("predict", "gpt2", "--gpu", "l4")
ON_A100 = ("training", "llama-3.1-8b", "--cluster", "dgx-a100", "-s", 2048, "-b", 8)
MEMORY = ("memory", "Qwen/Qwen3-8B", "--gpu", "h100", "-s", 2048)
OWN = {
    "serving": {"--dp", "--batch", "-b", "--trace"},
    "what-if": {"--trace"},
    "plan": set(),
}
"""Options that mean something else in a command: a load is no step, a trace of requests no picture of a step."""


def options() -> Iterator[tuple[str, str, Any]]:
    for command in GROUPED:
        for parameter in ROOT.commands[command].params:
            for name in parameter.opts if parameter.param_type_name == "option" else ():
                if name not in OWN.get(command, set()):
                    yield command, name, parameter


def words_of(result: Any) -> str:
    return " ".join(result.stderr.split())


def test_an_option_has_one_panel_in_all_commands() -> None:
    panels: dict[str, set[str]] = {}
    for command, name, parameter in options():
        if name not in ("--help", "-h"):
            assert parameter.rich_help_panel, (command, name)
            panels.setdefault(name, set()).add(parameter.rich_help_panel)
    assert {name: answer for name, answer in panels.items() if len(answer) > 1} == {}
    assert len(panels) > 70


def test_an_option_of_one_value_is_given_once() -> None:
    for command in (
        (*ON_L4, "--gpu", "t4"),
        (*ON_L4, "--batch", 4, "-b", 8),
        (*ON_L4, "--layout", "nhwc", "--layout", "nhwc"),
        (*ON_A100, "--overlap-tp", "--no-overlap-tp"),
    ):
        result = invoke(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is given 2 times" in result.stderr
    assert "write the values as one list: a,b" in words_of(invoke(*ON_L4, "--gpu", "t4"))
    assert as_json(*ON_L4, "--set", "tdp=60W", "--set", "boost_clock=1.5GHz")["provenance"]["hypothetical"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layout", "nhwc"), "layout nhwc has no effect on gpt2"),
        (("--overlap-grad-reduce",), "overlap_grad_reduce has no effect in inference"),
        (("--dp", 2, "--batch", 2, "--shard", "zero1"), "shard has no effect in inference"),
        (("--mode", "training", "--vp", 2), "vp 2 has no effect"),
    ],
)
def test_what_changes_nothing_in_a_step_is_said(options: tuple[object, ...], words: str) -> None:
    assert words in run(*ON_L4, *options).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--vp", 2), "vp 2 has no effect: chunks are interleaved between stages, and pp is 1"),
        (("--schedule", "gpipe"), "there is no pipeline: pp is 1"),
        (("--etp", 2), "etp 2 has no effect: the model has no experts"),
        (("--recompute-layers", 2), "recompute_layers 2 has no effect: recompute is none"),
        (("--sequence-parallel",), "sequence_parallel has no effect: tp is 1"),
    ],
)
def test_what_changes_nothing_in_a_plan_is_said(options: tuple[object, ...], words: str) -> None:
    assert words in run(*ON_A100, *options).stderr
    assert words in run(*MEMORY, *options).stderr


def test_experts_of_a_dense_model_and_a_network_of_one_node_are_said_or_refused() -> None:
    assert "has no experts that ep 2 ranks could share" in error("memory", "gpt2", "--gpu", "l4", "--ep", 2, "--dp", 2)
    words = ("training", "llama-3.1-8b", "--gpu", "a100", "-s", 2048, "-b", 8, "--network", "400Gb/s")
    assert "network has no effect: there is one node" in run(*words).stderr
    assert "has no effect" not in run(*ON_A100, "--tp", 2, "--pp", 2, "--vp", 2, "--recompute", "full").stderr


def test_what_cannot_count_is_refused() -> None:
    assert "reads text alone: leave out --image-size" in error(*ON_L4, "--image-size", 224)
    assert "no optimizer to fuse" in error(*ON_L4, "--mode", "training", "--fused-optimizer")
    bert = ("--mode", "training", "--optimizer", "bert_adam", "--fused-optimizer")
    assert "bert_adam has no fused form" in error(*ON_L4, *bert)
    on_cluster = ("predict", "llama-3.1-8b", "--mode", "training", "--cluster", "dgx-a100", "-s", 2048, "-b", 8)
    for wrong, words in (
        ((*ON_A100, "--per-node", 0), "0 is out of range: give a number from 1 to 65,536"),
        ((*ON_A100, "--per-node", 4), "has nodes and a network of its own"),
        ((*on_cluster, "--launch", "compiled", "--layout", "nhwc"), "has no meaning with a cluster"),
        ((*on_cluster, "--gpu", "l4"), "is named by --cluster"),
        ((*ON_L4, "--tp-plan", "*.c_fc=colwise"), "give tp of 2 or more"),
        ((*ON_L4, "--nodes", 2), "name it with cluster"),
        ((*ON_L4, "--share", "nonzero"), "write it like NAME=NUMBER"),
        ((*ON_L4, "--share", "nonzero=half"), "write it like NAME=NUMBER"),
        (("plan", "gpt2", "--gpu", "l4", "-b", 1, "--out", "/nowhere/best.toml"), "there is no folder"),
        (("serving", "Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 8, "--osl", 8, "-b", 1, "--seed", 3), "draws nothing"),
    ):
        result = invoke(*wrong)
        assert (result.exit_code, result.stdout) == (2, ""), wrong
        assert words in words_of(result), wrong


CHOOSER = """
import torch


class Chooser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512)

    def forward(self, x):
        y = self.layer(x)
        return self.layer(x[y[:, 0] > 0])


def model():
    return Chooser(), torch.randn(4096, 512)
"""


def test_predict_takes_the_share_that_its_warning_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chooser.py").write_text(CHOOSER)
    monkeypatch.chdir(tmp_path)
    command = ("predict", "chooser:model", "--gpu", "l4")
    (words,) = re.findall(r"--share \S+", run(*command).stderr)
    assert words == "--share index=0.5"
    assert run(*command, *words.split()).stderr == ""
    whole, half = (as_json(*command, *given)["latency_s"] for given in ((), words.split()))
    assert half < whole
    assert "share index=2.0: give a number above 0" in error(*command, "--share", "index=2")
    assert "no result of that name depends on unknown values: one of index" in error(*command, "--share", "where=0.5")


def test_a_calibration_of_another_gpu_is_said(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    line = run(*ON_L4, "--calibration", tmp_path / "none").stderr
    assert "--calibration has no effect: it is of no GPU" in line
    assert "--calibration" not in run(*ON_L4, "--calibration", "none").stderr


def test_a_short_name_is_explained_once() -> None:
    words = ("training", "llama-3.1-8b", "--gpu", "a100", "-s", 2048, "-b", 16, "--tp", "1,2,4")
    assert run(*words).stderr.count("note: a100 taken as") == 1


def test_operands_of_a_collective_are_in_device_memory() -> None:
    words = ("kernel", "all_reduce", "ranks=8", "bytes=1024", "--gpu", "h100-sxm-80gb", "--operands", "resident")
    assert "leave out 'resident'" in error(*words)


def test_an_engine_has_one_name_for_kernels_and_for_steps() -> None:
    kernel = ("kernel", "gemm", "m=16", "n=14336", "k=4096", "dtype=bf16", "--gpu", "l40s", "--timer", "cuda_graph")
    latencies = {name: as_json(*kernel, "--backend", name)["latency_s"] for name in ("tensorrt-llm", "trtllm")}
    assert len(set(latencies.values())) == 1
    assert as_json(*kernel, "--backend", "megatron-te")["latency_s"] == as_json(*kernel)["latency_s"]
    assert "unknown backend 'vlm'; did you mean vllm" in error(*kernel, "--backend", "vlm")


def test_memory_is_that_of_training_with_the_same_options() -> None:
    plan = ("--tp", 2, "--pp", 2, "--dp", 2, "--micro-batch-size", 1, "-b", 16, "-s", 4096)
    ranks = as_json("memory", "llama-3.1-8b", "--gpu", "a100-sxm-80gb", *plan)["ranks"]
    step = as_json("training", "llama-3.1-8b", "--cluster", "dgx-a100", *plan)
    assert [rank["peak_bytes"] for rank in ranks] == [rank["peak_bytes"] for rank in step["memory"]]


def test_help_has_every_name_whole_in_80_columns() -> None:
    shown = {path: (run(*path, "--help").stdout, command) for path, command in {(): ROOT, **COMMANDS}.items()}
    assert len(shown) > 45
    wide = {path: line for path, (text, _) in shown.items() for line in text.splitlines() if len(line) > 80}
    assert wide == {}
    cut = [(path, o) for path, (text, c) in shown.items() for p in c.params for o in p.opts if o not in text]
    assert [(path, name) for path, name in cut if name.startswith("-")] == []
    assert "    neusight predict gpt2-large --gpu a100 --launch compiled\n" in shown[("predict",)][0]


def test_every_command_of_help_and_readmes_can_be_given() -> None:
    """Its words are parsed, and nothing is run."""
    folders = ("", "experiments/", "tile_models/", "datasets/")
    texts = [checkout_dir(f"{folder}README.md").read_text(encoding="utf-8") for folder in folders]
    texts += [path.read_text(encoding="utf-8") for path in sorted(checkout_dir("docs").glob("*.md"))]
    texts += [
        checkout_dir("CONTRIBUTING.md").read_text(encoding="utf-8"),
        *(command.help or "" for command in COMMANDS.values()),
    ]
    lines = "\n".join(texts).replace("\\\n", " ")
    commands = set(re.findall(r"^(?:\$ )?(neusight [^#\n]+)", lines, re.M) + re.findall(r"`(neusight [^`\n]+)`", lines))
    assert len(commands) > 90
    assert {command: fault for command in commands if (fault := parsed(command))} == {}


def parsed(command: str) -> str:
    """What is wrong with a command line, '' where nothing is."""
    name, *words = shlex.split(command.partition(" > ")[0].replace("NAME FIELD=VALUE", "gemm m=1"))
    if words[-1] == "--help":
        return ""
    group = ROOT
    context = group.make_context(name, ["--help"], resilient_parsing=True)
    while words and words[0] in getattr(group, "commands", {}):
        name, group, words = words[0], group.commands[words[0]], words[1:]
    if words and hasattr(group, "commands") and not words[0].startswith("-"):
        return f"unknown: {words[0]}"
    if len(words) < 2:
        return ""
    try:
        group.make_context(name, words, parent=context)
    except Exception as error:
        # Prose may leave out what must be given; what stands there must be right.
        return "" if type(error).__name__ == "MissingParameter" else str(error)
    return ""
