"""``make bench``: how fast the page is, in a headless Chromium: start, first answer, redraws while one drags, tabs."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from playwright.sync_api import sync_playwright

_MODELS = ("gpt2-large", "bert-large", "opt-1.3b", "llama-2-7b", "resnet-50")
"""Ready ones that one drags."""
_REDRAWS, _QUESTIONS, _TABS = 40, 1000, 20
_STEPS = (3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
"""Batches that one drags over, warm."""
_SETTLED_MS = 3000
"""In which the page computes ahead what one may drag to."""
_PATIENCE_MS = 60_000
_ASKED = "text => document.querySelector('.answer')?.dataset.latency !== text"
_DRAG = """async ([count, steps]) => {
  const times = [];
  for (let step = 0; step < count; step++) {
    const drawn = new Promise((done) => {
      const draw = neusight.draw;
      neusight.draw = (charts) => {
        draw(charts);
        neusight.draw = draw;
        requestAnimationFrame(() => setTimeout(done));
      };
      setTimeout(done, 5000);
    });
    const started = performance.now();
    emitEvent('dragged', [steps[step % steps.length], 1]);
    await drawn;
    times.push(performance.now() - started);
    await new Promise((next) => setTimeout(next, 30));
  }
  return times;
}"""
"""Each redraw from the moment that a browser sends where one is, until answer and charts are on the screen: the frame
after all charts are drawn has been painted [ms]."""


def measure() -> Iterator[dict[str, Any]]:
    """Measure the page on this machine, one row after the other."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with served() as (url, server, start_s), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield {
            "name": "page: from the command to its first file",
            "value": start_s,
            "unit": "s",
            "limit": 2.0,
        }
        first_s = _first_answer_s(browser, url)
        yield {"name": "page: first answer in a browser", "value": first_s, "unit": "s", "limit": 1.0}
        redraws = [time_ms for model in _MODELS for time_ms in _redraws_ms(browser, url, model)]
        slow_ms = float(np.percentile(redraws, 95))
        yield {"name": "page: redraw while dragging, 95th percentile", "value": slow_ms, "unit": "ms", "limit": 50.0}
        lost = _ask_together(browser, url)
        what = f"{_QUESTIONS:,} questions of {_TABS} tabs"
        yield {"name": f"page: answers that were lost of {what}", "value": lost, "unit": "answers", "limit": 0}
        yield {"name": f"page: memory after {what}", "value": _resident_mb(server.pid), "unit": "MB", "limit": 500.0}
        browser.close()


@contextmanager
def served() -> Iterator[tuple[str, subprocess.Popen[bytes], float]]:
    """A page as a command, its address, and the time until it answers [s]."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "neusight", "page", "--no-show", "--port", str(port)]
    url, started = f"http://127.0.0.1:{port}", time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                try:
                    urlopen(f"{url}/files/time.csv?gpu=l4", timeout=30).close()
                    break
                except (URLError, ConnectionError):
                    time.sleep(0.02)
            yield url, server, time.perf_counter() - started
        finally:
            server.terminate()


def _first_answer_s(browser: Any, url: str) -> float:
    """From the navigation to the answer, of a question that nobody asked before."""
    page = browser.new_page()
    started = time.perf_counter()
    page.goto(f"{url}/?model=gpt2-large&gpu=h100&mode=training&batch=7")
    page.locator(".answer").wait_for()
    first_s = time.perf_counter() - started
    page.close()
    return first_s


def _redraws_ms(browser: Any, url: str, model: str) -> list[float]:
    """While one drags the batch of a ready model whose view is there."""
    page = browser.new_page()
    page.goto(f"{url}/drag?model={model}&gpu=h100&mode=training&batch=2")
    page.locator(".plot canvas").first.wait_for(timeout=_PATIENCE_MS)
    page.wait_for_timeout(_SETTLED_MS)
    page.evaluate(_DRAG, [len(_STEPS), _STEPS])
    times: list[float] = page.evaluate(_DRAG, [_REDRAWS, _STEPS])
    page.close()
    return times


def _ask_together(browser: Any, url: str) -> int:
    """Every tab types its questions, each in its turn; how many were not answered."""
    tabs = [browser.new_page() for _ in range(_TABS)]
    for number, tab in enumerate(tabs):
        tab.goto(f"{url}/?model={_MODELS[number % len(_MODELS)]}&gpu=h100&batch={number + 2}")
        tab.locator(".answer").wait_for(timeout=_PATIENCE_MS)
    lost = 0
    for turn in range(_QUESTIONS // _TABS):
        before = [tab.locator(".answer").get_attribute("data-latency") for tab in tabs]
        for number, tab in enumerate(tabs):
            tab.locator(".field-batch input").fill(str(100 + turn * _TABS + number))
        for tab, text in zip(tabs, before, strict=True):
            lost += not _changed(tab, text)
    for tab in tabs:
        tab.close()
    return lost


def _changed(tab: Any, before: str) -> bool:
    try:
        tab.wait_for_function(_ASKED, arg=before, timeout=_PATIENCE_MS)
    except Exception:  # The driver has no public name for its errors here.
        return False
    return True


def _resident_mb(pid: int) -> float:
    """What a process holds in memory now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    for row in measure():
        print(f"{row['name']}: {row['value']:.4g} {row['unit']} (limit: {row['limit']:g})")
