"""Random command lines from the commands' own declarations: options that exist, with right and wrong words mixed.

``python tests/cli/random_lines.py 1000`` runs so many in this process, and prints those that end in a traceback.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import typer
from typer.testing import CliRunner, Result
from wrong_inputs import Mistakes

from neusight.cli.app import app

ENDLESS = frozenset({"page", "collect", "collect models", "devices draft"})
"""Commands that serve, or measure the host: help alone."""
LONG = ("evaluate", "experiments", "fit", "train", "bench", "calibrate", "sparsity measure", "models check", "datasets")
"""Commands of minutes, or that read measured data: with a wrong word always."""
NEEDED = {
    "predict": ("--gpu",), "sweep": ("--gpu",), "kernel": ("--gpu",), "what-if": ("--gpu", "--apply"),
    "serving": ("--gpu", "--isl", "--osl", "--concurrency"), "observe": ("--gpu",), "memory": ("--gpu", "--seq-len"),
    "training": ("--gpu", "--global-batch-size", "--dp"),
    "plan": ("--gpu", "--global-batch-size", "--nodes", "--per-node"),
    "design": ("--model", "--global-batch-size", "--minutes"), "train": ("--data", "--out", "--regressor"),
    "fit": ("--data", "--out"), "calibrate": ("--gpu", "--data"), "calibrate plan": ("--gpu",),
    "models check": ("--limit", "--gpu"),
}  # fmt: skip
"""Options without which a command has nothing to do."""
LEFT_OUT = frozenset(
    ("--jobs", "--ray", "--out", "--report", "--tile-models", "--data", "--help", "--version", "--every", "--front")
)
GPUS = ("l4", "t4", "a100-sxm-80gb", "h100-sxm-80gb", "tpu-v4", "mi210", "tensordash", "inferentia2", "nucleo-l4r5zi")
MODELS = ("gpt2", "bert-base", "resnet-50", "alexnet", "vgg16", "mlperf-tiny-kws", "dlrm-kaggle", "t5-small")
DECODERS = ("Qwen/Qwen3-8B", "gpt2", "llama-3.1-8b", "mistralai/Mixtral-8x7B-v0.1")
WORDS: Mapping[str, tuple[str, ...]] = {
    "--gpu": (*GPUS, "l4,t4", "l4,", "l40s,h100"),
    "--mode": ("training", "inference", "training,inference"),
    "--dtype": ("bf16", "fp16", "fp32", "amp", "int8", "fp8", "tf32", "float64", "fp32,bf16"),
    "--optimizer": ("adam", "sgd", "bert_adam"),
    "--sparsity": ("activations=0.5", "activations=0.5,gradients=0.3,weights=0.9", "weights=1"),
    "--set": ("dram_bandwidth=1TB/s", "sm_count=10", "links.pcie=64GB/s", "network.bandwidth=800Gb/s", "price=1USD/h"),
    "--cluster": ("dgx-h100", "dgx-a100", "aws-p5"),
    "--network": ("8 x 400Gb/s", "100Gb/s"),
    "--shard": ("zero1", "zero2", "zero3", "hsdp", "none"),
    "--schedule": ("1f1b", "gpipe", "zero-bubble", "dualpipe"),
    "--schedules": ("1f1b", "1f1b,gpipe"),
    "--recompute": ("full", "selective", "operators", "moe_act"),
    "--engine": ("torch-eager", "megatron-te", "vllm", "sglang", "maxtext", "torch"),
    "--apply": ("compile", "amp", "amp,compile", "fused-optimizer", "cuda-graph", "gradient-accumulation"),
    "--input": ("input_ids=1x64:int64", "pixel_values=1x3x224x224", "x=1"),
    "--tp-plan": ("*.c_fc=colwise",),
    "--calibration": ("none",),
    "--seq-len": ("16", "64", "128", "64,128", "100000"),
    "--image-size": ("64", "224"),
    "--isl": ("16", "128"), "--osl": ("4", "16"), "--concurrency": ("1", "4", "1,2"), "--request-rate": ("1", "100"),
    "--minutes": ("0.01",), "--nodes": ("1", "2"), "--per-node": ("1", "2", "8"),
    "--global-batch-size": ("2", "4", "8"),
    "--slo": ("ttft=1s,tpot=50ms", "e2e=10s"),
    "--model": ("gpt2",), "--axis": ("width=64", "tiles=4,8", "arrays=2"),
    "--baseline": ("l4", "tpu-v4"), "--space": ("phaze",), "--tokens": ("1e9",), "--steps": ("2",), "--seconds": ("1",),
    "--figure": ("drawn.png", "drawn.txt"), "--fit": ("10GB",), "--target": ("1ms", "1s"), "--lora-rank": ("8",),
    "--prune": ("0.5",), "--speculate": ("draft=eagle,tokens=3,acceptance=0.5",), "--kv-dtype": ("fp8",),
    "--prefill": ("tp=1,replicas=1",), "--host-cache": ("1GiB",), "--kv-link": ("nvlink",),
}  # fmt: skip
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "design space": ("phaze", "tensordash"), "devices show name": GPUS, "clusters show name": ("dgx-h100",),
    "tile-models show name": ("gemm", "physics"), "fit target": ("physics",), "observe logs": ("requests.csv",),
    "models check library": ("transformers",), "ask file": ("question.toml",),
}  # fmt: skip
SHAPES = {
    "gemm": "m=64 n=64 k=64", "softmax": "rows=8 cols=64", "attention": "heads=2 q_len=16 head_dim=64",
    "all_reduce": "ranks=2 bytes=1024", "conv2d": "in_channels=3 out_channels=8 size=9 kernel=3",
}  # fmt: skip
WRONG: Mapping[str, Callable[[Mistakes], str]] = {
    **dict.fromkeys(("--gpu", "--gpus", "--hold-out", "--baseline"), Mistakes.gpu),
    **dict.fromkeys(
        ("--batch", "--tp", "--pp", "--dp", "--global-batch-size", "--micro-batch-size", "--isl", "--osl", "--count",
         "--concurrency", "--replicas", "--admitted", "--per-node", "--limit", "--repeats", "--fold-rows", "--epochs",
         "--rows", "--worst", "--batches", "--seq-lens", "--measured-steps", "--max-num-seqs", "--micro-batches"),
        Mistakes.count_text,
    ),
    **dict.fromkeys(("--minutes", "--prefix-hit", "--tolerance"), Mistakes.amount),
    **dict.fromkeys(("--plan", "--from", "--calibration", "file", "path", "old", "new"), Mistakes.document),
    **dict.fromkeys(("--data", "files", "logs", "--trace"), Mistakes.parquet),
    "--set": Mistakes.change, "--sparsity": Mistakes.zeros, "--tile-models": Mistakes.folder_of_models,
    "--figure": lambda mistakes: mistakes.mangled("drawn.png") + "z", "model": Mistakes.model,
    "shape": lambda mistakes: mistakes.field("m"),
    **dict.fromkeys(("name", "space", "target", "library", "kind"), lambda mistakes: mistakes.mangled("a")),
}  # fmt: skip
"""What is wrong at places whose words are not listed, or are not all that may be wrong there."""
NONSENSE = ("", "x", "0", "-1", "1.5", "nan", "a,b", ",", "💥", "none", "9" * 30, "=", "a=b")
COUNTS = ("1", "2", "3", "4", "8")


def leaves(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *path, name)
        if not hasattr(command, "commands") or (command.callback and getattr(command, "invoke_without_command", False)):
            yield " ".join((*path, name)), command


COMMANDS = dict(leaves(typer.main.get_command(app)))


class Lines:
    """Command lines, drawn from one generator."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def line(self) -> list[str]:
        """A command with what it needs and a few other options; every fifth has a word that is wrong, or may be."""
        name = self.random.choice(list(COMMANDS))
        command = COMMANDS[name]
        if name in ENDLESS:
            return [*name.split(), "--help"]
        options = {p.opts[0]: p for p in command.params if p.param_type_name == "option" and p.opts[0] not in LEFT_OUT}
        needed = [option for option in NEEDED.get(name, ()) if option in options]
        others = [option for option in options if option not in needed]
        chosen = needed + self.random.sample(others, min(len(others), self.random.randrange(5)))
        wrong = self.random.choice(chosen) if chosen and self.random.random() < 0.2 else ""
        words = name.split() + self.arguments(name, command)
        if "--mode" in others and "--mode" not in chosen and self.random.random() < 0.6:
            words += ["--mode", "training"]
        for option in chosen:
            words += self.option(options[option], option == wrong)
        return [*words, "--no-such-option"] if name.startswith(LONG) else words

    def wrong_line(self, name: str, mistakes: Mistakes) -> list[str]:
        """A command with all that it needs, and one mistake."""
        command = COMMANDS[name]
        places = {p.opts[0] if p.param_type_name == "option" else p.name: p for p in command.params}
        wrong = {place: word for place, p in places.items() if (word := wrong_word(place, p, mistakes))}
        chosen = self.random.choice([*wrong, "--qz"])
        words = self.arguments(name, command)
        if chosen == "shape" or not words:
            words += [wrong[chosen]] if chosen == "shape" else []
        elif chosen in wrong and not chosen.startswith("-"):
            words[[place for place in places if not place.startswith("-")].index(chosen)] = wrong[chosen]
        for option in NEEDED.get(name, ()):
            if option in places and option != chosen:
                words += [option, WORDS.get(option, COUNTS)[0]]
        if chosen.startswith("-"):
            words += [chosen, *([wrong[chosen]] if chosen in wrong else [])]
        return [*name.split(), *words]

    def arguments(self, name: str, command: Any) -> list[str]:
        if name == "kernel":
            kernel = self.random.choice(list(SHAPES))
            return [kernel, *SHAPES[kernel].split()]
        places = [p for p in command.params if p.param_type_name == "argument" and p.name != "shape"]
        models = DECODERS if name in ("serving", "memory", "training", "plan", "observe") else MODELS
        return [self.random.choice(ARGUMENTS.get(f"{name} {place.name}", models)) for place in places]

    def option(self, parameter: Any, wrong: bool) -> list[str]:
        name = self.random.choice([*parameter.opts, *parameter.secondary_opts])
        if parameter.is_flag:
            return [name]
        words = WORDS.get(parameter.opts[0]) or choices(parameter) or COUNTS
        return [name, self.random.choice(NONSENSE if wrong else list(words))]


