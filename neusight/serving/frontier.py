"""What a deployment trades between throughput and latency: more clients at once, until throughput stops growing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neusight.serving.answer import ServingEstimate, answer
from neusight.serving.deployment import Deployment
from neusight.serving.load import Closed, TokenCounts

PER_CLIENT = 10
"""Requests of each client of a closed load, as benchmarks of engines have them (``--num-prompts`` ten times
``--max-concurrency``): the times in which an engine fills and empties are a small part of the whole."""
FEWEST = 32
"""Requests of a closed load at least."""
STILL_GROWS = 1.01
"""Factor of throughput below which twice the clients count as no gain (assumption)."""


def closed(concurrency: int, isl: TokenCounts, osl: TokenCounts, *, number: int | None = None, seed: int = 0) -> Closed:
    """Clients with ten requests each, unless told."""
    most = max(FEWEST, PER_CLIENT * concurrency)
    return Closed(concurrency=concurrency, number=number or most, isl=isl, osl=osl, seed=seed)


def frontier(
    deployment: Deployment,
    isl: TokenCounts,
    osl: TokenCounts,
    *,
    concurrencies: Sequence[int] | None = None,
    seed: int = 0,
) -> list[ServingEstimate]:
    """Answers with more and more clients.

    Args:
        deployment: what serves them.
        isl: tokens of prompts.
        osl: tokens of answers.
        concurrencies: how many clients; else 1, 2, 4, … until throughput grows by less than ``STILL_GROWS`` or as many
            as the engine runs together.
        seed: of what is drawn.

    Raises:
        ModelError: the model does not fit. LoadError: a request that cannot run.
    """
    if concurrencies is not None:
        return [answer(deployment, closed(n, isl, osl, seed=seed)) for n in concurrencies]
    found: list[ServingEstimate] = []
    for n in _doubled(most_clients(deployment)):
        found.append(answer(deployment, closed(n, isl, osl, seed=seed)))
        rates = [each.output_tokens_per_s.mean for each in found[-2:]]
        if len(rates) > 1 and rates[1] < STILL_GROWS * rates[0]:
            break
    return found


def most_clients(deployment: Deployment) -> int:
    """Whose requests the engines' limits let run together."""
    return deployment.groups * deployment.limits.max_num_seqs


def best_trades(estimates: Sequence[ServingEstimate]) -> list[bool]:
    """Which are not beaten by another in both output tokens a second of each device and of each user."""
    points = [(e.output_tokens_per_s_per_device, e.output_tokens_per_s_per_user or 0.0) for e in estimates]
    return [not any(_beats(other, own) for other in points) for own in points]


def _beats(other: tuple[float, float], own: tuple[float, float]) -> bool:
    return other != own and other[0] >= own[0] and other[1] >= own[1]


def _doubled(end: int) -> Iterator[int]:
    n = 1
    while n < end:
        yield n
        n *= 2
    yield end
