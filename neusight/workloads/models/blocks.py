"""Layers and losses by themselves, as benchmarks of kernels time them: ``block:NAME@SIZE=…``, each as it is usually
written in PyTorch, and the loop around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Timed(nn.Module):
    """A block in a loop that runs it forward and backward on the same tensors: from ``round`` 1 on gradients of weights
    are there already, from 2 on those of inputs as well; round 0 ends before the sum of a result that is ``summed`` for
    its backward pass. The last of the inputs may be ``fixed``, without a gradient.
    """

    def __init__(
        self, block: nn.Module, *shapes: tuple[int, ...], round_: int = 2, summed: bool = False, fixed: int = 0
    ) -> None:
        super().__init__()
        self.block, self.round, self.summed = block, round_, summed
        needs = [place < len(shapes) - fixed for place in range(len(shapes))]
        self.inputs = nn.ParameterList(
            nn.Parameter(torch.empty(shape), requires_grad=grad) for shape, grad in zip(shapes, needs, strict=True)
        )
        self._result: Any = None

    def forward(self) -> dict[str, torch.Tensor]:
        """A scalar whose gradient is the block's: that of the result, where it is none, stands ready."""
        for parameter in [(), self.block.parameters(), self.parameters()][self.round]:
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        self._result = self.block(*self.inputs)
        results = self._result if isinstance(self._result, tuple) else (self._result,)
        if self.summed and self.round:
            return {"loss": results[0].sum()}
        return {"loss": results[0]} if not results[0].dim() else {"probe": _Probe.apply(*results)}


