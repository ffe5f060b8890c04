"""``read_launch``: a command line that starts an engine, as words of a question."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from neusight.engines.launch_flags import Flags, flags_of
from neusight.errors import NeusightError, nearest, shown
from neusight.plans.megatron import megatron_values
from neusight.questions.field import FieldError
from neusight.questions.launch_text import EngineCommand, read_command
from neusight.questions.question import Question
from neusight.questions.serving import Serving
from neusight.questions.training import Training
from neusight.quick_dataclasses import dataclass
from neusight.workloads.decoders.families import USUAL
from neusight.workloads.decoders.known import known_decoder

_VOCABULARY = 50_257
"""Tokens of GPT-2's vocabulary, which are assumed where an unknown tokenizer counts them."""
_NODES = {"per_node": "nproc-per-node", "nodes": "nnodes"}
"""Options of ``torchrun``, by field."""
_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""Suffixes of numbers of vLLM (``human_readable_int``)."""


@dataclass(frozen=True, kw_only=True)
class LaunchLine:
    """A launch line as words of a question, to which a device and a load are added.

    Attributes:
        noun: the question that it is part of.
        words: fields by name.
        unread: options that decide time or memory and that no field takes, with their values.
        remarks: lines for everything else that is left out.
    """

    noun: type[Question]
    words: Mapping[str, Any]
    unread: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def words_beside(self, given: Collection[str]) -> dict[str, Any]:
        """Words of fields that are not given, nor replaced by those that are."""
        replaced = {"config" if "model" in given else "", "per_node" if "cluster" in given else "", *given}
        return {name: value for name, value in self.words.items() if name not in replaced}

    def notes(self) -> Iterator[str]:
        """Lines for everything that is left out."""
        if self.unread:
            options = ", ".join(f"--{option} {word}".strip() for option, word in self.unread.items())
            yield f"options that matter and have no field are left out: {options}"
        yield from self.remarks


def read_launch(source: str, depth: int = 0) -> LaunchLine:
    """The question that a command line of an engine, or a file with one, describes.

    Args:
        source: the command line, or the path of a file that contains it.
        depth: layers of the model, in which some trainers count, unless the line tells.

    Raises:
        DataError: no such file, no known engine, or quotes without an end.
    """
    command = read_command(source)
    flags = flags_of(command.engine)
    return _training(command, flags, depth) if flags.anywhere else _serving(command, flags)


def _serving(command: EngineCommand, flags: Flags) -> LaunchLine:
    """The deployment that a server's options describe."""
    parts, unread, remarks = _sort(command, flags)
    words = {name: value for name, value in flags.unset.items() if name in Serving.fields()} | parts
    words |= {"engine": command.engine, "engine_version": command.version}
    remarks += _remark_speculation(parts)
    {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}[command.engine](words)
    _combine(words, unread, flags)
    fields = {name: value for name, value in words.items() if name in Serving.fields() and value != ""}
    return LaunchLine(noun=Serving, words=fields, unread=unread, remarks=tuple(remarks))


def _training(command: EngineCommand, flags: Flags, depth: int) -> LaunchLine:
    """The step that arguments of Megatron-LM describe, on the devices that ``torchrun`` starts.

    Raises:
        ModelError: a number or word that an argument does not take.
    """
    options = command.options
    values, names = megatron_values(options, depth)
    config = _configuration(options, flags)
    words = {name: value for name, value in values.items() if value is not None}
    words |= {name: options[option] for name, option in _NODES.items() if options.get(option, "").isdecimal()}
    words |= {"model": "megatron-lm", "config": json.dumps(config)} if config else {}
    # ``validate_args``: one micro-batch of each replica.
    words |= {"micro_batches": 1} if "micro_batch_size" in words and "global_batch_size" not in words else {}
    is_known = "vocab-size" in options or options.get("tokenizer-type") in flags.vocabularies
    remarks = [f"vocab-size is missing: {config['vocab_size']:,} tokens are assumed"] if config and not is_known else []
    if config and "max-position-embeddings" not in options:
        remarks.append(f"max-position-embeddings is missing: {config['max_position_embeddings']:,} are assumed")
    unclear = [name for sizes in flags.model.values() for name in sizes if not options.get(name, "0").isdecimal()]
    remarks += [f"--{name} {shown(options[name])} is no whole number: it is left out" for name in unclear]
    unread = {name[2:]: options[name[2:]] for name in names}
    return LaunchLine(noun=Training, words=words, unread=unread, remarks=tuple(remarks))


def _configuration(given: Mapping[str, str], flags: Flags) -> dict[str, Any]:
    """The model as keys of a configuration; empty where its sizes are not among the arguments."""
    numbers = {option: int(word) for option, word in given.items() if word.isdecimal()}
    sizes = {key: numbers[name] for key, names in flags.model.items() for name in reversed(names) if name in numbers}
    if not {"num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"} <= sizes.keys():
        return {}
    kind = "swiglu" if "swiglu" in given else "squared_relu" if "squared-relu" in given else "gelu"
    # Two products take what one takes without a gate (``validate_args``).
    width = sizes["hidden_size"] * 8 // 3 // 64 * 64 if kind == "swiglu" else 4 * sizes["hidden_size"]
    vocabulary = flags.vocabularies.get(given.get("tokenizer-type", ""), _VOCABULARY)
    usual = {"intermediate_size": width, "num_key_value_heads": sizes["num_attention_heads"], "vocab_size": vocabulary}
    if "num_experts" in sizes:
        usual |= {"num_experts_per_tok": 2, "moe_intermediate_size": sizes.get("intermediate_size", width)}
    return {**USUAL[kind], **usual, **sizes, "tie_word_embeddings": "untie-embeddings-and-output-weights" not in given}


