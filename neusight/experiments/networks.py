"""Small networks that experiments train: what the catalogue of workloads lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NODES, FEATURES, HIDDEN, CLASSES = 2048, 512, 256, 64


def bert_layer(batch: int = 4) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """One encoder layer of BERT base on ``batch`` sequences of 128 tokens: GELU, so that dropout alone makes zeros."""
    import torch
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    class EncoderLayer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = BertLayer(BertConfig(attn_implementation="eager"))  # type: ignore[call-arg]

        def forward(self, hidden: torch.Tensor) -> Any:
            out = self.layer(hidden)
            return out[0] if isinstance(out, tuple) else out

    torch.manual_seed(0)
    return EncoderLayer(), (torch.randn(batch, 128, 768),)


def graph_convolution(batch: int = 1) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Two layers of graph convolution, ``σ(Â X W)`` (Kipf and Welling 2017), with ``Â X`` of ``batch`` graphs gathered
    beforehand and smooth activations: a network without zeros.
    """
    import torch

    class GraphConvolution(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(FEATURES, HIDDEN)
            self.second = torch.nn.Linear(HIDDEN, CLASSES)

        def forward(self, gathered: torch.Tensor) -> Any:
            return self.second(torch.nn.functional.elu(self.first(gathered)))

    torch.manual_seed(0)
    return GraphConvolution(), (torch.randn(batch * NODES, FEATURES),)
