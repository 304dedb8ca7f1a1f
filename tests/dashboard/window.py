"""The page in a real browser, with checks for side effects such as dialogs and requests to other hosts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboard.visitor import code_of
from tests.e2e.harness import Daemon
from tests.e2e.web import http_endpoint

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.example 127.0.0.1",
]
BOUND = 90_000
"""Milliseconds: for the hopeless, not for the slow."""


def launched() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    api = pytest.importorskip("playwright.sync_api")
    api.expect.set_options(timeout=BOUND)
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=2 * BOUND)
        yield browser
        browser.close()


class Window:
    """A browser window that records console messages, dialogs and requests."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.complaints: list[str] = []
        """Of the console: violations of the policy and errors in scripts are among them."""
        self.dialogs: list[str] = []
        self.elsewhere: list[str] = []
        """Requests to anybody else."""
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", self._look)
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.blockedURI))"
        )

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _dismiss(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _look(self, request: Request) -> None:
        if not request.url.removeprefix("blob:").startswith(f"{self.base}/"):
            self.elsewhere.append(request.url)

    def assert_nothing_else_happened(self) -> None:
        besides = self.complaints + self.dialogs + self.elsewhere
        assert not besides, besides
        assert self.page.evaluate("window.pwned") is None


def wait_for_js(locator: Locator, condition: str) -> None:
    """Wait until a JavaScript condition holds for `element`, the element of `locator`."""
    script = f"(element) => {condition}"
    locator.page.wait_for_function(script, arg=locator.element_handle())


def wait_in_page(page: Page, is_so: Callable[[], bool]) -> None:
    """Wait until a condition of the test's callbacks holds, and let them run meanwhile."""
    deadline = time.monotonic() + BOUND / 1000
    while not is_so():
        assert time.monotonic() < deadline
        page.wait_for_timeout(10)


@contextmanager
def window(
    chromium: Browser,
    daemon: Daemon,
    *,
    width: int = 1200,
    before: Callable[[Page], None] | None = None,
    **options: Any,
) -> Iterator[Window]:
    """Open the page as `mcpctl ui` does. `before` prepares the browser's page first."""
    where = http_endpoint(daemon)
    context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(BOUND)
    try:
        page = context.new_page()
        opened = Window(page, where.base)
        if before is not None:
            before(page)
        page.goto(f"{where.base}/#{code_of(daemon)}")
        page.wait_for_selector("#line[data-state=ok]")
        yield opened
    finally:
        context.close()
