"""Share of one rank in a decoder: of a micro-batch in training, or of passes of a serving engine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from neusight.errors import ModelError, shown
from neusight.workloads.decoders.layers import shared_evenly
from neusight.workloads.decoders.recipes import Adapters, recipe_named


@dataclass(frozen=True, kw_only=True)
class Local:
    """One rank's share of a micro-batch of ``batch`` sequences of ``seq_len`` tokens.

    ``tp`` ranks share every matrix, ``cp`` every sequence, ``ep`` the experts whole and ``etp`` each expert. With
    ``sequence_parallel`` the ``tp`` ranks share norms and the residual stream by tokens. ``dtype`` is that of
    activations and of weights in products, ``products`` names the recipe of large products where they run in fewer bits
    (``recipes.RECIPES``), whose operands are transposed copies for gradients where matrix units want them so.
    Of the ``ep`` ranks ``ep_within`` share a node, all where it is 0. ``overlap_tp``: products run in pieces beside
    what is gathered for or scattered from other pieces.
    ``cp_comm`` and ``ulysses`` are how ``cp`` ranks share attention, as ``Plan`` has them.
    ``adapters`` are what is trained of it, all weights where their rank is 0. ``source_len`` tokens of each sequence's
    source are what an encoder reads, 0 where there is none.
    """

    batch: int
    seq_len: int
    tp: int = 1
    cp: int = 1
    cp_comm: str = ""
    ulysses: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    dtype: str = "bfloat16"
    products: str = ""
    transposes: bool = True
    overlap_tp: bool = False
    ep_within: int = 0
    source_len: int = 0
    adapters: Adapters = field(default_factory=Adapters)

    @property
    def source(self) -> Local:
        """The same of the source's tokens.

        Raises:
            ModelError: there are none.
        """
        if not self.source_len:
            raise ModelError("the model has an encoder: state how many tokens its source has (source_len)")
        return replace(self, seq_len=self.source_len, source_len=0)

    @property
    def mask_pairs(self) -> int:
        """Pairs of a query and a key in the masks of a sequence: of the decoder, the encoder and between them."""
        return self.length * (self.seq_len + self.source_len) + self.source_len**2

    @property
    def length(self) -> int:
        """Tokens of each sequence on the rank.

        Raises:
            ModelError: context-parallel ranks cannot share it evenly.
        """
        return shared_evenly(self.seq_len, self.cp, "seq_len")

    @property
    def tokens(self) -> int:
        """Tokens that the rank's attention and feed-forwards see."""
        return self.batch * self.length

    @property
    def resident_tokens(self) -> int:
        """Tokens of the residual stream that the rank holds: fewer under sequence parallelism."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    def check(self) -> None:
        """Raises:
        ModelError: tokens that ranks cannot share, or products in a precision that is not built.
        """
        recipe_named(self.products)
        if self.sequence_parallel and self.tokens % self.tp:
            fitting = -(-self.seq_len // (self.tp * self.cp)) * self.tp * self.cp
            raise ModelError(
                f"{self.tokens} tokens cannot be shared by tp = {self.tp} ranks under sequence parallelism: choose a "
                f"seq_len of {fitting}"
            )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Passes through a model, columns of shape (n,): sequences with new prompt tokens and sequences that generate.

    ``prompts`` sequences bring ``prompt_tokens`` new tokens each (a chunk of a prompt, or all of it) behind
    ``prompt_cached`` tokens that the cache holds already; ``decodes`` sequences bring ``decode_tokens`` each, one
    unless drafted ones are verified, behind ``decode_cached`` tokens. Means where sequences differ; the first three are
    0 in a pass that only generates.
    """

    prompts: np.ndarray
    prompt_tokens: np.ndarray
    prompt_cached: np.ndarray
    decodes: np.ndarray
    decode_cached: np.ndarray
    decode_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, **columns: Any) -> Steps:
        """Columns given as arrays or scalars; what is missing is 0, and one token of each decode."""
        columns = {"decode_tokens": 1} | columns
        length = max((len(v) for v in columns.values() if np.ndim(v)), default=1)
        return cls(**{f.name: np.broadcast_to(np.asarray(columns.get(f.name, 0)), (length,)) for f in fields(cls)})

    @property
    def tokens(self) -> np.ndarray:
        """New tokens of a pass, shape (n,)."""
        return np.asarray(self.prompts * self.prompt_tokens + self.decodes * self.decode_tokens)

    @property
    def sequences(self) -> np.ndarray:
        """Sequences of a pass, shape (n,)."""
        return np.asarray(self.prompts + self.decodes)

    @property
    def in_buckets(self) -> Steps:
        """Passes with sizes that programs of fixed shapes compute: prompts, and caches with their new tokens,
        padded.
        """
        context = np.where(self.decodes > 0, self.decode_cached + self.decode_tokens, 0)
        cached = np.maximum(bucket_of(context) - self.decode_tokens, 0)
        return replace(self, prompt_tokens=bucket_of(self.prompt_tokens), decode_cached=cached)


