"""What faults cost long runs, against the formulas of Young and Daly, against chance played out, and as published."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from neusight.distributed.faults import Faults, WholeRun
from neusight.errors import ModelError

DAY_S = 86400.0


def test_checkpoints_come_as_young_has_them() -> None:
    """Young 1974, equation 4: sqrt(2 C M)."""
    faults = Faults(gpu_mtbf_h=1000.0, checkpoint_s=50.0)
    assert faults.mtbf_s(100) == 36000.0
    assert faults.interval_s(100) == sqrt(2 * 50.0 * 36000.0)
    losses = {w: 50.0 / w + w / 2 / 36000.0 for w in (0.9 * faults.interval_s(100), faults.interval_s(100), 2100.0)}
    assert min(losses, key=lambda w: losses[w]) == faults.interval_s(100)


@pytest.mark.parametrize(("devices", "checkpoint_s", "restart_s"), [(64, 20.0, 300.0), (1024, 60.0, 600.0)])
def test_the_useful_share_is_that_of_runs_played_out(devices: int, checkpoint_s: float, restart_s: float) -> None:
    """Pieces of work and checkpoint that begin again after each fault, as restarts do that a fault hits."""
    faults = Faults(gpu_mtbf_h=5000.0, checkpoint_s=checkpoint_s, restart_s=restart_s)
    random, mtbf_s, work_s = np.random.default_rng(3), faults.mtbf_s(devices), faults.interval_s(devices)

    def passes(length_s: float, behind_s: float) -> float:
        lost_s = 0.0
        while (fault_s := random.exponential(mtbf_s)) < length_s:
            lost_s += fault_s + (passes(behind_s, behind_s) if behind_s else 0.0)
        return lost_s + length_s

    total_s = sum(passes(work_s + checkpoint_s, restart_s) for _ in range(20000))
    assert faults.useful(devices) == pytest.approx(20000 * work_s / total_s, rel=0.01)


def test_without_faults_checkpoints_alone_cost() -> None:
    rare = Faults(gpu_mtbf_h=1e12, checkpoint_s=10.0)
    assert rare.useful(8) == pytest.approx(1.0, abs=1e-3)
    assert WholeRun(tokens=1e12).stretch(8) == 1.0
    assert WholeRun(tokens=1e12, faults=rare).stretch(8) == pytest.approx(1.0, abs=1e-3)
    shares = [Faults().useful(devices) for devices in (8, 512, 16384)]
    assert shares == sorted(shares, reverse=True)


def test_faults_come_as_often_as_published() -> None:
    """Grattafiori et al. 2024, section 3.3.4: 419 in 54 days, and more than 90 % of the time useful, of 16,384 GPUs
    whose checkpoints hold a run up for seconds.
    """
    faults = Faults(checkpoint_s=5.0, restart_s=300.0)
    assert 54 * DAY_S / faults.mtbf_s(16384) == pytest.approx(419)
    assert 0.90 < faults.useful(16384) < 0.97


@pytest.mark.parametrize("wrong", [{"gpu_mtbf_h": 0.0}, {"checkpoint_s": 0.0}, {"restart_s": -1.0}])
def test_times_below_zero_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ModelError, match="give hours and seconds above 0"):
        Faults(**wrong)
