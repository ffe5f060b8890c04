"""Networks of the TensorDash paper that the catalogue of workloads lacks, each with small real samples to learn from.

A function gives a module and inputs of the size that is priced; the module's ``samples`` draws what a training step is
given. Recurrent layers are linear ones, step by step, so that their zeros are seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.collect.sparsity.inputs import digits, enlarged
from neusight.collect.sparsity.text import WORDS, documentation

Sample = tuple[tuple[torch.Tensor, ...], torch.Tensor]
SENTENCE = 24
"""Words of a sentence: the first; shorter ones begin with padding."""
DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CAPTION_WORDS = ("begin", "end", "a", "thin", "bold", "then", *DIGIT_WORDS)
DIGITS_SHOWN = 3
CAPTION = 4 * DIGITS_SHOWN
"""Words of a caption, `a bold three` for each digit, `then` between and `end`."""
TRAINED_PIXELS, PRICED_PIXELS = 96, 299
NODES, NEIGHBOURS, FEATURES, HIDDEN, CLASSES = 1797, 9, 64, 256, 10
"""Of the graph of handwritten digits: images, each one's neighbours with itself, pixels, hidden units, and digits."""


class Lstm(nn.Module):
    """A layer of long short-term memory (Hochreiter and Schmidhuber 1997) of two linear layers: one for the inputs of
    all steps at once, one for the state, step by step.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 4 * hidden)
        self.state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs of all steps, (batch, steps, hidden), from (batch, steps, inputs)."""
        outputs: list[torch.Tensor] = []
        cell = x.new_zeros(())
        for gates in self.input(x).unbind(1):
            summed = gates + self.state(outputs[-1]) if outputs else gates
            enter, forget, new, leave = summed.chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            outputs.append(leave.sigmoid() * cell.tanh())
        return torch.stack(outputs, dim=1)


class SentencePairs(nn.Module):
    """The classifier of sentence pairs of Bowman et al. 2015 (SNLI) as PyTorch's example has it: words projected and
    rectified, one LSTM for both sentences, three rectified layers.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.embedding = nn.Embedding(WORDS, 100)
        self.projection = nn.Linear(100, 300)
        self.lstm = Lstm(300, 300)
        layers = (layer for _ in range(3) for layer in (nn.Linear(600, 600), nn.ReLU(), nn.Dropout(0.2)))
        self.out = nn.Sequential(*layers, nn.Linear(600, 3))

    def forward(self, premise: torch.Tensor, hypothesis: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 3) from words (batch, steps)."""
        return self.out(torch.cat([self._encoded(premise), self._encoded(hypothesis)], dim=1))

    def _encoded(self, words: torch.Tensor) -> torch.Tensor:
        return self.lstm(functional.relu(self.projection(self.embedding(words))))[:, -1]

    def samples(self) -> Sample:
        """Pairs of sentences of Python's reference: the second follows the first, is of its topic, or of another."""
        topics = documentation()
        classes = torch.randint(3, (self.batch,))
        pairs = [self._pair(topics, int(kind)) for kind in classes]
        first, second = (torch.stack([_padded(pair[side]) for pair in pairs]) for side in (0, 1))
        return (first, second), classes

    def _pair(self, topics: tuple[Any, ...], kind: int) -> tuple[Any, Any]:
        here, there = (topics[_below(len(topics))] for _ in range(2))
        at = _below(len(here) - 1)
        return here[at], (here[at + 1], here[_below(len(here))], there[_below(len(there))])[kind]


def _below(count: int) -> int:
    return int(torch.randint(count, ()))


def _padded(sentence: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0] * (SENTENCE - len(sentence)) + list(sentence[:SENTENCE]))


def sentence_pairs(batch: int = 128) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """SNLI: ``SentencePairs`` on two batches of sentences."""
    torch.manual_seed(0)
    return SentencePairs(batch), tuple(torch.zeros(batch, SENTENCE, dtype=torch.long) for _ in range(2))


