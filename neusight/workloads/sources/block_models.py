"""Layers and losses by themselves: ``block:rms-norm@tokens=2048,hidden=4096``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neusight.errors import ModelError, nearest, shown
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs, ModelSource, refuse_others

if TYPE_CHECKING:
    import torch

LIBRARY = "block:"
_FROM_ZERO = ("round",)


@dataclass(frozen=True, kw_only=True)
class BlockModel(ModelSource):
    """A block of ``neusight.workloads.models.blocks`` with its sizes."""

    name: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def content(self) -> str:
        """The sizes; the module itself is part of the program, whose version counts anyway."""
        return f"{LIBRARY}{self.name} {self.sizes}"

    def settled(self, request: Request) -> Request:
        """Its sizes say everything."""
        return refuse_others(request)

    def unit(self, request: Request) -> str:
        """A block is no model."""
        return "one block of layers by itself, not a model"

    def build(self, request: Request) -> torch.nn.Module:
        """The block in its loop."""
        from neusight.workloads.models.blocks import BLOCKS

        return BLOCKS[self.name][1](dict(self.sizes))

    def inputs(self, request: Request) -> Inputs:
        """None: they are the loop's own."""
        return {}


def block_model(text: str) -> BlockModel | None:
    """The block that ``block:NAME@SIZE=…`` stands for; None where the text begins otherwise.

    Raises:
        ModelError: no such block, or other sizes than it has.
    """
    if not text.startswith(LIBRARY):
        return None
    from neusight.workloads.models.blocks import BLOCKS

    name, _, written = text.removeprefix(LIBRARY).partition("@")
    if name not in BLOCKS:
        raise ModelError(f"unknown block '{shown(name)}'{nearest(name, BLOCKS)}: one of {', '.join(BLOCKS)}")
    sizes = BLOCKS[name][0]
    pairs = [pair.partition("=")[::2] for pair in written.split(",")]
    if sorted(key for key, _ in pairs) != sorted(sizes) or not all(
        v.isdigit() and (int(v) or key in _FROM_ZERO) for key, v in pairs
    ):
        example = ",".join(f"{size}=…" for size in sizes)
        raise ModelError(f"cannot read '{shown(written)}' of {LIBRARY}{name}: write {LIBRARY}{name}@{example}")
    return BlockModel(name=name, sizes=tuple(sorted((key, int(value)) for key, value in pairs)))
