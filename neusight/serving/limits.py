"""``EngineLimits``: what may run together, and whether each request can run at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from neusight.engines.server import VLLM, Scheduler
from neusight.errors import LoadError
from neusight.serving.load import Requests
from neusight.serving.speculation import Speculation


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What an engine is started with.

    Attributes:
        max_num_seqs: requests that run together.
        max_num_batched_tokens: new tokens of one pass, None for any number; of SGLang its ``--chunked-prefill-size``,
            which holds for prompts alone.
        chunked_prefill: a prompt may be cut where a pass is full; else it waits for a pass that holds it whole.
        prefix_cached_tokens: of the prefix that all prompts begin with, which the cache holds from the start. Whole
            blocks of it are used; the last token of a prompt is always computed.
        prefix_hit: the share of each prompt that the cache holds when it comes, in whole blocks, each of which counts
            as its own; of a load with sessions what they left counts instead.
        kv_tokens: tokens that the KV cache holds, None for any number.
        host_tokens: tokens that the host's memory holds of what sessions left, 0 for none.
        restore_s: what bringing a token back from there takes [s], while the layers behind it are computed.
        block_tokens: tokens of a block, in which the cache is given out.
        max_model_len: the longest sequence, prompt and output, None for any.
        scheduler: one of ``SCHEDULERS``, or one's own.
        overlapped: a pass is composed when the one before it begins, else when that ends.
        recv_interval: passes that only generate between two looks at new requests.
        batch_wait: passes that prompts wait for more of them, while others generate.
        groups: that have a scheduler each and run their passes together.
        speculation: what decodes bring beside their last token, None for nothing.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = 8192
    chunked_prefill: bool = True
    prefix_cached_tokens: int = 0
    prefix_hit: float = 0.0
    kv_tokens: int | None = None
    host_tokens: int = 0
    restore_s: float = 0.0
    block_tokens: int = 16
    max_model_len: int | None = None
    scheduler: Scheduler = VLLM
    overlapped: bool = False
    recv_interval: int = 1
    batch_wait: int = 0
    groups: int = 1
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_tokens", "block_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LoadError(f"{name} = {value}: give at least 1")
        tokens = self.max_num_batched_tokens
        if tokens is not None and tokens < self.queries * self.max_num_seqs and not self.scheduler.prompts_apart:
            each = "a token" if self.queries == 1 else f"{self.queries} tokens"
            raise LoadError(
                f"max_num_batched_tokens {tokens} is less than max_num_seqs {self.max_num_seqs}: "
                f"each running request needs {each} of a pass, raise the one or lower the other"
            )

    def passes_until_all_wait(self, requests: Requests) -> int:
        """Passes after which each group has a prompt, ``batch_wait`` at most: one comes to a group in as many as an
        answer takes for each of its clients, and the last of g groups gets one after the sum of 1/i of these.
        """
        each = float(requests.output_tokens.mean()) / requests.concurrency if requests.concurrency else inf
        return max(1, int(min(self.batch_wait, each * sum(1 / i for i in range(1, self.groups + 1)))))

    @property
    def queries(self) -> int:
        """Tokens that each decode brings to a pass."""
        return self.speculation.queries if self.speculation else 1

    @property
    def gain(self) -> float:
        """Tokens that each decode takes from a pass, on average."""
        return self.speculation.gain if self.speculation else 1.0

    @property
    def overshoot(self) -> int:
        """Tokens beyond the end of an answer that its last pass may give."""
        return ceil(self.gain) - 1

    @property
    def prefix_tokens(self) -> int:
        """Of the shared prefix, those in whole blocks."""
        return self.prefix_cached_tokens // self.block_tokens * self.block_tokens

    def cached_tokens(self, prompt_tokens: np.ndarray) -> np.ndarray:
        """Of prompts, those that the cache holds from the start: whole blocks, never all of a prompt; shape (n,)."""
        blocks = np.minimum(self.prefix_tokens, prompt_tokens - 1) // self.block_tokens
        return np.asarray(blocks * self.block_tokens)

    def hit_tokens(self, requests: Requests) -> np.ndarray:
        """Of prompts, those that the cache holds when they come; shape (n,)."""
        own = np.minimum(np.floor(self.prefix_hit * requests.prompt_tokens), requests.prompt_tokens - 1)
        cached = self.cached_tokens(requests.prompt_tokens)
        if requests.sessions is not None:
            return cached
        return np.maximum(cached, own.astype(np.int64) // self.block_tokens * self.block_tokens)

    def check(self, requests: Requests) -> None:
        """Whether each request can run when it is alone.

        Raises:
            LoadError: a request that is longer than the model takes, than the cache, or than a pass where prompts are
                not cut.
        """
        total = requests.prompt_tokens + requests.output_tokens
        if self.max_model_len is not None:
            _fits(requests, total, self.max_model_len, "max_model_len is {}: raise it or shorten the request")
        if self.kv_tokens is not None:
            # The last token is sampled and never stored. Blocks are never shared but for those of the prefix.
            needs = -(-(total - 1 + self.overshoot) // self.block_tokens) * self.block_tokens
            needs = needs + self.prefix_tokens - self.cached_tokens(requests.prompt_tokens)
            held = self.kv_tokens // self.block_tokens * self.block_tokens
            _fits(requests, needs, held, "the KV cache holds {}: more memory, devices or a narrower cache")
        if self.max_num_batched_tokens is not None and not self.chunked_prefill:
            # What lost its place is computed anew with all that it had generated.
            again = 0 if self.kv_tokens is None or self.scheduler.reserved_output == 1 else requests.output_tokens - 1
            new = requests.prompt_tokens - self.cached_tokens(requests.prompt_tokens) + again
            _fits(requests, new, self.max_num_batched_tokens, "max_num_batched_tokens is {}: raise it or cut prompts")


def _fits(requests: Requests, needs: np.ndarray, limit: int, what: str) -> None:
    at = int(np.argmax(needs))
    if needs[at] > limit:
        prompt, output = requests.prompt_tokens[at], requests.output_tokens[at]
        need = f"request {at + 1} with {prompt} prompt and {output} output tokens needs {needs[at]} at once"
        raise LoadError(f"{need}, and {what.format(limit)}")
