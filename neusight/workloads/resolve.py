"""Names of models that a user may give: a ready workload, a ``config.json``, a function, or a module in Python."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.defaults import Default, Defaults, default_dtype
from neusight.engines import Engine
from neusight.errors import ModelError, nearest, shown
from neusight.kernels.precision import Precision
from neusight.paths import is_there, user_path
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.catalogue import (
    canonical_name,
    catalogue_config,
    config_max_seq_len,
    is_image_config,
    is_ready_type,
    list_workloads,
)
from neusight.workloads.config_file import STATED_ATTENTION, dtype_of, quantization_of, read_config
from neusight.workloads.functions import importable_here, source_file
from neusight.workloads.inputs.given import as_inputs
from neusight.workloads.sources import ExportedModel, ModelSource, described_file, source_named, traced_model
from neusight.workloads.sources.described import ModulePart

_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of names of classes whose models write texts."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSource:
    """Source of a model.

    Exactly one of ``config``, ``function``, ``module`` and ``described`` says it. ``digest`` is the content that a
    stored trace depends on; None where it cannot be known, so that nothing is stored. ``catalogue`` is the ready
    workload that this is, if it is one. ``dtype`` and ``quantization`` are those of the weights by the configuration:
    None and '' where it states none.
    """

    name: str
    config: dict[str, Any] | None = None
    function: str | None = None
    module: Any = None
    described: ModelSource | None = None
    inputs: Any = None
    digest: str | None = None
    catalogue: str | None = None
    dtype: str | None = None
    quantization: str = ""

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence, or None where there is no limit."""
        return config_max_seq_len(self.config) if self.config else None

    @property
    def takes_seq_len(self) -> bool:
        """Tell whether a sequence length has a meaning; for a function or a module this is unknown and counts as
        true.
        """
        return self.described is None and (self.config is None or not is_image_config(self.config))

    @property
    def parts(self) -> Sequence[ModulePart]:
        """Modules whose times are told apart."""
        return self.described.parts if self.described else ()

    def unit(self, request: Request) -> str:
        """The work that a step is of, where a reader may take it for another."""
        if self.described:
            return self.described.unit(request)
        names = (self.config or {}).get("architectures") or ()
        generates = request.mode == "inference" and any(str(name).endswith(_GENERATING) for name in names)
        return "one pass over all tokens at once, not generation token by token" if generates else ""

    @property
    def ready_type(self) -> bool:
        """Tell whether the model is of a type that ready workloads have, if not of their sizes."""
        return self.config is not None and is_ready_type(self.config)


def resolve(model: Any, inputs: Any = None) -> WorkloadSource:
    """Find a model.

    Args:
        model: a catalogue name or alias, also with other numbers in its configuration
            (``bert-base@max_position_embeddings=4096``); the path of a Hugging Face ``config.json`` or of the folder
            that holds it;
            ``timm:NAME``, ``torchvision:NAME`` or ``diffusers:PATH``, see ``neusight.workloads.sources``;
            ``package.module:function`` or ``package/module.py:function``, where the function returns a module and its
            example inputs (the current folder is importable; it may take ``batch`` and ``seq_len``); a
            ``torch.nn.Module``, or a function without arguments that builds one.
        inputs: for a module, what its ``forward`` takes, by name or in order.

    Raises:
        ModelError: no such name, file or function, or the file is no model configuration.
    """
    if not isinstance(model, str | Path):
        return _from_module(model, inputs)
    text = str(model)
    if (source := source_named(text)) is not None:
        return _from_described(text, source)
    if (function := _named_in_file(text)) is not None:
        return _from_function(function)
    if _is_path(text):
        return _from_file(user_path(text))
    if canonical := canonical_name(text):
        return _from_config(canonical, catalogue_config(canonical), canonical)
    if is_there(text):
        return _from_file(Path(text))
    if (changed := _change_config(text)) is not None:
        return changed
    if (hub := _of_hub(text)) is not None:
        return hub
    if (traced := traced_model(text)) is not None:
        return _from_traced(*traced)
    if ":" in text:
        return _from_function(text)
    from neusight.workloads.decoders.known import nearest_models

    raise ModelError(
        f"unknown model '{shown(text)}'{nearest_models(text)}: give a name of 'neusight models list', "
        "the path of a config.json, timm:NAME, torchvision:NAME, diffusers:FOLDER, or package.module:function"
    )


def _from_module(module: Any, inputs: Any) -> WorkloadSource:
    if not callable(module):
        raise ModelError(f"cannot use {type(module).__name__} as a model: give a name, a path or a torch.nn.Module")
    if inputs is None:
        raise ModelError(f"{type(module).__name__} needs inputs=: what its forward() takes, by name or in order")
    name = getattr(module, "__name__", type(module).__name__)
    return WorkloadSource(name=name, module=module, inputs=as_inputs(inputs))


def _from_config(name: str, config: dict[str, Any], catalogue: str | None, where: str = "") -> WorkloadSource:
    """A model in the dtype that its configuration states; ``where`` names its file in messages."""
    return WorkloadSource(
        name=name, config=config, digest=_sha(json.dumps(config, sort_keys=True)), catalogue=catalogue,
        dtype=dtype_of(config, where or name), quantization=quantization_of(config),
    )  # fmt: skip


