"""Generation by language models: quantised weights, caches that are reused, ranks that share a model, by the program
that runs them.
"""

from __future__ import annotations

import re
from dataclasses import replace

from neusight.errors import DataError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, gpu_of, metric_of, reads, whole
from neusight.measured.score import Row
from neusight.questions.what_if import MetricName
from neusight.serving.load import Load, Offline, Static
from neusight.serving.setup import Setup
from neusight.what_if.catalogue.deployments import reused
from neusight.what_if.questions import DeploymentQuestion
from neusight.what_if.transforms import applicable
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder

NEW_TOKENS = 200
"""Of an answer where nobody says: gpt-fast's default, ``max_new_tokens``."""
PROMPT_TOKENS = 5
"""Of a prompt where nobody says: gpt-fast's default, "Hello, my name is"."""
PREFILL_TOKENS = 512
"""Of a prompt that is read, where nobody says: llama-bench's default."""
_SAME = {
    "vicuna-7b": "llama-2-7b", "vicuna-13b": "llama-2-13b", "vicuna-7b-v1.3": "llama-2-7b",
    "vicuna-13b-v1.3": "llama-2-13b", "vila-13b": "llama-2-13b", "vila-7b": "llama-2-7b", "nvila-2b": "qwen2.5-1.5b",
    "stablelm-alpha-3b": "stablelm-base-alpha-3b", "stablelm-alpha-7b": "stablelm-base-alpha-7b",
    "phi-1.5-1.3b": "phi-1.5", "tinyllama": "tinyllama-1.1b", "mixtral-8x7b": "mixtral-8x7b-v0.1",
}  # fmt: skip
"""Models with the layers of another: fine-tuned ones, and the language models of those that see."""
_ENGINES = {
    r"vllm": "vllm", r"sglang": "sglang", r"tensorrt": "tensorrt-llm", r"llama\.cpp|ggml": "llama.cpp",
    r"gpt-fast|torchao|torch\.compile": "gpt-fast", r"tinychat": "tinychat",
    r"transformers|hf |hugging|litgpt|bnb|bitsandbytes": "transformers",
}  # fmt: skip
_SCHEMES = {
    r"nf4\W*d(ouble|q)|nf4\+dq": "nf4-double", r"nf4": "nf4", r"int8\W*decomp": "llm-int8-outliers",
    r"awq|gptq \(vllm": "awq", r"float8dq.*row|float8_row|fp8.*row": "fp8dq-row", r"float8dq|fp8dq": "fp8dq",
    r"float8wo|fp8wo": "fp8wo", r"int8dq": "int8dq", r"int8wo": "int8wo",
    r"w4a8": "int4-int8", r"fp6": "fp6-weight-only", r"codebook-(\d)|uintx-(\d)": "uint{}-weight-only",
    r"autoquant-int4|int4wo|int4|4-bit": "int4wo", r"autoquant|int8|8-bit": "int8wo",
    r"nvfp4": "nvfp4", r"fp8|float8": "fp8-weights", r"(q\d_(?:k_[sml]|k|\d))": "{}",
}  # fmt: skip
"""Words of sources for the optimisations of the catalogue; the first that matches counts. ``autoquant`` takes what it
measures to be fastest: int4 where it may, else int8."""
_BY_CTYPES = {"int8wo": "llm-int8"}
"""What bitsandbytes means by the same word."""


@reads("weight_only_llm_decode")
def weight_only(record: Row, stated: dict[str, str]) -> Pair:
    """Generation, or the reading of a prompt, with quantised weights, or by several devices."""
    written = str(record["as_written"])
    before = _question(record, stated, f"{stated.get('framework', '')} {written} {' '.join(stated)}")
    if degree := re.match(r"tensor parallelism x(\d+)", written):
        return _pair(record, stated, before, f"tensor-parallel-{degree[1]}")
    if written.startswith("speculative decoding"):
        raise UnnamedModelError("how many tokens are drafted and accepted is not told")
    return _pair(record, stated, before, scheme_of(f"{written} {stated.get('dtype', '')}"))


@reads("misc_ladders", "training_ladders", of=lambda record: _generates(record))
def generated(record: Row, stated: dict[str, str]) -> Pair:
    """Rows about generation in sets of several kinds: quantised weights, a prefix that is kept, compiled passes.

    Raises:
        DataError: another kind of row.
    """
    written = str(record["as_written"])
    words = f"{stated.get('framework', '')} {written} {' '.join(stated.values())}"
    if "prefix reuse" in written:
        return _with_history(record, stated)
    before = _question(record, stated, words if "method" not in stated else "litgpt")
    if "CUDA graphs (on torch.compile)" in written:
        return _pair(record, stated, before.deployed(engine="gpt-fast", graphs=False), "cuda-graphs")
    if "torch.compile" in written or "Thunder" in written:
        eager = before.deployed(engine="transformers")
        return _pair(record, stated, eager, "reduce-overhead" if "graph" in written.lower() else "compile")
    scheme = scheme_of(f"{written} {stated.get('dtype', '')}")
    if record.get("mode") == "prefill" and before.setup.engine == "tinychat":
        # Its kernels for many rows do more operations than matrix units of GeForce boards have with sums in float32.
        names = [scheme, *applicable(before, ["fp16-accumulation"])[0]]
        return Pair.of(record, before, names).measured_in(_metric(record, before))
    return _pair(record, stated, before, scheme)