class _Probe(torch.autograd.Function):
    """Gives back a gradient that was there before, without a kernel."""

    @staticmethod
    def forward(ctx: Any, *results: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        ctx.save_for_backward(*map(torch.empty_like, results))
        return results[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """The gradients."""
        return ctx.saved_tensors


class _Prepared(torch.autograd.Function):
    """Log probabilities of logits that were there before, whose gradient goes through the softmax."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        """Tensor of the shape of the logits."""
        result = torch.empty_like(logits)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient of the logits."""
        (result,) = ctx.saved_tensors
        return torch.ops.aten._log_softmax_backward_data(gradient, result, -1, result.dtype)


class RmsNorm(nn.Module):
    """RMS norm of Hugging Face's Llama: computed in float32, and cast back."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised rows of the shape of ``x``."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class AddRmsNorm(nn.Module):
    """The residual stream plus a layer's result, and its norm, ``scaled`` once more; both are passed on."""

    def __init__(self, hidden: int, scaled: bool = False) -> None:
        super().__init__()
        self.norm = RmsNorm(hidden)
        self.weight = nn.Parameter(torch.ones(hidden)) if scaled else None

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm and the sum."""
        residual = x + residual
        norm = self.norm(residual)
        return norm if self.weight is None else self.weight * norm, residual


class GatedMlp(nn.Module):
    """Gate, up and down without biases (Shazeer 2020, GLU variants improve Transformer)."""

    def __init__(self, hidden: int, intermediate: int, activation: str) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)
        self.activation = nn.SiLU() if activation == "silu" else nn.GELU("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Result of the shape of ``x``."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Gate(nn.Module):
    """SwiGLU of one tensor that contains both halves, like Megatron's."""

    def forward(self, both: torch.Tensor) -> torch.Tensor:
        """Gated values of half the width."""
        gate, up = torch.chunk(both, 2, -1)
        return functional.silu(gate) * up


class Plain(nn.Module):
    """A function of its inputs."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Its value."""
        return self.function(*given)


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    """Martins and Astudillo 2016, algorithm 1, over the last dimension."""
    ordered, _ = torch.sort(x.float(), dim=-1, descending=True)
    total = ordered.cumsum(dim=-1) - 1
    place = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=ordered.dtype)
    support = (ordered * place > total).sum(dim=-1, keepdim=True)
    threshold = total.gather(-1, support - 1) / support
    return torch.clamp(x - threshold, min=0)


def cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of rows of logits with one class each."""
    return functional.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device))


def divergence(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler's of a softmax, summed over classes and averaged over rows."""
    return functional.kl_div(_Prepared.apply(x), target, reduction="batchmean")


def jensen_shannon(log_q: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Jensen and Shannon's divergence of log probabilities."""
    log_p, log_q = log_p.float(), log_q.float()
    middle = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    of = functional.kl_div(torch.log(middle), log_p, reduction="batchmean", log_target=True)
    other = functional.kl_div(torch.log(middle), log_q, reduction="batchmean", log_target=True)
    return 0.5 * of + 0.5 * other


class Head(nn.Module):
    """A product with the vocabulary and a loss of its logits.

    ``kind``: ``cross-entropy``; of pairs of chosen and rejected sequences ``orpo`` (Hong et al. 2024), ``cpo`` (Xu et
    al. 2024) or ``simpo`` (Meng et al. 2024); ``grpo`` of a group of sequences (Shao et al. 2024), with log
    probabilities of a reference.
    """

    target: torch.Tensor

    def __init__(self, hidden: int, vocabulary: int, kind: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.kind = kind
        self.register_buffer("target", torch.zeros(shape, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        logits = self.head(x)
        if self.kind == "cross-entropy":
            return functional.cross_entropy(logits.flatten(0, 1), self.target.flatten())
        return {"orpo": self._orpo, "cpo": self._pairs, "simpo": self._pairs, "grpo": self._grpo}[self.kind](logits)

    def _cross_entropy(self, logits: torch.Tensor) -> torch.Tensor:
        half = logits.shape[0] // 2
        return functional.cross_entropy(logits[:half].reshape(-1, logits.shape[-1]), self.target[:half].reshape(-1))

    def _orpo(self, logits: torch.Tensor) -> torch.Tensor:
        of_sequences = functional.log_softmax(logits, dim=-1).mean(dim=-1)
        chosen, rejected = of_sequences.chunk(2)
        odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return self._cross_entropy(logits) - 0.1 * functional.logsigmoid(odds).mean()

    def _pairs(self, logits: torch.Tensor) -> torch.Tensor:
        of_tokens = self._of_targets(functional.log_softmax(logits.float(), dim=-1))
        chosen, rejected = of_tokens.sum(-1).chunk(2)
        loss = -functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        return loss + self._cross_entropy(logits)

    def _grpo(self, logits: torch.Tensor) -> torch.Tensor:
        of_tokens = self._of_targets(functional.log_softmax(logits.float(), dim=-1))
        ratio = torch.exp(of_tokens - of_tokens.detach())
        return -torch.min(ratio, torch.clamp(ratio, 0.8, 1.2)).mean()

    def _of_targets(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        return log_probabilities.gather(-1, self.target.unsqueeze(-1)).squeeze(-1)


class Distillation(nn.Module):
    """Heads of a student and of its teacher: half cross-entropy, half a distance of their logits, ``cosine`` or
    ``jsd``. The teacher's has a gradient, which nobody takes, unless it is frozen.
    """

    target: torch.Tensor

    def __init__(self, hidden: int, vocabulary: int, kind: str, tokens: int) -> None:
        super().__init__()
        self.student = nn.Linear(hidden // 2, vocabulary, bias=False)
        self.teacher = nn.Linear(hidden, vocabulary, bias=False)
        self.kind = kind
        self.register_buffer("target", torch.zeros(tokens, dtype=torch.long))

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """A scalar."""
        mine, other = self.student(student).float(), self.teacher(teacher).float()
        hard = functional.cross_entropy(mine, self.target)
        if self.kind == "cosine":
            mine, other = functional.normalize(mine, dim=-1), functional.normalize(other, dim=-1)
            return 0.5 * hard + 0.5 * (1 - functional.cosine_similarity(mine, other, dim=-1)).mean()
        mine, other = functional.log_softmax(mine, dim=-1), functional.log_softmax(other, dim=-1)
        return 0.5 * hard + 0.5 * jensen_shannon(mine, other)


class Neighbourhood(nn.Module):
    """Attention to some neighbours, whose mask a loop writes cell by cell (Hassani et al. 2023)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.hidden = Hidden()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Result of the shape of ``x``, (batch, length, hidden)."""
        q, k, v = (of(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for of in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
        scores = scores.masked_fill(self.hidden(x), float("-inf"))
        result = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.out(result.transpose(1, 2).contiguous().flatten(2))


class Hidden(nn.Module):
    """Which keys a query does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = Mask()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mask of hidden pairs of shape (length, length)."""
        return ~self.mask(x)


class Mask(nn.Module):
    """Which keys a query sees, of which a loop writes the first cell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mask of shape (length, length)."""
        mask = torch.zeros(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool)
        mask[0, 0] = True
        return mask


Sizes = dict[str, int]
Made = Callable[[Sizes], nn.Module]


def _rows(sizes: Sizes) -> tuple[int, int]:
    return sizes["tokens"], sizes["hidden"]


def _timer(make: Made, inputs: int = 1, summed: bool = False, fixed: int = 0) -> Made:
    """Maker of a timed block with inputs of (tokens, hidden)."""
    return lambda sizes: Timed(make(sizes), *[_rows(sizes)] * inputs, round_=sizes["round"], summed=summed, fixed=fixed)


def _head(kind: str) -> Made:
    def make(sizes: Sizes) -> nn.Module:
        shape = (sizes["batch"], sizes["tokens"])
        block = Head(sizes["hidden"], sizes["vocabulary"], kind, shape)
        return Timed(block, (*shape, sizes["hidden"]), round_=sizes["round"])

    return make


def _distillation(kind: str, frozen: bool) -> Made:
    def make(sizes: Sizes) -> nn.Module:
        tokens, hidden = _rows(sizes)
        block = Distillation(hidden, sizes["vocabulary"], kind, tokens)
        block.teacher.requires_grad_(not frozen)
        return Timed(block, (tokens, hidden // 2), (tokens, hidden), round_=sizes["round"], fixed=1)

    return make


def _neighbourhood(sizes: Sizes) -> nn.Module:
    block = Neighbourhood(sizes["hidden"], sizes["heads"])
    return Timed(block, (sizes["batch"], *_rows(sizes)), round_=sizes["round"])


def _encoder_layer(sizes: Sizes) -> nn.Module:
    hidden = sizes["hidden"]
    block = nn.TransformerEncoderLayer(hidden, sizes["heads"], 4 * hidden, activation="gelu", batch_first=True)
    return Timed(block, (sizes["batch"], *_rows(sizes)), round_=sizes["round"])


_TWO = ("hidden", "round", "tokens")
_OF_HEADS = (*_TWO, "batch", "vocabulary")
BLOCKS: dict[str, tuple[tuple[str, ...], Made]] = {
    "rms-norm": (_TWO, _timer(lambda s: RmsNorm(s["hidden"]))),
    "torch-rms-norm": (_TWO, _timer(lambda s: nn.RMSNorm(s["hidden"]), summed=True)),
    "add-rms-norm": (_TWO, _timer(lambda s: AddRmsNorm(s["hidden"]), 2)),
    "add-rms-norm-scaled": (_TWO, _timer(lambda s: AddRmsNorm(s["hidden"], scaled=True), 2)),
    "swiglu": ((*_TWO, "intermediate"), _timer(lambda s: GatedMlp(s["hidden"], s["intermediate"], "silu"))),
    "geglu": ((*_TWO, "intermediate"), _timer(lambda s: GatedMlp(s["hidden"], s["intermediate"], "gelu"))),
    "gate": (_TWO, _timer(lambda _: Gate(), summed=True)),
    "softmax": (_TWO, _timer(lambda _: nn.Softmax(-1))),
    "sparsemax": (_TWO, _timer(lambda _: Plain(sparsemax))),
    "relu-squared": (_TWO, _timer(lambda _: Plain(lambda x: functional.relu(x) ** 2))),
    "cross-entropy": (_TWO, _timer(lambda _: Plain(cross_entropy))),
    "kl-div": (_TWO, _timer(lambda _: Plain(divergence), 2, fixed=1)),
    "jsd": (_TWO, _timer(lambda _: Plain(lambda q, p: jensen_shannon(_Prepared.apply(q), p)), 2, fixed=1)),
    **{f"linear-{kind}": (_OF_HEADS, _head(kind)) for kind in ("cross-entropy", "orpo", "cpo", "simpo", "grpo")},
    **{
        f"distill-{kind}{end}": ((*_TWO, "vocabulary"), _distillation(kind, bool(end)))
        for kind in ("cosine", "jsd")
        for end in ("", "-frozen")
    },
    "neighbourhood": ((*_TWO, "batch", "heads"), _neighbourhood),
    "encoder-layer": ((*_TWO, "batch", "heads"), _encoder_layer),
}
"""Sizes, and the block in its loop, by name."""
