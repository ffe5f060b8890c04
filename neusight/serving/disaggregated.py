"""Prompts and answers on devices apart: one pool computes prompts, another generates, and the cache travels between.

The pool that generates computes the last token of a prompt again, from which it samples the first of the answer (vLLM,
``NixlConnector.get_num_new_matched_tokens``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from neusight.serving.batching import RequestLedger
from neusight.serving.load import Load, Requests
from neusight.serving.run import EnginePasses, ServingRun
from neusight.serving.simulate import Pool, RoutedEngines


@dataclass(frozen=True, kw_only=True)
class CacheTransfer:
    """How the cache of a prompt travels: ``of`` tells the time [s] from tokens, shape (n,).

    Transfers of one engine follow one another. ``layers`` of them that travel while others are computed, as Mooncake
    has it (Qin et al. 2025, section 5.2), leave what does not fit beside the prompt's passes, and the last layer; 1
    where all travels behind the prompt (NIXL in vLLM, which reads when the prompt has ended).
    """

    of: Callable[[np.ndarray], np.ndarray]
    layers: int = 1


@dataclass(frozen=True, kw_only=True)
class ApartRun:
    """What became of a load: of prompts, of answers, and of each request as a whole; what transfers added [s], of
    shape (n,).
    """

    prefill: ServingRun
    decode: ServingRun
    whole: ServingRun
    transfer_s: np.ndarray


def simulate_apart(
    load: Load, prefill: Pool, decode: Pool, transfer: CacheTransfer, between_s: float = 0.0
) -> ApartRun:
    """Serve a load until the last request is done.

    Args:
        load: what is served.
        prefill: computes prompts.
        decode: generates.
        transfer: of the cache between them.
        between_s: from the end of an answer until the next request of its client is there [s].

    Raises:
        LoadError: a load that makes no sense, or a request that an engine cannot run even alone.
    """
    requests = load.requests()
    prompts = replace(requests, output_tokens=np.ones_like(requests.output_tokens))
    prefill.limits.check(prompts)
    decode.limits.check(requests)
    pools = _Pools(requests, prompts, prefill, decode, transfer)
    pools.serve(between_s)
    return pools.run()


class _Pools:
    """Both pools; what ends or arrives first happens first."""

    def __init__(
        self, requests: Requests, prompts: Requests, prefill: Pool, decode: Pool, transfer: CacheTransfer
    ) -> None:
        answers = RequestLedger(requests, decode.limits)
        # All but the last token of a prompt comes with the cache.
        answers.hits = (requests.prompt_tokens - 1 - np.array(answers.cached)).tolist()
        answers.sessions = [-1] * len(requests)
        self.prefill = RoutedEngines(RequestLedger(prompts, prefill.limits), prefill)
        self.decode = RoutedEngines(answers, decode)
        self.decode.arrival_s = [0.0] * len(requests)
        self.layers = transfer.layers
        lengths, at = np.unique(requests.prompt_tokens, return_inverse=True)
        self.transfer_s: list[float] = transfer.of(lengths)[at].tolist()
        self.added_s = [0.0] * len(requests)
        self.free_s = [0.0] * prefill.routing.schedulers

    def serve(self, between_s: float) -> None:
        """Until nothing is left."""
        self.prefill.between_s = between_s
        for request, arrival_s in enumerate(self.prefill.arrival_s):
            self.prefill.expect(request, arrival_s)
        while (first_s := min(self.prefill.next_s(), self.decode.next_s())) < inf:
            if self.prefill.next_s() == first_s:
                self.prefill.step(self.sent)
            else:
                self.decode.step(self.prefill.answered)

    def sent(self, request: int, end_s: float, at: int) -> None:
        """A prompt has ended: what of its cache has not travelled beside it does when the engine's link is free."""
        whole_s = self.transfer_s[request]
        computing_s = end_s - self.prefill.ledger.admitted_s[request]
        beside_s = min(computing_s, whole_s * (1 - 1 / self.layers))
        arrival_s = max(end_s, self.free_s[at]) + whole_s - beside_s
        self.free_s[at], self.added_s[request] = arrival_s, arrival_s - end_s
        self.decode.arrival_s[request] = arrival_s
        self.decode.expect(request, arrival_s)

    def run(self) -> ApartRun:
        """What came of it: the first token is that of the pool that generates."""
        prefill, decode = self.prefill.run(), self.decode.run()
        # The token that a prompt ends with is made again; a cache counts by its share.
        capacities = decode.kv_capacity_tokens, prefill.kv_capacity_tokens
        scale = 1.0 if inf in capacities else capacities[0] / capacities[1]
        own = prefill.passes
        own = replace(own, ended=np.zeros_like(own.ended), kv_tokens=np.rint(scale * own.kv_tokens).astype(np.int64))
        together = replace(
            decode,
            arrival_s=prefill.arrival_s,
            admitted_s=prefill.admitted_s,
            cached_tokens=prefill.cached_tokens,
            preempted=prefill.preempted + decode.preempted,
            passes=EnginePasses.together([own, decode.passes]),
            schedulers=prefill.schedulers + decode.schedulers,
            opened=prefill.opened,
        )
        return ApartRun(prefill=prefill, decode=decode, whole=together, transfer_s=np.array(self.added_s))
