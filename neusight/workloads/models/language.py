"""Transformer-XL and GNMT, as NVIDIA's examples have them: attention to segments before, and stacked LSTMs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import log, sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

WORDS = 27
"""Word pieces of a sentence of WMT16 from English to German, on average of both sides."""
_EULER = 0.5772


class TransformerXl(nn.Module):
    """Layers that attend to the segment before as well, by relative positions, and adaptive logits (Dai et al. 2019,
    "Transformer-XL"; Grave et al. 2017, "Efficient softmax approximation for GPUs").
    """

    frequencies: torch.Tensor

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.width = config["width"]
        self.words = AdaptiveWords(self.width, (*config["cutoffs"], config["vocab_size"]), config["divided"])
        self.layers = nn.ModuleList(RelativeLayer(config) for _ in range(config["num_layers"]))
        self.dropout = nn.Dropout(config["dropout"])
        self.register_buffer("frequencies", torch.ones(self.width // 2), persistent=False)

    def forward(self, input_ids: torch.Tensor, memory: torch.Tensor) -> list[torch.Tensor]:
        """Log-probabilities of each cluster of words.

        Args:
            input_ids: of shape (batch, length).
            memory: what each layer read of the segment before, of shape (batch, layers, length before, width).
        """
        hidden = self.dropout(self.words.embed(input_ids) * sqrt(self.width))
        reach = memory.shape[2] + input_ids.shape[1]
        angles = torch.outer(torch.arange(reach - 1, -1, -1.0, device=hidden.device), self.frequencies)
        places = self.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1))
        for layer, before in zip(self.layers, memory.unbind(1), strict=True):
            hidden = layer(hidden, before, places)
        return self.words(self.dropout(hidden))


class RelativeLayer(nn.Module):
    """Attention with terms for content and for distance, and a feed-forward network; norms after the residual sums."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, self.heads, self.each = config["width"], config["num_heads"], config["head_dim"]
        inner, drop = self.heads * self.each, config["dropout"]
        self.joint, self.places = nn.Linear(width, 3 * inner, bias=False), nn.Linear(width, inner, bias=False)
        self.content = nn.Parameter(torch.zeros(self.heads, 1, self.each))
        self.distance = nn.Parameter(torch.zeros(self.heads, 1, self.each))
        self.out, self.norm = nn.Linear(inner, width, bias=False), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, config["inner"]), nn.ReLU(inplace=True), nn.Dropout(drop),
            nn.Linear(config["inner"], width), nn.Dropout(drop),
        )  # fmt: skip
        self.last_norm = nn.LayerNorm(width)
        self.dropout, self.of_scores = nn.Dropout(drop), nn.Dropout(config["attention_dropout"])

    def forward(self, hidden: torch.Tensor, before: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The layer's result, of the shape of ``hidden``.

        Args:
            hidden: of shape (batch, length, width).
            before: of shape (batch, length before, width).
            places: of each distance, of shape (length before + length, width).
        """
        length = hidden.shape[1]
        joint = self.joint(torch.cat([before, hidden], dim=1)).unflatten(-1, (3, self.heads, self.each))
        query, key, value = (part.transpose(1, 2) for part in joint.unbind(2))
        query = query[:, :, -length:]
        far = self.places(places).unflatten(-1, (self.heads, self.each)).transpose(0, 1)
        near = (query + self.content) @ key.transpose(-1, -2)
        scores = (near + _shift((query + self.distance) @ far.transpose(-1, -2))) * self.each**-0.5
        scores = scores.masked_fill(_later(scores), float("-inf"))
        heads = self.of_scores(scores.softmax(-1)) @ value
        hidden = self.norm(hidden + self.dropout(self.out(heads.transpose(1, 2).flatten(2))))
        return self.last_norm(hidden + self.feed_forward(hidden))


def _shift(scores: torch.Tensor) -> torch.Tensor:
    """Scores of distances as scores of places (Dai et al. 2019, appendix B)."""
    batch, heads, rows, columns = scores.shape
    padded = functional.pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].reshape(batch, heads, rows, columns)


def _later(scores: torch.Tensor) -> torch.Tensor:
    """Which places a query may not see."""
    rows, columns = scores.shape[-2:]
    whole = torch.ones((rows, columns), dtype=torch.bool, device=scores.device)
    return whole.triu(1 + columns - rows)


class AdaptiveWords(nn.Module):
    """Embeddings and logits of frequent words and of clusters of rare ones, which share their weights; each cluster has
    tokens as its words have by Zipf's law, and vectors ``divided`` times as wide as those of the one before.
    """

    def __init__(self, width: int, cutoffs: tuple[int, ...], divided: int) -> None:
        super().__init__()
        sizes = [(last - first, width // divided**at) for at, (first, last) in enumerate(pairwise((0, *cutoffs)))]
        counts = [_harmonic(cutoff) / _harmonic(cutoffs[-1]) for cutoff in cutoffs]
        self.shares = [counts[0], *(last - first for first, last in pairwise(counts))]
        self.tables = nn.ModuleList(nn.Embedding(words, narrow) for words, narrow in sizes)
        self.wider = nn.ModuleList(
            nn.Linear(narrow, width, bias=False) if narrow < width else nn.Identity() for _, narrow in sizes
        )
        self.clusters = nn.Parameter(torch.zeros(len(sizes) - 1, width))
        self.biases = nn.ParameterList(torch.zeros(words) for words, _ in sizes)
        self.cluster_bias = nn.Parameter(torch.zeros(len(sizes) - 1))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of shape (batch, length, width) of words of shape (batch, length)."""
        flat, ends = ids.flatten(), [round(ids.numel() * sum(self.shares[:at])) for at in range(len(self.shares))]
        parts = [flat[first:last] for first, last in pairwise((*ends, len(flat)))]
        vectors = [wider(table(part)) for wider, table, part in zip(self.wider, self.tables, parts, strict=True)]
        return torch.cat(vectors).unflatten(0, ids.shape)

    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Log-probabilities, of shape (tokens, words) of each cluster."""
        tokens = hidden.flatten(0, 1)
        weight = torch.cat([self.tables[0].weight, self.clusters])  # type: ignore[list-item]
        logits = [functional.linear(tokens, weight, torch.cat([self.biases[0], self.cluster_bias]))]
        for at, share in enumerate(self.shares[1:], start=1):
            rare, wider = tokens[: max(1, round(len(tokens) * share))], self.wider[at]
            narrow = rare @ wider.weight if isinstance(wider, nn.Linear) else rare
            logits.append(functional.linear(narrow, self.tables[at].weight, self.biases[at]))  # type: ignore[arg-type]
        return [cluster.log_softmax(-1) for cluster in logits]


def _harmonic(count: int) -> float:
    return log(count) + _EULER


class Gnmt(nn.Module):
    """Stacks of LSTMs, the first bidirectional, with attention of the decoder's first layer (Wu et al. 2016, "Google's
    neural machine translation system"; GNMT v2 of NVIDIA's example for PyTorch).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, layers = config["hidden_size"], config["num_layers"]
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.both = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        widths = [2 * width, *[width] * (layers - 2)]
        self.encoder = nn.ModuleList(nn.LSTM(inner, width, batch_first=True) for inner in widths)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.dropout = nn.Dropout(config["dropout"])
        self.head = nn.Linear(width, config["vocab_size"])

    def forward(self, input_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, words) of sentences and their translations, (batch, length) each."""
        hidden, _ = self.both(self.dropout(self.embedding(input_ids)))
        for at, layer in enumerate(self.encoder):
            result, _ = layer(self.dropout(hidden))
            hidden = result + hidden if at else result
        states, _ = self.first(self.dropout(self.embedding(target_ids)))
        context = self.attention(states, hidden)
        for at, layer in enumerate(self.decoder):
            result, _ = layer(torch.cat([self.dropout(states), context], dim=2))
            states = result + states if at else result
        return self.head(states)


class AdditiveAttention(nn.Module):
    """Scores by a network of one layer (Bahdanau et al. 2015), its weight normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.weight, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Sums of ``memory`` (batch, length, width) for each of ``states``, of their shape."""
        both = self.query(states).unsqueeze(2) + self.key(memory).unsqueeze(1) + self.bias
        scores = torch.tanh(both) @ (self.weight / self.weight.norm() * self.scale)
        return scores.softmax(-1) @ memory


def segment_inputs(config: Mapping[str, Any], batch: int, seq_len: int | None) -> dict[str, TensorSpec]:
    """Inputs of ``TransformerXl.forward``; the segment before is as long."""
    length = seq_len or config["length"]
    return {
        "input_ids": TensorSpec((batch, length), "int64"),
        "memory": TensorSpec((batch, config["num_layers"], length, config["width"])),
    }


def sentence_inputs(config: Mapping[str, Any], batch: int, seq_len: int | None) -> dict[str, TensorSpec]:
    """Inputs of ``Gnmt.forward``."""
    return {name: TensorSpec((batch, seq_len or WORDS), "int64") for name in ("input_ids", "target_ids")}
