"""One cache of traces and one predictor for the whole run: what one test traced, the next reads; nobody's own cache
is touched.
"""

import os
from collections.abc import Iterator

import pytest

from neusight import Predictor


@pytest.fixture(scope="session", autouse=True)
def trace_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("NEUSIGHT_CACHE")
    os.environ["NEUSIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["NEUSIGHT_CACHE"]
    else:
        os.environ["NEUSIGHT_CACHE"] = before


@pytest.fixture(scope="session")
def predictor() -> Predictor:
    """With the tile models that ship; it remembers the steps that it has been asked for."""
    return Predictor.load()