LEAST_BUCKET = 128
"""Tokens of the shortest program of fixed shapes (Transformers NeuronX, Developer Guide: buckets from 128 on)."""


def bucket_of(tokens: np.ndarray) -> np.ndarray:
    """Tokens of the program that fits ``tokens``: the next power of two; 0 stays 0."""
    least = np.maximum(tokens, LEAST_BUCKET)
    return np.where(tokens > 0, 2 ** np.ceil(np.log2(least) - 1e-9), 0).astype(np.int64)


def whole(values: np.ndarray) -> np.ndarray:
    """Counts, rounded; shape (n,), int64."""
    return np.rint(values).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class AdapterSlots:
    """``number`` LoRA adapters of up to ``rank`` that a served model holds at the same time."""

    number: int
    rank: int = 16

    def __post_init__(self) -> None:
        """Raises:
        ModelError: no adapters, or a rank below 1.
        """
        if self.number < 1 or self.rank < 1:
            raise ModelError(f"{self.number} adapters of rank {self.rank}: give 1 or more of each")

    @classmethod
    def parse(cls, text: str) -> AdapterSlots:
        """Parse text such as ``4`` or ``4,rank=32``.

        Raises:
            ModelError: something else.
        """
        number, _, rank = (part.strip() for part in text.partition(","))
        key, _, value = (part.strip() for part in (rank or "rank=16").partition("="))
        if key != "rank" or not number.isdecimal() or not value.isdecimal():
            raise ModelError(f"adapters '{shown(text)}': write how many and their rank like 4,rank=16")
        return cls(number=int(number), rank=int(value))


@dataclass(frozen=True, kw_only=True)
class CachedPasses:
    """``Steps`` in whole tokens, shape (n,) each; contexts are keys that the last query sees: cached ones and new ones.

    ``kv_dtype`` is that of cached keys and values.
    """

    prompts: np.ndarray
    prompt_tokens: np.ndarray
    prompt_context: np.ndarray
    decodes: np.ndarray
    decode_context: np.ndarray
    decode_tokens: np.ndarray
    kv_dtype: str

    @classmethod
    def of(cls, steps: Steps, kv_dtype: str) -> CachedPasses:
        """Means rounded."""
        new = whole(steps.prompt_tokens)
        return cls(
            prompts=whole(steps.prompts),
            prompt_tokens=new,
            prompt_context=new + whole(steps.prompt_cached),
            decodes=whole(steps.decodes),
            decode_context=whole(steps.decode_cached) + whole(steps.decode_tokens),
            decode_tokens=whole(steps.decode_tokens),
            kv_dtype=kv_dtype,
        )

    @property
    def tokens(self) -> np.ndarray:
        """New tokens of each pass."""
        return np.asarray(self.prompts * self.prompt_tokens + self.new_decodes)

    @property
    def new_decodes(self) -> np.ndarray:
        """New tokens of all decodes."""
        return np.asarray(self.decodes * self.decode_tokens)

    @property
    def prompt_runs(self) -> np.ndarray:
        """1 for passes with new prompt tokens."""
        return (self.prompts * self.prompt_tokens > 0).astype(np.int64)

    @property
    def decode_runs(self) -> np.ndarray:
        """1 for passes with sequences that generate."""
        return (self.decodes > 0).astype(np.int64)
