"""Long runs on many GPUs: how often they fail, how often to write checkpoints, and what share of the time is useful."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt

from neusight.errors import ModelError

GPU_MTBF_H = 54 * 24 * 16384 / 419
"""Between interruptions of one GPU with its share of a cluster: 419 unexpected ones of 16,384 in 54 days (Grattafiori
et al. 2024, arXiv 2407.21783, section 3.3.4)."""
HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What interrupts a run: each GPU once in ``gpu_mtbf_h`` hours, whatever the others do. ``checkpoint_s`` is what
    writing a checkpoint holds the run up [s], ``restart_s`` what passes from a fault to the first step after it [s].

    Raises:
        ModelError: hours or seconds of a checkpoint that are not above 0, or a restart below 0.
    """

    gpu_mtbf_h: float = GPU_MTBF_H
    checkpoint_s: float = 60.0
    restart_s: float = 600.0

    def __post_init__(self) -> None:
        if not (self.gpu_mtbf_h > 0.0 and self.checkpoint_s > 0.0 and self.restart_s >= 0.0):
            raise ModelError(
                f"faults of a GPU every {self.gpu_mtbf_h:g} h, checkpoints of {self.checkpoint_s:g} s and restarts of "
                f"{self.restart_s:g} s: give hours and seconds above 0"
            )

    def mtbf_s(self, devices: int) -> float:
        """Between faults of any of so many GPUs [s]."""
        return self.gpu_mtbf_h * HOUR_S / devices

    def interval_s(self, devices: int) -> float:
        r"""Work between checkpoints [s] that loses least.

        .. math:: W = \sqrt{2 C M}

        Args:
            devices: which fail every M seconds together; a checkpoint takes C seconds.

        Source: Young 1974, A first order approximation to the optimum checkpoint interval, equation 4. Validity: C well
        below M.
        """
        return sqrt(2.0 * self.checkpoint_s * self.mtbf_s(devices))

    def useful(self, devices: int) -> float:
        r"""Share of a run's time in which it gets on, with checkpoints every ``interval_s``.

        .. math:: \frac{W}{M e^{R / M} \left(e^{(W + C) / M} - 1\right)}

        Args:
            devices: which fail every M seconds together.

        Source: Daly 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, equation 20; R
        is ``restart_s``. Validity: faults that come independently at a constant rate, also during restarts.
        """
        mtbf, work = self.mtbf_s(devices), self.interval_s(devices)
        return work / (mtbf * exp(self.restart_s / mtbf) * expm1((work + self.checkpoint_s) / mtbf))


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """A run over so many ``tokens``, undisturbed where ``faults`` is None; ``within_days`` it is to end."""

    tokens: float
    faults: Faults | None = None
    within_days: float | None = None

    def stretch(self, devices: int) -> float:
        """Its time over that of an undisturbed one."""
        return 1.0 if self.faults is None else 1.0 / self.faults.useful(devices)
