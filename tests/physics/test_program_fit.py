"""Convolutions in TF32 from timings of whole programs."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from neusight.laws.constants import values, with_values
from neusight.laws.physics import PRIOR
from neusight.learn.physics.problem import Problem
from neusight.learn.physics.programs import ProgramPart, program_parts

TRUTH = {"implicit.share": 0.5}
ROW = {"mode": "inference", "launch": None, "dtype": None, "suspect": None, "latency_ms": 2.0}
GPUS = ("a100-sxm-80gb", "l40s", "t4")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs, one of which has a convolution."""
    folder = tmp_path_factory.mktemp("measured")
    for name in ("kernels", "programs"):
        (folder / name).mkdir()
    modules = {"conv": nn.Sequential(nn.Conv2d(32, 64, 5, bias=False), nn.ReLU()), "plain": nn.ReLU()}
    for name, module in modules.items():
        program = torch.export.export(module, (torch.zeros(64, 32, 128, 128),))
        torch.export.save(program, folder / "programs" / f"{name}.pt2")
    return folder


def parts_of(
    data: Path, *rows: dict[str, Any], hold_out: tuple[str, ...] = ()
) -> tuple[list[ProgramPart], Counter[str]]:
    skipped: Counter[str] = Counter()
    pd.DataFrame([ROW | row for row in rows]).to_parquet(data / "programs" / "timings.parquet")
    return program_parts(data, hold_out, skipped), skipped


def every(**changes: Any) -> list[dict[str, Any]]:
    return [{"gpu": gpu, "model": f"{name}.pt2", **changes} for gpu in GPUS for name in ("conv", "plain", "none")]


def test_programs_with_convolutions_count_on_devices_with_tf32(data: Path) -> None:
    parts, skipped = parts_of(data, *every())
    assert [(part.device.id, len(part)) for part in parts] == [("a100-sxm-80gb", 1), ("l40s", 1)]
    assert not skipped
    assert parts[0].batch["op"][0] == "forward"
    assert [part.device.id for part in parts_of(data, *every(), hold_out=("l40s",))[0]] == ["a100-sxm-80gb"]


def test_timings_that_tell_nothing_are_counted(data: Path) -> None:
    rows = [
        row | change
        for change in ({"latency_ms": 0.5}, {"suspect": "it varies"}, {"launch": "graph"})
        for row in every()
    ]
    parts, skipped = parts_of(data, *rows)
    assert parts == []
    assert sorted(skipped.values()) == [9, 9]
    assert program_parts(data / "nowhere", (), skipped) == []


def test_a_program_takes_as_long_as_its_kernels_and_its_hosts_agree_by_the_middle(data: Path) -> None:
    (part,), _ = parts_of(data, *({"gpu": "l40s", "model": "conv.pt2", "latency_ms": ms} for ms in (2.0, 3.0, 9.0)))
    assert part.measured == pytest.approx([3e-3])
    total_s, tilings = part.timed(PRIOR)
    assert [kernels.batch.family for kernels in part.kernels] == ["conv2d", "elementwise"]
    again_s, _ = part.timed(PRIOR, tilings)
    assert total_s == pytest.approx(again_s) and total_s > 0


def test_programs_move_the_constants_of_convolutions_alone(data: Path) -> None:
    truth = with_values(PRIOR, TRUTH)
    first, _ = parts_of(data, *every())
    seconds = {part.device.id: part.timed(truth)[0][0] for part in first}
    rows = [{"gpu": gpu, "model": "conv.pt2", "latency_ms": 1e3 * s} for gpu, s in seconds.items()]
    parts, _ = parts_of(data, *rows)
    problem = Problem(parts, PRIOR)
    found, before = values(problem.at(problem.fit(8).place)), values(PRIOR)
    moved = {name for name in before if found[name] != pytest.approx(before[name], rel=1e-9)}
    assert moved and {name.partition(".")[0] for name in moved} == {"implicit"}
    error = [abs(np.log(known["implicit.share"] / 0.5)) for known in (found, before)]
    assert error[0] < 0.5 * error[1]
