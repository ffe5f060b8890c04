"""DLRM (Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

_EXACT_ROWS = 1000
"""Rows counted one by one; beyond them probabilities change so slowly that a bin stands for its rows."""
_BINS = 4000


class Dlrm(nn.Module):
    """Dense features through a network, sparse ones through tables, products of all pairs, and a second network.

    As in the published code (``dlrm_s_pytorch.py``): one bag of embeddings a table, sums in a bag, products below the
    diagonal, gradients of tables sparse.
    """

    pairs: torch.Tensor

    def __init__(self, config: Mapping[str, Any], skew: float = 0.0) -> None:
        super().__init__()
        width, tables = config["embedding_dim"], config["tables"]
        self.bottom = _network((config["dense_features"], *config["bottom"], width), last=nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for rows in tables)
        vectors = len(tables) + 1
        self.top = _network((vectors * (vectors - 1) // 2 + width, *config["top"], 1), last=nn.Sigmoid())
        self.skew = skew
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Probabilities of a click, of shape (batch,).

        Args:
            dense: of shape (batch, dense features).
            indices: rows to look up, of shape (tables, batch * lookups).
            offsets: where the bag of each sample begins, of shape (tables, batch).
        """
        x = self.bottom(dense)
        bags = [self._bag(table, indices[i], offsets[i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *bags], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)

    def _bag(self, table: Any, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows lie by how often they are asked for, so that a skewed batch reads the first ones of a table.

        In training tables are read whole, as their gradient has the places of all rows.
        """
        if not self.skew or self.training:
            return table(indices, offsets)
        rows = expected_rows(table.num_embeddings, indices.numel(), self.skew)
        return functional.embedding_bag(indices, table.weight.narrow(0, 0, rows), offsets, mode="sum")


def _network(sizes: Sequence[int], last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, made in pairwise(sizes):
        layers += [nn.Linear(width, made), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


def expected_rows(rows: int, lookups: int, skew: float) -> int:
    """Distinct rows among ``lookups`` independent ones of a table of ``rows``, on average.

    Row i is asked for with a probability in proportion to i^-skew (Zipf's law), so that sum_i 1 - (1 - p_i)^lookups
    of them are; 0 is uniform.
    """
    edges = np.unique(np.round(np.geomspace(_EXACT_ROWS, max(rows, _EXACT_ROWS), _BINS)))
    starts = np.concatenate([np.arange(1, _EXACT_ROWS), edges[:-1]]) if rows > _EXACT_ROWS else np.arange(1, rows + 1)
    ends = np.append(starts[1:], rows + 1)
    weight = ((starts + ends - 1) / 2.0) ** -skew
    share = weight / np.sum(weight * (ends - starts))
    met = -np.expm1(lookups * np.log1p(-np.minimum(share, 1 - 1e-12)))
    return max(1, min(rows, round(float(np.sum(met * (ends - starts))))))


def inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``Dlrm.forward``."""
    tables, lookups = len(config["tables"]), config.get("lookups", 1)
    return {
        "dense": TensorSpec((batch, config["dense_features"])),
        "indices": TensorSpec((tables, batch * lookups), "int64"),
        "offsets": TensorSpec((tables, batch), "int64"),
    }


class WideAndDeep(nn.Module):
    """A sum of a weight a category and number, and a network over their embeddings (Cheng et al. 2016, "Wide & deep
    learning for recommender systems").

    As in NVIDIA's example for TensorFlow 2: some features have several categories, whose embeddings are masked where
    they are none, and averaged.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = [(rows, width) for rows, width, _ in config["tables"]]
        self.deep = nn.ModuleList(nn.Embedding(rows, width, sparse=True) for rows, width in sizes)
        self.wide = nn.ModuleList(nn.Embedding(rows, 1, sparse=True) for rows, _ in sizes)
        self.numbers = nn.Linear(config["dense_features"], 1)
        width_in = config["dense_features"] + sum(width for _, width in sizes)
        layers: list[nn.Module] = []
        for before, after in pairwise((width_in, *config["hidden"])):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(config["dropout"])]
        self.network = nn.Sequential(*layers, nn.Linear(config["hidden"][-1], 1))

    def forward(self, dense: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        """Probabilities of a click, of shape (batch, 1).

        Args:
            dense: of shape (batch, dense features).
            indices: of each table, of shape (batch, categories of a sample).
        """
        deep = [_looked_up(table, of, mean=True) for table, of in zip(self.deep, indices, strict=True)]
        wide = [_looked_up(table, of, mean=False) for table, of in zip(self.wide, indices, strict=True)]
        network = self.network(torch.cat([*deep, dense], dim=1))
        return torch.sigmoid(sum(wide, self.numbers(dense)) + network)


def _looked_up(table: Any, indices: torch.Tensor, *, mean: bool) -> torch.Tensor:
    if indices.shape[1] == 1:
        return table(indices.squeeze(1))
    rows = table(indices)
    there = (indices >= 0).to(rows.dtype).unsqueeze(-1)
    summed = (rows * there).sum(1)
    return summed / there.sum(1) if mean else summed


def wide_inputs(config: Mapping[str, Any], batch: int) -> list[TensorSpec]:
    """Inputs of ``WideAndDeep.forward``."""
    several = [TensorSpec((batch, count), "int64") for _, _, count in config["tables"]]
    return [TensorSpec((batch, config["dense_features"])), *several]
