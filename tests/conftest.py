"""One cache of traces and one predictor for the whole run: what one test traced, the next reads; nobody's own cache
is touched.
"""

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache

import pytest
import typer
from hypothesis import settings

from neusight import Predictor

# Traces and models last for the whole run: they are searched for cycles less often.
gc.set_threshold(20_000, 10, 10)
# How fast the machine is at a moment is measured by `neusight bench`, not by tests.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


@pytest.fixture(scope="session", autouse=True)
def trace_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("NEUSIGHT_CACHE")
    os.environ["NEUSIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["NEUSIGHT_CACHE"]
    else:
        os.environ["NEUSIGHT_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def heeded_interrupts() -> None:
    """Shells start what runs in the background with Ctrl-C ignored, and so would the processes that tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def commands() -> Iterator[None]:
    """Build the commands of a command line once, and not for each line that a test runs in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("typer.testing._get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def predictor() -> Predictor:
    """With the tile models that ship; it remembers the steps that it has been asked for."""
    return Predictor.load()