def _change_config(text: str) -> WorkloadSource | None:
    """A ready workload with other numbers in its configuration, after ``@``; None for other names.

    Raises:
        ModelError: it states no such number.
    """
    name, _, options = text.partition("@")
    canonical = canonical_name(name)
    if canonical is None or "=" not in options:
        return None
    config = catalogue_config(canonical)
    for option in options.split(","):
        key, _, value = option.partition("=")
        if type(config.get(key)) is not int or not value.isdigit():
            numbers = ", ".join(word for word in sorted(config) if type(config[word]) is int)
            raise ModelError(f"cannot read '{shown(option)}' of {canonical}: NUMBER=VALUE, of {numbers}")
        config[key] = int(value)
    return _from_config(text, config, same_workload(config))


def _from_traced(name: str, found: Mapping[str, Any] | ModelSource) -> WorkloadSource:
    if isinstance(found, Mapping):
        return _from_config(name, dict(found), None)
    return _from_described(name, found)


def _from_described(name: str, source: ModelSource) -> WorkloadSource:
    """Source of a described model, in the dtype that its description specifies, if any."""
    dtype = getattr(source, "dtype", None)
    return WorkloadSource(name=name, described=source, digest=_sha(source.content), dtype=dtype)


def _from_file(path: Path) -> WorkloadSource:
    file = path / "config.json" if path.is_dir() else path
    if (source := described_file(file)) is not None:
        return _from_described(str(path), source)
    config = read_config(file)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _from_config(name, config, same_workload(config), str(file))


def _of_hub(name: str) -> WorkloadSource | None:
    """A decoder whose configuration ships for serving, by its name on the hub."""
    from neusight.workloads.decoders.known import hub_config

    if (entry := hub_config(name)) is None:
        return None
    full, config = entry
    return _from_config(full, config, same_workload(config))


def step_dtype(source: WorkloadSource, engine: Engine, requested: str = "") -> tuple[str, Defaults]:
    """The dtype of a model's step, and what was chosen for it; '' for modules and exported programs, which have a dtype
    when they are built.

    Args:
        source: the model.
        engine: that runs the step.
        requested: by any of its names; "" for the default.

    Raises:
        CoverageError: no dtype has the requested name.
        ModelError: the weights are quantized, and no dtype was requested to estimate them in.
    """
    if requested:
        unread = {"quantization": Default("none", f"{source.quantization} is set aside")}
        return str(Precision.named(requested)), unread if source.quantization else {}
    if source.quantization:
        raise ModelError(
            f"quantization ({source.quantization}) of {source.name} is not estimated: give --dtype bfloat16, say, to "
            "set it aside"
        )
    if source.config is None and (source.described is None or isinstance(source.described, ExportedModel)):
        return "", {}
    default = default_dtype(source.dtype, engine)
    return default.value, {"dtype": default}


_INERT = frozenset(
    (
        "_name_or_path", "architectures", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id",
        "init_std", "initializer_factor", "initializer_range", "n_ctx", "padded_vocab_size", "prefix",
        "router_aux_loss_coef", "router_ignore_padding_tokens", "router_type", "router_z_loss_coef",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
        "summary_use_proj", "task_specific_params", "torch_dtype", "transformers_version", "use_cache",
        *STATED_ATTENTION,
    )
)  # fmt: skip
"""Keys that change no operator of a step: ids of tokens, initial values, weights of losses, generation."""

_DEFAULTS = {
    "activation_dropout": 0.0,
    "add_router_probs": False,
    "is_gated_act": False,
    "encoder_sparse_step": 2,
    "decoder_sparse_step": 2,
}


def same_workload(config: dict[str, Any]) -> str | None:
    """The ready workload that a configuration describes, up to keys that change nothing; None if there is none."""
    essence = _essence(config)
    for info in list_workloads():
        if _essence(catalogue_config(info.name)) == essence:
            return info.name
    return None


def _essence(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in _INERT and (k not in _DEFAULTS or v != _DEFAULTS[k])}


def _is_path(text: str) -> bool:
    """Written as a path, or the path of something that is there; a bare name is the catalogue's first."""
    written = text.endswith(".json") or text.startswith((".", "/", "~"))
    return written or ("/" in text and is_there(text))


def _from_function(text: str) -> WorkloadSource:
    module_name, _, function = text.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ModelError(f"cannot read '{shown(text)}' as a function: write package.module:function")
    with importable_here():
        file = source_file(module_name, text)
    sources = sorted(file.parent.glob("*.py")) if file.name != "__init__.py" else sorted(file.parent.rglob("*.py"))
    content = "\n".join(source.read_text(encoding="utf-8", errors="replace") for source in sources)
    return WorkloadSource(name=text, function=text, digest=_sha(f"{text}\n{content}"))


def _named_in_file(text: str) -> str | None:
    """``package.module:function`` of a text such as ``package/module.py:function``; None for other texts.

    Raises:
        ModelError: there is no such file, it cannot be imported from here, or the text names no function of it.
    """
    name, _, function = text.partition(":")
    if not name.endswith(".py"):
        return None
    if not is_there(str(user_path(name))):
        hint = nearest(name, map(str, user_path(name).parent.glob("*.py")))
        raise ModelError(f"no file '{shown(name)}'{hint}: write package.module:function, or FILE.py:function")
    file = user_path(name).resolve()
    if not file.is_relative_to(Path.cwd()):
        raise ModelError(f"{name} is not below this folder: run in {file.parent}, and name {file.stem}:{function}")
    module = ".".join(file.relative_to(Path.cwd()).with_suffix("").parts)
    if not function:
        defined = re.findall(r"^def ([a-z]\w*)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        names = ", ".join(f"{module}:{candidate}" for candidate in defined)
        raise ModelError(f"{name} is a Python file: name a function that returns a module and its inputs: {names}")
    return f"{module}:{function}"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
