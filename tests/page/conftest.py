"""One server and one headless Chromium for all tests of the page; every request of the browser is looked at."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import urlopen

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_MS = 120_000
"""How long a state is waited for, on a machine that is busy with other tests."""
LOCAL = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of a page that runs as a command."""
    pytest.importorskip("nicegui", reason="the page needs the extra 'page'")
    port = free_port()
    command = [sys.executable, "-m", "neusight", "page", "--no-show", "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    while True:
        try:
            urlopen(url).close()
            break
        except OSError:
            assert server.poll() is None, server.stderr and server.stderr.read().decode()
            time.sleep(0.1)
    yield url
    server.terminate()
    server.wait()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="the browser needs playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def serious(page: Any) -> list[str]:
    """What axe-core finds that keeps people out, with the first element that has it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    # Colours in between, while something fades, have no contrast of their own.
    page.wait_for_function("document.getAnimations().every((one) => one.playState !== 'running')")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """Opens a path of the page; what it asks of other machines, and errors of its scripts, fail the test."""
    contexts, outside, errors = [], [], []

    def open_(path: str = "/", width: int = 1200, dark: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: outside.append(request.url) if not request.url.startswith(LOCAL) else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}{path}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert outside == []
    assert errors == []
