"""Five tasks of somebody new, each within five clicks from the start; what is typed into a field is a click into it."""

from typing import Any

from tests.page.conftest import Opened

MOST = 5


class Hand:
    """What somebody does on the page, counted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.clicks = 0

    def click(self, locator: Any) -> None:
        self.clicks += 1
        locator.first.click()

    def fill(self, label: str, text: str) -> None:
        self.clicks += 1
        self.page.locator(f".field-{label} input").first.fill(text)

    def press(self, button: str) -> None:
        self.click(self.page.get_by_role("button", name=button, exact=True))

    def view(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True))
        self.page.wait_for_url(f"**/{name.lower()}*")


def test_does_my_model_fit_a_4090(opened: Opened) -> None:
    hand = Hand(opened())
    hand.fill("model", "llama-2-13b")
    hand.fill("gpu", "4090")
    hand.page.locator(".facts").filter(has_text="does not fit").wait_for()
    assert hand.clicks == 2


def test_cheapest_gpus_for_100_requests_a_second_under_200_ms(opened: Opened) -> None:
    hand = Hand(opened())
    hand.fill("model", "llama-3.1-8b")
    hand.page.wait_for_url("**llama-3.1-8b*")
    hand.press("serving")
    hand.page.locator(".answer").filter(has_text="an answer takes").wait_for()
    hand.view("Decide")
    hand.fill("request_rate", "100")
    hand.page.wait_for_url("**request_rate=100*")
    hand.fill("slo", "ttft=200ms")
    hand.page.locator(".answer").filter(has_text="holds the level for 100 requests/s").wait_for()
    assert hand.clicks <= MOST


def test_what_makes_my_step_slow(opened: Opened) -> None:
    hand = Hand(opened())
    hand.press("training")
    hand.page.wait_for_url("**training*")
    hand.view("Look")
    hand.page.locator(".answer").filter(has_text="mostly limited by").wait_for()
    assert hand.clicks <= MOST


def test_what_would_compile_and_bf16_bring(opened: Opened) -> None:
    hand = Hand(opened())
    hand.page.locator(".answer").wait_for()
    hand.view("Decide")
    hand.click(hand.page.get_by_text("bf16", exact=True))
    hand.page.wait_for_url("**apply=bf16*")
    hand.click(hand.page.get_by_text("compile", exact=True))
    hand.page.locator(".answer").filter(has_text="bf16, compile: together").wait_for()
    assert hand.clicks <= MOST


def test_h100_or_mi300x_for_this(opened: Opened) -> None:
    hand = Hand(opened())
    hand.fill("gpu", "h100,mi300x")
    hand.page.wait_for_url("**mi300x*")
    hand.view("Decide")
    hand.page.locator(".answer").filter(has_text="mi300x is").wait_for()
    assert hand.clicks <= MOST
