"""Logging in to a server from the page: its link, its progress and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.dashboard.window import window
from tests.e2e.conftest import Start
from tests.e2e.login_people import open_page, remote, visit
from tests.e2e.web import PORT

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_person_logs_in_from_the_page(chromium: Browser, start: Start) -> None:
    """The page shows the link, opens nothing by itself, and notices the end of the login."""
    with remote(start, *PORT) as (server, daemon), window(chromium, daemon) as opened:
        page = opened.page
        page.click("#log-in")
        link = page.locator("#login-link")
        expect(link).to_have_text(f"Continue to {server.origin}")
        expect(page.locator("#log-in")).to_be_disabled()
        assert len(page.context.pages) == 1
        assert server.asked("/authorize") == []
        open_page(visit(str(link.get_attribute("href"))))
        expect(page.locator("#said")).to_have_text("remote: logged in")
        expect(page.locator("#head .state").first).to_have_text("connected")
        expect(page.locator("#login")).to_have_count(0)
        expect(page.locator("#log-in")).to_have_count(0)
        opened.assert_nothing_else_happened()


def test_a_login_is_cancelled_or_fails_and_the_page_says_why(chromium: Browser, start: Start) -> None:
    """Text of the authorization server is shown as text."""
    with remote(start, *PORT) as (server, daemon), window(chromium, daemon) as opened:
        page = opened.page
        page.click("#log-in")
        page.click("#cancel-login")
        trouble = page.locator("#head .trouble.panel").first
        expect(trouble).to_contain_text("it was cancelled")
        server.answers["/register"] = (
            400,
            b'{"error":"access_denied","error_description":"<img src=x onerror=alert(1)>"}',
        )
        page.click("#log-in")
        expect(trouble).to_contain_text("<img src=x onerror=alert(1)>")
        opened.assert_nothing_else_happened()