def wrong_word(place: str, parameter: Any, mistakes: Mistakes) -> str:
    """A word that is wrong at a place of a command, "" where none is known."""
    if place in WRONG:
        return WRONG[place](mistakes)
    listed = choices(parameter) or [word for word in WORDS.get(place, ()) if not word[0].isdigit()]
    return mistakes.mangled(listed[0]) if listed and not parameter.is_flag else ""


def choices(parameter: Any) -> list[str]:
    """Words that the help lists as those of an option."""
    listed = re.match(r"\[(.+?\|.+?)\]", parameter.metavar or "")
    return listed[1].split("|") if listed else list(getattr(parameter.type_descriptor, "choices", None) or ())


def fault(result: Result) -> str:
    """What no command line may end in, '' where all is well: a traceback, another exit code, or no reason."""
    if result.exception and not isinstance(result.exception, SystemExit):
        return f"raised {result.exception!r:.300}"
    if result.exit_code not in (0, 1, 2):
        return f"exit code {result.exit_code}"
    lines = sum(line.startswith("error: ") for line in result.stderr.splitlines())
    # Of many combinations, none of which has an answer, each has its reason in the answer.
    reasons = "no estimate" in result.stdout or "error" in result.stdout
    wrong = result.exit_code and lines != 1 and not (reasons and not lines)
    return f"exit code {result.exit_code} with {lines} errors" if wrong else ""


def faults(count: int, seed: int, longest_s: float = 60.0) -> Iterator[tuple[str, str]]:
    """Command lines that ended as none may, or took too long, with the reason."""
    lines = Lines(Random(seed))
    for _ in range(count):
        line, began = lines.line(), time.process_time()
        why = fault(CliRunner().invoke(app, line))
        if why or time.process_time() - began > longest_s:
            yield " ".join(line), why or f"{time.process_time() - began:.0f} s"


def main(count: int, seed: int) -> None:
    os.chdir(tempfile.mkdtemp())
    found = 0
    for line, why in faults(count, seed):
        found += 1
        print(f"{why}: neusight {line}", flush=True)
    print(f"{count} command lines, {found} faults")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
