"""``Local``: what one rank has of a micro-batch, and in which precision it works on it."""

from __future__ import annotations

from dataclasses import dataclass

from neusight.workloads.decoders.layers import shared_evenly


@dataclass(frozen=True, kw_only=True)
class Local:
    """One rank's share of a micro-batch of ``batch`` sequences of ``seq_len`` tokens.

    ``tp`` ranks share every matrix, ``cp`` every sequence, ``ep`` the experts whole and ``etp`` each expert. With
    ``sequence_parallel`` the ``tp`` ranks share norms and the residual stream by tokens. ``dtype`` is that of
    activations and of weights in products, ``products`` that of large products where it is narrower (``fp8``), else "".
    """

    batch: int
    seq_len: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    dtype: str = "bfloat16"
    products: str = ""

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