class Captioner(nn.Module):
    """Show and Tell (Vinyals et al. 2015), img2txt: Inception v3 shows an LSTM of 512 units the image as its first
    word; it tells the others.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        from torchvision.models import inception_v3

        self.batch = batch
        self.encoder = inception_v3(aux_logits=False, init_weights=False)
        self.encoder.fc = nn.Linear(2048, 512)
        self.embedding = nn.Embedding(len(CAPTION_WORDS), 512)
        self.lstm = Lstm(512, 512)
        self.words = nn.Linear(512, len(CAPTION_WORDS))

    def forward(self, images: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Logits (batch, words, vocabulary) of the word after each."""
        seen = torch.cat([self.encoder(images)[:, None], self.embedding(words)], dim=1)
        return self.words(self.lstm(seen)[:, 1:])

    def samples(self) -> Sample:
        """Three handwritten digits side by side on 96x96 pixels, captioned from left to right, thin or bold."""
        images, classes = digits()
        chosen = torch.randint(len(images), (self.batch, DIGITS_SHOWN))
        bold = images.mean(dim=(1, 2)) > 0
        captions = torch.tensor(
            [_caption(own, heavy) for own, heavy in zip(classes[chosen].tolist(), bold[chosen].tolist(), strict=True)]
        )
        rows = images[chosen].transpose(1, 2).reshape(self.batch, 8, -1)
        shown = enlarged(rows, (self.batch, 3, TRAINED_PIXELS, TRAINED_PIXELS))
        return (shown, captions[:, :-1]), captions[:, 1:]


def _caption(shown: list[int], bold: list[bool]) -> list[int]:
    words = ["begin"]
    for digit, heavy in zip(shown, bold, strict=True):
        words += ["a", "bold" if heavy else "thin", DIGIT_WORDS[digit], "then"]
    return [CAPTION_WORDS.index(word) for word in (*words[:-1], "end")]


def captioner(batch: int = 16) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """img2txt: ``Captioner`` on images of Inception's own size."""
    torch.manual_seed(0)
    images = torch.zeros(batch, 3, PRICED_PIXELS, PRICED_PIXELS)
    return Captioner(batch), (images, torch.zeros(batch, CAPTION, dtype=torch.long))


class GatedConvolution(nn.Module):
    """A language model of gated convolutions (Dauphin et al. 2017): eight residual blocks of width 5, no rectifier."""

    def __init__(self, batch: int, steps: int, width: int = 256) -> None:
        super().__init__()
        self.shape = batch, steps
        self.embedding = nn.Embedding(WORDS, width)
        # Padded on both sides, and the outputs that would see what follows are cut off.
        self.blocks = nn.ModuleList(nn.Conv2d(width, 2 * width, (5, 1), padding=(4, 0)) for _ in range(8))
        self.words = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits (batch, steps, vocabulary) of the word after each."""
        x = self.embedding(words).transpose(1, 2)[..., None]
        for block in self.blocks:
            x = x + functional.glu(block(x)[:, :, : words.shape[1]], dim=1)
        return self.words(x[..., 0].transpose(1, 2))

    def samples(self) -> Sample:
        """Passages of Python's reference, whose next word is to be told."""
        text = torch.tensor([word for topic in documentation() for sentence in topic for word in sentence])
        batch, steps = self.shape
        begin = torch.randint(len(text) - steps, (batch, 1))
        passages = text[begin + torch.arange(steps + 1)]
        return (passages[:, :-1],), passages[:, 1:]


def gated_convolution(batch: int = 16, seq_len: int = 64) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """GCN, if its letters stand for gated convolutions: a language model."""
    torch.manual_seed(0)
    return GatedConvolution(batch, seq_len), (torch.zeros(batch, seq_len, dtype=torch.long),)


class GraphConvolution(nn.Module):
    """Two layers of graph convolution, ``Â relu(Â X W) W`` (Kipf and Welling 2017); ``Â X`` is gathered beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.second = nn.Linear(HIDDEN, CLASSES)

    def forward(self, gathered: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        """Logits (nodes, classes) from means over neighbours (nodes, features) and their places (nodes, neighbours)."""
        hidden = functional.relu(self.first(gathered))
        return self.second(hidden)[neighbours].mean(dim=1)

    def samples(self) -> Sample:
        """All handwritten digits as a graph, each joined with the eight that are most like it."""
        images, classes = digits()
        features = images.flatten(1) - images.flatten(1).mean(dim=0)
        places = torch.cdist(features, features).topk(NEIGHBOURS, largest=False).indices
        return (features[places].mean(dim=1), places), classes


def graph_convolution(batch: int = 1) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """GCN, if its letters stand for graph convolution: ``GraphConvolution`` of ``batch`` graphs."""
    torch.manual_seed(0)
    nodes = batch * NODES
    return GraphConvolution(), (torch.zeros(nodes, FEATURES), torch.zeros(nodes, NEIGHBOURS, dtype=torch.long))
