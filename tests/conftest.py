"""One cache of traces for the whole run: what one test traced, the next reads; nobody's own cache is touched."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def trace_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("NEUSIGHT_CACHE")
    os.environ["NEUSIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["NEUSIGHT_CACHE"]
    else:
        os.environ["NEUSIGHT_CACHE"] = before
