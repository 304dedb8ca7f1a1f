"""Accessibility of the page: keyboard use, light and dark colors, phones and screen readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.dashboard.test_form import RICH
from tests.dashboard.window import Window, window
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon, fake
from tests.e2e.web import PORT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DEAD = {"command": "sh", "args": ["-c", "echo 'ECONNREFUSED 10.0.3.17' >&2; exit 3"]}
FIRST = {"clients": "#clients tbody tr", "calls": "#calls table", "events": "#all-events li"}
"""The element that appears first on each page except the page of servers."""
TABS = ("tools", "resources", "prompts", "log", "events", "messages", "evidence")


LOOKS = (Path(__file__).parent / "looks.js").read_text()


def measure(page: Page, what: str) -> Any:
    return page.evaluate(f"({LOOKS}).{what}")


@pytest.fixture
def daemon(start: Start) -> Daemon:
    """Run one server in each state that has its own style."""
    off, lazy = fake(disabled=True), fake(lazy=True)
    wait = fake("--never-init", connectTimeout=600_000)  # a failed server would move up in the list
    running = start({"rich": RICH, "dead": DEAD, "off": off, "lazy": lazy, "wait": wait}, *PORT)
    running.wait_connected("rich")
    running.wait_status("dead", lambda status: status["status"] == "failed")
    return running


def open_a_form(opened: Window) -> None:
    """Open a form with validation errors, a result and a schema."""
    page = opened.page
    page.click("summary:has(bdi:text-is('order'))")
    form = page.locator("details[data-tool=order]")
    form.get_by_role("button", name="Add to parts").click()
    form.get_by_role("button", name="Call", exact=True).click()
    form.locator(".wrong:not([hidden])").first.wait_for()
    form.locator("summary >> text=Schema").click()
    page.click("summary:has(bdi:text-is('fails'))")
    page.locator("details[data-tool=fails]").get_by_role("button", name="Call").click()
    page.wait_for_selector("details[data-tool=fails] .result:not([hidden])")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_element_has_enough_contrast(chromium: Browser, daemon: Daemon, scheme: str) -> None:
    """WCAG AA: a contrast of 4.5 for text (1.4.3), and of 3 for the outlines of controls (1.4.11)."""
    # Without transitions, because colors change during them.
    with window(chromium, daemon, color_scheme=scheme, reduced_motion="reduce") as opened:
        page = opened.page
        page.wait_for_selector("#servers li[data-state=pending]")
        page.click("#servers li:has-text('rich') .pick")
        open_a_form(opened)
        looked = 0
        for server in ("rich", "dead", "off"):
            page.click(f"#servers li:has-text('{server}') .pick")
            for tab in TABS:
                page.click(f"#tab-{tab}")
                page.wait_for_selector("#panel-evidence dl" if tab == "evidence" else f"#panel-{tab}")
                seen, poor = measure(page, "contrasts()")
                assert poor == [], (server, tab)
                looked += seen
        for name in ("clients", "calls", "events"):
            page.click(f"#page-{name}")
            page.wait_for_selector(FIRST[name])
            assert measure(page, "contrasts()")[1] == [], name
        assert looked > 300
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        assert measure(page, "contrasts()")[1] == []


def test_page_fits_a_phone_and_shows_one_view_at_a_time(chromium: Browser, daemon: Daemon) -> None:
    """Nothing is cut off, touch targets are large enough, and the back button leads to the list."""
    with window(chromium, daemon, width=390, is_mobile=True, has_touch=True) as opened:
        page = opened.page
        page.wait_for_selector("#servers li[data-state=pending]")
        expect(page.locator("#detail")).to_be_hidden()
        assert measure(page, "small(32)") == []
        page.locator("#servers li:has-text('dead') .pick").tap()
        page.wait_for_selector("#head pre >> text=ECONNREFUSED")
        expect(page.locator("#list")).to_be_hidden()
        expect(page.locator("#detail")).to_be_focused()
        page.go_back()
        page.wait_for_selector("#servers li:has-text('rich')")
        page.locator("#servers li:has-text('rich') .pick").tap()
        open_a_form(opened)
        for tab in TABS:
            page.locator(f"#tab-{tab}").tap()
            page.wait_for_function(
                "document.documentElement.scrollWidth === 390 "
                "&& document.getElementById('detail').scrollWidth === 390"
            )
            assert measure(page, "unnamed()") == []
            assert measure(page, "small(24)") == []
        for name in ("clients", "calls", "events"):
            page.evaluate(f"location.hash = '#//{name}'")
            page.wait_for_selector(FIRST[name])
            page.wait_for_function("document.documentElement.scrollWidth === 390")
            assert measure(page, "unnamed()") == []
        page.evaluate("location.hash = '#/rich/tools'")
        page.get_by_role("button", name="← Servers").tap()
        page.wait_for_selector("#list")
        expect(page.locator(":focus")).to_contain_text("rich")
        opened.assert_nothing_else_happened()
