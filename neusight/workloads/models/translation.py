"""A step of a translation decoder that writes a token in each beam: layers on cached keys and values, and a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

CACHED = 32
"""Tokens that a sentence has so far, and those of its source: half and all of a sentence of WMT's German."""


class _QueryAttention(nn.Module):
    """Attention of one query on keys and values of shape (rows, heads, length, size)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        attended = functional.scaled_dot_product_attention(self.split(self.query(x)), keys, values)
        return self.out(attended.transpose(1, 2).flatten(2))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Split ``x`` by heads."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Layer(nn.Module):
    """Attention to what was written, attention to the source, and a network (Vaswani et al. 2017, figure 1)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.self_attention, self.cross_attention = _QueryAttention(width, heads), _QueryAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, cache: torch.Tensor, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Activations, and keys and values with the token's own."""
        normed, split = self.norms[0](x), self.self_attention.split
        keys = torch.cat([cache[0], split(self.key(normed))], dim=2)
        values = torch.cat([cache[1], split(self.value(normed))], dim=2)
        x = x + self.self_attention(normed, keys, values)
        x = x + self.cross_attention(self.norms[1](x), source[0], source[1])
        return x + self.down(functional.relu(self.up(self.norms[2](x)))), keys, values


class TranslationDecoder(nn.Module):
    """A step of beam search of OpenNMT's Transformer, as FasterTransformer's guide of decoders measures it."""

    def __init__(self, config: Mapping[str, Any], beams: int = 1) -> None:
        super().__init__()
        self.width, self.words, self.beams = config["hidden_size"], config["vocab_size"], beams
        self.embedding = nn.Embedding(self.words, self.width)
        self.layers = nn.ModuleList(_Layer(self.width, config["num_heads"]) for _ in range(config["num_layers"]))
        self.norm, self.head = nn.LayerNorm(self.width), nn.Linear(self.width, self.words)

    def forward(
        self, input_ids: torch.Tensor, cache: torch.Tensor, source: torch.Tensor, *, scores: torch.Tensor,
        lengths: torch.Tensor, finished: torch.Tensor,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Tokens, the state of their beams, and keys and values in the order of the beams that go on.

        Args:
            input_ids: of shape (sentences * beams, 1).
            cache: keys and values of each layer, of shape (layers, 2, sentences * beams, heads, length, size).
            source: the same of the source's tokens.
            scores, lengths, finished: of each beam, of shape (sentences * beams,).
        """
        x = self.embedding(input_ids) * self.width**0.5 + self._position(lengths)
        written: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            x, keys, values = layer(x, cache[number], source[number])
            written += (keys, values)
        logits = self.head(self.norm(x)).squeeze(1)
        return self._search(logits, (scores, lengths, finished), [*written, *source.flatten(0, 1)])

    def _position(self, lengths: torch.Tensor) -> torch.Tensor:
        angles = lengths[:1].unsqueeze(-1) * torch.exp(torch.arange(self.width // 2) * -0.036)
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1).to(self.embedding.weight.dtype)

    def _search(self, logits: torch.Tensor, state: tuple[torch.Tensor, ...], caches: list[torch.Tensor]) -> Any:
        """The best of all continuations of all beams of a sentence (FasterTransformer, ``beam_search.py``)."""
        scores, lengths, finished = state
        end = functional.one_hot(torch.zeros(len(logits), dtype=torch.int64), self.words) * 1e4
        logits = torch.where(finished.unsqueeze(-1), end.to(logits.dtype), logits)
        totals = torch.log_softmax(logits.float(), dim=-1) + scores.unsqueeze(-1)
        totals = totals.view(-1, self.beams * self.words)
        where = totals.topk(self.beams).indices
        words, rows = (where % self.words).flatten(), where // self.words
        rows = (rows + self.beams * torch.arange(len(where)).unsqueeze(-1)).flatten()
        best = totals.gather(1, where).flatten()
        lengths = torch.where(finished, lengths, lengths + 1).index_select(0, rows)
        finished = finished.index_select(0, rows)
        best = torch.where(finished, scores, best)
        finished = finished | (words == 0)
        selected = [cache.index_select(0, rows) for cache in caches]
        return words, best, lengths, finished, finished.all(), selected


def translation_inputs(
    config: Mapping[str, Any], batch: int, seq_len: int | None, beams: int = 1
) -> dict[str, TensorSpec]:
    """Inputs of ``TranslationDecoder.forward``; ``seq_len`` counts tokens that are cached."""
    layers, heads, rows = config["num_layers"], config["num_heads"], batch * beams
    size, length = config["hidden_size"] // heads, seq_len or CACHED
    return {
        "input_ids": TensorSpec((rows, 1), "int64"),
        "cache": TensorSpec((layers, 2, rows, heads, length, size)),
        "source": TensorSpec((layers, 2, rows, heads, CACHED, size)),
        "scores": TensorSpec((rows,)),
        "lengths": TensorSpec((rows,), "int64"),
        "finished": TensorSpec((rows,), "bool"),
    }