def _generates(record: Row) -> bool:
    """Whether a row is of a language model that generates or reads a prompt."""
    words = f"{record['as_written']} {record['model']}".lower()
    return record.get("mode") in ("decode", "prefill") or "generat" in words


def _with_history(record: Row, stated: dict[str, str]) -> Pair:
    """A question behind a conversation that is read again, or kept."""
    history, question = whole(stated["history"], "history"), whole(stated["question"], "question")
    load = Static(batch=1, isl=history + question, osl=1)
    before = _asked(record, stated, load, Setup(engine="tinychat", dtype="awq"))
    after = reused(before, history / (history + question))
    return Pair(before=before, after=after, applied=("prefix-reuse",), metric="ttft")


def _pair(record: Row, stated: dict[str, str], before: DeploymentQuestion, name: str) -> Pair:
    if before.setup.engine == "transformers" and "bnb" not in name:
        name = _BY_CTYPES.get(name, name)
        if name.startswith("llm-int8") and _is_before(stated.get("bitsandbytes", ""), (0, 45)):
            name = name.replace("int8", "int8-turned")
    if before.setup.engine == "vllm" and name == "int8wo":
        return Pair.of(record, before, [name]).measured_in("throughput")
    return Pair.of(record, before, [name]).measured_in(_metric(record, before))


def _is_before(version: str, number: tuple[int, int]) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < number


def _metric(record: Row, before: DeploymentQuestion) -> MetricName:
    """Rates and times of a batch are those of its tokens: of its prompts where it has no more."""
    metric = metric_of(record)
    if metric == "peak" or not isinstance(before.load, Static):
        return metric
    return "ttft" if before.load.osl == 1 else "tpot"


def _question(record: Row, stated: dict[str, str], words: str) -> DeploymentQuestion:
    load = _load_of(record, stated)
    devices = whole(stated.get("tp", "1").removesuffix("GPU").strip(), "tp")
    engine = _named(words, _ENGINES)
    if not engine:
        raise UnnamedModelError("which program generates is not told")
    return _asked(record, stated, load, Setup(engine=engine, tp=devices, pp=_stages(record, engine)))


def _stages(record: Row, engine: str) -> int:
    """llama.cpp gives each device some of the layers (``--split-mode layer``)."""
    count = re.search(r"\*\s*(\d+)\s*$", str(record.get("gpu_as_written")))
    return int(count[1]) if count and engine == "llama.cpp" else 1


def _load_of(record: Row, stated: dict[str, str]) -> Load:
    if "isl" in stated:
        isl, osl = (whole(stated[name], name) for name in ("isl", "osl"))
        return Offline(num_prompts=whole(stated["prompts"], "prompts"), isl=isl, osl=osl)
    batch = whole(stated.get("batch", "1"), "batch")
    if record.get("mode") == "prefill":
        isl = whole(stated.get("tokens", stated.get("seq", str(PREFILL_TOKENS))), "tokens")
        return Static(batch=batch, isl=isl, osl=1)
    isl = whole(stated.get("prompt", stated.get("context", stated.get("prefill", str(PROMPT_TOKENS)))), "prompt")
    osl = whole(stated.get("tokens", stated.get("new_tokens", str(NEW_TOKENS))), "tokens")
    return Static(batch=batch, isl=isl, osl=osl)


def _asked(record: Row, stated: dict[str, str], load: Load, setup: Setup) -> DeploymentQuestion:
    words = f"{stated.get('dtype', '')} {record['model']} {'fp16' * (setup.engine == 'tinychat')}".lower()
    return DeploymentQuestion(
        model=decoder_of_words(str(record["model"]), dtype="float16" if re.search(r"\bf(p|)16", words) else "bfloat16"),
        gpu=gpu_of(record),
        load=load,
        setup=setup,
    )


def decoder_of_words(name: str, dtype: str) -> Decoder:
    """A decoder in 16 bits by a name as sources write it, whatever the length that it was trained for.

    Raises:
        ModelError: none has it.
    """
    plain = re.sub(r"\b(instruct|generation|generate|tinychat|int4|chat|hf|\(te\))\b|\(te\)", " ", name.lower())
    plain = re.sub(r"(\d)\s+b\b", r"\1b", plain).strip().replace("qwen 2", "qwen2").replace("qwen-2", "qwen2")
    plain = re.sub(r"[\s_]+", "-", plain).strip("-")
    return replace(known_decoder(_SAME.get(plain, plain)), dtype=dtype, max_len=0)


def scheme_of(words: str) -> str:
    """The optimisation that a source's words mean.

    Raises:
        DataError: none of them.
    """
    if name := _named(words, _SCHEMES):
        return name
    raise DataError(f"no scheme of weights is known by '{words[:60]}'")


def _named(words: str, table: dict[str, str]) -> str:
    for pattern, name in table.items():
        if found := re.search(pattern, words.lower()):
            return name.format(next((group for group in found.groups() if group), ""))
    return ""
