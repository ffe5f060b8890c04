"""Wrong command lines, drawn from what each command declares: one line each, and the right exit code."""

import os
import time
from itertools import cycle, islice
from pathlib import Path
from random import Random

import pytest
from random_lines import COMMANDS, ENDLESS, Lines
from random_lines import faults as random_faults
from typer.testing import CliRunner, Result
from wrong_inputs import Mistakes

from neusight.cli.app import app

COUNT = 150
LONGEST_S = 20.0
WIDEST = 420


def faults(result: Result, seconds: float) -> list[str]:
    """What is wrong with how a wrong command ended."""
    lines = result.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    message = [line for line in lines if not line.startswith(("note: ", "warning: "))]
    answer = {
        f"raised {result.exception!r:.300}": result.exception and not isinstance(result.exception, SystemExit),
        f"exit code {result.exit_code}": result.exit_code not in (1, 2),
        f"says {message[:4]}": len(errors) != 1 or message != errors,
        "a traceback": "Traceback" in result.output,
        f"a line of {max(map(len, lines), default=0)}": any(len(line) > WIDEST for line in lines),
        f"{seconds:.0f} s": seconds > LONGEST_S,
    }
    return [fault for fault, there in answer.items() if there]


def test_every_mistake_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CALIBRATIONS", str(tmp_path / "calibrations"))
    mistakes, lines = Mistakes(Random(0), tmp_path), Lines(Random(0))
    answer = []
    for name in islice(cycle(sorted(COMMANDS.keys() - ENDLESS)), COUNT):
        line = lines.wrong_line(name, mistakes)
        started = time.process_time()
        result = CliRunner().invoke(app, line)
        if wrong := faults(result, time.process_time() - started):
            answer.append(f"{' '.join(line)[:300]}: {'; '.join(wrong)}")
    assert not answer, "\n" + "\n".join(answer)


def test_no_random_command_line_ends_in_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options in any combination; NEUSIGHT_RANDOM_LINES of them, 1,000 before a release."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CALIBRATIONS", str(tmp_path / "calibrations"))
    assert list(random_faults(int(os.environ.get("NEUSIGHT_RANDOM_LINES", "60")), seed=3)) == []
