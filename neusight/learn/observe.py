r"""``neusight observe``: constants of an engine as one server has them, from what the server says of its passes.

The mechanism of ``learn.engines``, for one server: a time per token is a sum of kernels by group, each with the
engine's factor, and of host time. Priors are centred on the constants that ship, as wide as engines differ from each
other; and all terms are longer or shorter by what constants leave unexplained of a model on a GPU, which one server
shows:

.. math:: \log t_i = s + \log \sum_k T_{ik} \exp x_k + noise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neusight.engines.server import COMMON, shipped_constants
from neusight.learn.engines import NAMES, priors_around, terms_of
from neusight.learn.sums import SumObservation, fit_sums, robust_spread
from neusight.serving.deployment import Deployment
from neusight.serving.logs import ServerWindows
from neusight.workloads.decoders.shares import Steps


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Constants ``before`` and ``after`` a server was observed; errors in percent of its times per token, in the later
    half of the windows, which constants fitted to the earlier half had not seen.
    """

    era: str
    windows: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    error_before: float
    error_after: float


def observe(deployment: Deployment, windows: ServerWindows) -> Observed:
    """Fit constants to windows of a server that runs a deployment.

    Raises:
        ModelError: the deployment does not fit, or its engine has no constants.
    """
    era, half = deployment.server.era, len(windows) // 2
    shipped = shipped_constants(era)
    terms, pass_s = pass_terms(deployment, windows), windows.token_s * deployment.limits.gain

    def log_ratio(constants: Mapping[str, float]) -> np.ndarray:
        return np.log(terms[half:] @ [constants[name] for name in NAMES] / pass_s[half:])

    early = _fitted(terms[:half], pass_s[:half], shipped)
    return Observed(
        era=era,
        windows=len(windows),
        before=shipped,
        after=_fitted(terms, pass_s, shipped) | {"spread": robust_spread(log_ratio(early))},
        error_before=_percent(log_ratio(shipped)),
        error_after=_percent(log_ratio(early)),
    )


def _fitted(terms: np.ndarray, pass_s: np.ndarray, shipped: Mapping[str, float]) -> dict[str, float]:
    """Constants of a server; those that passes do not show stay as they ship."""
    windows = [
        SumObservation(gpu="", alike=f"window {number}", measured=each_s, terms=row)
        for number, (each_s, row) in enumerate(zip(pass_s.tolist(), terms, strict=True))
    ]
    places = np.hstack([np.eye(len(NAMES)), np.ones((len(NAMES), 1))])
    # A server may be as far from others of its era, whatever runs, as eras are from one another.
    server = {"server": (1.0, shipped_constants(COMMON)["spread"])}
    found = fit_sums(windows, priors_around({name: shipped[name] for name in NAMES}) | server, places).values
    return dict(shipped) | {name: found[name] * found["server"] for name in NAMES}


def _percent(log_ratio: np.ndarray) -> float:
    return float(100 * np.abs(np.expm1(log_ratio)).mean())


def pass_terms(deployment: Deployment, windows: ServerWindows) -> np.ndarray:
    """What each of ``NAMES`` is multiplied with in the time of a pass on average, shape (n, constants).

    Prompts run in some of the passes, each in as many as its tokens fill, with those that generate or, where the engine
    keeps them apart, without.
    """
    apart = deployment.server.scheduler.prompts_apart
    room = np.maximum(deployment.max_num_batched_tokens - (0 if apart else windows.decodes), 1)
    chunks = np.maximum(np.ceil(windows.prompt_tokens / room), 1)
    generating = {"decodes": np.maximum(windows.decodes, 1), "decode_cached": windows.decode_cached}
    terms = _terms(deployment, Steps.of(**generating))
    if not windows.prompts.any():
        return terms
    share = np.minimum(windows.prompts * chunks, 1.0)[:, None]
    prompts = {
        "prompts": np.maximum(windows.prompts * chunks, 1.0),
        "prompt_tokens": np.maximum(windows.prompt_tokens / chunks, 1),
    }
    with_prompts = _terms(deployment, Steps.of(**prompts, **({} if apart else generating)))
    return np.asarray((terms if apart else (1 - share) * terms) + share * with_prompts)


def _terms(deployment: Deployment, rounds: Steps) -> np.ndarray:
    return terms_of(deployment, rounds, deployment.interpolate(rounds))