def _sort(command: EngineCommand, flags: Flags) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """(values by field or part, options without a field that matter, remarks on unknown options)."""
    parts, unread, remarks = dict[str, Any](), dict[str, str](), list[str]()
    for name, word in command.options.items():
        option = flags.completed(name)
        if option in flags.names:
            part, switched = flags.names[option]
            word = word or ("true" if switched is None and option in flags.valueless else "")
            value = flags.value(option, word) if switched is None else switched
            if switched is None and word == "":
                remarks.append(f"--{name} has no value: it is left out")
            elif value != "" and (switched is None or word.lower() != "false"):
                parts[part] = value
        if flags.is_unread(option):
            unread[name] = word
        elif not flags.is_known(option):
            hint = nearest(name, flags.all_names)
            remarks.append(f"--{shown(name)} is no known option of {command.engine}{hint}: it is left out")
    return parts, unread, remarks


def _vllm(words: dict[str, Any]) -> None:
    """Treat data-parallel ranks of a model without experts as independent (vLLM, Data Parallel Deployment)."""
    for name in ("max_model_len", "max_num_batched_tokens"):
        if scaled := _SCALED.fullmatch(words.get(name, "")):
            words[name] = round(float(scaled[1]) * _SCALES[scaled[2]])
    devices, nodes = _count(words, "tp") * _count(words, "pp"), _count(words, "started_nodes", "nodes")
    if "dp_per_node" in words:
        words["per_node"] = devices * _count(words, "dp_per_node", "dp")
    if nodes > 1:
        words["per_node"] = _divide("nodes", devices * _count(words, "dp"), nodes)
    if "dp" in words and _experts(words) == 0:
        words["replicas"] = words.pop("dp")


def _experts(words: Mapping[str, Any]) -> int | None:
    """The number of experts of the model, None where it is not known."""
    try:
        part = known_decoder(words.get("model", "")).mixture
    except (NeusightError, OSError):
        return None
    return part.experts if part else 0


def _sglang(words: dict[str, Any]) -> None:
    """Its degree of tensor parallelism counts all devices of a stage, its limits all groups of attention."""
    devices, groups, nodes = (_count(words, name) for name in ("tp", "dp", "nodes"))
    if nodes > 1:
        words["per_node"] = _divide("nodes", devices * _count(words, "pp"), nodes)
    if words.get("max_num_batched_tokens") in ("-1", "0"):
        words.pop("max_num_batched_tokens")
        words["chunked_prefill"] = False
    if "attention_dp" not in words:
        words["replicas"] = words.pop("dp", groups)
        return
    words["tp"] = _divide("dp", devices, groups)
    shared = words.keys() & {"max_num_seqs", "max_num_batched_tokens"}
    words |= {name: max(1, _count(words, name) // groups) for name in shared}


def _tensorrt_llm(words: dict[str, Any]) -> None:
    """Attention is shared by all devices of a stage or by none; experts are counted with their copies."""
    if (experts := _experts(words)) and "slots" in words:
        words["redundant_experts"] = _count(words, "slots", "redundant_experts") - experts
    if words.get("attention_dp") == "true":
        words |= {"dp": _count(words, "tp"), "tp": 1}


def _combine(words: dict[str, Any], unread: dict[str, str], flags: Flags) -> None:
    """Put together the fields that several options give."""
    if words.get("ep") == "all":
        words["ep"] = _count(words, "tp") * _count(words, "dp")
    if "quantization" in words:
        unread |= {"dtype": words["dtype"]} if "dtype" in words else {}
        words["dtype"] = words["quantization"]
    if "lora" in words or "adapters" in words:
        slots = {**flags.unset, **words}
        rank = f",rank={slots['adapter_rank']}" if "adapter_rank" in slots else ""
        words["lora_adapters"] = f"{slots['adapters']}{rank}"
    if "eplb" in flags.fields and "eplb" not in words:
        words.pop("redundant_experts", None)
    if "policy" in words:
        unread["capacity-scheduler-policy"] = words["policy"]


def _remark_speculation(parts: Mapping[str, Any]) -> Iterator[str]:
    """A line for speculative decoding, whose acceptance no launch line has."""
    if {"draft", "draft_model"} & parts.keys():
        draft = parts.get("draft") or parts["draft_model"]
        # A head of EAGLE that is no checkpoint of its own is the model's own layer.
        draft = "mtp" if draft == "eagle" and "draft_model" not in parts else draft
        tokens = parts.get("draft_tokens") or parts.get("draft_layers") or parts.get("draft_depth", "N")
        option = f"--speculate draft={draft},tokens={tokens},acceptance=A"
        yield f"speculative decoding is left out: add {option} with the share A of drafts that are accepted"


def _count(words: Mapping[str, Any], name: str, field_name: str = "") -> int:
    """A whole number among the words, read as the field of that or another name; 1 where it is left open.

    Raises:
        FieldError: it is none.
    """
    value = words.get(name, 1)
    declared = {**Training.fields(), **Serving.fields()}[field_name or name].field
    return int(declared.read(name, value) if isinstance(value, str) else value)


def _divide(name: str, devices: int, parts: int) -> int:
    """Devices of one of several equal parts.

    Raises:
        FieldError: they cannot be equal.
    """
    if devices % parts:
        raise FieldError(name, f"{devices} devices cannot be shared by {parts} equally: change one of both")
    return devices // parts
