"""``make pictures``: the page's pictures of README, in a headless Chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from measure_page import served

PICTURES = {
    "ask": "/?model=llama-2-7b&gpu=h100,mi300x,4090&dtype=bf16&seq_len=512",
    "drag": "/drag?model=gpt2-large&gpu=h100,4090&mode=training&batch=8",
    "look": "/look?model=gpt2-large&gpu=h100&mode=training&batch=4&optimizer=adamw",
    "decide": "/decide?model=gpt2-large&gpu=h100,mi300x&mode=training&batch=4&optimizer=adamw",
    "serving": "/decide?model=llama-3.1-8b&gpu=h100,4090,l4&mode=serving",
    "trust": "/trust",
}
WIDTH, HEIGHT = 1100, 900


def draw(folder: Path) -> None:
    """Each view as it opens, two of them in the dark."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with served() as (url, _, _), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path in PICTURES.items():
            scheme = "dark" if name in ("serving", "trust") else "light"
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page.goto(f"{url}{path}")
            page.locator(".plot canvas").first.wait_for()
            page.wait_for_timeout(1500)
            file = folder / f"{name}.png"
            page.screenshot(path=file)
            Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)
            page.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
